"""Facts of tables, from metadata alone: no Spark session is started for them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField

from icefloe.cli.output import Format
from icefloe.cli.records import Records, of_arrow, of_dicts
from icefloe.errors import UnsupportedTableError
from icefloe.inspection.metadata_tables import metadata_arrow
from icefloe.lake import Lake
from icefloe.redaction import shown_properties
from icefloe.schema.partition_spec import partition_by_text
from icefloe.schema.to_spark import spark_type

_CONTENTS = {0: "data", 1: "position deletes", 2: "equality deletes"}
_FILE_COLUMNS = ("content", "file_path", "partition", "record_count", "file_size_in_bytes")


def tables(lake: Lake) -> Records:
    """Every table with the counts of its newest snapshot."""
    found = [_line(name, lake.table(name).iceberg) for name in lake.tables()]
    return of_dicts(found) if found else Records(("table",), (False,), [])


def facts(name: str, table: IcebergTable) -> dict[str, Any]:
    """What there is to say about one table."""
    return {
        "table": name,
        "location": table.location(),
        "format_version": table.metadata.format_version,
        "columns": [_column(field) for field in table.schema().fields],
        "partition_by": _partition_by(table),
        "sort_by": [str(field) for field in table.sort_order().fields],
        "snapshot": _snapshot(table.current_snapshot()),
        "snapshots": len(table.metadata.snapshots),
        **_counts(table.current_snapshot()),
        "properties": shown_properties(table.properties),
    }


def history(table: IcebergTable, format: Format) -> Records:
    """When which snapshot became current, and which statement made it."""
    found = metadata_arrow("history", table)
    rows = [
        {**row, **_made_by(table.snapshot_by_id(row["snapshot_id"]))} for row in found.to_pylist()
    ]
    if format is Format.TABLE:
        rows = [_history_line(row) for row in rows]
    return of_dicts(rows) if rows else of_arrow(found)


def files(table: IcebergTable, format: Format) -> Records:
    """Live files: for people the main columns, for programs all of them."""
    found = metadata_arrow("files", table)
    if format is not Format.TABLE:
        return of_arrow(found)
    names = [name for name in _FILE_COLUMNS if name in found.column_names]
    rows = [
        {
            **row,
            "content": _CONTENTS[row["content"]],
            "file_path": row["file_path"].removeprefix(table.location() + "/"),
        }
        for row in found.select(names).to_pylist()
    ]
    return of_dicts(rows) if rows else of_arrow(found.select(names))


def _history_line(row: dict[str, Any]) -> dict[str, object]:
    return {
        "made_current_at": row["made_current_at"].replace(microsecond=0),
        "snapshot_id": row["snapshot_id"],
        "statement": row["statement"] or row["operation"],
        "in_line": row["is_current_ancestor"],
    }


def _line(name: str, table: IcebergTable) -> dict[str, object]:
    counts = _counts(table.current_snapshot())
    return {
        "table": name,
        "rows": counts["rows"],
        "data_files": counts["data_files"],
        "delete_files": counts["delete_files"],
        "bytes": counts["bytes"],
        "partition_by": ", ".join(_partition_by(table)),
    }


def _column(field: NestedField) -> dict[str, object]:
    try:
        kind = spark_type(field.field_type).simpleString()
    except UnsupportedTableError:
        kind = str(field.field_type)
    return {"name": field.name, "type": kind, "required": field.required, "comment": field.doc}


def _partition_by(table: IcebergTable) -> list[str]:
    try:
        return partition_by_text(table.spec(), table.schema())
    except UnsupportedTableError:
        return [str(field) for field in table.spec().fields]


def _snapshot(snapshot: Snapshot | None) -> dict[str, object] | None:
    if snapshot is None:
        return None
    made = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
    return {"id": snapshot.snapshot_id, "made_at": made, **_made_by(snapshot)}


def _made_by(snapshot: Snapshot | None) -> dict[str, object]:
    summary = snapshot.summary if snapshot else None
    if summary is None:  # expired
        return {"operation": None, "statement": None}
    return {
        "operation": summary.operation.value,
        "statement": summary.additional_properties.get("icefloe.operation"),
    }


def _counts(snapshot: Snapshot | None) -> dict[str, int | None]:
    """Counts of a snapshot's summary; rows are not known from it with equality deletes."""
    if snapshot is None:
        return {"rows": 0, "data_files": 0, "delete_files": 0, "bytes": 0}
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    records, deleted = _total(summary, "records"), _total(summary, "position-deletes")
    known = records is not None and not _total(summary, "equality-deletes")
    return {
        "rows": (records or 0) - (deleted or 0) if known else None,
        "data_files": _total(summary, "data-files"),
        "delete_files": _total(summary, "delete-files"),
        "bytes": _total(summary, "files-size"),
    }


def _total(summary: Mapping[str, str], name: str) -> int | None:
    text = summary.get(f"total-{name}")
    return int(text) if text is not None else None
