"""What other writers published between the snapshot a statement read and the table's head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.snapshots import Operation, Snapshot

from icefloe.errors import ConflictError
from icefloe.metadata.files import LiveFile
from icefloe.metadata.manifests import as_live_file, list_manifests, read_entries
from icefloe.metadata.state import TableState, ancestors


@dataclass(frozen=True, slots=True)
class CommitWindow:
    """The files that concurrent snapshots added and removed.

    Files that a compaction added hold no new rows and are left out; those it removed are in.
    """

    added_data: tuple[LiveFile, ...] = ()
    added_deletes: tuple[LiveFile, ...] = ()
    removed_data: frozenset[str] = frozenset()


def window_since(base: TableState, head: TableState) -> CommitWindow:
    """Read what landed on the branch after `base`; raises where history does not tell."""
    if base.snapshot_id == head.snapshot_id:
        return CommitWindow()
    added: list[LiveFile] = []
    removed: set[str] = set()
    reached_base = base.snapshot_id is None
    for snapshot in ancestors(head.metadata, head.snapshot):
        if snapshot.snapshot_id == base.snapshot_id:
            reached_base = True
            break
        replaces = snapshot.summary is not None and snapshot.summary.operation == Operation.REPLACE
        for status, file in changes_of(snapshot, head.io):
            if status == ManifestEntryStatus.DELETED and file.is_data:
                removed.add(file.path)
            elif status == ManifestEntryStatus.ADDED and not replaces:
                added.append(file)
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
    )


def changes_of(snapshot: Snapshot, io: FileIO) -> Iterator[tuple[ManifestEntryStatus, LiveFile]]:
    """What one snapshot itself added and removed."""
    for manifest in list_manifests(io, snapshot):
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            for entry in read_entries(io, manifest):
                if entry.snapshot_id == snapshot.snapshot_id:
                    yield entry.status, as_live_file(entry, manifest)
