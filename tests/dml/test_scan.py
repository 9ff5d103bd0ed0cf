"""Scans: projection, pruning, time travel, evolution, and tables of many files."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.typedef import Record
from pyspark.sql import functions as F

from icefloe import DmlResult, errors
from icefloe.commands.bind import lower_condition
from icefloe.commit.conflicts import ConflictCheck
from icefloe.commit.publish import Commit, publish
from icefloe.file_changes import FileChanges
from icefloe.pruning.candidates import plan_files
from icefloe.settings import Isolation
from icefloe.spark.column_trees import ColumnReader
from icefloe.storage.files import locate
from icefloe.storage.locations import spark_uri
from support.foreign_files import manifest_entry
from support.tables import data_files, rows, snapshots

SCHEMA = "id BIGINT, region STRING, n INT"
ROWS = [{"id": i, "region": "us" if i % 2 else "eu", "n": i} for i in range(1, 7)]


def files_for(table, where):
    state = table._state()
    return plan_files(state, lower_condition(where, state, ColumnReader(lambda: table._lake.spark)))


@pytest.mark.requirement("L10")
def test_projection_filter_and_limit_alone_and_together(table_of, partition_by):
    table = table_of(SCHEMA, ROWS, partition_by=partition_by)

    assert table.scan(["n", "ID"]).columns == ["n", "id"]
    assert table.scan(where="n > 4").count() == 2
    assert table.scan(where=F.col("n") > 4).count() == 2
    assert table.scan(limit=3).count() == 3
    assert table.scan(["id"], "region = 'us'", limit=2).count() == 2
    assert table.count() == 6
    assert table.to_arrow().num_rows == 6
    assert sorted(table.to_pandas()["id"]) == [1, 2, 3, 4, 5, 6]
    assert table.schema.simpleString() == "struct<id:bigint,region:string,n:int>"


def test_scans_prune_by_partition_and_by_bounds(table_of):
    table = table_of(SCHEMA, ROWS[:2], ROWS[2:4], ROWS[4:], partition_by=("region",))

    assert len(files_for(table, "region = 'us'").candidates) == 3
    by_bounds = files_for(table, "n >= 5")
    assert len(by_bounds.candidates) == 2
    assert {s.reason for s in by_bounds.skipped} == {"column bounds"}
    assert len(files_for(table, "n = 3 AND region = 'us'").candidates) == 1
    assert len(files_for(table, "length(region) = 2").candidates) == 6
    assert rows(table, where="n = 3 AND region = 'us'") == [(3, "us", 3)]


def test_file_and_position_on_request(table_of):
    table = table_of(SCHEMA, ROWS, partition_by=("region",))
    table.delete().where("id = 1").execute()

    found = table.scan(["id", "_file", "_pos"]).collect()

    paths = {f.path for f in data_files(table)}
    assert {row._file for row in found} <= paths
    assert sorted((row.id, row._pos) for row in found) == [(2, 0), (3, 1), (4, 1), (5, 2), (6, 2)]
    with pytest.raises(errors.ColumnNotFoundError, match="'nope'"):
        table.scan(["nope"])


def test_time_travel_by_snapshot_and_timestamp(table_of, mode):
    table = table_of(SCHEMA, ROWS[:3], mode=mode)
    first, moment = table.snapshot_id, datetime.now(UTC)
    time.sleep(0.01)
    table.add_column("extra", "STRING")
    table.append([{**ROWS[4], "extra": "x"}])
    table.delete().where("id = 1").execute()

    assert len(rows(table, snapshot_id=first)) == 3
    assert table.scan(snapshot_id=first).columns == ["id", "region", "n"]
    assert len(rows(table, as_of=moment)) == 3
    assert len(rows(table)) == 3
    with pytest.raises(errors.StatementError, match="no snapshot 5"):
        table.scan(snapshot_id=5)
    with pytest.raises(errors.StatementError, match="as old as"):
        table.scan(as_of=datetime(2001, 1, 1, tzinfo=UTC))


def test_rollback_keeps_history(table_of, mode):
    table = table_of(SCHEMA, ROWS, mode=mode)
    first = table.snapshot_id
    table.delete().where("id > 2").execute()
    second = table.snapshot_id

    table.rollback(first)
    assert len(rows(table)) == 6
    assert len(snapshots(table)) == 2
    assert table.update().set("n", "0").where("id = 1").execute().rows_updated == 1
    assert len(rows(table, snapshot_id=second)) == 2
    with pytest.raises(errors.StatementError, match="no snapshot 77"):
        table.rollback(77)
    with pytest.raises(errors.StatementError, match="either a snapshot_id or as_of"):
        table.rollback()


def test_columns_evolve_and_every_statement_still_works(table_of, mode, partition_by):
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)
    table.add_column("note", "STRING").rename_column("n", "number")
    with table.iceberg.update_schema() as update:
        update.update_column("number", field_type=table.iceberg.schema().find_type("id"))
    table.append([{"id": 10, "region": "us", "number": 2**40, "note": "big"}])

    table.update().set("note", "concat('n', number)").where("id IN (1, 2, 10)").execute()
    table.delete().where("number = 3 OR note IS NULL AND id = 4").execute()

    assert rows(table) == [
        (1, "us", 1, "n1"),
        (10, "us", 2**40, "n1099511627776"),
        (2, "eu", 2, "n2"),
        (5, "us", 5, None),
        (6, "eu", 6, None),
    ]
    table.drop_column("number").add_column("number", "STRING")
    assert {row[3] for row in rows(table)} == {None}  # a new column of an old name is new
    table.update().set("number", "'x'").where("id = 5").execute()
    assert {row[0]: row[3] for row in rows(table)}[5] == "x"


def test_nested_schemas_evolve(table_of, mode):
    table = table_of(
        "id INT, p STRUCT<a: INT, b: STRING>, l ARRAY<STRUCT<x: INT>>",
        [
            {"id": 1, "p": {"a": 1, "b": "q"}, "l": [{"x": 1}, None]},
            {"id": 2, "p": None, "l": None},
        ],
        mode=mode,
    )
    with table.iceberg.update_schema() as update:
        update.rename_column("p.a", "aa")
        update.delete_column("p.b")
        update.add_column(("l", "y"), table.iceberg.schema().find_type("id"))
    table.add_column("p.c", "DOUBLE")

    table.update().set("p.c", "p.aa + 0.5").where("id = 1").execute()
    table.delete().where("id = 2").execute()

    (found,) = [row.asDict(recursive=True) for row in table.scan().collect()]
    assert found == {"id": 1, "p": {"aa": 1, "c": 1.5}, "l": [{"x": 1, "y": None}, None]}


def test_promoted_types_read_right(table_of, mode):
    table = table_of(
        "i INT, f FLOAT, d DECIMAL(5, 2)",
        [{"i": 1, "f": 1.5, "d": 1}, {"i": 2, "f": None, "d": 2}],
        mode=mode,
    )
    from pyiceberg.types import DecimalType, DoubleType, LongType  # noqa: PLC0415

    with table.iceberg.update_schema() as update:
        update.update_column("i", field_type=LongType())
        update.update_column("f", field_type=DoubleType())
        update.update_column("d", field_type=DecimalType(20, 2))

    table.update().set("i", "i + 5000000000").where("i = 1").execute()
    assert table.delete().where("i = 2 AND d = 2").execute().rows_deleted == 1
    (found,) = table.scan().collect()
    assert (found.i, found.f, float(found.d)) == (5000000001, 1.5, 1.0)


def test_odd_names_of_columns_partitions_and_folders(spark, tmp_path, mode):
    import icefloe  # noqa: PLC0415

    with icefloe.connect(tmp_path / "a b%2F=é{x}[1]+&", spark=spark) as lake:
        table = lake.create_table(
            "odd",
            "`a.b` INT, `back``tick` STRING, `select` STRING",
            partition_by=["`select`"],
            properties={"write.delete.mode": mode, "write.update.mode": mode},
        )
        values = ["x/y", "a b", "ü", "50%", "", None, "{1}", "a=b", "q?#"]
        table.append([{"a.b": i, "back`tick": f"b{i}", "select": v} for i, v in enumerate(values)])
        assert len(rows(table)) == len(values)
        table.append([{"a.b": 100 + i, "back`tick": "", "select": v} for i, v in enumerate(values)])

        assert table.delete().where("`a.b` >= 100").execute().rows_deleted == len(values)
        table.append([{"a.b": 200, "back`tick": "z", "select": "50%"}])
        updated = table.update().set("back`tick", "'new'").where("`select` = '50%'").execute()

        assert updated.rows_updated == 2
        assert len(rows(table)) == len(values) + 1


@pytest.mark.parametrize("name", ["a#b", "what?"])
def test_folders_that_iceberg_cannot_address_are_refused(spark, tmp_path, name):
    import icefloe  # noqa: PLC0415

    with pytest.raises(errors.StatementError, match="A lake cannot be in"):
        icefloe.connect(tmp_path / name, spark=spark)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("location", "uri"),
    [
        ("file:///a/b.parquet", "file:/a/b.parquet"),
        ("/a/b c.parquet", "file:/a/b%20c.parquet"),
        ("s3://bucket/k=1%2F/x.parquet", "s3a://bucket/k=1%252F/x.parquet"),
        ("hdfs://host:9000/é/[x]", "hdfs://host:9000/é/%5Bx%5D"),
    ],
)
def test_locations_as_spark_spells_them(location, uri):
    assert spark_uri(location) == uri


@pytest.mark.requirement("T40")
def test_metadata_tables(table_of):
    table = table_of(SCHEMA, ROWS, partition_by=("region",))
    table.delete().where("id = 1").execute()

    contents = [row.content for row in table.files().collect()]
    assert sorted(contents) == [0, 0, 1]
    assert [row.operation for row in table.snapshots().orderBy("committed_at").collect()] == [
        "append",
        "delete",
    ]
    assert table.history().count() == 2
    assert table.manifests().count() == 2
    assert table.partitions().count() == 2


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_files_plan_and_open(lake, spark, tmp_path, count):
    """A table of many files: all published at once, found by one predicate, read whole."""
    table = lake.create_table("many", "id BIGINT, p INT", partition_by=["p"])
    state = table._state()
    template = tmp_path / "template.parquet"
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"}),
            pa.field("p", pa.int32(), metadata={"PARQUET:field_id": "2"}),
        ]
    )
    pq.write_table(pa.table({"id": [1], "p": [0]}, schema=schema), template)
    folder = locate(state.io, state.data_location).path
    state.io.new_output(f"{state.data_location}/x").create().close()
    files = []
    for number in range(count):
        name = f"f{number}.parquet"
        (tmp_path.__class__(folder) / name).hardlink_to(template)
        file = manifest_entry(
            f"{state.data_location}/{name}",
            spec_id=state.metadata.default_spec_id,
            partition=Record(number % 100),
            file_size_in_bytes=template.stat().st_size,
            value_counts={1: 1, 2: 1},
            null_value_counts={1: 0, 2: 0},
        )
        files.append(file)
    publish(
        Commit(
            lake.catalog,
            state,
            "hand-made",
            FileChanges(added_data=tuple(files)),
            ConflictCheck(Isolation.SNAPSHOT, None),
            lambda _removed, _deletes: DmlResult("append"),
            {},
            lake.tier,
        )
    )

    assert table.scan(["id"]).count() == count
    assert len(files_for(table, "p = 7").candidates) == count // 100
    result = table.delete().where("p = 7").execute()
    assert (result.data_files_removed, result.files_skipped) == (count // 100, count * 99 // 100)


def test_no_job_looks_for_the_files_of_a_disk(table_of, spark, jobs):
    """Spark starts one from 33 files on, which takes longer than to look for them."""
    table = table_of("p INT", [{"p": p} for p in range(40)], partition_by=("p",))
    name = "spark.sql.sources.parallelPartitionDiscovery.threshold"
    before, setting = jobs(), spark.conf.get(name)
    scanned = table.scan()
    assert jobs() == before
    assert spark.conf.get(name) == setting
    assert len(scanned.inputFiles()) == 40
    assert scanned.count() == 40
