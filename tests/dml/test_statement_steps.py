"""The steps of a statement one by one, what they cost and what they log."""

from __future__ import annotations

import logging

import pytest

from icefloe.deletes.row_positions import as_array
from icefloe.pruning.candidates import plan_files
from icefloe.pruning.comparisons import ALWAYS
from icefloe.scan import scan as scan_module
from icefloe.statements import RowStatement
from icefloe.writing.data_files import find_rows, write_data
from support.tables import rows

SCHEMA = "id BIGINT, region STRING, n INT"
ROWS = [{"id": i, "region": "us" if i % 2 else "eu", "n": i} for i in range(1, 7)]


@pytest.mark.requirement("U14")
def test_a_builder_collects_the_statement_and_runs_nothing(table_of):
    table = table_of(SCHEMA, ROWS)
    before = table.snapshot_id

    first = table.update().set("n", "1")
    second = first.set("region", "'x'").where("id = 1").with_options(retries=2)

    assert first._statement == RowStatement(first._statement.kind, None, (("n", "1"),))
    assert second._statement.assignments == (("n", "1"), ("region", "'x'"))
    assert second._statement.options.retries == 2
    assert table.snapshot_id == before


@pytest.mark.requirement("U14")
def test_a_scan_finds_rows_by_file_and_position(table_of, partition_by):
    table = table_of(SCHEMA, ROWS[:3], ROWS[3:], partition_by=partition_by)
    state = table._state()
    scan = scan_module.Scan.of(table._lake.spark, state, plan_files(state, ALWAYS).candidates)

    found = find_rows(scan.rows().filter("id IN (1, 3, 5)"))

    positions = sorted(sorted(as_array(rows_).tolist()) for rows_ in found.of([0]).values())
    assert positions == ([[0], [0, 1]] if partition_by else [[0, 2], [1]])


@pytest.mark.requirement("U14")
def test_new_rows_are_written_to_the_folder_of_their_partition(table_of, partition_by):
    table = table_of(SCHEMA, partition_by=partition_by)
    frame = table._lake.spark.createDataFrame(ROWS).select("id", "region", "n")

    written = write_data(table._state(), frame.selectExpr("id", "region", "int(n) AS n"), "s1")

    assert written.rows == 6
    assert len(written.files) == 2  # of two partitions, or of two tasks
    places = {(tuple(f.partition), f.file_path.split("/s1-")[0]) for f in written.files}
    folder = f"{table.location}/data"
    by_region = {((region,), f"{folder}/region={region}") for region in ("eu", "us")}
    assert places == (by_region if partition_by else {((), folder)})
    assert table.snapshot_id is None  # nothing is published


@pytest.mark.requirement("U32", "T30")
def test_cost_follows_the_files_touched(table_of, mode, partition_by):
    """The same number of rows in one file, and spread over ten."""
    batches = [[{"id": b * 10 + i, "region": "r", "n": i} for i in range(10)] for b in range(10)]
    table = table_of(SCHEMA, *batches, mode=mode, partition_by=partition_by)
    one_file = table.update().set("n", "-1").where("id >= 20 AND id < 30").execute()
    spread = table.update().set("n", "-2").where("n = 7").execute()
    assert one_file.rows_updated == 10
    assert (one_file.files_scanned, one_file.files_skipped) == (1, 9)
    assert spread.rows_updated == 9
    assert spread.data_files_removed == (9 if mode == "copy-on-write" else 0)
    assert one_file.bytes_written < spread.bytes_written
    assert len(rows(table)) == 100


@pytest.mark.requirement("T31")
def test_statements_are_logged(table_of, caplog, mode, partition_by):
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)
    with caplog.at_level(logging.INFO, logger="icefloe"):
        table.delete().where("id = 1").execute()
    assert "operation='delete'" in caplog.text
    assert f"mode='{mode}'" in caplog.text
    assert "rows_deleted=1" in caplog.text
