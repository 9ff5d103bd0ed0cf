"""DELETE in both modes, partitioned and not, on tables that have deletes already."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from support.tables import data_files, delete_files, rows, snapshots, stored_files, summary

pytestmark = pytest.mark.requirement("T28")

SCHEMA = "id BIGINT, region STRING, name STRING, value DOUBLE"
ROWS = [
    {"id": 1, "region": "us", "name": "a", "value": 1.0},
    {"id": 2, "region": "us", "name": None, "value": float("nan")},
    {"id": 3, "region": "eu", "name": "c", "value": 3.0},
    {"id": 4, "region": None, "name": "d", "value": None},
    {"id": 5, "region": "eu", "name": "a", "value": -5.0},
    {"id": 6, "region": "eu", "name": "f", "value": 6.0},
]


def ids(table):
    return [row[0] for row in rows(table, "id")]


@pytest.fixture
def table(table_of, mode, partition_by):
    return table_of(SCHEMA, ROWS[:3], ROWS[3:], mode=mode, partition_by=partition_by)


def test_delete_removes_exactly_its_rows(table, mode):
    result = table.delete().where("id IN (1, 4)").execute()

    assert result.rows_deleted == 2
    assert ids(table) == [2, 3, 5, 6]
    facts = summary(table)
    assert facts["spark.delete.num-deleted-rows"] == "2"
    assert facts["icefloe.mode"] == mode
    assert facts["spark.delete.num-copied-rows"] == str(result.rows_copied)
    assert (result.rows_copied > 0) == (mode == "copy-on-write") or result.data_files_removed


def test_a_null_condition_deletes_nothing(table):
    assert table.delete().where("name = 'a' OR NULL").execute().rows_deleted == 2
    assert table.delete().where("name <> 'zzz'").execute().rows_deleted == 3
    assert ids(table) == [2]


def test_nan_is_larger_than_every_number(table):
    assert table.delete().where("value > 100").execute().rows_deleted == 1
    assert ids(table) == [1, 3, 4, 5, 6]


@pytest.mark.requirement("T09", "D15")
def test_whole_files_are_dropped_by_metadata(table_of, mode, partition_by):
    """By the partition, or by the bounds of the file."""
    batches = (ROWS[:2], ROWS[2:3], ROWS[3:4], ROWS[4:])
    table = table_of(SCHEMA, *batches, mode=mode, partition_by=partition_by)
    eu = {path for (path,) in rows(table, "_file", where="region = 'eu'")}
    others = {f.path for f in data_files(table)} - eu
    stored = stored_files(table)

    builder = table.delete().where("region = 'eu'")
    plan = builder.explain()
    result = builder.execute()

    assert {f.action.value for f in plan.files} == {"drop"}
    assert result.files_scanned == 0
    assert result.rows_deleted == 3
    assert result.data_files_removed == len(eu) == 2
    assert {f.path for f in data_files(table)} == others
    assert stored_files(table) == stored  # nothing was written
    assert summary(table)["operation"] == "delete"


@pytest.mark.requirement("T32", "M23")
def test_other_partitions_keep_their_files(table_of, mode):
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=("region",))
    before = {f.path for f in data_files(table) if f.file.partition[0] != "us"}

    table.delete().where("id = 1").execute()

    assert before <= {f.path for f in data_files(table)}


def test_delete_without_where_empties_the_table(table):
    result = table.delete().execute()

    assert result.rows_deleted == 6
    assert ids(table) == []
    assert data_files(table) == []


@pytest.mark.requirement("X05")
def test_modes_take_turns_on_one_file_and_nothing_comes_back(table):
    steps = [
        ("merge-on-read", "id = 1"),
        ("copy-on-write", "id = 2"),
        ("merge-on-read", "id = 4"),
        ("auto", "id = 5"),
    ]
    left = {1, 2, 3, 4, 5, 6}
    for mode, condition in steps:
        result = table.delete().where(condition).with_options(mode=mode).execute()
        left.discard(int(condition[-1]))
        assert result.rows_deleted == 1
        assert ids(table) == sorted(left)


@pytest.mark.requirement("R38")
def test_delete_files_are_removed_with_their_data_files(table_of, partition_by):
    table = table_of(SCHEMA, ROWS[:3], ROWS[3:], partition_by=partition_by)
    table.delete().where("id IN (1, 6)").execute()
    assert delete_files(table)

    result = table.delete().where("id > 0").with_options(mode="copy-on-write").execute()

    assert result.rows_deleted == 4
    assert data_files(table) == []
    assert delete_files(table) == []
    assert result.delete_files_removed > 0
    totals = summary(table)
    assert totals["total-data-files"] == totals["total-delete-files"] == "0"
    assert totals["total-records"] == totals["total-position-deletes"] == "0"


def test_granularity_file_gives_each_data_file_a_delete_file(table_of):
    table = table_of(SCHEMA, ROWS[:3], ROWS[3:], properties={"write.delete.granularity": "file"})

    assert table.delete().where("id IN (1, 6)").execute().delete_files_added == 2
    assert {d.referenced_path for d in delete_files(table)} == {f.path for f in data_files(table)}
    assert ids(table) == [2, 3, 4, 5]


def test_merge_on_read_removes_a_file_whose_last_rows_go(table_of):
    table = table_of(SCHEMA, ROWS[:2], ROWS[2:])
    table.delete().where("id = 1").execute()

    result = table.delete().where("name IS NULL").execute()

    assert result.data_files_removed == 1
    assert result.delete_files_removed == 1
    assert delete_files(table) == []


@pytest.mark.requirement("X09")
def test_deletes_that_match_nothing_make_no_snapshot(table):
    before = len(snapshots(table))
    stored = stored_files(table)
    for condition in ("id = 77", "region = 'nowhere'", "NULL = 1", "false"):
        result = table.delete().where(condition).execute()
        assert (result.rows_deleted, result.snapshot_id) == (0, None)
    assert len(snapshots(table)) == before
    assert stored_files(table) == stored


def test_deleting_twice_counts_once(table):
    assert table.delete().where("id = 3").execute().rows_deleted == 1
    assert table.delete().where("id = 3").execute().rows_deleted == 0


def test_a_column_object_is_a_condition(table):
    result = table.delete().where((F.col("id") == 1) | F.col("name").isNull()).execute()

    assert result.rows_deleted == 2


@pytest.mark.requirement("T37")
def test_auto_chooses_by_the_fraction_of_deleted_rows(table_of):
    many = [{"id": i, "region": "r", "name": "n", "value": 0.0} for i in range(10)]
    few = [{"id": 100 + i, "region": "r", "name": "n", "value": 0.0} for i in range(10)]
    table = table_of(SCHEMA, many, few)

    result = table.delete().where("id < 5 OR id = 100").with_options(mode="auto").execute()

    assert result.mode == "auto"
    assert result.rows_deleted == 6
    assert (result.data_files_added, result.data_files_removed) == (1, 1)
    assert result.delete_files_added == 1
    assert result.rows_copied == 5
    assert len(rows(table)) == 14


@pytest.mark.requirement("T17")
def test_positions_count_over_row_groups(table_of, mode, partition_by):
    table = table_of(
        "id BIGINT, region STRING",
        mode=mode,
        partition_by=partition_by,
        properties={"write.parquet.row-group-limit": 10},
    )
    table.append(table._lake.spark.range(30).selectExpr("id", "'us' AS region").coalesce(1))
    (file,) = data_files(table)
    assert len(file.file.split_offsets) == 3

    table.delete().where("id IN (0, 10, 20, 29)").execute()

    assert ids(table) == sorted((i for i in range(30) if i not in (0, 10, 20, 29)), key=repr)


@pytest.mark.requirement("T29")
def test_large_batches(table_of, mode, partition_by):
    table = table_of("id BIGINT, region STRING", mode=mode, partition_by=partition_by)
    numbers = table._lake.spark.range(10_000)
    table.append(numbers.selectExpr("id", "if(id % 3 = 0, 'a', 'b') AS region"))

    assert table.delete().where("id % 2 = 0").execute().rows_deleted == 5000
    assert table.update().set("id", "-id").execute().rows_updated == 5000

    left = table.scan()
    assert left.count() == 5000
    assert left.filter("id >= 0 OR id % 2 = 0").count() == 0
