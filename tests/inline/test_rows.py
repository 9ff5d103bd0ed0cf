"""Rows in the store: ids, versions, conditions, and changes."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, assume, given, settings
from pyiceberg.expressions import EqualTo
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, LongType, NestedField, StringType, TimestampType

from icefloe.errors import TableNotFoundError
from icefloe.inline.bookkeeping import last_number, next_stamp
from icefloe.inline.decode import decode_rows
from icefloe.inline.encode import encode_rows
from icefloe.inline.layout import inline_columns
from icefloe.inline.rows import (
    age_of_oldest,
    count_rows,
    estimate_bytes,
    insert_rows,
    missing_versions,
    remove_and_compare,
    remove_unchanged,
    remove_versions,
    replace_rows,
    row_span,
    select_rows,
    select_versions,
)
from icefloe.inline.tables import add_missing_columns, drop_table, register_table
from icefloe.inline.where import row_filter
from support.inline_schemas import plain_rows, tables
from support.inline_store import NAME, SCHEMA, insert, insert_in, stored_ids


@pytest.mark.requirement("L04")
def test_row_ids_ascend_and_are_never_reused(store, table):
    first, second = insert(store, table, 1, 2, 3), insert(store, table, 4)
    assert (first.last - first.first, first.count) == (2, 3)
    assert second.first == second.last > first.last
    with store.writing(lock=table) as connection:
        everything = select_versions(connection, table)
        assert remove_versions(connection, table, everything) == 4
    assert insert(store, table, 5).first > second.last


@pytest.mark.requirement("L06")
def test_a_batch_is_one_statement(store, table):
    statements = []
    with store.writing() as connection:
        stamp = next_stamp(connection)
        sa.event.listen(
            connection.connection,
            "before_cursor_execute",
            lambda *arguments: statements.append(arguments[2]),
        )
        encoded = [list(range(100)), [b"x"] * 100]
        insert_rows(connection, table, table.columns, encoded, stamp)
    assert len([each for each in statements if "INSERT" in each]) == 1


def test_rows_come_back_in_the_order_of_their_ids(store, table):
    inserted = insert(store, table, *range(25_000))
    with store.reading() as connection:
        rows = select_rows(connection, table, table.columns)
        assert rows.values["c1_i"] == list(range(25_000))
        assert rows.values["c2_s"][17] == b"name 17"
        assert (rows.row_ids[0], rows.row_ids[-1]) == (inserted.first, inserted.last)
        assert len(set(rows.seqs)) == 1
        some = select_rows(connection, table, table.columns[:1], limit=3)
        assert some.values == {"c1_i": [0, 1, 2]}
        assert len(some) == 3


@pytest.mark.requirement("L14")
def test_conditions_are_evaluated_by_the_database(store, table):
    insert(store, table, *range(1000))
    with store.reading() as connection:
        where = row_filter(EqualTo("id", 7), SCHEMA, table.rows)
        assert select_rows(connection, table, table.columns, where).values["c1_i"] == [7]
        assert count_rows(connection, table, where) == 1
        assert count_rows(connection, table) == row_span(connection, table) == 1000


@settings(
    max_examples=30,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(tables())
def test_every_type_through_the_database(store, drawn):
    schema, rows = drawn
    assume(len(rows))
    columns = inline_columns(schema)
    with store.writing() as connection:
        table = register_table(connection, NAME, uuid4().hex, columns)
        stamp = next_stamp(connection)
        insert_rows(connection, table, columns, encode_rows(rows, schema), stamp)
    with store.reading() as connection:
        read = select_rows(connection, table, columns)
    assert plain_rows(decode_rows(read.values, schema, len(read))) == plain_rows(rows)


def test_injection_strings_are_values(store, table):
    texts = ["'; DROP TABLE iceberg_tables; --", '"', "%s %(x)s ? :x", "\\", "\0", ""]
    with store.writing() as connection:
        encoded = [list(range(len(texts))), [text.encode() for text in texts]]
        insert_rows(connection, table, table.columns, encoded, next_stamp(connection))
    with store.reading() as connection:
        for number, text in enumerate(texts):
            where = row_filter(EqualTo("name", text), SCHEMA, table.rows)
            found = select_rows(connection, table, table.columns, where)
            assert found.values == {"c1_i": [number], "c2_s": [text.encode()]}


def test_names_of_users_are_in_no_identifier(store):
    name = '"; DROP TABLE icefloe_inline_table; --'
    schema = Schema(NestedField(1, name, LongType()), NestedField(2, "row_id", LongType()))
    with store.writing() as connection:
        hostile = type(NAME)(name, name, name)
        table = register_table(connection, hostile, name, inline_columns(schema))
        stamp = next_stamp(connection)
        insert_rows(connection, table, table.columns, [[1], [2]], stamp)
        assert select_rows(connection, table, table.columns).values == {"c1_i": [1], "c2_i": [2]}
        drop_table(connection, table)


@pytest.mark.requirement("L24", "L25")
def test_replaced_rows_keep_their_ids(store, table):
    insert(store, table, 1, 2, 3)
    with store.writing(lock=table) as connection:
        versions = select_versions(connection, table)
        changed = versions[:2]
        seq = next_stamp(connection).seq
        new = [[10, 20], [None, b"b"]]
        assert replace_rows(connection, table, changed, table.columns, new, seq) == 2
    with store.reading() as connection:
        rows = select_rows(connection, table, table.columns)
        assert rows.row_ids == [row for row, _ in versions]
        assert rows.seqs == [seq, seq, versions[2][1]]
        assert rows.values == {"c1_i": [10, 20, 3], "c2_s": [None, b"b", b"name 3"]}
        assert missing_versions(connection, table, versions) == changed


@pytest.mark.requirement("L21")
@pytest.mark.parametrize("size", [1, 400, 30_000])
def test_versions_are_removed_exactly(store, table, size):
    insert(store, table, *range(size + 1))
    with store.writing(lock=table) as connection:
        versions = select_versions(connection, table)
        changed = versions[0]
        seq = next_stamp(connection).seq
        replace_rows(connection, table, [changed], table.columns, [[-1], [b""]], seq)
        assert missing_versions(connection, table, versions) == [changed]
        assert remove_versions(connection, table, versions) == size
    assert stored_ids(store, table) == [-1]


@pytest.mark.requirement("L21")
@pytest.mark.parametrize("size", [3, 400, 30_000])
def test_removed_versions_are_compared_with_those_that_were_there(store, table, size):
    insert(store, table, *range(size))
    with store.writing(lock=table) as connection:
        versions = select_versions(connection, table)
        seq = next_stamp(connection).seq
        replace_rows(connection, table, versions[-1:], table.columns, [[-1], [b""]], seq)
        remove_versions(connection, table, versions[:1])
    insert(store, table, -2)
    with store.writing(lock=table) as connection:
        changed = [versions[0], versions[-1]]
        assert remove_and_compare(connection, table, versions) == changed
        assert remove_and_compare(connection, table, versions) == versions
        assert remove_and_compare(connection, table, []) == []
    assert stored_ids(store, table) == [-1, -2]


@pytest.mark.requirement("L07")
def test_rows_that_were_all_read_are_removed_at_once(store, table):
    insert(store, table, 1, 2, 3)
    with store.reading() as connection:
        read, through = select_versions(connection, table), last_number(connection)
    insert(store, table, 4)
    with store.writing(lock=table) as connection:
        removed = remove_unchanged(connection, table, through, len(read))
        assert removed is not connection.is_postgresql  # its numbers are in no order
    assert stored_ids(store, table) == ([4] if removed else [1, 2, 3, 4])


@pytest.mark.requirement("L07")
@pytest.mark.parametrize("change", ["removed", "updated"])
def test_rows_are_not_removed_at_once_if_one_was_changed(store, table, change):
    insert(store, table, 1, 2, 3)
    with store.reading() as connection:
        read, through = select_versions(connection, table), last_number(connection)
    with store.writing(lock=table) as connection:
        if change == "removed":
            remove_versions(connection, table, read[:1])
        else:
            stamp = next_stamp(connection)
            encoded = [[7], [b"new"]]
            replace_rows(connection, table, read[:1], table.columns, encoded, stamp.seq)
    insert(store, table, 4)
    with store.writing(lock=table) as connection:
        assert not remove_unchanged(connection, table, through, len(read))
    assert stored_ids(store, table) == ([2, 3, 4] if change == "removed" else [7, 2, 3, 4])


def test_no_versions(store, table):
    with store.writing(lock=table) as connection:
        assert missing_versions(connection, table, []) == []
        assert remove_versions(connection, table, []) == 0
        assert replace_rows(connection, table, [], table.columns, [[], []], 1) == 0
        assert (row_span(connection, table), estimate_bytes(connection, table)) == (0, 0)
        assert age_of_oldest(connection, table) is None


def test_versions_far_apart(store, table):
    insert(store, table, *range(1000))
    with store.reading() as connection:
        everything = select_versions(connection, table)
        strangers = [(row, seq + 1) for row, seq in everything[::7]]
        assert missing_versions(connection, table, everything + strangers) == strangers
        ends = [everything[0], everything[-1], (everything[-1][0] + 5, 1)]
        assert missing_versions(connection, table, ends) == ends[2:]


def test_age_and_size(store, table):
    insert(store, table, *range(100))
    time.sleep(0.05)
    insert(store, table, 1)
    with store.reading() as connection:
        assert 50 <= age_of_oldest(connection, table) < 60_000
        exact = 101 * (24 + 8) + sum(len(f"name {n}") for n in [*range(100), 1])
        assert abs(estimate_bytes(connection, table) - exact) < 10


def test_new_columns_are_null_in_old_rows(store, table):
    insert(store, table, 1)
    more = inline_columns(Schema(*SCHEMA.fields, NestedField(9, "n", StringType())))
    with store.writing() as connection:
        wide = add_missing_columns(connection, table, more)
        assert wide.columns == more
        # Another process may not have heard of the new column.
        assert add_missing_columns(connection, table, more) == wide
        stamp = next_stamp(connection)
        insert_rows(connection, wide, more, [[2], [b"b"], [b"c"]], stamp)
    insert(store, table, 3)
    with store.reading() as connection:
        assert select_rows(connection, wide, more).values["c9_s"] == [None, b"c", None]


def test_values_of_before_a_promotion_are_replaced(store):
    before, after = (
        Schema(NestedField(1, "x", DateType())),
        Schema(NestedField(1, "x", TimestampType())),
    )
    with store.writing() as connection:
        table = register_table(connection, NAME, "promoted", inline_columns(before))
        insert_rows(connection, table, table.columns, [[1, 2]], next_stamp(connection))
        table = add_missing_columns(connection, table, inline_columns(after))
        versions = select_versions(connection, table)
        seq = next_stamp(connection).seq
        new = inline_columns(after)
        replace_rows(connection, table, versions[:1], new, [[None]], seq)
        rows = select_rows(connection, table, new)
    assert plain_rows(decode_rows(rows.values, after, 2)) == [[None, 2 * 86_400_000_000]]


def test_insert_into_a_dropped_table(store, table):
    with store.writing() as connection:
        drop_table(connection, table)
    with (
        pytest.raises(TableNotFoundError, match=r"shop\.orders was dropped"),
        store.writing() as connection,
    ):
        insert_in(connection, table, 1)
    with (
        pytest.raises(TableNotFoundError, match=r"shop\.orders was dropped"),
        store.writing() as connection,
    ):
        wide = inline_columns(Schema(*SCHEMA.fields, NestedField(9, "n", StringType())))
        add_missing_columns(connection, table, wide)
