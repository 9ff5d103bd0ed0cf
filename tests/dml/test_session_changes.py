"""What a session's settings may do to a table: nothing.

Each test has a session of its own, of the JVM that all tests share.
"""

from __future__ import annotations

from datetime import date

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import icefloe
from icefloe.commands import row_changes
from icefloe.errors import SetupError, StorageError
from icefloe.scan import scan
from icefloe.spark.session import READS_BY_ID
from support.foreign_files import equality_delete, publish
from support.tables import rows, snapshots
from support.unreferenced_files import leftovers

OLD = date(1500, 3, 1)
DATA = [
    {"id": 1, "name": "a", "day": OLD, "s": {"x": 1, "y": None}, "p": "u"},
    {"id": 2, "name": None, "day": None, "s": None, "p": "u"},
    {"id": 3, "name": "c", "day": date(2024, 2, 29), "s": {"x": None, "y": "z"}, "p": "v"},
    {"id": 4, "name": "d", "day": OLD, "s": {"x": 4, "y": "w"}, "p": None},
]
SCHEMA = "id BIGINT, name STRING, day DATE, s STRUCT<x: INT, y: STRING>, p STRING"
PARQUET = "spark.sql.parquet"
SETTINGS = {
    f"{PARQUET}.fieldId.read.enabled": "false",
    f"{PARQUET}.fieldId.read.ignoreMissing": "true",
    f"{PARQUET}.fieldId.write.enabled": "false",
    f"{PARQUET}.datetimeRebaseModeInRead": "LEGACY",
    f"{PARQUET}.int96RebaseModeInRead": "LEGACY",
    f"{PARQUET}.enableVectorizedReader": "false",
    f"{PARQUET}.enableNestedColumnVectorizedReader": "false",
    f"{PARQUET}.columnarReaderBatchSize": "3",
    f"{PARQUET}.filterPushdown": "false",
    f"{PARQUET}.recordLevelFilter.enabled": "true",
    f"{PARQUET}.binaryAsString": "true",
    f"{PARQUET}.int96AsTimestamp": "false",
    f"{PARQUET}.inferTimestampNTZ.enabled": "false",
    f"{PARQUET}.mergeSchema": "true",
    f"{PARQUET}.aggregatePushdown": "true",
    f"{PARQUET}.outputTimestampType": "INT96",
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "America/Los_Angeles",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.files.maxPartitionBytes": "1000",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.legacy.sizeOfNull": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.optimizer.nestedSchemaPruning.enabled": "false",
    "spark.sql.datetime.java8API.enabled": "true",
    "spark.sql.variable.substitute": "false",
}
LOST = (PySparkException, Py4JJavaError)  # classic Spark has no class for an error in a subquery
DANGEROUS = (f"{PARQUET}.fieldId.read.enabled", f"{PARQUET}.datetimeRebaseModeInRead")


@pytest.fixture
def lake(spark, tmp_path):
    """A lake with a session of its own."""
    with icefloe.connect(tmp_path / "lake", spark=spark.newSession()) as opened:
        yield opened


def evolved(table_of, mode, partition_by=()):
    """A table one of whose columns was renamed, with deletes of rows and old dates."""
    table = table_of(SCHEMA, DATA[:2], DATA[2:], mode=mode, partition_by=partition_by)
    table.append([{**DATA[0], "id": 9}])
    table.delete().where("id = 9").with_options(mode="merge-on-read").execute()
    table.rename_column("name", "title")
    return table


def stored(table, *columns):
    """What PyIceberg reads, whose reader has none of these settings."""
    found = table.iceberg.scan(selected_fields=columns).to_arrow().to_pylist()
    return sorted((tuple(row[name] for name in columns) for row in found), key=repr)


def statements(table):
    """Every kind of statement, and what the rows are then."""
    table.update().set("p", "concat(p, '2')").where("id = 1").execute()
    table.upsert([{"id": 3, "title": "C", "day": OLD, "s": None, "p": "v"}], on=["id"]).execute()
    table.delete().where("id = 4 AND day < DATE '1600-01-01'").execute()
    table.compact()
    assert rows(table, "id", "title", "day") == [(1, "a", OLD), (2, None, None), (3, "C", OLD)]
    assert stored(table, "id", "title", "day", "p") == [
        (1, "a", OLD, "u2"),
        (2, None, None, "u"),
        (3, "C", OLD, "v"),
    ]


@pytest.mark.parametrize("key", DANGEROUS)
def test_a_setting_that_changed_what_was_read(table_of, lake, mode, key):
    table = evolved(table_of, mode, ("p",) if mode == "copy-on-write" else ())
    lake.spark.conf.set(key, SETTINGS[key])
    statements(table)


def test_all_settings_together(table_of, lake, mode):
    table = evolved(table_of, mode)
    for key, value in SETTINGS.items():
        lake.spark.conf.set(key, value)
    statements(table)


@pytest.mark.slow
@pytest.mark.parametrize("key", SETTINGS)
def test_each_setting_alone(table_of, lake, mode, key):
    table = evolved(table_of, mode)
    lake.spark.conf.set(key, SETTINGS[key])
    statements(table)


def test_statements_after_a_reset(table_of, lake, mode):
    table = evolved(table_of, mode)
    lake.spark.sql("RESET")
    statements(table)


SCANS = {
    "all": lambda table: table.scan(),
    "a condition": lambda table: table.scan(["id", "title"], where="id = 1"),
    "positions": lambda table: table.scan(["title", "_file", "_pos"]),
    "limit": lambda table: table.scan(limit=1),
    "SQL": lambda table: table._lake.sql(f"SELECT max(title) FROM {table.name}"),
}


@pytest.mark.parametrize("make", SCANS.values(), ids=SCANS)
@pytest.mark.parametrize(
    "how", ["RESET", pytest.param(f"SET {READS_BY_ID}=false", marks=pytest.mark.slow)]
)
def test_a_scan_that_was_made_before_the_setting_went(table_of, lake, make, how):
    """It fails with the setting's name, or returns what it would have returned."""
    table = evolved(table_of, "merge-on-read")
    expected = make(table).collect()
    frame = make(table)

    lake.spark.sql(how)

    with pytest.raises(LOST, match=READS_BY_ID):
        frame.collect()
    assert make(table).collect() == expected


def test_a_scan_of_columns_that_were_only_added_needs_no_setting(table_of, lake):
    table = table_of(SCHEMA, DATA)
    table.add_column("extra", "INT")
    frame = table.scan(["id", "name", "extra"])
    lake.spark.sql("RESET")
    assert len(frame.collect()) == 4
    assert {row.name for row in frame.collect()} == {"a", None, "c", "d"}


def test_rows_that_equality_deletes_hide_stay_hidden(table_of, lake):
    """The keys of deletes are read by field id too."""
    table = table_of("id BIGINT, name STRING", [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    publish(lake, table, deletes=[equality_delete(table, [{"id": 2}])])
    frame = table.scan()
    lake.spark.sql("RESET")
    with pytest.raises(LOST, match=READS_BY_ID):
        frame.collect()
    assert rows(table) == [(1, "a")]


NONE, COUNTS = "write.metadata.metrics.default", "write.metadata.metrics.column.id"
UNUSUAL = {
    "no counts": ("id BIGINT, v STRING", {"id": None, "v": "a"}, {NONE: "none"}),
    "counts of one column": (
        "id BIGINT, v STRING, w STRING",
        {"id": None, "v": "a", "w": "b"},
        {NONE: "none", COUNTS: "counts"},
    ),
    "a struct": ("v STRUCT<x: INT>", {"v": {"x": 1}}, {}),
    "a struct beside NULL": ("id BIGINT, v STRUCT<x: INT>", {"id": None, "v": {"x": 1}}, {}),
    "a list": ("id BIGINT, v ARRAY<INT>", {"id": None, "v": [1]}, {}),
    "a map": ("v MAP<STRING, INT>", {"v": {"a": 1}}, {}),
}


@pytest.mark.parametrize("what", UNUSUAL)
def test_values_that_counts_of_columns_do_not_show(table_of, lake, what):
    """Counts of nested fields show them, or else a file is looked into."""
    schema, row, properties = UNUSUAL[what]
    table = table_of(schema, [row, dict.fromkeys(row)], properties=properties)
    table.rename_column("v", "title")
    expected = table.scan().collect()
    frame = table.scan()
    lake.spark.sql("RESET")
    with pytest.raises(LOST, match=READS_BY_ID):
        frame.collect()
    assert table.scan().collect() == expected


def test_rows_of_nulls_alone_need_no_check(table_of, lake):
    table = table_of("id BIGINT, v ARRAY<INT>", [{"id": None, "v": None}])
    table.rename_column("v", "title")
    frame = table.scan()
    lake.spark.sql("RESET")
    assert frame.collect() == [(None, None)]


def test_a_reset_while_a_statement_runs(table_of, lake, monkeypatch, mode):
    """What was read then may be wrong: nothing is published."""
    table = evolved(table_of, mode)
    before, files = snapshots(table), row_changes.file_changes

    def reset_then(*given, **named):
        lake.spark.conf.unset(READS_BY_ID)
        return files(*given, **named)

    monkeypatch.setattr(row_changes, "file_changes", reset_then)
    with pytest.raises(SetupError, match=READS_BY_ID):
        table.update().set("p", "'x'").where("id = 1").execute()
    assert snapshots(table) == before
    assert leftovers(table) == set()


FAULTY = {
    "compact": lambda table: table.compact(),
    "update": lambda table: table.update().set("p", "'x'").execute(),
    "merge": lambda table: (
        table.merge([{"k": 1}], on="source.k = 1").when_matched().update({"p": "'x'"}).execute()
    ),
}


@pytest.mark.parametrize("what", FAULTY)
def test_values_that_the_reader_lost_are_never_published(table_of, lake, monkeypatch, mode, what):
    """The second line: NULLs and bounds of new files against the metadata of the old ones."""
    partition_by = () if what == "compact" else ("p",)  # rows move: they pass through Spark
    table = evolved(table_of, mode, partition_by)
    before = snapshots(table)
    monkeypatch.setattr(scan, "prepare", lambda _session: None)
    monkeypatch.setattr("icefloe.spark.session.prepare", lambda _session: None)
    monkeypatch.setattr("icefloe.spark.session._NEEDED", {READS_BY_ID: "false"})
    lake.spark.conf.set(READS_BY_ID, "false")

    with pytest.raises(StorageError, match="does not agree with the table's metadata"):
        FAULTY[what](table)
    assert snapshots(table) == before
    assert leftovers(table) == set()


def test_the_session_is_given_back_as_it_was(table_of, lake):
    """Statements change no other setting for good."""
    table = evolved(table_of, "copy-on-write")
    settings = dict(SETTINGS)
    before = {key: lake.spark.conf.get(key, None) for key in settings if key != READS_BY_ID}
    statements(table)
    assert {key: lake.spark.conf.get(key, None) for key in before} == before
