"""Files that other engines wrote: uncovered, or covered later, or such that no task can read them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow

from icefloe import Lake, Table
from support.foreign_files import adopted_file, manifest_entry, publish
from support.indexed_statements import append_by_pyiceberg
from support.indexed_tables import stored_sidecars
from support.tables import data_files, rows

DDL = "id BIGINT, at TIMESTAMP, s STRING"
OLD, NEW = datetime(1500, 1, 1), datetime(2024, 5, 6, 7, 8, 9, 123456)


def some(*ids: int) -> list[dict[str, Any]]:
    return [{"id": i, "at": OLD if i % 2 else NEW, "s": f"s{i}"} for i in ids]


Write = Callable[[pa.Table, Path], None]


def write_int96(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)


def write_old_calendar(table: pa.Table, path: Path) -> None:
    """As Spark does where the legacy calendar is asked for."""
    schema = table.schema.with_metadata({b"org.apache.spark.legacyDateTime": b""})
    pq.write_table(table.cast(schema), path)


def write_without_ids(table: pa.Table, path: Path) -> None:
    fields = [pa.field(field.name, field.type) for field in table.schema]
    pq.write_table(table.cast(pa.schema(fields)), path)


def write_nanoseconds(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path)


def add_file(lake: Lake, table: Table, name: str, write: Write, new: list[dict[str, Any]]) -> None:
    """Commit a file that `write` wrote, with the metrics of a usual one."""
    schema = schema_to_pyarrow(table.iceberg.schema())
    arrow = pa.Table.from_pylist(new, schema=pa.schema([f.with_nullable(True) for f in schema]))
    folder = Path(urlparse(table.location).path) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    write(arrow, path)
    entry = manifest_entry(
        f"file://{path}",
        spec_id=table.iceberg.spec().spec_id,
        record_count=len(new),
        file_size_in_bytes=path.stat().st_size,
    )
    publish(lake, table, data=[entry])


def ids_of(table: Table, where: str) -> list[int]:
    return sorted(row.id for row in table.scan(["id", "s"], where).collect())


@pytest.mark.requirement("L13")
def test_files_of_pyiceberg_are_covered_by_the_next_call(table_of, mode, partition_by):
    table = table_of(DDL, mode=mode, partition_by=("s",) if partition_by else ())
    table.create_index("by_id", "btree", "id")
    table.create_index("by_at", "btree", "at")
    table.append(some(1, 2))
    covered = len(data_files(table))
    append_by_pyiceberg(table, some(3, 4))
    assert len(stored_sidecars(table)) == 2 * covered
    assert ids_of(table, "id IN (2, 3)") == [2, 3]
    assert ids_of(table, "at < TIMESTAMP '2000-01-01 00:00:00Z' AND id IN (2, 3)") == [3]
    delete = table.delete().where("id = 3 AND id % 2 = 1")  # bounds prove it for no file
    assert "index by_id not used for 1 files" in str(delete.explain())
    built = table.create_index("by_id", "btree", "id")
    assert built.files == built.files_covered == len(data_files(table)) == 2 * covered
    assert "not used for" not in str(delete.explain())
    assert table.delete().where("id IN (2, 3)").execute().rows_deleted == 2
    assert rows(table, "id") == [(1,), (4,)]


@pytest.mark.parametrize(
    "write", [write_int96, write_old_calendar, write_without_ids], ids=lambda w: w.__name__[6:]
)
@pytest.mark.every_variant
def test_files_that_only_spark_can_read(lake, table_of, always_by_position, write):
    """They are not covered: a task that reads rows by position could not read them."""
    properties = {
        "schema.name-mapping.default": (
            '[{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["at"]},'
            ' {"field-id": 3, "names": ["s"]}]'
        )
    }
    table = table_of(DDL, properties=properties if write is write_without_ids else {})
    add_file(lake, table, "odd.parquet", write, some(1, 2, 3, 4))
    expected = {row.id: row.at for row in table.scan().collect()}
    for column in ("id", "at"):
        built = table.create_index(f"by_{column}", "btree", column)
        assert built.files == len(built.files_skipped) == 1
    assert stored_sidecars(table) == set()
    table.append(some(5, 6))
    assert ids_of(table, "id IN (2, 3, 6)") == [2, 3, 6]
    before = "at < TIMESTAMP '1900-01-01 00:00:00Z'"
    early = [i for i, at in expected.items() if at.year < 1900]
    assert ids_of(table, before) == sorted([*early, 5])
    assert table.count(before) == len(early) + 1
    assert table.update().set("s", "'x'").where("id IN (3, 5)").execute().rows_updated == 2
    assert table.delete().where("id IN (2, 5)").execute().rows_deleted == 2
    assert ids_of(table, "id > 0") == [1, 3, 4, 6]


def test_files_of_one_name_in_two_folders(lake, table_of, tmp_path):
    table = table_of("id BIGINT, p INT", partition_by=("p",))
    files = []
    for p in (1, 2):
        path = tmp_path / f"adopted/p={p}/part-0.parquet"
        path.parent.mkdir(parents=True)
        schema = schema_to_pyarrow(table.iceberg.schema())
        ids = [{"id": 10 * p + n, "p": p} for n in range(5)]
        pq.write_table(pa.Table.from_pylist(ids, schema=schema), path)
        files.append(adopted_file(table, path, (p,)))
    publish(lake, table, data=files)
    built = table.create_index("by_id", "btree", "id")
    assert (built.files_covered, len(stored_sidecars(table))) == (2, 2)
    for key in (10, 14, 20, 23):
        assert table.count(f"id = {key}") == 1
    assert table.delete().where("id IN (10, 23)").execute().rows_deleted == 2
    left = [10 * p + n for p in (1, 2) for n in range(5)]
    assert sorted(i for (i,) in rows(table, "id")) == [i for i in left if i not in (10, 23)]


def test_partition_values_that_are_in_metadata_alone(lake, table_of, tmp_path):
    """Files of Hive lack the column; an index on it covers none of them."""
    table = table_of("id BIGINT, p INT", partition_by=("p",))
    path = tmp_path / "hive/part-0.parquet"
    path.parent.mkdir()
    schema = schema_to_pyarrow(table.iceberg.schema())
    pq.write_table(pa.Table.from_pylist([{"id": 1}, {"id": 2}], schema=schema).select(["id"]), path)
    publish(lake, table, data=[adopted_file(table, path, (7,))])
    assert table.create_index("by_p", "btree", "p").files_covered == 0
    assert table.create_index("by_id", "btree", "id").files_covered == 1
    assert [tuple(row) for row in table.scan(where="id = 2").collect()] == [(2, 7)]
    assert [tuple(row) for row in table.scan(where="id = 2 AND p = 7").collect()] == [(2, 7)]
    assert table.count("p = 7") == 2
    assert table.delete().where("id = 2 AND p = 7").execute().rows_deleted == 1
    assert len(data_files(table)) == 1


def test_nested_columns_that_differ_from_the_table(lake, table_of, always_by_position):
    """A struct without one of its fields, as engines write that add fields to structs."""
    table = table_of("id BIGINT, st STRUCT<x: INT, y: STRING>")
    table.create_index("by_id", "btree", "id")
    fields = schema_to_pyarrow(table.iceberg.schema())
    short = pa.field("st", pa.struct([fields.field("st").type.field(0)]), True)
    schema = pa.schema([fields.field("id"), short.with_metadata(fields.field("st").metadata)])
    rows_of_file = [{"id": 1, "st": {"x": 1}}, {"id": 2, "st": None}]
    add_file_of(lake, table, pa.Table.from_pylist(rows_of_file, schema=schema))
    table.create_index("by_id", "btree", "id")
    assert [row.asDict(True) for row in table.scan(where="id = 1").collect()] == [
        {"id": 1, "st": {"x": 1, "y": None}}
    ]
    assert table.count("id = 1") == 1
    assert table.update().set("st.y", "'z'").where("id = 1").execute().rows_updated == 1
    assert table.scan(where="id = 1").collect()[0].st.y == "z"


def add_file_of(lake: Lake, table: Table, arrow: pa.Table) -> None:
    folder = Path(urlparse(table.location).path) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nested.parquet"
    pq.write_table(arrow, path)
    entry = manifest_entry(
        f"file://{path}",
        spec_id=table.iceberg.spec().spec_id,
        record_count=arrow.num_rows,
        file_size_in_bytes=path.stat().st_size,
    )
    publish(lake, table, data=[entry])
