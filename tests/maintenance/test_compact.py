"""Compaction: fewer files, no deletes, the same rows, whoever writes meanwhile."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlparse

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from icefloe.errors import ColumnNotFoundError, ConflictError, StatementError
from support.foreign_files import equality_delete, position_delete, publish
from support.foreign_readers import disagreements, icefloe_rows, read_duckdb
from support.tables import (
    data_files,
    delete_files,
    live_files,
    row,
    rows,
    snapshots,
    stored_files,
    summary,
)
from support.unreferenced_files import leftovers

pytestmark = pytest.mark.requirement("T39")

SCHEMA = "id BIGINT, region STRING, n INT"


BATCHES = [
    [row(1, "us"), row(2, "eu", None), row(3, None, 7)],
    [row(4, "us"), row(None, "eu"), row(6, None)],
    [row(7, "us"), row(8, "eu"), row(9, "us")],
]


def test_small_files_and_deletes_become_one_file_per_partition(table_of, mode, partition_by):
    """Rows are the same, the snapshot says what it did, history is still there."""
    table = table_of(SCHEMA, *BATCHES, mode=mode, partition_by=partition_by)
    table.update().set("n", "99").where("id = 4").execute()
    table.delete().where("id = 8").execute()
    before, files = rows(table), len(data_files(table))
    deletes, base = len(delete_files(table)), table.snapshot_id

    result = table.compact()

    assert rows(table) == before
    assert result.operation == "compact"
    assert (result.rows_copied, result.total_affected) == (8, 0)
    partitions = 3 if partition_by else 1
    assert result.data_files_added == len(data_files(table)) == partitions
    assert result.data_files_removed == result.files_scanned == files
    assert (result.delete_files_removed, delete_files(table)) == (deletes, [])
    assert result.bytes_written == sum(f.size for f in data_files(table)) == result.bytes_encoded
    told = summary(table)
    assert (told["operation"], told["icefloe.operation"]) == ("replace", "compact")
    assert (told["total-records"], told["total-delete-files"]) == ("8", "0")
    assert told["added-records"] == "8"
    assert rows(table, snapshot_id=base) == before
    assert read_duckdb(table) == icefloe_rows(table)
    assert leftovers(table) == set()


def test_compacting_twice_does_nothing_the_second_time(table_of):
    table = table_of(SCHEMA, *BATCHES, partition_by=("region",))
    table.compact()
    count, stored = len(snapshots(table)), stored_files(table)

    result = table.compact()

    assert (result.snapshot_id, result.files_skipped, result.attempts) == (None, 3, 0)
    assert len(snapshots(table)) == count
    assert stored_files(table) == stored


@pytest.mark.slow
def test_a_lone_small_file_and_an_empty_table_are_left_alone(table_of):
    table = table_of(SCHEMA)
    assert table.compact().snapshot_id is None
    table.append(BATCHES[0])
    assert table.compact().snapshot_id is None


def test_new_files_are_as_old_as_what_was_read(table_of, lake):
    """A delete by value that another engine publishes later still finds the rows."""
    table = table_of(SCHEMA, *BATCHES)
    base = table.iceberg.current_snapshot().sequence_number
    late = equality_delete(table, [{"id": 4}])

    table.compact()

    assert [f.sequence_number for f in data_files(table)] == [base]
    assert [f.file_sequence_number for f in data_files(table)] == [base + 1]
    assert table.iceberg.current_snapshot().sequence_number == base + 1
    publish(lake, table, deletes=[late])
    assert 4 not in {r[0] for r in rows(table)}


@pytest.mark.parametrize(
    "partitioned", [pytest.param(False, marks=pytest.mark.slow), True], ids=["all", "partitioned"]
)
def test_equality_deletes_are_removed_with_the_rows_they_delete(table_of, lake, partitioned):
    """Rows that come again after a delete by value stay; the delete goes once nothing needs it."""
    table = table_of(SCHEMA, BATCHES[0], partition_by=("region",) if partitioned else ())
    partition = ("us",) if partitioned else ()
    publish(lake, table, deletes=[equality_delete(table, [{"id": 1}], partition=partition)])
    table.append([row(1, "us", 5), row(1, "eu", 6)])
    before = rows(table)
    assert len(before) == 4

    result = table.compact()

    assert rows(table) == before
    alone = 1 if partitioned else 0  # the file of a partition without deletes
    assert (result.rows_copied, delete_files(table)) == (4 - alone, [])
    assert result.delete_files_removed == 1
    assert read_duckdb(table) == before
    assert table.compact().snapshot_id is None


def test_deletes_that_other_files_need_stay(table_of, lake):
    """A position-delete file of two data files, and one by value that reaches everywhere."""
    table = table_of(SCHEMA, [row(1), row(2)], [row(11), row(12)])
    one, two = sorted(data_files(table), key=lambda f: f.sequence_number)
    publish(
        lake,
        table,
        deletes=[
            position_delete(table, [(one.path, 0), (two.path, 1)]),
            equality_delete(table, [{"id": 2}]),
        ],
    )

    result = table.compact("id < 10")

    assert rows(table, "id") == [(11,)]
    assert (result.data_files_removed, result.delete_files_removed) == (1, 0)
    assert len(delete_files(table)) == 2
    assert table.compact().delete_files_removed == 2
    assert rows(table, "id") == [(11,)]


@pytest.mark.slow
def test_a_file_without_live_rows_is_removed(table_of, lake):
    table = table_of(SCHEMA, [row(1)], [row(2)])
    publish(lake, table, deletes=[equality_delete(table, [{"id": 1}, {"id": 2}])])
    result = table.compact()
    assert (result.rows_copied, result.data_files_added, result.data_files_removed) == (0, 0, 2)
    assert live_files(table) == ()
    assert rows(table) == []


@pytest.mark.parametrize(
    "kind", ["text", "column", pytest.param("subquery", marks=pytest.mark.slow)]
)
def test_where_takes_whole_files_that_hold_such_rows(table_of, kind):
    table = table_of(SCHEMA, *BATCHES, partition_by=("region",))
    before = rows(table)
    where = {
        "text": "region = 'eu'",
        "column": F.col("region") == "eu",
        "subquery": "region = (SELECT 'eu')",
    }[kind]

    result = table.compact(where)

    assert (result.data_files_removed, result.data_files_added) == (3, 1)
    assert result.files_skipped == 5
    assert rows(table) == before


def test_wrong_arguments_are_refused(table_of):
    table = table_of(SCHEMA, BATCHES[0])
    with pytest.raises(ColumnNotFoundError, match="regoin"):
        table.compact("regoin = 'eu'")
    with pytest.raises(StatementError, match="Invalid value 0 for target_file_bytes"):
        table.compact(target_file_bytes=0)


def test_files_of_an_old_spec_move_into_the_current_one(table_of):
    table = table_of(SCHEMA, *BATCHES)
    table.evolve_partitions(["region"])
    table.append([row(20, "us"), row(21, "ap")])
    before = rows(table)

    result = table.compact()

    assert rows(table) == before
    spec = table.iceberg.spec().spec_id
    found = data_files(table)
    assert {f.spec_id for f in found} == {spec}
    assert sorted(str(f.file.partition[0]) for f in found) == ["None", "ap", "eu", "us"]
    assert result.data_files_removed == 5
    assert table.compact().snapshot_id is None

    table.evolve_partitions([])
    assert table.compact().data_files_added == 1
    assert rows(table) == before


def test_rows_keep_their_order_and_large_files_are_split(table_of, spark):
    """Positions follow the order of files, oldest first; outputs are of about the target size."""
    table = table_of("id BIGINT, text STRING")
    for start in (0, 20_000, 40_000):
        numbers = spark.range(start, start + 20_000, 1, 1)
        table.append(numbers.select("id", F.sha2(F.col("id").cast("string"), 256).alias("text")))
    table.compact()
    (whole,) = data_files(table)
    assert pq.read_table(urlparse(whole.path).path)["id"].to_pylist() == list(range(60_000))

    target = whole.size // 4
    result = table.compact(target_file_bytes=target)

    assert result.rows_copied == 60_000
    found = sorted(data_files(table), key=lambda f: f.file.lower_bounds[1])
    read = [pq.read_table(urlparse(f.path).path)["id"].to_pylist() for f in found]
    assert len(found) == 4
    assert sorted(n for ids in read for n in ids) == list(range(60_000))
    assert all(ids == list(range(ids[0], ids[0] + len(ids))) for ids in read)
    assert all(0.75 * target < f.size < 1.8 * target for f in found)
    assert table.compact(target_file_bytes=target).snapshot_id is None


def test_the_tables_sort_order_is_applied(table_of):
    table = table_of(SCHEMA, [row(3), row(1)], [row(2), row(None)], sort_by=("id DESC",))
    table.compact()
    (file,) = data_files(table)
    ids = pq.read_table(urlparse(file.path).path)["id"].to_pylist()
    assert [i for i in ids if i is not None] == [3, 2, 1]
    assert file.file.sort_order_id == table.iceberg.sort_order().order_id == 1


def test_a_concurrent_append_is_no_conflict(table_of, other, before_swap):
    table = table_of(SCHEMA, *BATCHES)
    before_swap(lambda: other.table(table.name).append([row(50)]))
    table.compact()
    assert len(data_files(table)) == 2
    assert table.count() == 10
    assert leftovers(table) == set()


@pytest.mark.parametrize(
    ("moment", "mode"),
    [
        ("before_commit", "merge-on-read"),
        ("before_swap", "copy-on-write"),
        pytest.param("before_commit", "copy-on-write", marks=pytest.mark.slow),
        pytest.param("before_swap", "merge-on-read", marks=pytest.mark.slow),
    ],
)
def test_rows_deleted_concurrently_never_come_back(table_of, other, request, moment, mode):
    meanwhile = request.getfixturevalue(moment)
    table = table_of(SCHEMA, *BATCHES, mode=mode)
    meanwhile(lambda: other.table(table.name).delete().where("id = 4").execute())

    with pytest.raises(ConflictError) as caught:
        table.compact()

    assert len(caught.value.files) == 1
    assert 4 not in {r[0] for r in rows(table)}
    assert table.count() == 8
    assert leftovers(table) == set()
    table.compact()
    assert table.count() == 8


@pytest.mark.parametrize("partition_by", [pytest.param((), marks=pytest.mark.slow), ("region",)])
def test_a_concurrent_equality_delete_applies_to_the_new_files(
    table_of, lake, before_commit, partition_by
):
    table = table_of(SCHEMA, *BATCHES, partition_by=partition_by)
    partition = ("us",) if partition_by else ()
    late = [equality_delete(table, [{"id": 4}], partition=partition)]
    before_commit(lambda: publish(lake, table, deletes=late))
    table.compact()
    assert 4 not in {r[0] for r in rows(table)}
    assert table.count() == 8
    assert len(delete_files(table)) == 1


def test_a_delete_by_value_of_an_old_partition_does_not_follow_rows_into_the_new(
    table_of, lake, before_commit
):
    """Of the old spec, it would miss the rows; of the new one, hit some that it did not before."""
    table = table_of(SCHEMA, *BATCHES, partition_by=("region",))
    old = table.iceberg.spec().spec_id
    table.evolve_partitions(["bucket(2, id)"])
    late = [equality_delete(table, [{"id": 4}], partition=("us",), spec_id=old)]
    before_commit(lambda: publish(lake, table, deletes=late))
    with pytest.raises(ConflictError, match="carries forward"):
        table.compact()
    assert table.count() == 8
    assert leftovers(table) == set()


@pytest.mark.slow
def test_every_reader_reads_compacted_tables(table_of):
    """Files of an old spec, deletes, and files whose sequence number is not their snapshot's."""
    table = table_of(SCHEMA, *BATCHES)
    table.delete().where("id IN (4, 8)").execute()
    table.compact()
    table.delete().where("id = 1").execute()
    assert disagreements(table) == {}
    table.evolve_partitions(["region"])
    table.append([row(20, "us"), row(21, "ap")])
    table.compact()
    table.rewrite_manifests()
    assert disagreements(table) == {}


@pytest.mark.slow
def test_a_table_of_format_version_1_is_compacted(table_of):
    table = table_of(SCHEMA, *BATCHES, mode="copy-on-write", format_version=1)
    before = rows(table)
    assert table.compact().data_files_added == 1
    assert rows(table) == before
    table.set_properties({"format-version": "2"})
    table.append([row(30)])
    assert table.compact().data_files_added == 1
    assert table.count() == 10


@pytest.mark.slow
def test_statements_after_a_compaction_and_conflicts_with_one(table_of, other, before_commit, mode):
    """Another writer's compaction is no news to an append, and a conflict for a row change."""
    table = table_of(SCHEMA, *BATCHES, mode=mode)
    theirs = other.table(table.name)
    before_commit(theirs.compact)
    with pytest.raises(ConflictError, match="removed by another writer"):
        table.update().set("n", "1").where("id = 1").execute()
    table.update().set("n", "1").where("id = 1").execute()
    assert rows(table, "n", where="id = 1") == [(1,)]


@pytest.mark.slow
def test_a_failed_compaction_leaves_nothing(table_of):
    table = table_of(SCHEMA, *BATCHES)
    (broken, *_) = data_files(table)
    path = Path(urlparse(broken.path).path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    stored = stored_files(table)
    with pytest.raises(Exception, match=r"\S"):
        table.compact()
    assert stored_files(table) == stored
    path.write_bytes(content)
    table.compact()
    assert table.count() == 9
