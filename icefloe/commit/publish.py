"""Publish file changes as one snapshot.

Each attempt reads the table's head, looks for conflicts with what landed since the statement's
own snapshot (on the first attempt too), lays out the manifests on top of the head and asks the
catalog to swap the pointer. A lost race is tried again with the same data files. Files are deleted
only when the commit surely did not land.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog

from icefloe.commit.catalog import LostRaceError, load_table, race_lost, swap, unknown, with_retries
from icefloe.commit.conflicts import ConflictCheck, find_conflict, window_since
from icefloe.commit.snapshot import RemovedFiles, SnapshotDraft, operation_of
from icefloe.deletes.position_deletes import read_position_deletes
from icefloe.errors import (
    CommitStateUnknownError,
    ConflictError,
    StorageError,
)
from icefloe.file_changes import FileChanges
from icefloe.metadata.files import unpartitioned_specs
from icefloe.metadata.table_state import (
    SchemaChange,
    TableState,
    ancestors,
    state_of,
    unreadable_columns,
)
from icefloe.results import DmlResult
from icefloe.storage.files import remove_files

IDEMPOTENCY_KEY = "icefloe.idempotency-key"


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything needed to publish one statement."""

    catalog: Catalog
    base: TableState
    changes: FileChanges
    guard: ConflictCheck
    describe: Callable[[RemovedFiles], DmlResult]
    summary: dict[str, str]
    idempotency_key: str | None = None
    schema_change: SchemaChange | None = None  # `base` has it already, the table not yet


@dataclass
class _Progress:
    """Whether the catalog has been asked to publish, and has not surely refused."""

    asked: bool = False


def publish(commit: Commit) -> DmlResult:
    """Publish the changes; removes the statement's files if they surely were not published."""
    snapshot_id = commit.base.metadata.new_snapshot_id()
    progress = _Progress()
    try:
        return with_retries(
            lambda number: _attempt(commit, snapshot_id, number, progress),
            commit.base.settings.retry,
        )
    except LostRaceError as lost:
        remove_files(commit.base.io, commit.changes.added_paths)
        raise race_lost(commit.base) from lost
    except CommitStateUnknownError:
        raise
    except BaseException as error:
        if progress.asked:
            raise unknown(commit.base.name, snapshot_id, error) from error
        remove_files(commit.base.io, commit.changes.added_paths)
        raise


def already_done(state: TableState, key: str | None) -> DmlResult | None:
    """The result of the statement that carried this idempotency key, if history has it."""
    if key is None:
        return None
    for snapshot in ancestors(state.metadata, state.snapshot):
        if snapshot.summary is not None and snapshot.summary.get(IDEMPOTENCY_KEY) == key:
            told = snapshot.summary.additional_properties
            return DmlResult.from_summary(told, snapshot.snapshot_id)
    return None


def _attempt(commit: Commit, snapshot_id: int, number: int, progress: _Progress) -> DmlResult:
    table = load_table(commit.catalog, commit.base.name, commit.base.metadata.table_uuid)
    head = state_of(table, commit.base.name, commit.base.branch)
    if done := already_done(head, commit.idempotency_key):
        remove_files(commit.base.io, commit.changes.added_paths)
        return done
    head = _evolved(commit, head)
    _refuse_conflicts(commit, head)
    draft = SnapshotDraft(head, snapshot_id)
    try:
        manifests, gone = draft.manifests_after(commit.changes)
        result = replace(commit.describe(gone), snapshot_id=snapshot_id, attempts=number)
        if commit.changes.is_empty or not (commit.changes.added_paths or gone.data or gone.deletes):
            remove_files(head.io, draft.written)
            return replace(result, snapshot_id=None)
        summary = draft.summary_of(commit.changes, gone, {**commit.summary, **result.as_summary()})
        snapshot = draft.finish(manifests, operation_of(commit.changes, gone), summary)
        progress.asked = True
        swap(commit.catalog, table, head, snapshot, commit.schema_change)
    except BaseException as error:
        if isinstance(error, LostRaceError | StorageError):
            progress.asked = False
        if not progress.asked:
            remove_files(head.io, draft.written)
        raise
    return result


def _evolved(commit: Commit, head: TableState) -> TableState:
    """The head with the statement's new schema, which it must not have got another of meanwhile."""
    change = commit.schema_change
    if change is None:
        return head
    if not change.fits(head):
        raise _conflict(commit.base, head, "another writer changed the schema meanwhile")
    return change.applied(head)


def _refuse_conflicts(commit: Commit, head: TableState) -> None:
    base = commit.base
    if base.branch in base.metadata.refs and base.branch not in head.metadata.refs:
        # A branch that is not there starts at main: made again, it would lack its own rows.
        raise _conflict(base, head, f"another writer dropped the branch {base.branch!r}")
    if columns := unreadable_columns(base.schema, head.schema):
        raise _conflict(
            base, head, f"the schema changed so that new files do not fit: {', '.join(columns)}"
        )
    if commit.guard.matcher is None:
        return  # no row was read: nothing that landed meanwhile can matter
    unpartitioned = unpartitioned_specs(head.metadata)
    found = find_conflict(
        commit.changes,
        commit.guard,
        window_since(base, head),
        unpartitioned,
        lambda deletes: read_position_deletes(head.io, deletes),
    )
    if found is not None:
        raise _conflict(base, head, found.reason, found.files)


def _conflict(
    base: TableState, head: TableState, reason: str, files: tuple[str, ...] = ()
) -> ConflictError:
    return ConflictError(
        reason,
        table=base.name,
        base_snapshot_id=base.snapshot_id,
        current_snapshot_id=head.snapshot_id,
        files=files,
    )
