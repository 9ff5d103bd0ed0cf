"""The change log as JSON lines, and the writer spelling of the same statements."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import icefloe
from icefloe.errors import (
    ConstraintError,
    InvalidPredicateError,
    NonPartitionedTableError,
    ReplaceWhereError,
    StatementError,
    TableNotFoundError,
)
from icefloe.inspection.log import ReplaceWhereAction
from support.tables import data_files, rows, snapshots, summary

SCHEMA = "id BIGINT, year INT, month INT"
OLD = [{"id": i, "year": 2022 + i % 2, "month": 11 + i % 2} for i in range(4)]
NEW = [{"id": 100, "year": 2023, "month": 12}]
PREDICATE = "year = 2023 AND month IN ('11', '12')"


@pytest.fixture
def sales(table_of):
    return table_of(SCHEMA, OLD, partition_by=("year", "month"))


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.requirement("R04")
def test_the_marker_and_its_defaults():
    action = ReplaceWhereAction("year = 1", 17)
    assert (action.predicate, action.timestamp) == ("year = 1", 17)
    assert (action.data_change, action.operation_metrics) == (True, None)
    with pytest.raises(AttributeError):
        action.predicate = "x"


@pytest.mark.requirement("R22")
@pytest.mark.parametrize("metrics", [None, {"numRemovedFiles": 3}])
def test_the_marker_comes_back_from_its_line(metrics):
    action = ReplaceWhereAction("s = 'é\"\n'", 17, operation_metrics=metrics)
    assert ReplaceWhereAction.from_json(action.to_json()) == action
    assert "\n" not in action.to_json()


@pytest.mark.requirement("R10", "R21")
def test_one_commit_is_marker_removes_and_adds(sales):
    result = sales.replace_where(PREDICATE, NEW).execute()

    marker, remove, add = lines(sales.log(result.snapshot_id))

    at = sales.iceberg.current_snapshot().timestamp_ms
    assert marker == {"replaceWhere": {"predicate": PREDICATE, "timestamp": at, "dataChange": True}}
    removed = remove["remove"]
    assert set(removed) == {"path", "deletionTimestamp", "dataChange", "partitionValues"}
    assert (removed["deletionTimestamp"], removed["dataChange"]) == (at, True)
    assert removed["partitionValues"] == {"year": "2023", "month": "12"}
    (file,) = [f for f in data_files(sales) if f.sequence_number == 2]
    assert add == {
        "add": {
            "path": file.path,
            "partitionValues": {"year": "2023", "month": "12"},
            "size": file.size,
            "numRecords": 1,
        }
    }
    assert removed["path"] != file.path


@pytest.mark.requirement("D13")
def test_the_log_is_the_whole_history_from_the_oldest(sales):
    sales.replace_where("year = 2022", []).execute()
    sales.append([{"id": 5, "year": None, "month": 1}])
    sales.delete().where("id = 1").execute()
    everything = lines(sales.log())
    kinds = [next(iter(line)) for line in everything]
    assert kinds == ["add", "add", "replaceWhere", "remove", "add", "add"]
    assert everything[4]["add"]["partitionValues"] == {"year": None, "month": "1"}
    assert everything[5]["add"]["content"] == "position-deletes"
    parts = [sales.log(s.snapshot_id) for s in snapshots(sales)]
    assert "\n".join(parts) == sales.log()


def test_log_of_a_table_without_commits_and_of_no_snapshot(table_of, sales):
    assert table_of(SCHEMA).log() == ""
    with pytest.raises(StatementError, match="no snapshot 7"):
        sales.log(7)


def test_days_read_as_days(table_of):
    table = table_of("id BIGINT, at TIMESTAMP_NTZ", partition_by=("days(at)",))
    table.append(
        table._lake.spark.sql("SELECT 1L AS id, TIMESTAMP_NTZ '2024-01-02 03:04:05' AS at")
    )
    (line,) = lines(table.log())
    assert line["add"]["partitionValues"] == {"at_day": "2024-01-02"}


@pytest.mark.requirement("R12", "R13")
@pytest.mark.parametrize("mode", ["replaceWhere", "overwrite", "append", "REPLACEWHERE", None])
def test_every_spelling_has_the_same_effect(sales, lake, spark, mode):
    frame = spark.createDataFrame(NEW, sales.schema)
    writer = icefloe.write(frame).option("replaceWhere", PREDICATE)
    result = (writer.mode(mode) if mode else writer).save(sales.name)
    assert (result.operation, result.rows_deleted, result.rows_inserted) == ("replace_where", 2, 1)
    assert result.snapshot_id == sales.snapshot_id
    assert rows(sales, "id") == [(0,), (100,), (2,)]
    assert summary(sales)["icefloe.predicate"] == PREDICATE


@pytest.mark.requirement("R02")
def test_plain_append_and_overwrite(sales, lake):
    assert icefloe.write(NEW).mode("append").save(sales.name).rows_inserted == 1
    assert sales.count() == 5
    assert icefloe.write(NEW, lake=lake).mode("Overwrite").save(sales.name).rows_deleted == 5
    assert rows(sales, "id") == [(100,)]


def test_options_of_replace_where_may_be_text(sales, lake):
    writer = icefloe.write(NEW).mode("replaceWhere").option("replaceWhere", "id = 1")
    result = writer.option("scope", "rows").option("check", "false").option("retries", "2")
    assert result.save(sales.name).rows_deleted == 1
    with pytest.raises(ConstraintError):
        writer.option("scope", "rows").save(sales.name)
    with pytest.raises(StatementError, match="Unknown option 'mergeSchema'"):
        writer.option("mergeSchema", "true").save(sales.name)


def test_refusals_of_the_writer(sales, table_of, lake):
    writer = icefloe.write(NEW)
    with pytest.raises(StatementError, match="Unknown mode 'upsert'"):
        writer.mode("upsert")
    with pytest.raises(StatementError, match="no mode"):
        writer.save(sales.name)
    with pytest.raises(StatementError, match="has no predicate"):
        writer.mode("replaceWhere").save(sales.name)
    with pytest.raises(StatementError, match="needs the option"):
        writer.mode("append").option("scope", "rows").save(sales.name)
    with pytest.raises(InvalidPredicateError, match="empty"):
        writer.mode("replaceWhere").option("replaceWhere", "").save(sales.name)
    with pytest.raises(TableNotFoundError):
        writer.mode("append").save("nowhere")
    plain = table_of(SCHEMA)
    with pytest.raises(NonPartitionedTableError):
        writer.mode("replaceWhere").option("replaceWhere", "year = 1").save(plain.name)
    assert sales.count() == 4


def test_the_lake_opened_last_is_written_to(spark, tmp_path):
    with (
        icefloe.connect(tmp_path / "a", spark=spark) as first,
        icefloe.connect(tmp_path / "b", spark=spark) as second,
    ):
        for lake in (first, second):
            lake.create_table("t", "id BIGINT")
        icefloe.write([{"id": 1}]).mode("append").save("t")
        icefloe.write([{"id": 1}, {"id": 2}], lake=first).mode("append").save("t")
        assert (first.table("t").count(), second.table("t").count()) == (2, 1)


@pytest.mark.requirement("R28")
@pytest.mark.slow
def test_large_replacements_stream_past_the_driver(table_of, spark):
    """The rows come from Spark and go to files; the driver holds counts and bounds of files."""
    table = table_of("id BIGINT, part INT, s STRING", partition_by=("part",))
    million = spark.range(3_000_000).selectExpr(
        "id", "CAST(id % 4 AS INT) part", "repeat('x', 50) s"
    )
    table.append(million.limit(1000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = table.replace_where("part >= 0", million).execute()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (result.rows_inserted, result.rows_deleted) == (3_000_000, 1000)
    assert grown < 100 * 1024  # kB; the rows alone are 180 MB


@pytest.mark.requirement("R26")
@pytest.mark.slow
def test_the_benchmark_runs_against_overwrite_and_delta_rs(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.replace", "--rows", "2000", "--repetitions", "1"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    for told in ("replace_where", "overwrite of the table", "delta-rs predicate", "copy-on-write"):
        assert told in ran.stdout


@pytest.mark.requirement("R13")
def test_the_writer_refuses_a_predicate_of_none(table_of):
    table = table_of("d INT, v INT", [{"d": 1, "v": 1}], partition_by=("d",))
    frame = table._lake.spark.sql("SELECT 2 AS d, 2 AS v")
    for mode in ("overwrite", "append", "replaceWhere"):
        writer = icefloe.write(frame, lake=table._lake).mode(mode).option("replaceWhere", None)
        with pytest.raises(ReplaceWhereError):
            writer.save(table.name)
    assert rows(table) == [(1, 1)]


@pytest.mark.requirement("R12")
def test_the_writer_passes_option_texts_unchanged(table_of):
    table = table_of("d INT, v INT", [{"d": 1, "v": 1}], partition_by=("d",))
    frame = table._lake.spark.sql("SELECT 1 AS d, 2 AS v")
    writer = (
        icefloe.write(frame, lake=table._lake).mode("replaceWhere").option("replaceWhere", "d = 1")
    )

    first = writer.option("idempotency_key", "20260131").option("retries", "1").save(table.name)
    again = writer.option("idempotency_key", "20260131").save(table.name)

    assert again.snapshot_id == first.snapshot_id == table.snapshot_id
