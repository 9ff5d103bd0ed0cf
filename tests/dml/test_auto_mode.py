"""`auto`: by the rows that go, or by the bytes that must be encoded and can be copied."""

from __future__ import annotations

import logging

import pytest

from icefloe.errors import StatementError
from support.tables import data_files, delete_files, rows

COLUMNS = [f"c{i}" for i in range(20)]
SCHEMA = "id BIGINT, region STRING, " + ", ".join(f"{name} INT" for name in COLUMNS)
ROWS = [
    {"id": i, "region": "us" if i % 2 else None, **dict.fromkeys(COLUMNS, 7919 * i % 1009)}
    for i in range(400)
]
A_FIFTH = "id % 5 = 0"


@pytest.fixture
def wide(table_of):
    def make(*batches, by="bytes", **options):
        properties = {"icefloe.auto.choose-by": by, **options.pop("properties", {})}
        batches = batches or (ROWS,)
        return table_of(SCHEMA, *batches, mode="auto", properties=properties, **options)

    return make


def update(table, where=A_FIFTH):
    return table.update().set("c3", "coalesce(c3, 0) + id").where(where)


def expected(changed):
    return sorted(
        tuple({**row, "c3": row["c3"] + row["id"]}.values() if changed(row) else row.values())
        for row in ROWS
    )


def assert_updated(table):
    found = sorted(rows(table), key=lambda row: row[0])
    assert found == sorted(expected(lambda row: row["id"] % 5 == 0), key=lambda row: row[0])


@pytest.mark.requirement("T37")
@pytest.mark.parametrize(("by", "rewritten"), [("bytes", True), ("rows", False)])
@pytest.mark.parametrize("partition_by", [(), ("region",)], ids=["plain", "partitioned"])
def test_one_column_of_many_is_rewritten_when_bytes_count(wide, by, rewritten, partition_by):
    """A fifth of the rows is below the fraction; by bytes one column in 22 is encoded."""
    table = wide(by=by, partition_by=partition_by)

    result = update(table).execute()

    assert (result.rows_updated, result.mode) == (80, "auto")
    assert bool(result.data_files_removed) == rewritten
    assert bool(result.delete_files_added) != rewritten
    assert (result.rows_copied, result.bytes_copied > result.bytes_encoded) == (
        (320, True) if rewritten else (0, False)
    )
    assert_updated(table)


def test_files_are_chosen_one_by_one(wide):
    """A file with a fifth of its rows changed is rewritten, one with a single one gets deletes."""
    table = wide(ROWS[:200], ROWS[200:])
    first, second = sorted(data_files(table), key=lambda file: file.sequence_number)

    result = update(table, "id < 40 OR id = 300").execute()

    assert result.rows_updated == 41
    left = {file.path for file in data_files(table)}
    assert (first.path in left, second.path in left) == (False, True)
    assert result.delete_files_added == 1
    found = {row[0]: row[5] for row in rows(table)}
    assert found == {
        row["id"]: row["c3"] + (row["id"] if row["id"] < 40 or row["id"] == 300 else 0)
        for row in ROWS
    }


def test_deleted_rows_are_counted_not_their_bytes(wide):
    """A DELETE has a whole row group encoded again: the fraction alone decides."""
    table = wide()
    few = table.delete().where(A_FIFTH).execute()
    assert (few.delete_files_added, few.data_files_removed) == (1, 0)
    many = table.delete().where("id % 2 = 1").execute()
    assert (many.delete_files_removed, many.data_files_removed) == (1, 1)
    assert sorted(row[0] for row in rows(table)) == [i for i in range(400) if i % 2 == 0 and i % 10]


def test_a_file_that_has_deletes_is_left_to_the_fraction(wide):
    """To rewrite it would be to encode all of it, without the rows that went before."""
    table = wide()
    table.delete().where("id = 6").execute()

    result = update(table).execute()

    assert (result.rows_updated, result.data_files_removed) == (80, 0)
    assert len(rows(table)) == 399
    assert {r[5] for r in rows(table) if r[0] == 10} == {ROWS[10]["c3"] + 10}


def test_a_column_that_the_file_lacks_is_left_to_the_fraction(wide):
    table = wide()
    table.add_column("late", "INT")

    result = table.update().set("late", "1").where(A_FIFTH).execute()

    assert (result.rows_updated, result.data_files_removed) == (80, 0)
    assert sum(row[-1] or 0 for row in rows(table)) == 80


def test_rows_that_may_move_are_left_to_the_fraction(wide):
    """They leave the file: it cannot be rewritten in place."""
    table = wide([{**row, "c3": 7} for row in ROWS], partition_by=("c3",))

    plan = update(table).explain()
    moved = update(table, "id % 5 = 0 AND id > 0").execute()

    assert "above 0.3 of its rows" in plan.files[0].reason
    assert (moved.rows_updated, moved.data_files_removed, moved.delete_files_added) == (79, 0, 1)
    assert {row[0]: row[5] for row in rows(table)} == {
        i: 7 + (i if i % 5 == 0 else 0) for i in range(400)
    }


def test_merge_chooses_by_bytes_where_no_row_of_a_file_is_deleted(wide):
    """Two files: rows of one are updated, of the other one is deleted as well."""
    table = wide(ROWS[:200], ROWS[200:])
    first, second = sorted(data_files(table), key=lambda file: file.sequence_number)
    source = [{"id": i, "gone": i == 201} for i in (*range(0, 200, 5), *range(201, 400, 5))]

    result = (
        table.merge(source, on=["id"])
        .when_matched("source.gone")
        .delete()
        .when_matched()
        .update({"c3": "-target.id"})
        .execute()
    )

    assert (result.rows_updated, result.rows_deleted, result.mode) == (79, 1, "auto")
    left = {file.path for file in data_files(table)}
    assert (first.path in left, second.path in left) == (False, True)
    assert len(delete_files(table)) == 1
    found = {row[0]: row[5] for row in rows(table)}
    changed = {row["id"] for row in source}
    assert found == {
        row["id"]: -row["id"] if row["id"] in changed else row["c3"]
        for row in ROWS
        if row["id"] != 201
    }


def test_explain_shows_the_threshold_and_the_choice_is_logged(wide, caplog):
    table = wide()
    plan = update(table).explain()
    assert "rewrite or write deletes" in str(plan)
    assert "by its metadata few bytes have to be encoded" in plan.files[0].reason
    assert plan.estimated_bytes_written == plan.files[0].bytes
    assert "above 0.3 of its rows" in table.delete().where(A_FIFTH).explain().files[0].reason

    with caplog.at_level(logging.INFO, logger="icefloe"):
        update(table).execute()

    (said,) = [r.getMessage() for r in caplog.records if "rows change" in r.getMessage()]
    assert "is rewritten: 80 of its 400 rows change" in said


def test_nothing_else_can_be_chosen_by(lake):
    with pytest.raises(StatementError, match=r"choose-by.*'rows' or 'bytes'"):
        lake.create_table("t", SCHEMA, properties={"icefloe.auto.choose-by": "luck"})
    table = lake.create_table("t", SCHEMA)
    with pytest.raises(StatementError, match=r"choose-by.*'rows' or 'bytes'"):
        table.set_properties({"icefloe.auto.choose-by": ""})
