"""Reading many rows of the store at once."""

from __future__ import annotations

import sqlite3
from uuid import uuid4

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, assume, given, settings

from icefloe.inline import many_rows
from icefloe.inline.bookkeeping import next_stamp
from icefloe.inline.decode import decode_rows
from icefloe.inline.encode import encode_rows
from icefloe.inline.layout import InlineTable, inline_columns
from icefloe.inline.many_rows import read_rows
from icefloe.inline.rows import insert_rows, remove_versions, select_rows, select_versions
from icefloe.inline.store import InlineStore, StoreConnection
from icefloe.inline.tables import register_table
from support.inline_schemas import plain_rows, tables
from support.inline_store import NAME, SCHEMA, insert

MANY = 6_000
VALUES = [b"", None, b"\0", b"\xff\xfe", b"a,b\nc", "é雪".encode(), b"'; --"]


def check_read(connection: StoreConnection, table: InlineTable) -> None:
    """All rows are what `select_rows` returns."""
    read = read_rows(connection, table, table.columns, sa.true())
    expected = select_rows(connection, table, table.columns)
    assert read.versions == expected.versions
    assert {name: list_of(values) for name, values in read.values.items()} == expected.values


def list_of(values: object) -> object:
    return values.to_pylist() if isinstance(values, pa.Array) else values


def insert_values(store: InlineStore, table: InlineTable, count: int) -> None:
    numbers = [None if n % 7 == 3 else (-1) ** n * (2**63 - 1 - n) for n in range(count)]
    names = [VALUES[n % len(VALUES)] for n in range(count)]
    with store.writing() as connection:
        stamp = next_stamp(connection)
        insert_rows(connection, table, table.columns, [numbers, names], stamp)


@pytest.mark.parametrize("count", [1, 4_999, MANY, 50_000, 120_001])
def test_all_rows_are_read(store, table, count):
    insert_values(store, table, count)
    with store.reading() as connection:
        check_read(connection, table)


def test_rows_are_read_in_spite_of_removed_ones(store, table):
    insert_values(store, table, 110_000)
    with store.writing(lock=table) as connection:
        versions = select_versions(connection, table)
        remove_versions(connection, table, [*versions[:3], *versions[40_000:90_000], versions[-1]])
        check_read(connection, table)
        remove_versions(connection, table, versions)
        check_read(connection, table)


@pytest.mark.parametrize(
    ("most", "fewest_parts", "most_parts"), [(10**9, 1, 1), (30_000, 4, 8), (1_000, 60, 600)]
)
def test_the_bytes_of_a_part_are_limited_as_databases_limit_a_value(
    store, table, most, fewest_parts, most_parts, monkeypatch
):
    insert_values(store, table, MANY)
    with store.writing(lock=table) as connection:
        long = table.rows.update().where(table.rows.c.row_id % 100 == 0)
        connection.execute(long.values(c2_s=b"x" * 1_400))  # of 60 rows, with others about 110,000
    monkeypatch.setattr(many_rows, "_BYTES", most)
    parts = []
    with store.reading() as connection:
        sa.event.listen(
            connection.connection,
            "before_cursor_execute",
            lambda *arguments: parts.append(1) if "coalesce(row_id" in arguments[2] else None,
        )
        check_read(connection, table)
    assert fewest_parts <= len(parts) <= most_parts


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_rows_that_the_database_aggregates_in_another_order(store, table, monkeypatch):
    statement = many_rows._statement
    monkeypatch.setattr(
        many_rows,
        "_statement",
        lambda *arguments: statement(*arguments).replace("ORDER BY row_id", "ORDER BY -row_id"),
    )
    insert_values(store, table, MANY)
    with store.reading() as connection:
        check_read(connection, table)


def test_columns_without_values_and_no_columns(store, table):
    insert(store, table, *range(MANY))
    with store.writing(lock=table) as connection:
        connection.execute(table.rows.update().values(c2_s=None))
        check_read(connection, table)
        some = read_rows(connection, table, (), sa.true())
        assert (len(some), some.values) == (MANY, {})


@settings(
    max_examples=12,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(tables())
def test_every_type_of_many_rows(store, drawn):
    schema, rows = drawn
    assume(len(rows))
    many = pa.concat_tables([rows] * (MANY // len(rows) + 1))
    columns = inline_columns(schema)
    with store.writing() as connection:
        table = register_table(connection, NAME, uuid4().hex, columns)
        stamp = next_stamp(connection)
        insert_rows(connection, table, columns, encode_rows(many, schema), stamp)
    with store.reading() as connection:
        read = read_rows(connection, table, columns, sa.true())
    for part in (read, read.first(MANY // 2)):
        decoded = decode_rows(part.values, schema, len(part))
        assert plain_rows(decoded) == plain_rows(many.slice(0, len(part)))


def test_a_database_with_another_encoding_of_text(tmp_path):
    path = tmp_path / "catalog.db"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA encoding = 'UTF-16'")
        database.execute("CREATE TABLE other (n INTEGER)")
    store = InlineStore.of_uri(f"sqlite:///{path}")
    store.create()
    with store.writing() as connection:
        table = register_table(connection, NAME, uuid4().hex, inline_columns(SCHEMA))
    insert_values(store, table, MANY)
    with store.reading() as connection:
        check_read(connection, table)
    store.close()
