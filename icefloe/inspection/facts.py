"""Facts of a table from its metadata alone; no Spark session is needed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField

from icefloe.errors import UnsupportedTableError
from icefloe.inspection.metadata_tables import metadata_arrow
from icefloe.metadata.files import LiveFile
from icefloe.metadata.manifests import schema_for_spec
from icefloe.metadata.table_state import TableState
from icefloe.redaction import shown_properties
from icefloe.schema.partition_spec import partition_by_text
from icefloe.schema.to_spark import spark_type


def table_facts(name: str, table: IcebergTable) -> dict[str, Any]:
    """Columns, layout, current snapshot, counts and properties of a table."""
    snapshot = table.current_snapshot()
    return {
        "table": name,
        "location": table.location(),
        "format_version": table.metadata.format_version,
        "columns": [_column(field) for field in table.schema().fields],
        "partition_by": _partition_by(table),
        "sort_by": [str(field) for field in table.sort_order().fields],
        "snapshot": _snapshot(snapshot),
        "snapshots": len(table.metadata.snapshots),
        **_counts(snapshot),
        "properties": shown_properties(table.properties),
    }


def table_counts(name: str, table: IcebergTable) -> dict[str, object]:
    """The counts of a table's current snapshot and its partitioning, for a list of tables."""
    return {
        "table": name,
        **_counts(table.current_snapshot()),
        "partition_by": ", ".join(_partition_by(table)),
    }


def table_history(table: IcebergTable) -> list[dict[str, Any]]:
    """The metadata table `history`, with the operation and the statement of each snapshot."""
    return [
        {**row, **_operation(table.snapshot_by_id(row["snapshot_id"]))}
        for row in metadata_arrow("history", table).to_pylist()
    ]


def _column(field: NestedField) -> dict[str, object]:
    try:
        type_name = spark_type(field.field_type).simpleString()
    except UnsupportedTableError:
        type_name = str(field.field_type)
    return {
        "name": field.name,
        "type": type_name,
        "required": field.required,
        "comment": field.doc,
    }


def _partition_by(table: IcebergTable) -> list[str]:
    try:
        return partition_by_text(table.spec(), table.schema())
    except UnsupportedTableError:
        return [str(field) for field in table.spec().fields]


def _snapshot(snapshot: Snapshot | None) -> dict[str, object] | None:
    if snapshot is None:
        return None
    made_at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
    return {"id": snapshot.snapshot_id, "made_at": made_at, **_operation(snapshot)}


def _operation(snapshot: Snapshot | None) -> dict[str, object]:
    """Iceberg's operation and icefloe's statement; both None for an expired snapshot."""
    summary = snapshot.summary if snapshot else None
    if summary is None:
        return {"operation": None, "statement": None}
    return {
        "operation": summary.operation.value,
        "statement": summary.additional_properties.get("icefloe.operation"),
    }


def _counts(snapshot: Snapshot | None) -> dict[str, int | None]:
    """Counts in a snapshot's summary; with equality deletes the number of rows is unknown."""
    if snapshot is None:
        return {"rows": 0, "data_files": 0, "delete_files": 0, "bytes": 0}
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    records, deleted = _total(summary, "records"), _total(summary, "position-deletes")
    has_row_count = records is not None and not _total(summary, "equality-deletes")
    return {
        "rows": (records or 0) - (deleted or 0) if has_row_count else None,
        "data_files": _total(summary, "data-files"),
        "delete_files": _total(summary, "delete-files"),
        "bytes": _total(summary, "files-size"),
    }


def _total(summary: Mapping[str, str], name: str) -> int | None:
    text = summary.get(f"total-{name}")
    return int(text) if text is not None else None


def partition_values(state: TableState, file: LiveFile) -> dict[str, str | None]:
    """Partition values by field name, as text for people; None for NULL."""
    spec = state.metadata.specs()[file.spec_id]
    types = spec.partition_type(schema_for_spec(state.metadata, spec)).fields
    values: dict[str, str | None] = {}
    for position, (field, value_field) in enumerate(zip(spec.fields, types, strict=True)):
        value = file.file.partition[position]
        text = None
        if value is not None:
            text = field.transform.to_human_string(value_field.field_type, value)
        values[field.name] = text
    return values
