"""`count` reads metadata, delete files, and only those data files that these cannot count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import pack

import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField
from pyspark.sql.connect import functions as F

from icefloe import Lake, Table
from icefloe.commands import scan
from support.foreign_files import equality_delete, manifest_entry, position_delete, publish
from support.pyiceberg_tables import append, data_paths, make, open_lake
from support.tables import live_files
from support.watched_calls import Watch, watching

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "p", IntegerType(), required=False),
    NestedField(3, "d", DoubleType(), required=False),
)
BY_P = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A lake without Spark."""

    def refuse(_lake: Lake) -> None:
        pytest.fail("this needs no Spark session")

    monkeypatch.setattr(Lake, "spark", property(refuse))
    yield open_lake(tmp_path / "lake")


def files_read(table: Table, where: object = None) -> tuple[int, list[str]]:
    """The count, and the data and delete files that it opens."""
    with watching(Watch()) as watch:
        found = table.count(where)
    return found, [call for call in watch.calls if call.startswith("read") and "/data/" in call]


@pytest.mark.parametrize("files", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_files_are_counted_by_their_metadata(local, files):
    """Three rows in each file, whose ids are those from ten times its partition."""
    local.create_namespace("default")
    local.catalog.create_table("default.t", SCHEMA, partition_spec=BY_P)
    table = local.table("t")
    publish(local, table, data=[entry(table, number) for number in range(files)])

    assert files_read(table) == (3 * files, [])
    assert files_read(table, "p = 77") == (3, [])
    assert files_read(table, F.col("p") == 77) == (3, [])
    assert files_read(table, "p < 500 AND NOT p IN (3, 4)") == (3 * 498, [])
    assert files_read(table, "id < 1000 OR p = 200") == (3 * 101, [])
    assert files_read(table, F.col("id").between(1000, 1999)) == (3 * 100, [])
    assert files_read(table, "p IS NULL OR id > 1000000") == (0, [])


def entry(table: Table, number: int):
    return manifest_entry(
        f"{table.location}/data/{number}.parquet",
        spec_id=table.iceberg.spec().spec_id,
        partition=Record(number),
        record_count=3,
        value_counts={1: 3, 2: 3},
        null_value_counts={1: 0, 2: 0},
        lower_bounds={1: pack("<q", 10 * number), 2: pack("<i", number)},
        upper_bounds={1: pack("<q", 10 * number + 2), 2: pack("<i", number)},
    )


def test_deleted_positions_count_once(local):
    """Delete files may repeat positions, overlap, and name rows and files that are not there."""
    table = make(local, "t")
    for first in (0, 10, 20):
        append(table, *range(first, first + 5))
    one, two, _ = sorted(f"file://{path}" for path in data_paths(table))
    gone = one.replace(".parquet", "-gone.parquet")
    publish(
        local,
        table,
        deletes=[
            position_delete(table, [(one, 1), (one, 1), (one, 3), (one, 5), (one, 2**40)]),
            position_delete(table, [(one, 1), (two, 0), (gone, 0), (gone, 4)]),
            position_delete(table, [(two, position) for position in range(9)]),
        ],
    )

    found, opened = files_read(table)
    assert found == 3 + 0 + 5
    assert len(opened) == 3
    assert not any(path.removeprefix("file://") in call for call in opened for path in (one, two))


def min_id(table: Table, path: str) -> int:
    return min(pq.read_table(path.removeprefix("file://"))["id"].to_pylist())


def test_files_that_a_condition_divides_are_read_alone(local):
    table = make(local, "t")
    for first in (0, 10, 20, 30):
        append(table, *range(first, first + 5))
    [divided] = [path for path in data_paths(table) if min_id(table, f"file://{path}") == 10]
    assert files_read(table, "id < 12") == (7, [f"read {divided}"])
    assert files_read(table, F.col("id") < 12) == (7, [f"read {divided}"])
    assert files_read(table, "id < 15") == (10, [])


def test_a_file_without_a_row_count_is_read(local):
    table = make(local, "t", 1, 2)
    [first, second] = data_paths(table)
    first.rename(first.with_name("again.parquet"))
    publish(
        local,
        table,
        data=[
            manifest_entry(
                f"file://{first.with_name('again.parquet')}",
                spec_id=0,
                record_count=0,
                file_size_in_bytes=second.stat().st_size,
            )
        ],
        removed=[file for file in live_files(table) if file.path.endswith(first.name)],
    )
    counted = scan._count_by_metadata(table._context(), table._state(), None)
    assert counted is not None
    assert (counted.rows, [c.live.rows for c in counted.uncounted]) == (1, [0])


def test_only_files_with_equality_deletes_are_read_by_spark(lake, jobs):
    table = lake.create_table("t", "id BIGINT, p INT, d DOUBLE", partition_by=["p"])
    table.append([{"id": n, "p": n % 3, "d": n / 2} for n in range(12)])
    deletes = [equality_delete(table, [{"id": 4}, {"id": 7}], partition=(1,))]
    publish(lake, table, deletes=deletes)
    table.delete().where("id = 0").execute()

    counted = scan._count_by_metadata(table._context(), table._state(), None)
    assert counted is not None
    assert (counted.rows, len(counted.uncounted)) == (3 + 4, 1)
    assert table.count() == table.scan().count() == 9
    assert table.count("p <> 1") == 7
    before = jobs()
    assert table.count("p = 2") == 4
    assert jobs() == before
    assert table.count("d < 3 OR p = 1") == table.scan(where="d < 3 OR p = 1").count() == 5
