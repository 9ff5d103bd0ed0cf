"""Database indexes of columns by which statements look up inline rows."""

from __future__ import annotations

from contextlib import contextmanager
from unittest.mock import patch

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyiceberg.expressions import And, EqualTo, In, LessThan, Not, Or
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, NestedField, StringType

from icefloe.errors import StorageError
from icefloe.inline import lookups
from icefloe.inline.layout import InlineColumn
from icefloe.inline.lookups import LookupIndexes, lookup_column
from icefloe.inline.rows import select_rows
from icefloe.inline.store import InlineStore
from icefloe.inline.tables import drop_table
from icefloe.inline.where import row_filter
from support.inline_lakes import INLINE, open_place
from support.inline_store import SCHEMA, insert, stored_ids


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    monkeypatch.setattr(lookups, "_MANY_ROWS", 100)


def indexes_of(store, table):
    with store.reading() as connection:
        found = sa.inspect(connection.connection).get_indexes(table.rows.name)
    return [index["name"] for index in found]


@pytest.mark.parametrize(
    ("condition", "column"),
    [
        (EqualTo("id", 5), InlineColumn(1, "i")),
        (In("name", {"a", "b"}), InlineColumn(2, "s")),
        (And(LessThan("id", 9), EqualTo("name", "a")), InlineColumn(2, "s")),
        (Or(EqualTo("id", 5), EqualTo("name", "a")), None),
        (LessThan("id", 5), None),
        (Not(EqualTo("id", 5)), None),
        (EqualTo("tags", 5), None),
        (EqualTo("other", 5), None),
    ],
    ids=str,
)
def test_columns_that_conditions_look_up(condition, column):
    tags = NestedField(3, "tags", ListType(4, LongType()))
    assert lookup_column(condition, Schema(*SCHEMA.fields, tags)) == column


@pytest.mark.requirement("L14")
def test_the_database_uses_the_index(store, table):
    insert(store, table, *range(99))
    indexes, condition = LookupIndexes(), EqualTo("id", 50)
    indexes.add(store, table, condition, SCHEMA)
    assert indexes_of(store, table) == []
    insert(store, table, *range(99, 3000))
    indexes.add(store, table, condition, SCHEMA)
    LookupIndexes().add(store, table, condition, SCHEMA)  # another process
    assert indexes_of(store, table) == [f"{table.rows.name}_c1_i"]
    with store.reading() as connection:
        where = row_filter(condition, SCHEMA, table.rows)
        assert select_rows(connection, table, table.columns, where).values["c1_i"] == [50]
        plan = "EXPLAIN" if connection.is_postgresql else "EXPLAIN QUERY PLAN"
        query = f"{plan} SELECT row_id FROM {table.rows.name} WHERE c1_i = 50"
        explained = str(connection.connection.exec_driver_sql(query).all())
        assert f"{table.rows.name}_c1_i" in explained


def test_long_values_can_still_be_inserted(store, table):
    insert(store, table, *range(200))
    LookupIndexes().add(store, table, EqualTo("name", "a"), SCHEMA)
    assert indexes_of(store, table) == [f"{table.rows.name}_c2_s"]
    with store.writing() as connection:
        rows = table.rows.insert().values(seq=9, at=9, c1_i=1000, c2_s=b"x" * 100_000)
        connection.execute(rows)
    assert stored_ids(store, table)[-1] == 1000


def test_a_database_that_refuses_has_no_index(store, table, monkeypatch):
    insert(store, table, *range(200))

    @contextmanager
    def full(self, lock=None):
        raise StorageError("The database is full.")
        yield

    with monkeypatch.context() as patched:
        patched.setattr(InlineStore, "writing", full)
        LookupIndexes().add(store, table, EqualTo("id", 5), SCHEMA)
    assert indexes_of(store, table) == []


def test_a_dropped_table_gets_none(store, table):
    insert(store, table, *range(200))
    with patch.object(lookups, "row_span", lambda *_: 200):
        with store.writing() as connection:
            drop_table(connection, table)
        LookupIndexes().add(store, table, EqualTo("id", 5), SCHEMA)
    with store.reading() as connection:
        assert not sa.inspect(connection.connection).has_table(table.rows.name)


@pytest.mark.requirement("L17", "L25")
@pytest.mark.parametrize("how", ["update", "delete"])
def test_statements_by_key_index_the_key(place, how):
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    with open_place(place) as lake:
        table = lake.create_table("x.many", schema, properties=INLINE)
        rows = pa.table({"id": range(300), "name": [f"name {n % 7}" for n in range(300)]})
        table.insert(rows)
        statement = table.update().set("name", "'new'") if how == "update" else table.delete()
        statement.where("id = 7").execute()
        tier = lake.tier
        with tier.store.reading() as connection:
            stored = tier.find(connection, table._state())
        assert indexes_of(tier.store, stored) == [f"{stored.rows.name}_c1_i"]
        table.update().set("id", "700").where("id = 8").execute()
        table.delete().where("id IN (9, 10)").execute()
        assert table.count("id = 700") == 1
        assert table.count("id = 8") == 0
        table.insert(rows.slice(0, 5))
        expected = [*range(7), *([7] if how == "update" else []), *range(11, 300), 700, *range(5)]
        assert sorted(table.to_arrow(["id"]).column("id").to_pylist()) == sorted(expected)
        assert table.flush().rows_copied == len(expected)
        assert stored_ids(tier.store, stored) == []
