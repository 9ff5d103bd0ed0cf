"""Conflict detection: which concurrent commits a statement cannot be published on top of.

Five rules, each a function that returns the files in conflict. None compares snapshot ids alone:
writers that touch different files, rows or partitions never block each other. "Concurrent" means
committed after the snapshot that the statement read.

1. A file that the statement removes or rewrites was removed concurrently.
2. A file whose rows the statement deletes was removed concurrently: the deletes would refer to
   nothing.
3. Rows that the statement copies into new files were deleted concurrently: they would come back.
4. Serializable only: a file added concurrently may hold rows that the statement would have changed.
   Where a subquery or a source reads other rows of the table, removed rows count as well.
5. Serializable only: a row that the source of a MERGE matched was deleted concurrently, whatever
   the MERGE did with it. Without that row, its source row would have been inserted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.snapshots import Operation, Snapshot
from pyroaring import BitMap64

from icefloe.errors import ConflictError
from icefloe.file_changes import FileChanges
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
# The window: what other writers committed after the snapshot that a statement read


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
    """Read what was committed to the branch after `base`; raises where history lacks it."""
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
    """Every file of the head: a statement that began on an empty table has read none of them.

    History is not needed. Some snapshots may have expired, and the parent of the oldest retained
    one does not show it: PyIceberg clears that reference.
    """
    files = read_snapshot_files(head.io, head.snapshot)
    return CommitWindow(tuple(files.data), tuple(files.deletes))


def changes_of(snapshot: Snapshot, io: FileIO) -> Iterator[tuple[ManifestEntryStatus, LiveFile]]:
    """The files that one snapshot itself added and removed."""
    for manifest in list_manifests(io, snapshot):
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            for entry in read_entries(io, manifest):
                if entry.snapshot_id == snapshot.snapshot_id:
                    yield entry.status, as_live_file(entry, manifest)


# -------------------------------------------------------------------------------------------------
# The rules

ReadDeletes = Callable[[list[LiveFile]], Mapping[str, Mapping[str, BitMap64]]]


@dataclass(frozen=True, slots=True)
class MatchedRows:
    """Rows that a MERGE with inserts relies on: those of these files that its source matches."""

    files: Mapping[str, LiveFile]  # by location
    any_at: Callable[[Mapping[str, BitMap64]], bool]  # whether one is at any of these positions


@dataclass(frozen=True, slots=True)
class ConflictCheck:
    """What a statement relies on, and so what must not have changed when it is published."""

    isolation: Isolation
    matcher: Matcher | None  # None: the statement read no rows, so nothing added can matter
    reads_other_rows: bool = False  # by a subquery or a source: removed rows matter too
    # Compaction: the columns of the rewritten rows. A delete by another column cannot find them.
    columns: frozenset[int] = frozenset()
    matched: MatchedRows | None = None  # of a MERGE that inserts


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a statement cannot be published, and the files that prove it."""

    reason: str
    files: tuple[str, ...]


def find_conflict(
    changes: FileChanges,
    check: ConflictCheck,
    window: CommitWindow,
    unpartitioned_specs: frozenset[int],
    read_deletes: ReadDeletes,
) -> Conflict | None:
    """The first rule that is broken; None when the statement may be published."""
    if missing := _removed_concurrently(window, {file.path for file in changes.removed_data}):
        return Conflict(
            f"{len(missing)} data files this statement replaces were removed by another writer",
            missing,
        )
    if missing := _removed_concurrently(window, set(changes.files_with_deleted_rows)):
        return Conflict(
            f"{len(missing)} data files this statement deletes rows of were removed by another "
            "writer",
            missing,
        )
    if deletes := _deletes_of_copied_rows(
        changes, check, window, unpartitioned_specs, read_deletes
    ):
        return Conflict("another writer deleted rows that this statement carries forward", deletes)
    if check.isolation is not Isolation.SERIALIZABLE:
        return None
    if added := _added_matches(check, window):
        return Conflict("another writer added rows that this statement would have changed", added)
    if check.reads_other_rows and (changed := _removed_rows(window)):
        return Conflict(
            "another writer changed rows that this statement's subquery or source read", changed
        )
    if check.matched is not None and (
        deletes := _no_longer_matched(check.matched, window, unpartitioned_specs, read_deletes)
    ):
        reason = "another writer deleted rows that this statement's source matched"
        return Conflict(reason, deletes)
    return None


def _removed_concurrently(window: CommitWindow, needed: set[str]) -> tuple[str, ...]:
    return tuple(sorted(window.removed_data & needed))


def _added_matches(check: ConflictCheck, window: CommitWindow) -> tuple[str, ...]:
    """Files added concurrently that may hold rows which the statement would have changed."""
    matcher = check.matcher
    if matcher is None:
        return ()
    return tuple(f.path for f in window.added_data if matcher.may_match(f.file, f.spec_id))


def _removed_rows(window: CommitWindow) -> tuple[str, ...]:
    """Delete files added and data files removed concurrently."""
    return (*(delete.path for delete in window.added_deletes), *sorted(window.removed_data))


def _deletes_of_copied_rows(
    changes: FileChanges,
    check: ConflictCheck,
    window: CommitWindow,
    unpartitioned_specs: frozenset[int],
    read_deletes: ReadDeletes,
) -> tuple[str, ...]:
    """Delete files that name rows which this statement copied into new files.

    A rewritten file passes on all its rows, an update in merge-on-read only the updated ones. Rows
    that are deleted inline count as well: two writers that delete the same one conflict.
    Position deletes are read, so that deletes of other rows do not count.
    """
    if not window.added_deletes:
        return ()
    rewritten = changes.removed_data if changes.added_data else ()
    replaced = {path: rows.positions for path, rows in changes.inline.deleted.items()}
    replaced |= changes.replaced_rows
    if not (rewritten or replaced):
        return ()
    positional = [d for d in window.added_deletes if not d.is_equality_delete]
    contents = read_deletes(positional)
    whole = {file.path for file in rewritten} - set(replaced)
    by_position = [
        delete.path
        for delete in positional
        if any(
            path in whole or (path in replaced and replaced[path] & rows)
            for path, rows in contents[delete.path].items()
        )
    ]
    if changes.compacts:
        return (*by_position, *_deletes_that_miss(changes, check, window, unpartitioned_specs))
    # An equality delete names rows by value: any that applies to a copied partition may match.
    partitions = {file.partition_key for file in rewritten}
    by_value = [
        delete.path
        for delete in window.added_deletes
        if delete.is_equality_delete
        and (
            delete.spec_id in unpartitioned_specs
            or bool(replaced)
            or delete.partition_key in partitions
        )
    ]
    return (*by_position, *by_value)


def _no_longer_matched(
    matched: MatchedRows,
    window: CommitWindow,
    unpartitioned_specs: frozenset[int],
    read_deletes: ReadDeletes,
) -> tuple[str, ...]:
    """Files that prove that a row which the source matched is deleted, or may be.

    Rows that were removed with their file, and rows that deletes name by position, are looked up.
    Of rows that a compaction moved only the old positions are known, so any delete among them
    counts.
    """
    paths = set(matched.files)
    if window.compacted_data & paths:
        paths |= {file.path for file in window.moved_data}
    removed = _removed_concurrently(window, paths - window.compacted_data)
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
    named = {path: rows for path, rows in contents.items() if paths & set(rows)}
    deleted = {path: _every_row(matched.files[path]) for path in removed if path in matched.files}
    for rows in named.values():
        for path in paths & set(rows):
            deleted[path] = deleted.get(path, BitMap64()) | rows[path]
    moved = {*removed, *deleted} - set(matched.files)
    if moved or (deleted and matched.any_at(deleted)):
        return (*removed, *sorted(named))
    return ()


def _every_row(file: LiveFile) -> BitMap64:
    rows = BitMap64()
    rows.add_range(0, file.rows)
    return rows


def _deletes_that_miss(
    changes: FileChanges,
    check: ConflictCheck,
    window: CommitWindow,
    unpartitioned_specs: frozenset[int],
) -> tuple[str, ...]:
    """Equality deletes that would apply to other rows once the files are compacted.

    New files are as old as the snapshot they were read from, so later deletes still apply to them.
    But a partition's deletes do not follow rows into a partition of another spec, nor do they find
    rows by a column that is no longer written.
    """
    new = {partition_key_of(file.spec_id, file.partition) for file in changes.added_data}
    specs = {spec_id for spec_id, _ in new}
    moved = {file.partition_key for file in changes.removed_data if file.spec_id not in specs}
    return tuple(
        delete.path
        for delete in window.added_deletes
        if delete.is_equality_delete
        and (
            not check.columns.issuperset(delete.file.equality_ids or ())
            or (
                bool(moved)
                and delete.spec_id not in unpartitioned_specs
                and delete.partition_key in moved | new
            )
        )
    )
