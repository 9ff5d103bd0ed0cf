"""Values on their way into a table: nested types by name, nothing lost on the way."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from icefloe import errors
from support.tables import data_files, rows

NESTED = "id INT, s STRUCT<a: INT, b: INT>, l ARRAY<STRUCT<a: INT, b: INT>>, m MAP<STRING, INT>"


def one(table):
    (row,) = table.scan().collect()
    return row.asDict(recursive=True)


def test_fields_of_structs_go_by_name(table_of, mode):
    table = table_of(NESTED, mode=mode)
    swapped = pa.struct([("b", pa.int64()), ("A", pa.int32())])
    table.append(
        pa.table(
            {
                "id": pa.array([1], pa.int64()),
                "s": pa.array([{"b": 1, "A": 2}], swapped),
                "l": pa.array([[{"b": 3, "A": 4}, None]], pa.list_(swapped)),
                "m": pa.array([[("k", 5)]], pa.map_(pa.string(), pa.int64())),
            }
        )
    )
    assert one(table) == {
        "id": 1,
        "s": {"a": 2, "b": 1},
        "l": [{"a": 4, "b": 3}, None],
        "m": {"k": 5},
    }

    table.update().set("s", "named_struct('b', 10, 'a', 20)").set("l", "NULL").execute()
    assert one(table)["s"] == {"a": 20, "b": 10}


@pytest.mark.parametrize(
    ("column", "value", "path"),
    [
        ("s", "named_struct('a', 3000000000, 'b', 1)", r"s\.a"),
        ("l", "array(named_struct('a', 1, 'b', 3000000000))", r"l\.element\.b"),
        ("m", "map('k', 3000000000)", r"m\.value"),
    ],
)
def test_overflow_inside_nested_values_is_an_error(table_of, mode, column, value, path):
    table = table_of(NESTED, [{"id": 1, "s": None, "l": None, "m": None}], mode=mode)
    with pytest.raises(errors.TypeMismatchError, match=f"'{path}' expects int .*out of range"):
        table.update().set(column, value).execute()
    assert one(table) == {"id": 1, "s": None, "l": None, "m": None}


def test_null_in_a_required_nested_value_is_refused(table_of):
    from pyiceberg.schema import Schema  # noqa: PLC0415
    from pyiceberg.types import IntegerType, ListType, MapType, NestedField, StringType  # noqa: PLC0415

    schema = Schema(
        NestedField(1, "l", ListType(3, IntegerType(), element_required=True)),
        NestedField(2, "m", MapType(4, StringType(), 5, IntegerType(), value_required=True)),
    )
    table = table_of(schema, [{"l": [1, 2], "m": [("a", 1)]}, {"l": None, "m": None}])
    spark = table._lake.spark
    for bad, path in (
        ("array(1, NULL) AS l, map('a', 1) AS m", r"l\.element"),
        ("array(1) AS l, map('a', cast(NULL AS int)) AS m", r"m\.value"),
    ):
        with pytest.raises(errors.NullabilityError, match=path):
            table.append(spark.sql(f"SELECT {bad}"))
    assert len(rows(table)) == 2


def test_nan_is_a_partition_like_any_other(table_of, mode):
    nan = math.nan
    table = table_of("id INT, x DOUBLE", mode=mode, partition_by=("x",))
    table.append([{"id": 1, "x": nan}, {"id": 4, "x": 1.0}])
    table.append([{"id": 2, "x": nan}])
    assert table.delete().where("id = 1").execute().rows_deleted == 1

    table.overwrite_partitions([{"id": 3, "x": nan}])

    assert sorted(row[0] for row in rows(table, "id")) == [3, 4]
    assert len(data_files(table)) == 2


def test_text_beside_a_subquery_stays_as_it_is(table_of, lake):
    table = table_of("id INT, name STRING", [{"id": 1, "name": "it's"}, {"id": 2, "name": "its"}])
    lake.create_table("q1", "id INT").append([{"id": 1}, {"id": 2}])

    table.delete().where("name = 'it\\'s' AND id IN (SELECT id FROM default.q1)").execute()

    assert rows(table) == [(2, "its")]


def test_subqueries_see_the_branch_that_is_changed(table_of):
    table = table_of("id INT", [{"id": 1}, {"id": 2}, {"id": 3}])
    name = table.name
    table.delete().where("id = 3").with_options(branch="dev").execute()

    count = f"(SELECT int(count(*)) FROM {name})"
    table.update().set("id", count).with_options(branch="dev").execute()

    dev = table.iceberg.metadata.refs["dev"].snapshot_id
    assert rows(table, snapshot_id=dev) == [(2,), (2,)]
    assert rows(table) == [(1,), (2,), (3,)]


def test_widths_of_partitions_evolve(table_of, mode):
    table = table_of("id INT, s STRING", [{"id": 1, "s": "abc"}], mode=mode)
    for layout in (
        "bucket(4, id)",
        "bucket(8, id)",
        "truncate(1, s)",
        "truncate(2, s)",
        "bucket(4, id)",
    ):
        table.evolve_partitions([layout])
        table.append([{"id": 1, "s": "abc"}])
    assert table.update().set("s", "'x'").execute().rows_updated == 6
    assert {f.spec_id for f in data_files(table) if f.rows} <= set(table.iceberg.specs())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("write.parquet.compression-level", "x"),
        ("write.parquet.compression-codec", "zip"),
        ("write.metadata.metrics.default", "some"),
        ("write.metadata.metrics.column.id", "truncate()"),
        ("commit.retry.num-retries", "-1"),
        ("write.target-file-size-bytes", "0"),
        ("write.delete.granularity", "row"),
        ("icefloe.auto.rewrite-fraction", "half"),
        ("icefloe.auto.rewrite-fraction", "nan"),
        ("icefloe.auto.rewrite-fraction", "-0.1"),
        ("icefloe.auto.rewrite-fraction", "30"),
        ("write.update.isolation-level", "none"),
    ],
)
def test_bad_properties_are_refused_when_they_are_set(table_of, lake, key, value):
    table = table_of("id INT")
    with pytest.raises(errors.StatementError, match=key):
        table.set_properties({key: value})
    with pytest.raises(errors.StatementError, match=key):
        lake.create_table("bad", "id INT", properties={key: value})
    assert key not in table.properties


def test_columns_in_use_cannot_be_dropped(lake):
    table = lake.create_table(
        "t", "id INT, p STRUCT<r: STRING>, z INT", partition_by=["p.r"], sort_by=["z"]
    )
    for column, message in (("p", "partitioned by 'p.r'"), ("p.r", "partitioned"), ("z", "sorted")):
        with pytest.raises(errors.StatementError, match=message):
            table.drop_column(column)


def test_old_metadata_files_go_when_asked(table_of):
    from pathlib import Path  # noqa: PLC0415

    from icefloe.storage.files import locate  # noqa: PLC0415

    table = table_of(
        "id INT",
        properties={
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "2",
        },
    )
    for number in range(6):
        table.append([{"id": number}])
    folder = Path(locate(table.iceberg.io, f"{table.location}/metadata").path)
    assert len(list(folder.glob("*.metadata.json"))) == 3


def test_an_append_lands_beside_a_rollback(table_of, monkeypatch):
    import icefloe.engine  # noqa: PLC0415

    table = table_of("id INT", [{"id": 1}], [{"id": 2}])
    first = table.iceberg.metadata.snapshots[0].snapshot_id
    write = icefloe.engine.write_data

    def write_and_roll_back(*arguments):
        written = write(*arguments)
        table.rollback(first)
        return written

    monkeypatch.setattr(icefloe.engine, "write_data", write_and_roll_back)
    table.append([{"id": 3}])

    assert rows(table) == [(1,), (3,)]
