"""Tables written by PyIceberg alone, so that tests of maintenance need no Spark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import icefloe
from icefloe import Lake, Table
from support.foreign_files import manifest_entry, publish

SCHEMA = Schema(NestedField(1, "id", LongType(), required=False))
LONG_AGO = datetime.now(UTC) - timedelta(days=5)


def open_lake(folder: Path) -> Lake:
    """A lake that never asks for a Spark session."""
    return Lake(icefloe.lake.open_catalog(folder, None, {}))


def later() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=1)


def make(lake: Lake, name: str, *ids: int, **properties: str) -> Table:
    """A table with one data file and one snapshot per id."""
    lake.create_namespace("default")
    lake.catalog.create_table(f"default.{name}", SCHEMA, properties=properties)
    table = lake.table(name)
    for number in ids:
        append(table, number)
    return table


def append(table: Table, *ids: int) -> None:
    table.iceberg.append(pa.table({"id": pa.array(ids, pa.int64())}))


def overwrite(table: Table, *ids: int) -> None:
    table.iceberg.overwrite(pa.table({"id": pa.array(ids, pa.int64())}))


def drop_rows(table: Table) -> None:
    """Remove every file from the table's current snapshot, by metadata alone."""
    with (
        table.iceberg.transaction() as transaction,
        transaction.update_snapshot().overwrite() as update,
    ):
        for task in table.iceberg.scan().plan_files():
            update.delete_data_file(task.file)


def ids_of(table: Table) -> list[int]:
    return sorted(table.iceberg.scan().to_arrow()["id"].to_pylist())


def path_of(location: str) -> Path:
    return Path(urlparse(location).path)


def folder_of(table: Table) -> Path:
    return path_of(table.location)


def data_paths(table: Table) -> list[Path]:
    return [path_of(task.file.file_path) for task in table.iceberg.scan().plan_files()]


def stored(*folders: Path) -> set[Path]:
    return {path for folder in folders for path in folder.rglob("*") if path.is_file()}


def age(*paths: Path) -> None:
    """Make files five days old."""
    for path in paths:
        os.utime(path, (LONG_AGO.timestamp(), LONG_AGO.timestamp()))


def stray(path: Path) -> Path:
    """An old file that no table refers to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x" * 10)
    age(path)
    return path


def publish_at(lake: Lake, table: Table, locations: Sequence[str], *, like: Path) -> None:
    """Add files to a table under these names, with the metrics of a file that has such rows."""
    iceberg = table.iceberg
    file = parquet_file_to_data_file(iceberg.io, iceberg.metadata, f"file://{like}")
    entries = [
        manifest_entry(
            location,
            spec_id=iceberg.spec().spec_id,
            metrics_of=file,
            record_count=file.record_count,
            file_size_in_bytes=file.file_size_in_bytes,
        )
        for location in locations
    ]
    publish(lake, table, data=entries)
