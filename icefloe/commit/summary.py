"""The snapshot summary: Iceberg's own entries, complete and true."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table.snapshots import UpdateMetrics

from icefloe.file_changes import FileChanges
from icefloe.metadata.files import LiveFile
from icefloe.metadata.manifests import read_snapshot_files
from icefloe.metadata.table_state import TableState
from icefloe.version import __version__

# total, what adds to it, what takes from it
_TOTALS = (
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
    ("total-records", "added-records", "deleted-records"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
    ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"),
)


def summarise(
    head: TableState,
    changes: FileChanges,
    removed_data: Sequence[LiveFile],
    removed_deletes: Sequence[LiveFile],
) -> dict[str, str]:
    """Counts of what this snapshot adds and removes, and the table's totals after it."""
    metrics = UpdateMetrics()
    partitions = set()
    for file in (*changes.added_data, *changes.added_deletes):
        metrics.add_file(file)
        partitions.add((file.spec_id, str(file.partition)))
    for live in (*removed_data, *removed_deletes):
        metrics.remove_file(live.file)
        partitions.add((live.spec_id, str(live.file.partition)))
    counted = metrics.to_dict()
    before = _totals_before(head)
    for total, adds, takes in _TOTALS:
        counted[total] = str(before[total] + int(counted.get(adds, 0)) - int(counted.get(takes, 0)))
    counted["changed-partition-count"] = str(len(partitions))
    counted["engine-name"] = "icefloe"
    counted["engine-version"] = __version__
    return counted


def _totals_before(head: TableState) -> dict[str, int]:
    """The totals of the head: as its summary says, or counted where it leaves one out."""
    if head.snapshot is None:
        return {total: 0 for total, _, _ in _TOTALS}
    summary = head.snapshot.summary
    stated = {total: summary.get(total) if summary else None for total, _, _ in _TOTALS}
    if all(value is not None and value.isdigit() for value in stated.values()):
        return {total: int(value) for total, value in stated.items() if value is not None}
    files = read_snapshot_files(head.io, head.snapshot)
    everything = [live.file for live in (*files.data, *files.deletes)]
    return {
        "total-data-files": len(files.data),
        "total-delete-files": len(files.deletes),
        "total-records": sum(live.rows for live in files.data),
        "total-files-size": sum(file.file_size_in_bytes for file in everything),
        "total-position-deletes": _rows_of(everything, DataFileContent.POSITION_DELETES),
        "total-equality-deletes": _rows_of(everything, DataFileContent.EQUALITY_DELETES),
    }


def _rows_of(files: Sequence[DataFile], content: DataFileContent) -> int:
    return sum(file.record_count for file in files if file.content == content)
