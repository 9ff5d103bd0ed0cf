"""Expire history: first the metadata commit, then the files that no snapshot reaches any more.

Killed between the two, files are left that nothing refers to; `remove_orphans` finds them.
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

from icefloe.commit.catalog import LostRaceError, load_table, race_lost, settle, with_retries
from icefloe.errors import CommitStateUnknownError, StatementError, StorageError
from icefloe.maintenance.own_files import Judged, judge, pointers_of
from icefloe.maintenance.reachable_files import (
    Files,
    Kind,
    ReachableFiles,
    everything,
    no_longer_reached,
    refuse_to_collect,
)
from icefloe.metadata.table_state import MAIN, TableState, ancestors, remove_old_metadata, state_of
from icefloe.results import ExpireResult
from icefloe.settings import Settings
from icefloe.storage.files import delete_each
from icefloe.storage.locations import KnownFiles

# -------------------------------------------------------------------------------------------------
# Which snapshots and refs of a table have expired, by Iceberg's rules.


@dataclass(frozen=True, slots=True)
class Limits:
    """How old, and how many: what a call asks for over the table's own settings."""

    now_ms: int
    older_than_ms: int  # snapshots from before this moment go
    retain_last: int  # on each branch so many stay, however old
    max_ref_age_ms: int | None

    @classmethod
    def of(
        cls, settings: Settings, now_ms: int, older_than_ms: int | None, retain_last: int
    ) -> Limits:
        """The limits of a call; the table's least number of snapshots holds in any case."""
        if older_than_ms is None:
            older_than_ms = now_ms - settings.max_snapshot_age_ms
        return cls(
            now_ms,
            older_than_ms,
            max(retain_last, settings.min_snapshots_to_keep),
            settings.max_ref_age_ms,
        )


@dataclass(frozen=True, slots=True)
class Expired:
    """What goes from a table's metadata."""

    snapshots: tuple[int, ...] = ()
    refs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.snapshots or self.refs)


def expired(metadata: TableMetadata, limits: Limits) -> Expired:
    """The snapshots that nothing keeps: no branch, no tag, no young age."""
    refs = {
        name: ref
        for name, ref in metadata.refs.items()
        if name == MAIN or _is_kept(ref, metadata, limits)
    }
    kept = {ref.snapshot_id for ref in refs.values()}
    if metadata.current_snapshot_id is not None:
        kept.add(metadata.current_snapshot_id)
    in_line = set(kept)
    for ref in refs.values():
        if ref.snapshot_ref_type == SnapshotRefType.BRANCH:
            line = list(ancestors(metadata, metadata.snapshot_by_id(ref.snapshot_id)))
            in_line |= {snapshot.snapshot_id for snapshot in line}
            kept |= {snapshot.snapshot_id for snapshot in _kept_of(line, ref, limits)}
    for snapshot in metadata.snapshots:
        # Rolled back, or staged: no branch tells its age limit.
        if snapshot.snapshot_id not in in_line and snapshot.timestamp_ms >= limits.older_than_ms:
            kept.add(snapshot.snapshot_id)
    return Expired(
        tuple(s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in kept),
        tuple(name for name in metadata.refs if name not in refs),
    )


def _is_kept(ref: SnapshotRef, metadata: TableMetadata, limits: Limits) -> bool:
    limit = ref.max_ref_age_ms or limits.max_ref_age_ms
    snapshot = metadata.snapshot_by_id(ref.snapshot_id)
    return limit is None or snapshot is None or limits.now_ms - snapshot.timestamp_ms <= limit


def _kept_of(line: list[Snapshot], ref: SnapshotRef, limits: Limits) -> Iterator[Snapshot]:
    """The newest snapshots of a branch, by its own limits where it has some."""
    oldest_ms = limits.older_than_ms
    if ref.max_snapshot_age_ms is not None:
        oldest_ms = limits.now_ms - ref.max_snapshot_age_ms
    least = max(limits.retain_last, ref.min_snapshots_to_keep or 1)
    for number, snapshot in enumerate(line):
        if number >= least and snapshot.timestamp_ms < oldest_ms:
            return
        yield snapshot


# -------------------------------------------------------------------------------------------------
# Take snapshots and refs out of a table's metadata, if the table is still as it was judged.


class SameHistory(ValidatableTableRequirement):
    """No branch, tag or snapshot came, went or moved: a new tag may keep what is about to go.

    Catalogs that check requirements in this process know it; a REST server does not.
    """

    type: Literal["icefloe-same-history"] = Field(default="icefloe-same-history")
    refs: dict[str, int]
    snapshots: set[int]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        """Raise CommitFailedException when the table's history is another."""
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
    """Publish metadata without these snapshots and refs; no file is deleted.

    Raises LostRaceError or StorageError when it surely did not happen, and
    CommitStateUnknownError where nobody can tell.
    """
    metadata = table.metadata
    requirements: list[TableRequirement] = [AssertTableUUID(uuid=metadata.table_uuid)]
    requirements += [
        AssertRefSnapshotId(ref=ref, snapshot_id=found) for ref, found in _refs(metadata).items()
    ]
    if isinstance(catalog, MetastoreCatalog):
        same = SameHistory(refs=_refs(metadata), snapshots=_snapshots(metadata))
        requirements.append(same)  # type: ignore[arg-type]
    updates = removal_updates(metadata, snapshots, refs)
    try:
        answer = catalog.commit_table(table, tuple(requirements), updates)
    except BaseException as error:  # noqa: BLE001 - Ctrl-C too leaves a commit that may land
        settle(
            catalog,
            name,
            metadata.table_uuid,
            lambda now: _lacks(now, snapshots, refs),
            CommitStateUnknownError(
                f"{name}: the catalog did not say whether {len(snapshots)} snapshots were expired "
                f"({error!r}). No file was deleted. Run expire_snapshots again; files that it then "
                "does not find are removed by remove_orphans."
            ),
            error,
        )
        return
    remove_old_metadata(catalog, table.io, metadata, answer.metadata)


def removal_updates(
    metadata: TableMetadata, snapshots: Collection[int], refs: Collection[str]
) -> tuple[TableUpdate, ...]:
    """What takes snapshots and refs out of metadata, their statistics included."""
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
    gone = _snapshots(metadata).isdisjoint(snapshots)
    return gone and set(metadata.refs).isdisjoint(refs)


@dataclass(frozen=True, slots=True)
class _Done:
    """A commit that took history away: the table before it, and what went."""

    before: TableMetadata
    gone: Expired
    reach: ReachableFiles
    judged: Judged


def expire_snapshots(
    catalog: Catalog, state: TableState, older_than: datetime | None, retain_last: int
) -> ExpireResult:
    """Forget old snapshots and refs, then delete the files that only they reached."""
    started = time.monotonic()
    _refuse(retain_last, older_than)
    refuse_to_collect(catalog, state, "expire_snapshots")
    try:
        done = with_retries(
            lambda _number: _commit(catalog, state, older_than, retain_last),
            state.settings.retry,
        )
    except LostRaceError as lost:
        raise race_lost(state) from lost
    result = _deleted(catalog, state, done) if done.gone else ExpireResult()
    return replace(
        result,
        snapshots_expired=done.gone.snapshots,
        snapshots_kept=len(done.before.snapshots) - len(done.gone.snapshots),
        refs_removed=done.gone.refs,
        duration_s=time.monotonic() - started,
    )


def _refuse(retain_last: int, older_than: datetime | None) -> None:
    if not isinstance(retain_last, int) or isinstance(retain_last, bool) or retain_last < 1:
        raise StatementError(f"retain_last is {retain_last!r}: use a number from 1.")
    if older_than is not None and not isinstance(older_than, datetime):
        raise StatementError(f"older_than is {older_than!r}: use a datetime.")


def _commit(
    catalog: Catalog, base: TableState, older_than: datetime | None, retain_last: int
) -> _Done:
    """One attempt on the table as it is now; raises before the commit when files are unreadable."""
    table = load_table(catalog, base.name, base.metadata.table_uuid)
    state = state_of(table, base.name)
    refuse_to_collect(catalog, state, "expire_snapshots")
    before = state.metadata
    moment = None if older_than is None else int(older_than.astimezone(UTC).timestamp() * 1000)
    limits = Limits.of(state.settings, int(time.time() * 1000), moment, retain_last)
    gone = expired(before, limits)
    reach = ReachableFiles(state.io)
    if not gone:
        return _Done(before, gone, reach, Judged({}))
    after = update_table_metadata(before, removal_updates(before, gone.snapshots, gone.refs))
    files = no_longer_reached(reach, before, after)
    judged = judge(catalog, table, files, everything(after, reach) | pointers_of(table))
    remove_snapshots(catalog, base.name, table, gone.snapshots, gone.refs)
    return _Done(before, gone, reach, judged)


def _deleted(catalog: Catalog, state: TableState, done: _Done) -> ExpireResult:
    """Delete what the table, read once more, does not reach."""
    try:
        table = load_table(catalog, state.name, state.metadata.table_uuid)
        refuse_to_collect(catalog, state_of(table, state.name), "expire_snapshots")
        files = _still_unreached(done, table)
    except Exception as error:
        raise StorageError(
            f"{state.name}: {len(done.gone.snapshots)} snapshots were expired, but what the others "
            f"need cannot be read, so no file was deleted: {error} Once it can be read, "
            "remove_orphans deletes what is left."
        ) from error
    sizes = {name: _size(state.io, file.location, file.bytes) for name, file in files.items()}
    failed = set(delete_each(state.io, [file.location for file in files.values()]))
    deleted: Files = {n: file for n, file in files.items() if file.location not in failed}
    counts = Counter(file.kind for file in deleted.values())
    return ExpireResult(
        data_files_deleted=counts[Kind.DATA],
        delete_files_deleted=counts[Kind.DELETES],
        manifests_deleted=counts[Kind.MANIFEST],
        manifest_lists_deleted=counts[Kind.MANIFEST_LIST],
        statistics_files_deleted=counts[Kind.STATISTICS],
        bytes_deleted=sum(sizes[name] for name in deleted),
        files_failed=tuple(sorted(failed)),
        files_kept=done.judged.kept,
    )


def _still_unreached(done: _Done, table: IcebergTable) -> Files:
    """The files judged before the commit that the table does not reach after it either."""
    unreached = no_longer_reached(done.reach, done.before, table.metadata)
    known = KnownFiles.of(everything(table.metadata, done.reach) | pointers_of(table))
    return {
        name: file
        for name, file in done.judged.deletable.items()
        if name in unreached and not known.has(name)
    }


def _size(io: FileIO, location: str, known: int | None) -> int:
    """A file's size; metadata does not have that of a manifest list."""
    if known is not None:
        return known
    try:
        return len(io.new_input(location))
    except OSError:
        return 0
