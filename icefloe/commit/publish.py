"""Publish file changes as one snapshot.

Each attempt reads the table's head, looks for conflicts with what landed since the statement's
own snapshot (on the first attempt too), lays out the manifests on top of the head and asks the
catalog to swap the pointer. A lost race is retried with the same data files. Files are deleted
only when the commit provably did not land.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table as IcebergTable
from pyroaring import BitMap64

from icefloe.commit.catalog import (
    CatalogUnavailableError,
    commit_with_retries,
    load_table,
    stage,
    swap,
    unknown,
)
from icefloe.commit.conflicts import ConflictCheck, find_conflict, window_since
from icefloe.commit.handover import (
    InlineHandover,
    LostRaceError,
    find_inline_result,
    handover_of,
)
from icefloe.commit.snapshot import ManifestChanges, RemovedFiles, SnapshotDraft, operation_of
from icefloe.deletes.position_deletes import (
    Deleted,
    read_position_deletes,
    write_position_deletes,
)
from icefloe.errors import CommitStateUnknownError, ConflictError, StorageError
from icefloe.file_changes import FileChanges
from icefloe.indexes.definitions import delete_data_files, delete_written_files, sidecars_of
from icefloe.inline.tier import InlineTier
from icefloe.metadata.files import unpartitioned_specs
from icefloe.metadata.table_state import TableState, ancestors, state_of, unreadable_columns
from icefloe.results import INLINE_MODE, DmlResult
from icefloe.storage.files import delete_after_failure, delete_files

log = logging.getLogger("icefloe")

IDEMPOTENCY_KEY = "icefloe.idempotency-key"


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything needed to publish one statement."""

    catalog: Catalog
    base: TableState  # that the statement read
    statement_id: str  # in the name of every file that the statement wrote
    changes: FileChanges
    check: ConflictCheck
    describe: Callable[[RemovedFiles, tuple[DataFile, ...]], DmlResult]  # by the deletes added
    summary: dict[str, str]
    tier: InlineTier
    idempotency_key: str | None = None


@dataclass
class _Progress:
    """Whether the catalog was asked to publish and has not provably refused."""

    asked: bool = False
    # Attempts that may land later: the files that each wrote, and what it returns if it does.
    open: list[tuple[list[str], DmlResult]] = field(default_factory=list)
    done: list[str] = field(default_factory=list)  # the files that the last attempt wrote


def publish(commit: Commit) -> DmlResult:
    """Publish the changes; removes the statement's files if they provably were not published."""
    base, snapshot_id = commit.base, commit.base.metadata.new_snapshot_id()
    progress = _Progress()
    written = [file.file_path for file in commit.changes.added_data]
    written += sidecars_of(base, written)
    try:
        deletes = write_position_deletes(base, commit.statement_id, commit.changes.deleted_rows)
        written += [file.file_path for file in deletes]
        changes = ManifestChanges.of(commit.changes, deletes)
        result = commit_with_retries(
            base, lambda number: _attempt(commit, changes, snapshot_id, number, progress)
        )
    except CommitStateUnknownError:
        raise
    except ConflictError:
        delete_after_failure(base.io, written)
        raise
    except BaseException as error:
        if progress.asked or progress.open:
            raise unknown(base.name, snapshot_id, error) from error
        delete_after_failure(base.io, written)
        # And what is not in the changes, such as delete files that were not finished.
        delete_written_files(base, commit.statement_id)
        raise
    if progress.open:
        _delete_other_attempts(commit, snapshot_id, progress)
    return result


def _delete_other_attempts(commit: Commit, snapshot_id: int, progress: _Progress) -> None:
    """Delete the manifests of attempts that were repeated, but for those of the one that landed."""
    base = commit.base
    try:
        table = load_table(commit.catalog, base.name, base.metadata.table_uuid)
    except Exception as error:  # noqa: BLE001 - the statement succeeded
        log.warning("Manifests of repeated commits of %s were not deleted: %s", base.name, error)
        return
    landed = table.metadata.snapshot_by_id(snapshot_id)
    if landed is not None:  # otherwise it was expired since, with its files
        for written in (*(written for written, _ in progress.open), progress.done):
            if landed.manifest_list not in written:
                delete_files(base.io, written)


def find_earlier_result(state: TableState, key: str | None, tier: InlineTier) -> DmlResult | None:
    """The result of the statement that carried this idempotency key, in history or inline."""
    if key is None:
        return None
    for snapshot in ancestors(state.metadata, state.snapshot):
        if snapshot.summary is not None and snapshot.summary.get(IDEMPOTENCY_KEY) == key:
            summary = snapshot.summary.additional_properties
            return DmlResult.from_summary(summary, snapshot.snapshot_id)
    return find_inline_result(tier, state, key)


def _attempt(
    commit: Commit, changes: ManifestChanges, snapshot_id: int, number: int, progress: _Progress
) -> DmlResult:
    if number == 1 and not commit.changes.changes_files and commit.tier.shares_database:
        # The transaction finds out whether the table still is as the statement read it.
        with suppress(LostRaceError):
            return _publish_rows(commit, commit.base, number)
    table = load_table(commit.catalog, commit.base.name, commit.base.metadata.table_uuid)
    if progress.open and table.metadata.snapshot_by_id(snapshot_id) is not None:
        return progress.open[-1][1]  # an earlier attempt has landed
    head = state_of(table, commit.base.name, commit.base.branch)
    if earlier := find_earlier_result(head, commit.idempotency_key, commit.tier):
        delete_data_files(commit.base, changes.added_paths)
        return earlier
    head = _with_updates(commit, head)
    _refuse_conflicts(commit, head)
    if not commit.changes.changes_files:
        return _publish_rows(commit, head, number)
    draft = SnapshotDraft(head, snapshot_id)
    return _publish_draft(commit, changes, (table, draft), number, progress)


def _publish_draft(
    commit: Commit,
    changes: ManifestChanges,
    onto: tuple[IcebergTable, SnapshotDraft],
    number: int,
    progress: _Progress,
) -> DmlResult:
    """Lay the changes out on top of the head, and ask the catalog to publish them."""
    table, draft = onto
    head, snapshot_id = draft.head, draft.snapshot_id
    inline = _handover(commit, head)
    try:
        manifests, removed = draft.manifests_after(changes)
        inline = inline.removing(removed, snapshot_id) if inline else None
        result = commit.describe(removed, changes.added_deletes)
        result = replace(result, snapshot_id=snapshot_id, attempts=number)
        if inline is not None and inline.changes.everything:
            deleted = result.rows_deleted + len(inline.changes.removed)
            result = replace(result, rows_deleted=deleted)
        if not (changes.added_paths or removed.data or removed.deletes):
            delete_files(head.io, draft.written)
            result = replace(result, snapshot_id=None)
            if inline is None or inline.changes.is_empty:
                return result
            return inline.publish_rows(replace(result, mode=INLINE_MODE), commit.idempotency_key)
        summary = draft.summary_of(changes, removed, {**commit.summary, **result.as_summary()})
        snapshot = draft.finish(manifests, operation_of(changes, removed), summary)
        staged = stage(table, head, snapshot, commit.changes.metadata_updates)
        progress.asked = True
        swap(commit.catalog, staged, inline)
    except CatalogUnavailableError:
        progress.open.append((draft.written, result))
        raise
    except BaseException as error:
        if isinstance(error, LostRaceError | ConflictError | StorageError):
            progress.asked = False
        if not progress.asked:
            delete_after_failure(head.io, draft.written)
        raise
    progress.done = draft.written
    return result


def _publish_rows(commit: Commit, head: TableState, number: int) -> DmlResult:
    """Publish changes of inline rows alone, without a snapshot."""
    result = replace(commit.describe(RemovedFiles(), ()), attempts=number)
    inline = _handover(commit, head)
    return result if inline is None else inline.publish_rows(result, commit.idempotency_key)


def _handover(commit: Commit, head: TableState) -> InlineHandover | None:
    updates = commit.changes.metadata_updates
    base = updates.applied(commit.base) if updates else commit.base
    return handover_of(commit.tier, base, head, commit.changes, commit.check)


def _with_updates(commit: Commit, head: TableState) -> TableState:
    """The head with the statement's own changes of the metadata, which must still fit it."""
    updates = commit.changes.metadata_updates
    if updates is None:
        return head
    if not updates.fit(head):
        raise _conflict(commit.base, head, updates.reason)
    return updates.applied(head)


def _refuse_conflicts(commit: Commit, head: TableState) -> None:
    base, updates = commit.base, commit.changes.metadata_updates
    base = updates.applied(base) if updates else base
    if base.branch in base.metadata.refs and base.branch not in head.metadata.refs:
        # A missing branch starts at main: created again, it would lack its own rows.
        raise _conflict(base, head, f"another writer dropped the branch {base.branch!r}")
    if columns := unreadable_columns(base.schema, head.schema):
        raise _conflict(
            base, head, f"the schema changed so that new files do not fit: {', '.join(columns)}"
        )
    if commit.check.matcher is None and not commit.changes.files_with_deleted_rows:
        return  # no row was read: nothing that landed since can matter
    unpartitioned = unpartitioned_specs(head.metadata)
    conflict = find_conflict(
        commit.changes,
        commit.check,
        window_since(base, head),
        unpartitioned,
        lambda deletes: _new_deletes(base, read_position_deletes(head.io, deletes)),
    )
    if conflict is not None:
        raise _conflict(base, head, conflict.reason, conflict.files)


def _new_deletes(base: TableState, contents: Mapping[str, Deleted]) -> dict[str, Deleted]:
    """Deleted rows by delete file, without those that were deleted inline when they were read."""
    known = base.inline_deletes.positions if base.inline_deletes else {}
    if not known:
        return dict(contents)
    return {
        delete: {
            path: new for path, rows in deleted.items() if (new := rows - known.get(path, _NONE))
        }
        for delete, deleted in contents.items()
    }


_NONE = BitMap64()


def _conflict(
    base: TableState, head: TableState, reason: str, files: Sequence[str] = ()
) -> ConflictError:
    return ConflictError(
        reason,
        table=base.name,
        base_snapshot_id=base.snapshot_id,
        current_snapshot_id=head.snapshot_id,
        files=tuple(files),
    )
