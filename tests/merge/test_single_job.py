"""Copy-on-write MERGE in one job: files rewritten and new rows written by the same tasks."""

from __future__ import annotations

import pytest
from pyiceberg.types import StringType

from icefloe.commands.merge import join
from icefloe.commands.merge.rows import MergeRows
from icefloe.errors import CardinalityError
from icefloe.scan.scan import Scan
from icefloe.spark.session import spark_conf
from support.tables import data_files, rows, snapshots
from support.unreferenced_files import leftovers

COW = "copy-on-write"


@pytest.fixture
def surveyed(monkeypatch):
    """Which MERGEs kept their rows to look at them first."""
    seen = []
    survey = MergeRows._survey_and_rewrite
    monkeypatch.setattr(
        MergeRows,
        "_survey_and_rewrite",
        lambda self, labelled: seen.append(self) or survey(self, labelled),
    )
    return seen


@pytest.fixture
def unforeseen(monkeypatch):
    """What tasks will decline is not seen before."""
    monkeypatch.setattr(Scan, "may_be_declined", False)


def old_and_new(table_of):
    """A table of two files; the nested column of the first one has changed since."""
    table = table_of("id INT, s STRUCT<a: INT>", mode=COW)
    table.append([{"id": i, "s": {"a": i}} for i in range(6)])
    table.add_column("n", "INT")
    table.add_column("at", "TIMESTAMP")
    with table.iceberg.update_schema() as update:
        update.add_column(("s", "b"), StringType())
    table.append([{"id": i, "s": {"a": i, "b": "new"}, "n": i, "at": None} for i in range(6, 12)])
    return table


@pytest.mark.slow
def test_files_that_tasks_decline_are_surveyed(table_of, surveyed, unforeseen):
    """The one job is undone: every row's label is made at one time."""
    table = old_and_new(table_of)

    result = (
        table.merge([{"id": i, "v": -i} for i in (1, 2, 7, 8, 20)], on=["id"])
        .when_matched("source.id IN (2, 8)").delete()
        .when_matched().update({"n": "source.v", "at": "current_timestamp()"})
        .when_not_matched().insert({"id": "id", "n": "v", "at": "current_timestamp()"})
        .execute()
    )  # fmt: skip

    assert surveyed
    assert result.clauses == (2, 2, 1)
    assert (result.rows_copied, result.data_files_removed) == (8, 2)
    expected = [(i, (i, None), None) for i in (0, 3, 4, 5)] + [(1, (1, None), -1)]
    expected += [(i, (i, "new"), i) for i in (6, 9, 10, 11)] + [(7, (7, "new"), -7)]
    found = table.scan().collect()
    seen = [(r["id"], tuple(r["s"]) if r["s"] else None, r["n"]) for r in found]
    assert sorted(seen) == sorted([*expected, (20, None, -20)])
    assert len({r["at"] for r in found} - {None}) == 1
    assert leftovers(table) == set()


def test_files_that_tasks_may_decline_are_surveyed_at_once(table_of, surveyed):
    table = old_and_new(table_of)

    table.merge([{"id": 1}], on=["id"]).when_matched().update({"n": "7"}).execute()

    assert surveyed
    assert table.scan(["n"], where="id = 1").collect()[0]["n"] == 7


def test_a_file_that_loses_every_row_is_not_read(table_of, surveyed, unforeseen):
    table = old_and_new(table_of)

    result = table.merge([{"id": i} for i in range(6)], on=["id"]).when_matched().delete().execute()

    assert not surveyed
    assert (result.rows_deleted, result.data_files_removed, result.data_files_added) == (6, 1, 0)
    assert [r["id"] for r in table.scan(["id"]).orderBy("id").collect()] == [*range(6, 12)]


@pytest.mark.parametrize("mode", [COW, "merge-on-read"])
def test_required_fields_of_structs_are_not_asked_of_rows_that_stay_or_go(table_of, mode):
    """Such rows carry no values: their structs are NULL."""
    table = table_of("id INT, s STRUCT<a: INT NOT NULL>, n INT", mode=mode)
    table.append([{"id": i, "s": {"a": i}, "n": i} for i in range(5)])

    source = [{"id": i, "s": {"a": -i}, "op": "D" if i == 1 else "U"} for i in (0, 1, 2, 9)]
    result = (
        table.merge(source, on=["id"])
        .when_matched("source.op = 'D'").delete()
        .when_matched("target.n > 0").update({"s": "source.s"})
        .when_not_matched().insert({"id": "source.id", "s": "source.s"})
        .when_not_matched_by_source("target.id = 4").delete()
        .execute()
    )  # fmt: skip

    assert result.clauses == (1, 1, 1, 1)
    found = {r["id"]: (r["s"]["a"], r["n"]) for r in table.scan().collect()}
    assert found == {0: (0, 0), 2: (-2, 2), 3: (3, 3), 9: (-9, None)}


@pytest.mark.parametrize("kept", ["target.n < 0", None])
def test_maps_and_rows_that_stay(table_of, kept):
    """Rows that no clause changes come along to be counted, and are left as they are."""
    table = table_of("id INT, m MAP<STRING, INT>, n INT", mode=COW)
    spark = table._lake.spark
    table.append(spark.sql("SELECT id, map('k', id) AS m, id AS n FROM range(4)").coalesce(1))
    source = spark.sql("SELECT id, map('new', id) AS m, 9 AS n FROM range(1, 6)")

    merge = table.merge(source, on=["id"])
    merge = merge.when_matched(f"source.id = 2 OR {kept}" if kept else None).update_all()
    result = merge.when_not_matched().insert_all().execute()

    changed = {2} if kept else {1, 2, 3}
    assert result.clauses == (len(changed), 2)
    assert result.rows_copied == 4 - len(changed)
    found = {r["id"]: (r["m"], r["n"]) for r in table.scan().collect()}
    assert found == {
        i: ({"new": i}, 9) if i in changed or i > 3 else ({"k": i}, i) for i in range(6)
    }


def test_new_rows_of_a_large_source_are_spread_over_tasks(table_of, shuffled, monkeypatch):
    monkeypatch.setattr(join, "_LARGE_TASK_BYTES", 10_000)
    table = table_of("id BIGINT, n BIGINT", mode=COW)
    spark = table._lake.spark
    table.append(spark.sql("SELECT id, 0 AS n FROM range(1000)").coalesce(1))

    source = spark.sql("SELECT id, id AS n FROM range(500, 3000)")
    apart = spark_conf(spark, "spark.sql.adaptive.coalescePartitions.enabled", "false")
    with apart, spark_conf(spark, "spark.sql.shuffle.partitions", "8"):
        result = table.upsert(source, on=["id"]).execute()

    assert (result.rows_updated, result.rows_inserted, result.rows_copied) == (500, 2000, 500)
    assert result.data_files_added > 2
    told = table.scan().selectExpr("count(*)", "count(DISTINCT id)", "sum(n)").first()
    assert tuple(told) == (3000, 3000, sum(range(500, 3000)))


@pytest.mark.parametrize("by", [(), ("part",)], ids=["unpartitioned", "identity"])
def test_new_rows_are_sorted_and_laid_out_as_the_table_wants(table_of, by, surveyed):
    table = table_of("id INT, part INT, n INT", mode=COW, partition_by=by, sort_by=["n"])
    table.append([{"id": i, "part": i % 2, "n": i} for i in range(4)])

    source = [{"id": i, "part": i % 2, "n": 100 - i} for i in (0, 3, 10, 11, 12, 13)]
    result = (
        table.merge(source, on=["id"])
        .when_matched().update({"n": "source.n"})
        .when_not_matched().insert_all()
        .execute()
    )  # fmt: skip

    assert not surveyed
    assert result.clauses == (2, 4)
    placed = table.scan(["id", "part", "n", "_file", "_pos"]).orderBy("_file", "_pos").collect()
    new = [r for r in placed if r["id"] >= 10]
    for name in {r["_file"] for r in new}:
        numbers = [r["n"] for r in new if r["_file"] == name]
        assert numbers == sorted(numbers)
        assert len({r["part"] for r in new if r["_file"] == name}) == (1 if by else 2)
    assert sorted(rows(table)) == sorted(
        [(0, 0, 100), (1, 1, 1), (2, 0, 2), (3, 1, 97)]
        + [(i, i % 2, 100 - i) for i in (10, 11, 12, 13)]
    )


def test_a_row_matched_twice_ends_it_after_other_files_were_rewritten(table_of, surveyed):
    table = table_of("id INT, n INT", mode=COW)
    for start in (0, 10):
        table.append([{"id": i, "n": i} for i in range(start, start + 5)])
    before, files = snapshots(table), data_files(table)

    source = [{"id": 1, "n": 7}, {"id": 11, "n": 8}, {"id": 11, "n": 9}, {"id": 30, "n": 1}]
    with pytest.raises(CardinalityError, match="11"):
        table.upsert(source, on=["id"]).execute()

    assert not surveyed
    assert (snapshots(table), data_files(table)) == (before, files)
    assert leftovers(table) == set()


def test_files_that_lose_every_row_are_removed(table_of):
    table = table_of("id INT, n INT", mode=COW)
    for start in (0, 10):
        table.append([{"id": i, "n": i} for i in range(start, start + 5)])

    source = [{"id": i} for i in (*range(5), 11)]
    result = table.merge(source, on=["id"]).when_matched().delete().execute()

    assert (result.rows_deleted, result.rows_copied) == (6, 4)
    assert (result.data_files_removed, result.data_files_added) == (2, 1)
    assert rows(table) == [(i, i) for i in (10, 12, 13, 14)]
