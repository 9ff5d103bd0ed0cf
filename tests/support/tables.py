"""Small helpers of the tests: rows, files and snapshots of a table as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pyiceberg.table.snapshots import Snapshot

from icefloe import Table
from icefloe.metadata.files import LiveFile
from icefloe.metadata.manifests import read_snapshot_files


def rows(table: Table, *columns: str, **options: Any) -> list[tuple[Any, ...]]:
    """Every live row as a tuple, in an order of its own."""
    scanned = table.scan(list(columns) or None, **options)
    return sorted((tuple(row) for row in scanned.collect()), key=_order)


def live_files(table: Table) -> tuple[LiveFile, ...]:
    """Data and delete files of the current snapshot."""
    iceberg = table.iceberg
    files = read_snapshot_files(iceberg.io, iceberg.current_snapshot())
    return (*files.data, *files.deletes)


def data_files(table: Table) -> list[LiveFile]:
    return [file for file in live_files(table) if file.is_data]


def delete_files(table: Table) -> list[LiveFile]:
    return [file for file in live_files(table) if not file.is_data]


def snapshots(table: Table) -> list[Snapshot]:
    return list(table.iceberg.metadata.snapshots)


def summary(table: Table) -> dict[str, str]:
    """The newest snapshot's summary, its operation included."""
    found = table.iceberg.current_snapshot()
    assert found is not None
    assert found.summary is not None
    return {"operation": found.summary.operation.value, **found.summary.additional_properties}


def stored_files(table: Table) -> set[str]:
    """Every Parquet file below the table's data folder, live or not."""
    folder = Path(urlparse(table.location).path) / "data"
    return {str(path) for path in folder.rglob("*.parquet")}


def _order(row: tuple[Any, ...]) -> list[tuple[bool, str]]:
    return [(value is not None, repr(value)) for value in row]
