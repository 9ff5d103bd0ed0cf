"""append, overwrite, overwrite_partitions, truncate: rows in, files out."""

from __future__ import annotations

import math
import struct
from datetime import date, datetime
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icefloe import errors
from icefloe.storage.files import locate
from support.tables import data_files, delete_files, rows, snapshots, stored_files, summary

SCHEMA = "id BIGINT NOT NULL, region STRING, n INT"
ROWS = [{"id": i, "region": "us" if i % 2 else "eu", "n": i} for i in range(1, 5)]
EXPECTED = [(1, "us", 1), (2, "eu", 2), (3, "us", 3), (4, "eu", 4)]


@pytest.fixture(params=["dicts", "arrow", "batch", "pandas", "spark", "reordered"])
def given(request, spark):
    arrow = pa.Table.from_pylist(ROWS)
    kinds = {
        "dicts": lambda: ROWS,
        "arrow": lambda: pa.concat_tables([arrow.slice(0, 1), arrow.slice(0, 0), arrow.slice(1)]),
        "batch": lambda: arrow.to_batches()[0],
        "pandas": lambda: pd.DataFrame(ROWS),
        "spark": lambda: spark.createDataFrame(ROWS),
        "reordered": lambda: spark.createDataFrame(ROWS).selectExpr("n", "id AS ID", "region"),
    }
    return kinds[request.param]()


def test_rows_of_every_kind_are_appended(table_of, given, partition_by):
    table = table_of(SCHEMA, partition_by=partition_by)

    result = table.append(given)

    assert result.rows_inserted == 4
    assert rows(table) == EXPECTED
    assert summary(table)["operation"] == "append"
    assert summary(table)["spark.insert.num-inserted-rows"] == "4"
    assert len(data_files(table)) == (2 if partition_by else result.data_files_added)


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        ([{"id": 1, "region": "us"}], errors.SchemaMismatchError, "lack 'n'"),
        ([{**ROWS[0], "extra": 1}], errors.SchemaMismatchError, "no 'extra'"),
        ([{**ROWS[0], "n": "x"}], errors.SchemaMismatchError, "'n' expects int32"),
        ([{**ROWS[0], "n": "x"}], errors.TypeMismatchError, "'n' expects int32"),
        ([{**ROWS[0], "n": 2**40}], errors.TypeMismatchError, "'n'"),
        ([{**ROWS[0], "id": None}], errors.NullabilityError, "'id' is required"),
        ([1, 2], errors.StatementError, "must hold dicts"),
        ("text", errors.StatementError, "not str"),
        (pa.table({"id": [1], "region": ["x"]}), errors.SchemaMismatchError, "lack 'n'"),
        (
            pa.table({"id": [1], "region": ["x"], "n": ["y"]}),
            errors.SchemaMismatchError,
            "'n' expects int but got string",
        ),
        (pd.DataFrame({"id": [1]}), errors.SchemaMismatchError, "lack 'region', 'n'"),
        (
            pa.table({"id": [1], "region": ["x"], "n": [2**40]}),
            errors.TypeMismatchError,
            "out of range",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused(table_of, bad, kind, message):
    table = table_of(SCHEMA, ROWS, partition_by=("region",))
    stored = stored_files(table)

    for act in (table.append, table.overwrite, table.overwrite_partitions):
        with pytest.raises(kind, match=message):
            act(bad)

    assert rows(table) == EXPECTED
    assert stored_files(table) == stored
    assert len(snapshots(table)) == 1


def test_overwrite_replaces_all_rows(table_of, mode, partition_by):
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)
    table.delete().where("id = 1").execute()

    result = table.overwrite([{"id": 9, "region": "x", "n": 9}])

    assert rows(table) == [(9, "x", 9)]
    assert (result.rows_inserted, result.rows_deleted) == (1, 3)
    assert delete_files(table) == []
    assert summary(table)["operation"] == "overwrite"
    assert summary(table)["total-records"] == "1"


def test_overwrite_partitions_replaces_just_those(table_of, mode):
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=("region",))
    table.delete().where("id = 1").execute()
    kept = {f.path for f in data_files(table) if f.file.partition[0] == "eu"}

    result = table.overwrite_partitions(
        [{"id": 7, "region": "us", "n": 7}, {"id": 8, "region": None, "n": 8}]
    )

    assert rows(table) == [(2, "eu", 2), (4, "eu", 4), (7, "us", 7), (8, None, 8)]
    assert (result.rows_inserted, result.rows_deleted) == (2, 1)
    assert kept <= {f.path for f in data_files(table)}
    assert delete_files(table) == []


def test_overwrite_partitions_of_an_unpartitioned_table_is_overwrite(table_of):
    table = table_of(SCHEMA, ROWS)
    table.overwrite_partitions([{"id": 7, "region": "us", "n": 7}])
    assert rows(table) == [(7, "us", 7)]


def test_truncate_reads_and_writes_no_data(table_of, mode, partition_by):
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)
    table.delete().where("id = 1").execute()
    stored = stored_files(table)

    result = table.truncate()

    assert result.rows_deleted == 3
    assert rows(table) == []
    assert stored_files(table) == stored
    assert summary(table)["operation"] == "delete"
    assert table.truncate().snapshot_id is None


def test_partitions_fan_out_to_one_file_each(table_of, spark):
    table = table_of("id BIGINT, p INT", partition_by=("p",))
    table.append(spark.range(5000).selectExpr("id", "int(id % 50) AS p").repartition(8))

    files = data_files(table)
    assert len(files) == 50
    assert {f.rows for f in files} == {100}
    assert all(f"/p={f.file.partition[0]}/" in f.path for f in files)


def test_field_ids_stand_at_every_level(table_of):
    table = table_of(
        "a INT, s STRUCT<x: INT, y: ARRAY<STRUCT<z: STRING>>>, m MAP<STRING, ARRAY<INT>>",
        [{"a": 1, "s": {"x": 1, "y": [{"z": "q"}]}, "m": [("k", [1, 2])]}],
    )
    (file,) = data_files(table)
    schema = pq.read_schema(locate(table.iceberg.io, file.path).path)
    ids = sorted(int(field.metadata[b"PARQUET:field_id"]) for field in every_field(schema))
    assert ids == sorted(table.iceberg.schema().field_ids)


def every_field(parent):
    for index in range(len(parent) if isinstance(parent, pa.Schema) else parent.num_fields):
        field = parent.field(index)
        if pa.types.is_map(field.type):
            nested = [field.type.key_field, field.type.item_field]
        else:
            nested = [field.type.field(i) for i in range(field.type.num_fields)]
        yield field
        for child in nested:
            yield child
            yield from every_field(child.type)


def test_column_metrics_are_exact(table_of, spark):
    table = table_of(
        "i INT, s STRING, d DOUBLE, dec DECIMAL(20, 3), small DECIMAL(5, 1), day DATE, "
        "ts TIMESTAMP, nz TIMESTAMP_NTZ, b BOOLEAN, bin BINARY, st STRUCT<f: FLOAT, g: INT>, "
        "l ARRAY<DOUBLE>",
        properties={"write.parquet.row-group-limit": 2},
    )
    nan = float("nan")
    stamp = datetime(2024, 1, 2, 3, 4, 5)
    values = [
        (5, "a" * 20, nan, "-1.5", "9.9", date(1969, 12, 31), stamp, True, b"\xff" * 20, nan),
        (-7, "\U0010ffff" * 20, 2.0, "12345678901234567.125", "-9.9", None, None, False, b"", 1.0),
        (None, None, None, None, None, date(2024, 1, 1), None, None, None, None),
        (0, "", -3.5, "-99999999999999999.999", "0", None, None, None, None, 2.0),
    ]
    table.append(
        [
            {
                "i": i,
                "s": s,
                "d": d,
                "dec": None if dec is None else Decimal(dec),
                "small": None if small is None else Decimal(small),
                "day": day,
                "ts": ts,
                "nz": ts,
                "b": b,
                "bin": bin_,
                "st": {"f": f, "g": None},
                "l": [nan, 1.0],
            }
            for i, s, d, dec, small, day, ts, b, bin_, f in values
        ]
    )
    (live,) = data_files(table)
    file, schema = live.file, table.iceberg.schema()
    ids = {name: schema.find_field(name).field_id for name in schema.column_names}

    def bounds(name):
        return file.lower_bounds.get(ids[name]), file.upper_bounds.get(ids[name])

    assert len(file.split_offsets) == 2
    assert bounds("i") == (struct.pack("<i", -7), struct.pack("<i", 5))
    assert bounds("s")[0] == b""
    assert bounds("s")[1] is None  # nothing larger fits in sixteen characters
    assert bounds("d") == (struct.pack("<d", -3.5), struct.pack("<d", 2.0))
    assert file.nan_value_counts[ids["d"]] == 1
    assert file.nan_value_counts[ids["st.f"]] == 1
    assert [Decimal(int.from_bytes(b, "big", signed=True)).scaleb(-3) for b in bounds("dec")] == [
        Decimal("-99999999999999999.999"),
        Decimal("12345678901234567.125"),
    ]
    assert [int.from_bytes(b, "big", signed=True) for b in bounds("small")] == [-99, 99]
    assert bounds("day") == (struct.pack("<i", -1), struct.pack("<i", 19723))
    micros = int(datetime(2024, 1, 2, 3, 4, 5).timestamp() * 1_000_000)
    assert bounds("ts") == bounds("nz") == (struct.pack("<q", micros),) * 2
    assert bounds("b") == (b"\x00", b"\x01")
    assert bounds("bin") == (b"", None)
    assert file.null_value_counts[ids["i"]] == 1
    assert file.null_value_counts[ids["st.g"]] == 4
    assert file.value_counts[ids["st.f"]] == 4
    assert ids["l.element"] not in file.value_counts  # Parquet's count is not Iceberg's
    assert ids["l.element"] not in file.lower_bounds
    assert set(file.column_sizes) == {ids[n] for n in ids if n not in ("st", "l")}


def test_metrics_follow_the_tables_properties(table_of):
    table = table_of(
        "a STRING, b STRING, c STRING, d STRING",
        [{"a": "x" * 30, "b": "y" * 30, "c": "z" * 30, "d": "w" * 30}],
        properties={
            "write.metadata.metrics.default": "truncate(4)",
            "write.metadata.metrics.column.b": "full",
            "write.metadata.metrics.column.c": "counts",
            "write.metadata.metrics.column.d": "none",
        },
    )
    (live,) = data_files(table)
    assert live.file.lower_bounds == {1: b"xxxx", 2: b"y" * 30}
    assert live.file.upper_bounds == {1: b"xxxy", 2: b"y" * 30}
    assert live.file.value_counts == {1: 1, 2: 1, 3: 1}


def test_sort_order_with_transforms_and_nulls(lake):
    table = lake.create_table("t", SCHEMA, sort_by=["truncate(1, region) DESC NULLS LAST", "n"])
    table.append(
        [
            {"id": 1, "region": None, "n": 1},
            {"id": 2, "region": "ab", "n": 5},
            {"id": 3, "region": "az", "n": 2},
            {"id": 4, "region": "b", "n": None},
        ]
    )
    assert [row.id for row in table.scan().collect()] == [4, 3, 2, 1]


def test_codec_and_level_are_used(table_of):
    for codec in ("zstd", "snappy", "gzip", "uncompressed"):
        table = table_of(
            "id INT",
            [{"id": 1}],
            properties={
                "write.parquet.compression-codec": codec,
                "write.parquet.compression-level": "3",
            },
        )
        (file,) = data_files(table)
        footer = pq.read_metadata(locate(table.iceberg.io, file.path).path)
        assert footer.row_group(0).column(0).compression == codec.upper()


def test_manifests_are_merged_once_there_are_many(table_of):
    table = table_of(SCHEMA, properties={"commit.manifest.min-count-to-merge": 5})
    for number in range(7):
        table.append([{"id": number, "region": "us", "n": number}])
    manifests = table.iceberg.current_snapshot().manifests(table.iceberg.io)
    assert len(manifests) < 6
    assert len(data_files(table)) == 7
    assert [row[0] for row in rows(table)] == list(range(7))
    assert {f.sequence_number for f in data_files(table)} == set(range(1, 8))


def test_nan_is_a_partition_like_any_other(table_of, mode):
    nan = math.nan
    table = table_of("id INT, x DOUBLE", mode=mode, partition_by=("x",))
    table.append([{"id": 1, "x": nan}, {"id": 4, "x": 1.0}])
    table.append([{"id": 2, "x": nan}])
    assert table.delete().where("id = 1").execute().rows_deleted == 1

    table.overwrite_partitions([{"id": 3, "x": nan}])

    assert sorted(row[0] for row in rows(table, "id")) == [3, 4]
    assert len(data_files(table)) == 2
