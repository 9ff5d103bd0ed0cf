"""Expire snapshots: commit metadata without them, then delete the files that only they reached.

A process killed between the two leaves files that nothing refers to; `remove_orphans` deletes them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from pydantic import Field
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
    update_table_metadata,
)

from icefloe.commit.catalog import commit_with_retries, load_table, settle
from icefloe.errors import CommitStateUnknownError, StatementError, StorageError
from icefloe.maintenance.own_files import DeletableFiles, metadata_pointers, select_deletable
from icefloe.maintenance.reachable_files import (
    FileKind,
    FilesByName,
    ReachableFiles,
    TableFile,
    check_older_than,
    newly_unreachable,
    reachable_names,
    refuse_unsafe_gc,
)
from icefloe.maintenance.sidecars import delete_sidecars_of
from icefloe.metadata.table_state import MAIN, TableState, ancestors, delete_old_metadata, state_of
from icefloe.results import ExpireResult
from icefloe.settings import Settings
from icefloe.storage.files import delete_files
from icefloe.storage.locations import KnownFiles


@dataclass(frozen=True, slots=True)
class _ExpireCommit:
    """A commit that expired history: the table before it, and the files to delete after it."""

    before: TableMetadata
    expired: ExpiredHistory
    reachable: ReachableFiles
    files: DeletableFiles


def expire_snapshots(
    catalog: Catalog, state: TableState, older_than: datetime | None, retain_last: int
) -> ExpireResult:
    """Expire old snapshots and refs, then delete the files that only they reached."""
    started = time.monotonic()
    _check_arguments(retain_last, older_than)
    refuse_unsafe_gc(catalog, state, "expire_snapshots")
    commit = commit_with_retries(
        state, lambda _number: _commit(catalog, state, older_than, retain_last)
    )
    result = _delete_files(catalog, state, commit) if commit.expired else ExpireResult()
    return replace(
        result,
        snapshots_expired=commit.expired.snapshots,
        snapshots_kept=len(commit.before.snapshots) - len(commit.expired.snapshots),
        refs_removed=commit.expired.refs,
        duration_s=time.monotonic() - started,
    )


def _check_arguments(retain_last: int, older_than: datetime | None) -> None:
    if not isinstance(retain_last, int) or isinstance(retain_last, bool) or retain_last < 1:
        raise StatementError(
            f"Invalid value {retain_last!r} for retain_last: expected an integer >= 1."
        )
    check_older_than(older_than)


def _commit(
    catalog: Catalog, base: TableState, older_than: datetime | None, retain_last: int
) -> _ExpireCommit:
    """Make one attempt on the current table; unreadable files raise before the commit."""
    table = load_table(catalog, base.name, base.metadata.table_uuid)
    state = state_of(table, base.name)
    refuse_unsafe_gc(catalog, state, "expire_snapshots")
    before = state.metadata
    cutoff_ms = None if older_than is None else int(older_than.astimezone(UTC).timestamp() * 1000)
    limits = RetentionLimits.of(state.settings, int(time.time() * 1000), cutoff_ms, retain_last)
    expired = find_expired(before, limits)
    reachable = ReachableFiles(state.io)
    if not expired:
        return _ExpireCommit(before, expired, reachable, DeletableFiles({}))
    after = update_table_metadata(before, removal_updates(before, expired.snapshots, expired.refs))
    unreachable = newly_unreachable(reachable, before, after)
    needed = reachable_names(after, reachable) | metadata_pointers(table)
    files = select_deletable(catalog, table, unreachable, needed)
    remove_snapshots(catalog, base.name, table, expired.snapshots, expired.refs)
    return _ExpireCommit(before, expired, reachable, files)


def _delete_files(catalog: Catalog, state: TableState, commit: _ExpireCommit) -> ExpireResult:
    """Delete the files that the table, loaded again after the commit, does not reach."""
    try:
        table = load_table(catalog, state.name, state.metadata.table_uuid)
        current = state_of(table, state.name)
        refuse_unsafe_gc(catalog, current, "expire_snapshots")
        files = _still_unreachable(commit, table)
    except Exception as error:
        raise StorageError(
            f"{state.name}: {len(commit.expired.snapshots)} snapshots were expired, but no file "
            f"was deleted: {error} The files that the remaining snapshots need cannot be "
            "determined. Run remove_orphans once the table can be read."
        ) from error
    sizes = {name: _size(state.io, file) for name, file in files.items()}
    failed = set(delete_files(state.io, [file.location for file in files.values()]))
    deleted = {name: file for name, file in files.items() if file.location not in failed}
    delete_sidecars_of(current, deleted.values())
    counts = Counter(file.kind for file in deleted.values())
    return ExpireResult(
        data_files_deleted=counts[FileKind.DATA],
        delete_files_deleted=counts[FileKind.DELETES],
        manifests_deleted=counts[FileKind.MANIFEST],
        manifest_lists_deleted=counts[FileKind.MANIFEST_LIST],
        statistics_files_deleted=counts[FileKind.STATISTICS],
        bytes_deleted=sum(sizes[name] for name in deleted),
        files_failed=tuple(sorted(failed)),
        files_kept=commit.files.kept,
    )


def _still_unreachable(commit: _ExpireCommit, table: IcebergTable) -> FilesByName:
    """The files selected before the commit that the table does not reach after it either."""
    unreachable = newly_unreachable(commit.reachable, commit.before, table.metadata)
    needed = KnownFiles.of(
        reachable_names(table.metadata, commit.reachable) | metadata_pointers(table)
    )
    return {
        name: file
        for name, file in commit.files.deletable.items()
        if name in unreachable and not needed.has(name)
    }


def _size(io: FileIO, file: TableFile) -> int:
    """A file's size; metadata does not record that of a manifest list."""
    if file.bytes is not None:
        return file.bytes
    try:
        return len(io.new_input(file.location))
    except OSError:
        return 0


# -------------------------------------------------------------------------------------------------
# Expired snapshots and refs, by Iceberg's retention rules


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Age and number limits of a call, completed from the table's settings."""

    now_ms: int
    older_than_ms: int  # snapshots before this timestamp expire
    retain_last: int  # each branch keeps so many snapshots, whatever their age
    max_ref_age_ms: int | None

    @classmethod
    def of(
        cls, settings: Settings, now_ms: int, older_than_ms: int | None, retain_last: int
    ) -> RetentionLimits:
        """The limits of a call; the table's minimum number of snapshots always applies."""
        if older_than_ms is None:
            older_than_ms = now_ms - settings.max_snapshot_age_ms
        return cls(
            now_ms,
            older_than_ms,
            max(retain_last, settings.min_snapshots_to_keep),
            settings.max_ref_age_ms,
        )


@dataclass(frozen=True, slots=True)
class ExpiredHistory:
    """Snapshots and refs to remove from a table's metadata."""

    snapshots: tuple[int, ...] = ()
    refs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.snapshots or self.refs)


def find_expired(metadata: TableMetadata, limits: RetentionLimits) -> ExpiredHistory:
    """Find the refs that are too old and the snapshots that no ref and no age limit retains."""
    refs = {
        name: ref
        for name, ref in metadata.refs.items()
        if name == MAIN or _is_ref_retained(ref, metadata, limits)
    }
    retained = {ref.snapshot_id for ref in refs.values()}
    if metadata.current_snapshot_id is not None:
        retained.add(metadata.current_snapshot_id)
    referenced = set(retained)
    for ref in refs.values():
        if ref.snapshot_ref_type == SnapshotRefType.BRANCH:
            branch = list(ancestors(metadata, metadata.snapshot_by_id(ref.snapshot_id)))
            referenced |= {snapshot.snapshot_id for snapshot in branch}
            retained |= {s.snapshot_id for s in _retained_of_branch(branch, ref, limits)}
    for snapshot in metadata.snapshots:
        # Rolled back or staged: no branch limits its age.
        if snapshot.snapshot_id not in referenced and snapshot.timestamp_ms >= limits.older_than_ms:
            retained.add(snapshot.snapshot_id)
    return ExpiredHistory(
        tuple(s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in retained),
        tuple(name for name in metadata.refs if name not in refs),
    )


def _is_ref_retained(ref: SnapshotRef, metadata: TableMetadata, limits: RetentionLimits) -> bool:
    max_age_ms = ref.max_ref_age_ms or limits.max_ref_age_ms
    snapshot = metadata.snapshot_by_id(ref.snapshot_id)
    if max_age_ms is None or snapshot is None:
        return True
    return limits.now_ms - snapshot.timestamp_ms <= max_age_ms


def _retained_of_branch(
    branch: list[Snapshot], ref: SnapshotRef, limits: RetentionLimits
) -> Iterator[Snapshot]:
    """The newest snapshots of a branch; limits of the branch win over those of the call."""
    oldest_ms = limits.older_than_ms
    if ref.max_snapshot_age_ms is not None:
        oldest_ms = limits.now_ms - ref.max_snapshot_age_ms
    min_snapshots = max(limits.retain_last, ref.min_snapshots_to_keep or 1)
    for number, snapshot in enumerate(branch):
        if number >= min_snapshots and snapshot.timestamp_ms < oldest_ms:
            return
        yield snapshot


# -------------------------------------------------------------------------------------------------
# The metadata commit


class SameHistory(ValidatableTableRequirement):
    """Requires that no branch, tag or snapshot changed: a new tag may retain an expired snapshot.

    Only catalogs that check requirements in this process know it; a REST server does not.
    """

    type: Literal["icefloe-same-history"] = Field(default="icefloe-same-history")
    refs: dict[str, int]
    snapshots: set[int]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        """Raise CommitFailedException when the table's refs or snapshots differ."""
        if (
            base_metadata is None
            or _refs(base_metadata) != self.refs
            or _snapshots(base_metadata) != self.snapshots
        ):
            raise CommitFailedException("Requirement failed: the table's history has changed")


def remove_snapshots(
    catalog: Catalog,
    name: str,
    table: IcebergTable,
    snapshots: Collection[int],
    refs: Collection[str],
) -> None:
    """Commit metadata without these snapshots and refs; no file is deleted.

    Raises LostRaceError or StorageError when the commit provably failed, and
    CommitStateUnknownError when its outcome is unknown.
    """
    metadata = table.metadata
    requirements: list[TableRequirement] = [AssertTableUUID(uuid=metadata.table_uuid)]
    requirements += [
        AssertRefSnapshotId(ref=ref, snapshot_id=snapshot_id)
        for ref, snapshot_id in _refs(metadata).items()
    ]
    if isinstance(catalog, MetastoreCatalog):
        same = SameHistory(refs=_refs(metadata), snapshots=_snapshots(metadata))
        requirements.append(same)  # type: ignore[arg-type]
    updates = removal_updates(metadata, snapshots, refs)
    try:
        response = catalog.commit_table(table, tuple(requirements), updates)
    except BaseException as error:  # noqa: BLE001 - after Ctrl-C too, the commit may succeed
        settle(
            catalog,
            name,
            metadata.table_uuid,
            lambda now: _lacks(now, snapshots, refs),
            CommitStateUnknownError(
                f"{name}: the catalog did not confirm that {len(snapshots)} snapshots were expired "
                f"({error!r}). No file was deleted. Run expire_snapshots again, then "
                "remove_orphans for files that it does not delete."
            ),
            error,
        )
        return
    delete_old_metadata(table.io, metadata, response.metadata)


def removal_updates(
    metadata: TableMetadata, snapshots: Collection[int], refs: Collection[str]
) -> tuple[TableUpdate, ...]:
    """Metadata updates that remove snapshots and refs, with the statistics of the snapshots."""
    updates: list[TableUpdate] = [RemoveSnapshotRefUpdate(ref_name=ref) for ref in refs]
    updates += [
        RemovePartitionStatisticsUpdate(snapshot_id=file.snapshot_id)
        for file in metadata.partition_statistics
        if file.snapshot_id in snapshots
    ]
    if snapshots:
        updates.append(RemoveSnapshotsUpdate(snapshot_ids=list(snapshots)))
    return tuple(updates)


def _refs(metadata: TableMetadata) -> dict[str, int]:
    return {name: ref.snapshot_id for name, ref in metadata.refs.items()}


def _snapshots(metadata: TableMetadata) -> set[int]:
    return {snapshot.snapshot_id for snapshot in metadata.snapshots}


def _lacks(metadata: TableMetadata, snapshots: Collection[int], refs: Collection[str]) -> bool:
    without_snapshots = _snapshots(metadata).isdisjoint(snapshots)
    return without_snapshots and set(metadata.refs).isdisjoint(refs)
