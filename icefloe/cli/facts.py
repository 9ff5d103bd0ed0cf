"""Facts of tables as records to print; no Spark session is started for them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.table import Table as IcebergTable

from icefloe.cli.output import Format
from icefloe.cli.records import Records, of_dicts
from icefloe.inspection.facts import table_counts, table_history
from icefloe.inspection.metadata_tables import metadata_arrow
from icefloe.lake import Lake

_CONTENTS = {0: "data", 1: "position deletes", 2: "equality deletes"}
_FILE_COLUMNS = ("content", "file_path", "partition", "record_count", "file_size_in_bytes")


def tables(lake: Lake) -> Records:
    """Every table with the counts of its current snapshot."""
    rows = [table_counts(name, lake.table(name).iceberg) for name in lake.tables()]
    return of_dicts(rows) if rows else Records(("table",), (False,), [])


def history(table: IcebergTable, format: Format) -> Records:
    """When each snapshot became current, and the statement that wrote it."""
    rows = table_history(table)
    if format is Format.TABLE:
        rows = [_history_row(row) for row in rows]
    return of_dicts(rows) if rows else of_arrow(metadata_arrow("history", table))


def _history_row(row: dict[str, Any]) -> dict[str, object]:
    return {
        "made_current_at": row["made_current_at"].replace(microsecond=0),
        "snapshot_id": row["snapshot_id"],
        "statement": row["statement"] or row["operation"],
        "is_current_ancestor": row["is_current_ancestor"],
    }


def files(table: IcebergTable, format: Format) -> Records:
    """Live files: the main columns for people, all columns for programs."""
    live = metadata_arrow("files", table)
    if format is not Format.TABLE:
        return of_arrow(live)
    names = [name for name in _FILE_COLUMNS if name in live.column_names]
    rows = [
        {
            **row,
            "content": _CONTENTS[row["content"]],
            "file_path": row["file_path"].removeprefix(table.location() + "/"),
        }
        for row in live.select(names).to_pylist()
    ]
    return of_dicts(rows) if rows else of_arrow(live.select(names))


def of_arrow(table: pa.Table) -> Records:
    """The rows of an Arrow table."""
    types = [field.type for field in table.schema]
    numeric = [
        pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t) for t in types
    ]
    columns = [column.to_pylist() for column in table.columns]
    return Records(tuple(table.column_names), tuple(numeric), list(zip(*columns, strict=True)))
