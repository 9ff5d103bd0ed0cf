"""Expire history: first the metadata commit, then the files that no snapshot reaches any more.

Killed between the two, files are left that nothing refers to; `remove_orphans` finds them.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import update_table_metadata

from icefloe.commit.catalog import LostRaceError, load_table, race_lost, with_retries
from icefloe.commit.expiring import removal_updates, remove_snapshots
from icefloe.errors import StatementError, StorageError
from icefloe.maintenance.garbage import refuse_to_collect
from icefloe.maintenance.ownership import Judged, judge, pointers_of
from icefloe.maintenance.reach import Files, Kind, Reach, everything, no_longer_reached
from icefloe.maintenance.retention import Expired, Limits, expired
from icefloe.metadata.table_state import TableState, state_of
from icefloe.results import ExpireResult
from icefloe.storage.files import delete_each
from icefloe.storage.locations import KnownFiles


@dataclass(frozen=True, slots=True)
class _Done:
    """A commit that took history away: the table before it, and what went."""

    before: TableMetadata
    gone: Expired
    reach: Reach
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
    reach = Reach(state.io)
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
