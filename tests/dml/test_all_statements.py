"""What holds for every statement: its result, its snapshot summary, its files."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import pytest
from pyspark.sql import functions as F

from icefloe import DmlResult
from support.tables import data_files, delete_files, rows, snapshots, summary

SCHEMA = "id BIGINT NOT NULL, region STRING, n INT, d DECIMAL(10, 2)"
ROWS = [{"id": i, "region": "us" if i % 2 else "eu", "n": i, "d": None} for i in range(1, 5)]


@pytest.fixture
def table(table_of, mode, partition_by):
    return table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)


@pytest.mark.requirement("X04")
def test_every_statement_returns_the_same_type_of_result(table):
    results = [
        table.append([{"id": 9, "region": "us", "n": 9, "d": None}]),
        table.update().set("n", "0").where("id = 9").execute(),
        table.delete().where("id = 9").execute(),
        table.overwrite(ROWS),
        table.truncate(),
    ]
    assert [r.operation for r in results] == ["append", "update", "delete", "overwrite", "truncate"]
    assert all(isinstance(r, DmlResult) and is_dataclass(r) for r in results)
    assert all(r.duration_s > 0 and r.attempts == 1 and r.snapshot_id for r in results)
    names = {f.name for f in fields(DmlResult)}
    assert names >= {"mode", "rows_copied", "dpp_applied", "bytes_written", "files_skipped"}
    assert results[3].rows_deleted == 4
    assert results[3].rows_inserted == 4
    assert results[4].rows_deleted == 4
    with pytest.raises(AttributeError):
        results[0].rows_inserted = 5


@pytest.mark.requirement("M13", "M29")
def test_totals_of_a_result():
    result = DmlResult("merge", rows_inserted=10, rows_updated=5, rows_deleted=3, rows_copied=100)
    assert result.total_affected == 18
    assert result.total_rows_written == 115
    assert DmlResult("merge") == DmlResult("merge")
    assert DmlResult("merge").total_affected == 0


@pytest.mark.requirement("X06")
def test_spark_reads_the_result_without_the_library(table_of, spark, mode, partition_by):
    """Data files as they are, less the rows that position-delete files name."""
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)
    table.update().set("n", "n * 10").where("id > 3").execute()
    table.delete().where("id = 1").execute()

    data = spark.read.parquet(*[f.path for f in data_files(table)])
    path = F.regexp_replace("_metadata.file_path", "^file:/", "file:///")  # Spark's short spelling
    plain = data.select("*", path.alias("file_path"), F.col("_metadata.row_index").alias("pos"))
    if mode == "merge-on-read":
        deletes = spark.read.parquet(*[f.path for f in delete_files(table)])
        plain = plain.join(deletes, ["file_path", "pos"], "left_anti")
    else:
        assert delete_files(table) == []

    found = sorted(map(tuple, plain.select("id", "region", "n", "d").collect()))
    assert found == rows(table) == [(2, "eu", 2, None), (3, "us", 3, None), (4, "eu", 40, None)]


@pytest.mark.requirement("X08")
def test_the_snapshot_summary_records_the_statement(table, mode):
    table.update().set("n", "0").where("id = 1").with_options(summary={"why": "a test"}).execute()

    facts = summary(table)
    assert facts["engine-name"] == "icefloe"
    assert facts["icefloe.operation"] == "update"
    assert facts["icefloe.mode"] == mode
    assert facts["icefloe.rows-updated"] == "1"
    assert facts["why"] == "a test"


@pytest.mark.requirement("X09")
def test_statements_that_change_nothing_make_no_snapshot(table):
    before = len(snapshots(table))
    nothing = [
        table.delete().where("id = 77").execute(),
        table.delete().where("region = 'mars'").execute(),
        table.update().set("n", "1").where("id = 77").execute(),
        table.update().set("n", "1").where("NULL = 1").execute(),
        table.append([]),
        table.append(table.scan().limit(0)),
        table.overwrite_partitions([]),
    ]
    assert {r.snapshot_id for r in nothing} == {None}
    assert len(snapshots(table)) == before
