"""Publish changes of inline rows together with a commit of the table.

In one database they are one transaction with the swap of the table's pointer. Metadata is staged
before it begins and no file is written in it, so that other writers wait for milliseconds. Whatever
makes the transaction fail leaves pointer and rows as they were.

Where the catalog is not in that database, the commit is announced before the catalog is asked and
concluded after it (see `inline.intents`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import sqlalchemy as sa
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import SetPropertiesUpdate, TableRequirement, TableUpdate
from pyroaring import BitMap64

from icefloe.commit import inline_deletes
from icefloe.commit.conflicts import ConflictCheck
from icefloe.commit.inline_deletes import InlineDeleteChanges
from icefloe.commit.snapshot import RemovedFiles
from icefloe.errors import (
    CommitOutcomeUnknown,
    ConflictError,
    IcefloeError,
    StorageError,
    StoreBusyError,
)
from icefloe.file_changes import FileChanges, InlineChanges, RemoveEverything, RowVersion
from icefloe.inline.bookkeeping import (
    claim_key,
    find_seq,
    next_stamp,
    read_key,
    remove_intent,
    write_intent,
)
from icefloe.inline.cut import PointerMovedError
from icefloe.inline.deletes import read_facts
from icefloe.inline.encode import encode_rows
from icefloe.inline.intents import conclude
from icefloe.inline.layout import InlineTable, inline_columns
from icefloe.inline.rows import (
    insert_rows,
    lock_inserts,
    missing_versions,
    remove_and_compare,
    remove_unchanged,
    remove_versions,
    replace_rows,
    select_versions,
)
from icefloe.inline.store import ChangeStamp, StoreConnection
from icefloe.inline.tables import add_missing_columns, dropped, swap_pointer
from icefloe.inline.tier import InlineTier
from icefloe.inline.where import row_filter
from icefloe.metadata.table_state import (
    StagedMetadata,
    TableState,
    ancestors,
    stage_metadata,
)
from icefloe.results import FLUSH, SUMMARY_PREFIX, DmlResult
from icefloe.settings import INLINE_FLUSHED, Isolation, flushed_through
from icefloe.storage.files import delete_files

log = logging.getLogger("icefloe")


_FEW_STALE_ROWS = 100
_OPERATION = f"{SUMMARY_PREFIX}operation"


class LostRaceError(Exception):
    """Another writer committed between reading the table's head and publishing."""


@dataclass(frozen=True, slots=True)
class InlineHandover:
    """Changes of inline rows, and the rows that must not have been inserted since."""

    tier: InlineTier
    table: InlineTable
    head: TableState  # that the statement was validated against
    schema: Schema  # that the statement was bound to: its values and its condition
    changes: InlineChanges
    unread: BooleanExpression | None  # rows that the statement would have changed had it seen them
    base_snapshot_id: int | None = None  # that the statement read
    # Of rows in files; None where the catalog is in another database, which has no such deletes.
    deletes: InlineDeleteChanges | None = None

    def removing(self, removed: RemovedFiles, snapshot_id: int) -> InlineHandover:
        """The changes of a commit that removes these files."""
        if self.deletes is None:
            return self
        paths = frozenset(file.path for file in removed.data)
        return replace(self, deletes=self.deletes.removing(paths, snapshot_id))

    def publish_rows(self, result: DmlResult, key: str | None) -> DmlResult:
        """Publish the changes without a snapshot; returns the result, or that of an earlier run.

        Raises:
            LostRaceError: The table was committed to since; nothing was changed.
            ConflictError: Another writer changed the rows; nothing was changed.
        """
        stamp: ChangeStamp | None = None
        try:
            with self.tier.changing(self.head, self.table, check_current=True) as connection:
                stamp = self.tier.stamp(connection, self.head, self.table)
                if key is not None:
                    first = claim_key(connection, self.table, key, result.as_json(), stamp)
                    if first is not None:
                        return DmlResult.from_json(first)
                self._apply(connection, stamp)
        except PointerMovedError as moved:
            raise LostRaceError("the table was committed to") from moved
        except StoreBusyError as busy:
            raise LostRaceError(str(busy)) from busy
        except CommitOutcomeUnknown:
            if stamp is None or not self._has_landed(stamp):
                raise
        return result

    def publish_with(
        self,
        catalog: MetastoreCatalog,
        table: IcebergTable,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> TableMetadata:
        """Publish the changes together with a commit of the table; returns its new metadata."""
        staged = stage_metadata(catalog, table, requirements, updates)
        try:
            self._swap(staged)
        except (LostRaceError, ConflictError, StorageError):  # provably not committed
            delete_files(self.head.io, [staged.location])
            raise
        return staged.metadata

    # ---------------------------------------------------------------------------------------------
    # Catalogs that are not in the database of the inline rows

    @property
    def updates(self) -> tuple[TableUpdate, ...]:
        """What the commit says of inline rows: up to which change they are in its files."""
        if self.changes.through is None:
            return ()
        return (SetPropertiesUpdate(updates={INLINE_FLUSHED: str(self.changes.through)}),)

    def announce(self, snapshot_id: int) -> None:
        """Check that the rows are as the statement read them; they stay so until `conclude`.

        Raises:
            LostRaceError: The database was locked; nothing was changed.
            ConflictError: Another writer changed the rows; nothing was changed.
        """
        try:
            with self.tier.changing(self.head, self.table) as connection:
                table = self._current(connection)
                self._refuse_changed(connection, table)
                cut = self.changes.through
                if cut is None:
                    cut = self.tier.flushed(connection, self.head, table)
                write_intent(connection, table, cut, snapshot_id)
        except StoreBusyError as busy:
            raise LostRaceError(str(busy)) from busy
        except CommitOutcomeUnknown as unknown:
            self.withdraw(snapshot_id)
            raise StorageError(f"{unknown} The catalog was not asked.") from unknown

    def conclude(self, snapshot_id: int) -> None:
        """Remove the rows that a published snapshot has in files.

        The statement is done: what fails here is made good by whoever changes inline rows next.
        """
        try:
            with self.tier.store.writing(self.table) as connection:
                if (table := self.tier.find(connection, self.head)) is not None:
                    flushed = self.tier.flushed(connection, self.head, table)
                    conclude(connection, table, self.changes.through or flushed, snapshot_id)
        except IcefloeError as error:
            log.warning("Flushed inline rows were not removed from the database yet: %s", error)

    def withdraw(self, snapshot_id: int) -> None:
        """Let others change the rows: the catalog provably did not publish the snapshot."""
        try:
            with self.tier.store.writing(self.table) as connection:
                remove_intent(connection, self.table, snapshot_id)
        except IcefloeError as error:
            log.warning("Inline rows stay locked for five minutes: %s", error)

    # ---------------------------------------------------------------------------------------------

    def _swap(self, staged: StagedMetadata) -> None:
        try:
            with self.tier.store.writing(self.table) as connection:
                name = self.tier.name_of(self.head)
                if not swap_pointer(connection, name, staged.previous, staged.location):
                    raise LostRaceError("the table was committed to")
                self._apply(connection, next_stamp(connection))
        except StoreBusyError as busy:
            raise LostRaceError(str(busy)) from busy

    def _apply(self, connection: StoreConnection, stamp: ChangeStamp) -> None:
        """Check that the rows are as the statement read them, and change them."""
        changes, columns = self.changes, inline_columns(self.schema)
        table = add_missing_columns(connection, self._current(connection), columns)
        stale = self._remove_flushed(connection, table)
        if stale is None:
            self._refuse_changed(connection, table, stamp)
        if self.deletes is not None:
            self._change_deletes(connection, table, self.deletes, stamp, stale or {})
        if stale is None:
            remove_versions(connection, table, changes.removed)
        if changes.new_values is not None:
            encoded = encode_rows(changes.new_values, self.schema)
            replace_rows(connection, table, changes.replaced, columns, encoded, stamp.seq)
        if changes.added is not None and changes.added.num_rows:
            encoded = encode_rows(changes.added, self.schema)
            insert_rows(connection, table, columns, encoded, stamp)

    def _remove_flushed(
        self, connection: StoreConnection, table: InlineTable
    ) -> Mapping[str, BitMap64] | None:
        """Remove the rows of a flush; returns where its files have rows that were changed since.

        These are deleted in the files, so that the flush need not start again. None if this is no
        flush, or one that cannot delete them: no row was removed.
        """
        changes = self.changes
        if changes.all_read_at is not None and remove_unchanged(
            connection, table, changes.all_read_at, len(changes.removed)
        ):
            return {}
        if changes.located is None or self.deletes is None:
            return None
        changed = remove_and_compare(connection, table, changes.removed)
        if len(changed) > max(_FEW_STALE_ROWS, len(changes.removed) // 10):
            raise self._changed(len(changed))
        return changes.located(changed)

    def _change_deletes(
        self,
        connection: StoreConnection,
        table: InlineTable,
        deletes: InlineDeleteChanges,
        stamp: ChangeStamp,
        stale: Mapping[str, BitMap64],
    ) -> None:
        facts = read_facts(connection, table)
        now = self.tier.deletes(connection, table)
        if reason := deletes.find_conflict(now.positions):
            if self.changes.everything:  # again, with these rows
                raise LostRaceError(reason)
            raise self._conflict(reason)
        if facts.rows or now.former or stale or self.changes.deleted:
            deletes.apply(connection, table, facts, stamp, stale)

    def _current(self, connection: StoreConnection) -> InlineTable:
        """The table as it is now: it may have got columns since it was looked up."""
        table = self.tier.find(connection, self.head)
        if table is None:
            raise dropped(self.table)
        return table

    def _refuse_changed(
        self, connection: StoreConnection, table: InlineTable, stamp: ChangeStamp | None = None
    ) -> None:
        """Refuse if the rows are not as the statement read them; `stamp` numbers its change."""
        if changed := self._changed_versions(connection, table):
            if self.changes.everything:
                raise LostRaceError("inline rows were changed")
            raise self._changed(len(changed))
        read_at = self.changes.read_at
        if stamp is None or read_at is None or stamp.seq != read_at + 1:
            self._refuse_unread(connection, table)

    def _changed_versions(
        self, connection: StoreConnection, table: InlineTable
    ) -> list[RowVersion]:
        """Versions that the statement relies on and that are not there any more, or not read."""
        tier, changes, through = self.tier, self.changes, self.changes.through
        versions = (*changes.removed, *changes.replaced, *changes.relied_on)
        if through is not None:
            where = tier.unflushed(connection, self.head, table, through)
            return list(set(versions) ^ set(select_versions(connection, table, where)))
        flushed = tier.flushed(connection, self.head, table)
        in_files = [version for version in versions if version[1] <= flushed]
        return in_files or missing_versions(connection, table, versions)

    def _refuse_unread(self, connection: StoreConnection, table: InlineTable) -> None:
        """Refuse if rows were inserted that the statement would have changed."""
        if self.unread is None:
            return
        lock_inserts(connection, table)
        where = row_filter(self.unread, self.schema, table.rows)
        if (unflushed := self.tier.unflushed(connection, self.head, table)) is not None:
            where = sa.and_(where, unflushed)
        if new := set(select_versions(connection, table, where)) - self.changes.read:
            raise self._conflict(
                f"another writer inserted {len(new)} inline rows that this statement would have "
                "changed"
            )

    def _has_landed(self, stamp: ChangeStamp) -> bool:
        """Whether rows have the number of the change; removed rows leave no trace of it."""
        try:
            with self.tier.store.reading() as connection:
                return find_seq(connection, self.table, stamp.seq)
        except StorageError:
            return False

    def _changed(self, rows: int) -> ConflictError:
        return self._conflict(f"another writer changed {rows} inline rows that this statement read")

    def _conflict(self, reason: str) -> ConflictError:
        return ConflictError(
            reason,
            table=self.head.name,
            base_snapshot_id=self.base_snapshot_id,
            current_snapshot_id=self.head.snapshot_id,
        )


def find_inline_result(tier: InlineTier, state: TableState, key: str | None) -> DmlResult | None:
    """The result of the statement without a snapshot that carried this idempotency key."""
    if key is None or not state.has_inline_tier:
        return None
    with tier.store.reading() as connection:
        table = tier.find(connection, state)
        earlier = None if table is None else read_key(connection, table, key)
    return None if earlier is None else DmlResult.from_json(earlier)


def handover_of(
    tier: InlineTier, base: TableState, head: TableState, changes: FileChanges, check: ConflictCheck
) -> InlineHandover | None:
    """What to publish in the database with a statement; None where that is the pointer alone.

    Raises:
        LostRaceError: `head` is no longer the table's current state.
        ConflictError: The table has no inline tier any more.
    """
    if not head.has_inline_tier:
        if changes.inline.is_empty:
            return None
        raise ConflictError(
            "the table lost its inline tier since the statement read it",
            table=head.name,
            base_snapshot_id=base.snapshot_id,
            current_snapshot_id=head.snapshot_id,
        )
    if isinstance(changes.removal, RemoveEverything):
        return _removing_everything(tier, head, changes, check)
    if changes.inline.through is not None and _flushed(head) != _flushed(base):
        raise ConflictError(
            "another writer flushed inline rows",
            table=head.name,
            base_snapshot_id=base.snapshot_id,
            current_snapshot_id=head.snapshot_id,
        )
    unread = _unread(check)
    inline = changes.inline
    if inline.located is not None and flushed_since(base.snapshot_id, head) is not False:
        # Rows that are missing may be in files of the other flush, as they were or with new values:
        # until the deletes are in files, too, other engines would see them twice.
        inline = replace(inline, located=None)
    has_deletes = tier.shares_database and inline_deletes.are_concerned(changes, check)
    if unread is None and inline.is_empty and not inline.relied_on and not has_deletes:
        return None
    table, schema = tier.register(head), base.schema
    deletes = InlineDeleteChanges(base, head, changes, check) if has_deletes else None
    base_id = base.snapshot_id
    return InlineHandover(tier, table, head, schema, inline, unread, base_id, deletes)


def flushed_since(base_snapshot_id: int | None, head: TableState) -> bool | None:
    """Whether a flush was committed after a snapshot; None if history does not reach so far."""
    for snapshot in ancestors(head.metadata, head.snapshot):
        if snapshot.snapshot_id == base_snapshot_id:
            return False
        if snapshot.summary is not None and snapshot.summary.get(_OPERATION) == FLUSH:
            return True
    return False if base_snapshot_id is None else None


def _removing_everything(
    tier: InlineTier, head: TableState, changes: FileChanges, check: ConflictCheck
) -> InlineHandover | None:
    """The removal of all rows that there are now; rows inserted from now on are later ones."""
    try:
        head = tier.with_deletes(head)
        table, versions, through = tier.versions(head)
    except PointerMovedError as moved:
        raise LostRaceError("the table was committed to") from moved
    if table is None or (through is not None and not versions):
        return None
    inline = InlineChanges(removed=tuple(versions), everything=True, through=through)
    deletes = InlineDeleteChanges(head, head, changes, check) if tier.shares_database else None
    return InlineHandover(tier, table, head, head.schema, inline, None, deletes=deletes)


def _flushed(state: TableState) -> int:
    return flushed_through(state.metadata.properties)


def _unread(check: ConflictCheck) -> BooleanExpression | None:
    """The inline rows whose insertion conflicts with a statement; None: no row's does."""
    if check.matcher is None or check.isolation is not Isolation.SERIALIZABLE:
        return None
    return AlwaysTrue() if check.reads_other_rows else check.matcher.row_condition
