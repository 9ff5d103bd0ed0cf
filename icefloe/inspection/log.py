"""`table.log()`: commits as JSON lines of `replaceWhere`, `remove` and `add`.

The lines are rendered from snapshots and manifests; none is stored. A commit has a `replaceWhere`
line if it is a REPLACE WHERE, then the files it removed, then the files it added.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.manifest import DataFileContent, ManifestEntryStatus
from pyiceberg.table.snapshots import Operation, Snapshot

from icefloe.commands.replace.where import OPERATION, PREDICATE_KEY
from icefloe.commit.conflicts import changes_of
from icefloe.inspection.facts import partition_values
from icefloe.metadata.files import LiveFile
from icefloe.metadata.table_state import TableState, ancestors, at_snapshot
from icefloe.redaction import masked_repr

_DELETE_CONTENTS = {
    DataFileContent.POSITION_DELETES: "position-deletes",
    DataFileContent.EQUALITY_DELETES: "equality-deletes",
}


@masked_repr
@dataclass(frozen=True, slots=True)
class ReplaceWhereAction:
    """The `replaceWhere` line of a commit."""

    predicate: str
    timestamp: int  # milliseconds since 1970
    data_change: bool = True
    operation_metrics: Mapping[str, Any] | None = None

    def to_json(self) -> str:
        """Render the line as JSON."""
        facts: dict[str, Any] = {
            "predicate": self.predicate,
            "timestamp": self.timestamp,
            "dataChange": self.data_change,
        }
        if self.operation_metrics is not None:
            facts["operationMetrics"] = dict(self.operation_metrics)
        return _line("replaceWhere", facts)

    @classmethod
    def from_json(cls, line: str) -> ReplaceWhereAction:
        """Parse a `replaceWhere` line."""
        facts = json.loads(line)["replaceWhere"]
        return cls(
            facts["predicate"],
            facts["timestamp"],
            facts.get("dataChange", True),
            facts.get("operationMetrics"),
        )


def render_log(state: TableState, snapshot_id: int | None) -> str:
    """Render one commit, or all commits of the branch that have not expired, oldest first."""
    if snapshot_id is None:
        commits = list(ancestors(state.metadata, state.snapshot))[::-1]
    else:
        snapshot = at_snapshot(state, snapshot_id).snapshot
        commits = [snapshot] if snapshot else []
    return "\n".join(line for commit in commits for line in _lines(state, commit))


def _lines(state: TableState, snapshot: Snapshot) -> Iterator[str]:
    summary = snapshot.summary
    properties = summary.additional_properties if summary else {}
    if properties.get("icefloe.operation") == OPERATION and PREDICATE_KEY in properties:
        yield ReplaceWhereAction(properties[PREDICATE_KEY], snapshot.timestamp_ms).to_json()
    changes_rows = summary is None or summary.operation != Operation.REPLACE
    changes = list(changes_of(snapshot, state.io))
    for status, file in changes:
        if status == ManifestEntryStatus.DELETED:
            yield _line(
                "remove",
                {
                    "path": file.path,
                    "deletionTimestamp": snapshot.timestamp_ms,
                    "dataChange": changes_rows,
                    "partitionValues": partition_values(state, file),
                    **_content(file),
                },
            )
    for status, file in changes:
        if status == ManifestEntryStatus.ADDED:
            yield _line(
                "add",
                {
                    "path": file.path,
                    "partitionValues": partition_values(state, file),
                    "size": file.size,
                    "numRecords": file.rows,
                    **_content(file),
                },
            )


def _content(file: LiveFile) -> dict[str, str]:
    """The kind of a delete file; nothing for a data file."""
    return {} if file.is_data else {"content": _DELETE_CONTENTS[file.file.content]}


def _line(kind: str, facts: Mapping[str, Any]) -> str:
    return json.dumps({kind: facts}, ensure_ascii=False)
