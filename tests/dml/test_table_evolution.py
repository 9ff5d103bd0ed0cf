"""Partition specs, properties and columns that change after a table was created."""

from __future__ import annotations

from pathlib import Path

import pytest

from icefloe import errors
from icefloe.storage.files import locate
from support.tables import data_files, rows


def test_partition_widths_evolve(table_of, mode):
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


def test_old_metadata_files_are_deleted_by_property(table_of):
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


def test_a_partition_column_with_a_dot_cannot_be_dropped(table_of):
    table = table_of("a INT, `a.b` INT, v INT", [{"a": 0, "a.b": 1, "v": 1}], partition_by=("a.b",))

    with pytest.raises(errors.StatementError, match=r"partitioned by 'a\.b'"):
        table.drop_column("a.b")
    table.drop_column("a")

    assert rows(table) == [(1, 1)]
