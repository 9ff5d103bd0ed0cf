"""What other writers published between the snapshot a statement read and the table's head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.snapshots import Operation, Snapshot

from icefloe.errors import ConflictError
from icefloe.metadata.files import LiveFile
from icefloe.metadata.manifests import (
    as_live_file,
    list_manifests,
    read_entries,
    read_snapshot_files,
)
from icefloe.metadata.table_state import TableState, ancestors


@dataclass(frozen=True, slots=True)
class CommitWindow:
    """The files that concurrent snapshots added and removed.

    Files that a compaction added hold no new rows and are in `moved_data` alone; those it removed
    are in `removed_data` as well as in `compacted_data`.
    """

    added_data: tuple[LiveFile, ...] = ()
    added_deletes: tuple[LiveFile, ...] = ()
    removed_data: frozenset[str] = frozenset()
    moved_data: tuple[LiveFile, ...] = ()
    compacted_data: frozenset[str] = frozenset()


def window_since(base: TableState, head: TableState) -> CommitWindow:
    """Read what landed on the branch after `base`; raises where history does not tell."""
    if base.snapshot_id == head.snapshot_id:
        return CommitWindow()
    if base.snapshot is None:
        return _since_nothing(head)
    added: list[LiveFile] = []
    moved: list[LiveFile] = []
    removed: set[str] = set()
    compacted: set[str] = set()
    reached_base = False
    for snapshot in ancestors(head.metadata, head.snapshot):
        if snapshot.snapshot_id == base.snapshot_id:
            reached_base = True
            break
        replaces = snapshot.summary is not None and snapshot.summary.operation == Operation.REPLACE
        for status, file in changes_of(snapshot, head.io):
            if status == ManifestEntryStatus.DELETED and file.is_data:
                removed.add(file.path)
                if replaces:
                    compacted.add(file.path)
            elif status == ManifestEntryStatus.ADDED and not (replaces and not file.is_data):
                (moved if replaces else added).append(file)
    if not reached_base:
        raise ConflictError(
            "the table was rolled back, or its history expired, since the statement read it",
            table=head.name,
            base_snapshot_id=base.snapshot_id,
            current_snapshot_id=head.snapshot_id,
        )
    return CommitWindow(
        tuple(live for live in added if live.is_data),
        tuple(live for live in added if not live.is_data),
        frozenset(removed),
        tuple(moved),
        frozenset(compacted),
    )


def _since_nothing(head: TableState) -> CommitWindow:
    """All that the head has: a statement that began on an empty table has read none of it.

    Its snapshots need not be known. Some may have expired, and the parent of the oldest that is
    kept does not say so: PyIceberg clears it.
    """
    files = read_snapshot_files(head.io, head.snapshot)
    return CommitWindow(tuple(files.data), tuple(files.deletes))


def changes_of(snapshot: Snapshot, io: FileIO) -> Iterator[tuple[ManifestEntryStatus, LiveFile]]:
    """What one snapshot itself added and removed."""
    for manifest in list_manifests(io, snapshot):
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            for entry in read_entries(io, manifest):
                if entry.snapshot_id == snapshot.snapshot_id:
                    yield entry.status, as_live_file(entry, manifest)
