"""Small helpers of the tests: rows, files and snapshots of a table as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
)

from icefloe import Table
from icefloe.metadata.files import LiveFile
from icefloe.metadata.manifests import read_snapshot_files
from icefloe.settings import INLINE_STORE


def row(number: int | None, region: str | None = "us", n: int | None = 0) -> dict[str, Any]:
    """A row for tables with the columns `id BIGINT, region STRING, n INT`."""
    return {"id": number, "region": region, "n": n}


# Values that PyIceberg and Spark give Python in the same form.
SIMPLE = (
    BooleanType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    DecimalType,
    StringType,
    DateType,
)


def rows(table: Table, *columns: str, **options: Any) -> list[tuple[Any, ...]]:
    """Every live row as a tuple, in an order of its own.

    PyIceberg reads them where it can: it is another reader than ours, and a quick one.
    """
    if not options and (found := rows_by_pyiceberg(table, *columns)) is not None:
        return found
    return scanned_rows(table, *columns, **options)


def scanned_rows(table: Table, *columns: str, **options: Any) -> list[tuple[Any, ...]]:
    """Every live row as a tuple, read by icefloe's scan."""
    scanned = table.scan(list(columns) or None, **options)
    return sorted((tuple(each) for each in scanned.collect()), key=nulls_first)


def rows_by_pyiceberg(table: Table, *columns: str) -> list[tuple[Any, ...]] | None:
    """The rows as PyIceberg reads them; None where it cannot, or gives values in another form."""
    iceberg = table.iceberg
    fields = {field.name: field for field in iceberg.schema().fields}
    names = list(columns) or list(fields)
    if not all(name in fields and isinstance(fields[name].field_type, SIMPLE) for name in names):
        return None
    if INLINE_STORE in iceberg.properties:
        return None
    if any(file.is_equality_delete for file in live_files(table)):
        return None
    arrow = iceberg.scan(selected_fields=tuple(names)).to_arrow().select(names)
    values = [column.to_pylist() for column in arrow.columns]
    return sorted(zip(*values, strict=True), key=nulls_first)


def by_id(table: Table) -> dict[Any, tuple[Any, ...]]:
    """Every live row by the value of its first column."""
    return {values[0]: values[1:] for values in rows(table)}


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


def nulls_first(values: tuple[Any, ...]) -> list[tuple[bool, str]]:
    """A sort key for rows of values that have no common order."""
    return [(value is not None, repr(value)) for value in values]
