"""Which concurrent commits a statement cannot live with.

Five rules, each a function that gives the files in conflict. None looks at snapshot ids alone:
writers that touch different files, rows or partitions never block each other.

1. A file the statement removes or rewrites was removed meanwhile.
2. A file whose rows the statement deletes was removed meanwhile: the deletes would point nowhere.
3. Rows that the statement carried forward were deleted meanwhile: they would come back.
4. Serializable only: a file added meanwhile may hold rows the statement would have changed; with
   a subquery or a source that reads other rows of the table, so do rows that were removed.
5. Serializable only: a row that the source of a MERGE matched was deleted, whatever the MERGE did
   with it. Without that row, its source row would have been inserted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.snapshots import Operation, Snapshot
from pyroaring import BitMap64

from icefloe.errors import ConflictError
from icefloe.file_changes import FileChanges, RemoveFiles
from icefloe.metadata.files import LiveFile, partition_key_of
from icefloe.metadata.manifests import (
    as_live_file,
    list_manifests,
    read_entries,
    read_snapshot_files,
)
from icefloe.metadata.table_state import TableState, ancestors
from icefloe.pruning.file_matcher import Matcher
from icefloe.settings import Isolation

# -------------------------------------------------------------------------------------------------
# What other writers published between the snapshot a statement read and the table's head.


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


ReadDeletes = Callable[[list[LiveFile]], Mapping[str, Mapping[str, BitMap64]]]


@dataclass(frozen=True, slots=True)
class MatchedRows:
    """Rows that a MERGE with inserts relies on: those of these files that its source matches."""

    files: Mapping[str, LiveFile]  # by location
    any_at: Callable[[Mapping[str, BitMap64]], bool]  # whether one is at such a position of a file


@dataclass(frozen=True, slots=True)
class ConflictCheck:
    """What a statement relies on while it runs."""

    isolation: Isolation
    matcher: Matcher | None  # None: the statement read no rows, nothing added can matter
    reads_other_rows: bool = False  # a subquery or a source does: rows that went matter too
    # Compaction: the columns of rows written anew. A delete by another one could not find them.
    columns: frozenset[int] = frozenset()
    matched: MatchedRows | None = None  # a MERGE that inserts what matches nothing


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a statement cannot be published, and the files that show it."""

    reason: str
    files: tuple[str, ...]


def find_conflict(
    changes: FileChanges,
    guard: ConflictCheck,
    window: CommitWindow,
    unpartitioned_specs: frozenset[int],
    read_deletes: ReadDeletes,
) -> Conflict | None:
    """The first rule that is broken; None when the statement may be published."""
    removed = changes.removal.data if isinstance(changes.removal, RemoveFiles) else ()
    if gone := _gone(window, {file.path for file in removed}):
        return Conflict(
            f"{len(gone)} data files this statement replaces were removed by another writer", gone
        )
    if gone := _gone(window, set(changes.deleted_rows)):
        return Conflict(
            f"{len(gone)} data files this statement deletes rows of were removed by another writer",
            gone,
        )
    if revived := _revived(changes, guard, window, unpartitioned_specs, read_deletes):
        return Conflict("another writer deleted rows that this statement carries forward", revived)
    if guard.isolation is Isolation.SERIALIZABLE and (new := _unseen(guard, window)):
        return Conflict("another writer added rows that this statement would have changed", new)
    if guard.isolation is Isolation.SERIALIZABLE and guard.reads_other_rows:
        went = (*(delete.path for delete in window.added_deletes), *sorted(window.removed_data))
        if went:
            return Conflict(
                "another writer changed rows that this statement's subquery or source read", went
            )
    if guard.isolation is Isolation.SERIALIZABLE and guard.matched is not None:
        lost = _no_longer_matched(guard.matched, window, unpartitioned_specs, read_deletes)
        if lost:
            reason = "another writer deleted rows that this statement's source matched"
            return Conflict(reason, lost)
    return None


def _gone(window: CommitWindow, needed: set[str]) -> tuple[str, ...]:
    return tuple(sorted(window.removed_data & needed))


def _unseen(guard: ConflictCheck, window: CommitWindow) -> tuple[str, ...]:
    matcher = guard.matcher
    if matcher is None:
        return ()
    return tuple(f.path for f in window.added_data if matcher.may_match(f.file, f.spec_id))


def _revived(
    changes: FileChanges,
    guard: ConflictCheck,
    window: CommitWindow,
    unpartitioned_specs: frozenset[int],
    read_deletes: ReadDeletes,
) -> tuple[str, ...]:
    """Delete files that name rows this statement wrote anew.

    Rewritten files carry all their rows forward, updates in merge-on-read just the updated ones.
    Position deletes are read, so that deletes of other rows do not count.
    """
    if not window.added_deletes:
        return ()
    rewritten = changes.removal.data if isinstance(changes.removal, RemoveFiles) else ()
    rewritten = rewritten if changes.added_data else ()
    carried = {file.path for file in rewritten} | set(changes.replaced_rows)
    if not carried:
        return ()
    positional = [d for d in window.added_deletes if not d.is_equality_delete]
    contents = read_deletes(positional)
    whole = {file.path for file in rewritten} - set(changes.replaced_rows)
    found = [
        delete.path
        for delete in positional
        if any(
            path in whole or (path in changes.replaced_rows and changes.replaced_rows[path] & rows)
            for path, rows in contents[delete.path].items()
        )
    ]
    if changes.compacts:
        return (*found, *_missed(changes, guard, window, unpartitioned_specs))
    # An equality delete names rows by value: any that reaches a carried partition may hit.
    partitions = {file.partition_key for file in rewritten}
    by_value = [
        delete.path
        for delete in window.added_deletes
        if delete.is_equality_delete
        and (
            delete.spec_id in unpartitioned_specs
            or bool(changes.replaced_rows)
            or delete.partition_key in partitions
        )
    ]
    return (*found, *by_value)


def _no_longer_matched(
    matched: MatchedRows,
    window: CommitWindow,
    unpartitioned_specs: frozenset[int],
    read_deletes: ReadDeletes,
) -> tuple[str, ...]:
    """Files that show that a row the source matched is deleted, or that it may be.

    Rows that went with their file, or that are named by position, are looked at. Of rows that a
    compaction moved the old places alone are known, so that any delete among them counts.
    """
    places = set(matched.files)
    if window.compacted_data & places:
        places |= {file.path for file in window.moved_data}
    gone = _gone(window, places - window.compacted_data)
    partitions = {file.partition_key for file in (*matched.files.values(), *window.moved_data)}
    by_value = tuple(
        delete.path
        for delete in window.added_deletes
        if delete.is_equality_delete
        and (delete.spec_id in unpartitioned_specs or delete.partition_key in partitions)
    )
    if by_value and matched.files:
        return by_value
    contents = read_deletes([d for d in window.added_deletes if not d.is_equality_delete])
    named = {path: rows for path, rows in contents.items() if places & set(rows)}
    deleted = {path: _every_row(matched.files[path]) for path in gone if path in matched.files}
    for rows in named.values():
        for path in places & set(rows):
            deleted[path] = deleted.get(path, BitMap64()) | rows[path]
    moved = {*gone, *deleted} - set(matched.files)
    if moved or (deleted and matched.any_at(deleted)):
        return (*gone, *sorted(named))
    return ()


def _every_row(file: LiveFile) -> BitMap64:
    rows = BitMap64()
    rows.add_range(0, file.rows)
    return rows


def _missed(
    changes: FileChanges,
    guard: ConflictCheck,
    window: CommitWindow,
    unpartitioned_specs: frozenset[int],
) -> tuple[str, ...]:
    """Deletes by value that would hit other rows once files are compacted.

    New files are as old as the snapshot they were read from, so deletes that came later still apply
    to them; but a partition's deletes do not follow rows into a partition of another spec, nor do
    they find rows by a column that is not written any more.
    """
    removed = changes.removal.data if isinstance(changes.removal, RemoveFiles) else ()
    new = {partition_key_of(file.spec_id, file.partition) for file in changes.added_data}
    specs = {spec_id for spec_id, _ in new}
    moved = {file.partition_key for file in removed if file.spec_id not in specs}
    return tuple(
        delete.path
        for delete in window.added_deletes
        if delete.is_equality_delete
        and (
            not guard.columns.issuperset(delete.file.equality_ids or ())
            or (
                bool(moved)
                and delete.spec_id not in unpartitioned_specs
                and delete.partition_key in moved | new
            )
        )
    )
