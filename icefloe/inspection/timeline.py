"""The life of a table: what each snapshot did and cost, and how the schema and layout changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import IcebergType

from icefloe.errors import UnsupportedTableError
from icefloe.metadata.table_state import TableState, ancestors
from icefloe.redaction import redacted
from icefloe.results import SUMMARY_PREFIX
from icefloe.schema.partition_spec import partition_by_text
from icefloe.schema.to_spark import spark_type

MOST_SNAPSHOTS = 5000  # the newest; earlier ones are counted


def timeline(state: TableState) -> dict[str, Any]:
    """Every snapshot with what its statement did, oldest first; of a long history the newest.

    Counts that are zero or unknown are left out.
    """
    metadata = state.metadata
    ordered = sorted(metadata.snapshots, key=lambda s: (s.sequence_number or 0, s.timestamp_ms))
    current = {snapshot.snapshot_id for snapshot in ancestors(metadata, state.snapshot)}
    refs: dict[int, list[str]] = {}
    for name, ref in metadata.refs.items():
        refs.setdefault(ref.snapshot_id, []).append(f"{ref.snapshot_ref_type.value} {name}")
    shown = ordered[-MOST_SNAPSHOTS:]
    return {
        "snapshots": [
            _snapshot(s, current=s.snapshot_id in current, refs=refs.get(s.snapshot_id, ()))
            for s in shown
        ],
        "older": len(ordered) - len(shown),
    }


def _snapshot(snapshot: Snapshot, *, current: bool, refs: list[str] | tuple[()]) -> dict[str, Any]:
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    operation = snapshot.summary.operation.value if snapshot.summary else None
    facts = {
        # Ids have more digits than JavaScript's numbers.
        "id": str(snapshot.snapshot_id),
        "parent": str(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id else None,
        "at": snapshot.timestamp_ms,
        "operation": operation,
        "statement": summary.get(f"{SUMMARY_PREFIX}operation"),
        "mode": summary.get(f"{SUMMARY_PREFIX}mode"),
        "predicate": _predicate(summary),
        "schema": snapshot.schema_id,
        "refs": sorted(refs),
        **_rows(summary, replaces=operation == Operation.REPLACE.value),
        **_costs(summary),
    }
    kept = {name: value for name, value in facts.items() if value not in (None, 0, [])}
    return {**kept, "current": current}


def _predicate(summary: Mapping[str, str]) -> str | None:
    text = summary.get(f"{SUMMARY_PREFIX}predicate")
    return None if text is None else redacted(text)


def _rows(summary: Mapping[str, str], *, replaces: bool) -> dict[str, int | None]:
    """Rows by what happened to them; of other engines' snapshots what their files say."""
    own = {
        name: _number(summary, f"{SUMMARY_PREFIX}rows-{name}")
        for name in ("inserted", "updated", "deleted", "copied")
    }
    if any(value is not None for value in own.values()):
        return own
    added, removed = _number(summary, "added-records"), _number(summary, "deleted-records")
    if replaces:  # a compaction, say: the rows of the table stay the same
        return {"copied": added}
    by_position = _number(summary, "added-position-deletes")
    return {"inserted": added, "deleted": (removed or 0) + (by_position or 0)}


def _costs(summary: Mapping[str, str]) -> dict[str, int | None]:
    names = {
        "files_added": "added-data-files",
        "files_removed": "deleted-data-files",
        "deletes_added": "added-delete-files",
        "deletes_removed": "removed-delete-files",
        "bytes_added": "added-files-size",
        "bytes_removed": "removed-files-size",
        "partitions": "changed-partition-count",
        "scanned": f"{SUMMARY_PREFIX}files-scanned",
        "skipped": f"{SUMMARY_PREFIX}files-skipped",
        "bytes_copied": f"{SUMMARY_PREFIX}bytes-copied",
        "total_rows": "total-records",
        "total_deleted": "total-position-deletes",
        "total_files": "total-data-files",
        "total_deletes": "total-delete-files",
        "total_bytes": "total-files-size",
    }
    return {name: _number(summary, key) for name, key in names.items()}


def _number(summary: Mapping[str, str], key: str) -> int | None:
    text = summary.get(key)
    return int(text) if text is not None and text.isdecimal() and len(text) < 20 else None


# -------------------------------------------------------------------------------------------------
# Evolution


def schema_versions(state: TableState) -> list[dict[str, Any]]:
    """How the columns changed, with the first snapshot of each version of the schema."""
    metadata = state.metadata
    first: dict[int | None, Snapshot] = {}
    for snapshot in sorted(metadata.snapshots, key=lambda s: s.timestamp_ms):
        first.setdefault(snapshot.schema_id, snapshot)
    versions: list[dict[str, Any]] = []
    before: Schema | None = None
    for schema in sorted(metadata.schemas, key=lambda s: s.schema_id):
        used = first.get(schema.schema_id)
        versions.append(
            {
                "id": schema.schema_id,
                "current": schema.schema_id == metadata.current_schema_id,
                "columns": len(schema.fields),
                "changes": [] if before is None else list(_changes(before, schema)),
                "first_snapshot": None if used is None else str(used.snapshot_id),
                "at": None if used is None else used.timestamp_ms,
            }
        )
        before = schema
    return versions


def type_text(kind: IcebergType) -> str:
    """A type as Spark spells it, or Iceberg where Spark has none."""
    try:
        return spark_type(kind).simpleString()
    except UnsupportedTableError:
        return str(kind)


def _changes(before: Schema, after: Schema) -> Iterator[dict[str, str]]:
    """What happened to each field, by its id."""
    old, new = index_by_id(before), index_by_id(after)
    for field_id, field in new.items():
        name = str(after.find_column_name(field_id))
        if field_id not in old:
            yield {"what": "added", "column": name, "type": type_text(field.field_type)}
            continue
        earlier = old[field_id]
        former = str(before.find_column_name(field_id))
        if earlier.name != field.name:
            yield {"what": "renamed", "column": name, "from": former}
        if field.field_type.is_primitive and earlier.field_type != field.field_type:
            yield {
                "what": "widened",
                "column": name,
                "from": type_text(earlier.field_type),
                "type": type_text(field.field_type),
            }
        if earlier.required != field.required:
            yield {"what": "required" if field.required else "optional", "column": name}
    for field_id, field in old.items():
        if field_id not in new:
            former = str(before.find_column_name(field_id))
            yield {"what": "dropped", "column": former, "type": type_text(field.field_type)}
    if [f.field_id for f in before.fields] != [f.field_id for f in after.fields]:
        common = {f.field_id for f in before.fields} & {f.field_id for f in after.fields}
        orders = [[f.field_id for f in s.fields if f.field_id in common] for s in (before, after)]
        if orders[0] != orders[1]:
            yield {"what": "reordered", "column": "columns"}


def partition_specs(metadata: TableMetadata) -> list[dict[str, Any]]:
    """How the partitioning changed."""
    specs = []
    for spec_id, spec in sorted(metadata.specs().items()):
        try:
            text = partition_by_text(spec, metadata.schema())
        except (UnsupportedTableError, ValueError):
            text = [str(field) for field in spec.fields]
        specs.append(
            {"id": spec_id, "fields": text, "current": spec_id == metadata.default_spec_id}
        )
    return specs
