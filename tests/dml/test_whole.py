"""What holds for every statement (X), and input that must be refused."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import pyarrow as pa
import pyarrow.orc as orc
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyspark.sql import functions as F

from icefloe import DmlResult, errors
from icefloe.commit.conflicts import ConflictCheck
from icefloe.commit.publish import Commit, publish
from icefloe.file_changes import FileChanges
from icefloe.settings import Isolation
from icefloe.storage.files import locate
from support.tables import data_files, delete_files, rows, snapshots, stored_files, summary

SCHEMA = "id BIGINT NOT NULL, region STRING, n INT, d DECIMAL(10, 2)"
ROWS = [{"id": i, "region": "us" if i % 2 else "eu", "n": i, "d": None} for i in range(1, 5)]


@pytest.fixture
def table(table_of, mode, partition_by):
    return table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)


@pytest.mark.requirement("X04")
def test_every_statement_returns_one_kind_of_result(table):
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
def test_the_summary_tells_what_was_done(table, mode):
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


BAD = {
    "unknown column in where": (
        lambda t: t.delete().where("nmae = 1"),
        errors.ColumnNotFoundError,
        "'nmae' is not in the table",
    ),
    "unknown column in set": (
        lambda t: t.update().set("regoin", "1"),
        errors.ColumnNotFoundError,
        "Did you mean 'region'",
    ),
    "unknown column in an expression": (
        lambda t: t.update().set("n", "m + 1"),
        errors.ColumnNotFoundError,
        "'m' is not in the table",
    ),
    "wrong type": (
        lambda t: t.update().set("n", "region"),
        errors.TypeMismatchError,
        "'n' expects int but got string",
    ),
    "NULL into required": (
        lambda t: t.update().set("id", "NULL"),
        errors.NullabilityError,
        "'id' is required",
    ),
    "NULL into required at run time": (
        lambda t: t.update().set("id", "nullif(id, 2)"),
        errors.NullabilityError,
        "'id' is required",
    ),
    "overflow of a narrower type": (
        lambda t: t.update().set("n", "id + 3000000000"),
        errors.TypeMismatchError,
        "out of range",
    ),
    "overflow in arithmetic": (
        lambda t: t.update().set("n", "n + 2147483647"),
        errors.StatementError,
        "overflow",
    ),
    "overflow of a decimal": (
        lambda t: t.update().set("d", "cast(12345678901 as decimal(20, 2))"),
        errors.TypeMismatchError,
        "out of range",
    ),
    "not deterministic": (
        lambda t: t.delete().where("rand() < 0.5"),
        errors.StatementError,
        "not deterministic",
    ),
    "not boolean": (
        lambda t: t.delete().where("id + 1"),
        errors.TypeMismatchError,
        "expects BOOLEAN but got BIGINT",
    ),
    "not SQL": (
        lambda t: t.delete().where("id = = 1"),
        errors.ParseError,
        "Syntax error at or near '='",
    ),
    "empty condition": (lambda t: t.delete().where("  "), errors.StatementError, "empty"),
    "a number for a condition": (
        lambda t: t.delete().where(5),
        errors.StatementError,
        "SQL text or a Column",
    ),
    "no set": (lambda t: t.update().where("id = 1"), errors.StatementError, "sets no column"),
    "set twice": (
        lambda t: t.update().set("n", "1").set("N", "2"),
        errors.StatementError,
        "more than once",
    ),
    "aggregate in where": (
        lambda t: t.delete().where("max(id) = 1"),
        errors.StatementError,
        "aggregate",
    ),
    "unknown table in a subquery": (
        lambda t: t.delete().where("id IN (SELECT id FROM nowhere.at_all)"),
        errors.StatementError,
        "nowhere",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_statements_are_refused_and_change_nothing(table_of, mode, case):
    build, kind, message = BAD[case]
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=("region",))
    before, stored, snapshot = rows(table), stored_files(table), table.snapshot_id

    with pytest.raises(kind, match=message):
        build(table).execute()

    assert rows(table) == before
    assert stored_files(table) == stored
    assert table.snapshot_id == snapshot


def test_bad_options_are_refused(table_of):
    table = table_of(SCHEMA, ROWS)
    with pytest.raises(errors.StatementError, match=r"Unknown option 'mod'.*mode"):
        table.delete().with_options(mod="auto")
    with pytest.raises(errors.StatementError, match="Unknown write mode 'fast'"):
        table.delete().with_options(mode="fast")
    with pytest.raises(errors.StatementError, match="Unknown isolation level 'none'"):
        table.delete().with_options(isolation="none")
    with pytest.raises(errors.StatementError, match="'retries' takes a whole number"):
        table.delete().with_options(retries=-1)
    with pytest.raises(errors.StatementError, match=r"where\(\) was called twice"):
        table.delete().where("id = 1").where("id = 2")


def test_a_table_that_does_not_exist(lake):
    lake.create_table("orders", SCHEMA)
    with pytest.raises(errors.TableNotFoundError, match=r"default\.ordres does not exist.*orders"):
        lake.table("ordres")
    with pytest.raises(errors.TableNotFoundError, match=r"ns\.x does not exist"):
        lake.table("ns.x")


def test_an_orc_data_file_is_refused(table_of, mode):
    table = table_of(SCHEMA, ROWS, mode=mode)
    location = f"{table.location}/data/foreign.orc"
    place = locate(table.iceberg.io, location)
    orc.write_table(pa.table({"id": [1]}), place.path)
    add_data_file(table, location, FileFormat.ORC)

    for act in (
        lambda: table.scan(),
        lambda: table.delete().where("id = 1").execute(),
        lambda: table.update().set("n", "1").execute(),
    ):
        with pytest.raises(errors.UnsupportedTableError, match=r"foreign\.orc is .*Parquet"):
            act()


def add_data_file(table, location, file_format):
    """Publish a file that another engine might have written."""
    file = DataFile.from_args(
        _table_format_version=3,
        content=DataFileContent.DATA,
        file_path=location,
        file_format=file_format,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=100,
    )
    file.spec_id = 0
    publish(
        Commit(
            table._lake.catalog,
            table._state(),
            "hand-made",
            FileChanges(added_data=(file,)),
            ConflictCheck(Isolation.SNAPSHOT, None),
            lambda _removed, _deletes: DmlResult("append"),
            {},
        )
    )
