"""Rows of files that are deleted in the inline tier, as a commit finds and leaves them.

A row of a file can be deleted in the database by one writer while another one rewrites the file, or
deletes the same row in a delete file. In the transaction that publishes a statement the deletes are
therefore compared with those that it read: the rules are those of `commit.conflicts`, with deletes
in the database in place of delete files. Deletes of files that the commit removes are removed with
them, so that none refers to a file that icefloe replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyroaring import BitMap64

from icefloe.commit.conflicts import ConflictCheck
from icefloe.file_changes import FileChanges, RemoveEverything
from icefloe.inline.deletes import (
    DeleteFacts,
    add_deletes,
    keep_former_deletes,
    remove_deletes,
    remove_deletes_of_files,
    remove_former_deletes,
    write_facts,
)
from icefloe.inline.layout import InlineTable
from icefloe.inline.store import ChangeStamp, StoreConnection
from icefloe.metadata.table_state import TableState
from icefloe.settings import Isolation

Positions = Mapping[str, BitMap64]  # rows by data file location


@dataclass(frozen=True, slots=True)
class InlineDeleteChanges:
    """What a statement relies on, and changes, of the rows of files that are deleted inline."""

    base: TableState  # that the statement read
    head: TableState  # that the statement was validated against
    changes: FileChanges
    check: ConflictCheck
    removed_files: frozenset[str] = frozenset()  # data files that the commit removes
    snapshot_id: int | None = None  # of the commit, if it has one

    def removing(self, paths: frozenset[str], snapshot_id: int) -> InlineDeleteChanges:
        """The changes of a commit that removes these data files."""
        return replace(self, removed_files=paths, snapshot_id=snapshot_id)

    def find_conflict(self, now: Positions) -> str | None:
        """Why the statement cannot be published on top of these deletes; None if it can."""
        own = {path: rows.positions for path, rows in self.changes.inline.deleted.items()}
        if taken := _count(_common(own, now)):
            return f"another writer changed {taken} rows of files that this statement changes"
        if _without(self.changes.inline.consumed, now):
            return "another writer moved deleted rows to delete files"
        read = self.base.inline_deletes
        added = _without(now, read.positions if read is not None else {})
        if _common(self.changes.replaced_rows, added) or self._rewritten() & set(added):
            return "another writer deleted rows that this statement carries forward"
        if self.removed_files & set(added):
            return "another writer changed rows of files that this statement removes"
        deleted = {path: rows.positions for path, rows in self.changes.deleted_rows.items()}
        if twice := _count(_common(deleted, added)):
            return f"another writer changed {twice} rows that this statement deletes"
        if self.check.isolation is not Isolation.SERIALIZABLE:
            return None
        if self.check.reads_other_rows and added:
            return "another writer changed rows that this statement's subquery or source read"
        if self.check.matched is not None and self._may_have_matched(added):
            return "another writer deleted rows that this statement's source may have matched"
        return None

    def _may_have_matched(self, added: Positions) -> bool:
        """Whether one of these rows may be one that a source row matched; it may have moved."""
        matched = self.check.matched
        has_moved = self.base.snapshot_id != self.head.snapshot_id
        return bool(added) and (has_moved or bool(matched and set(matched.files) & set(added)))

    def apply(
        self,
        connection: StoreConnection,
        table: InlineTable,
        facts: DeleteFacts,
        stamp: ChangeStamp,
        stale: Positions,
    ) -> None:
        """Change the deletes; `stale` are rows of new files that are to be deleted there."""
        inline, live_in = self.changes.inline, self._live_in(facts)
        if live_in == self._new_snapshot_id and not self._forgets_former:
            keep_former_deletes(connection, table, self.removed_files)
        removed = remove_deletes_of_files(connection, table, self.removed_files)
        removed += remove_deletes(connection, table, inline.consumed)
        positions = {path: rows.positions for path, rows in inline.deleted.items()}
        added = add_deletes(connection, table, {**positions, **stale}, stamp)
        forgotten = remove_former_deletes(connection, table) if self._forgets_former else 0
        is_changed = bool(added or removed or forgotten)
        if not is_changed and live_in == facts.snapshot_id:
            return
        version = stamp.seq if is_changed else facts.version
        since = facts.since if facts.rows else stamp.at
        rows = facts.rows + added - removed
        write_facts(connection, table, DeleteFacts(version, rows, since, live_in))

    def _live_in(self, facts: DeleteFacts) -> int | None:
        """A snapshot in which all files with deletes are live: the new one, if that is known."""
        read, base = self.base.inline_deletes, self.base.snapshot_id
        checked = read is not None and read.version == facts.version
        is_needed = bool(facts.rows or (read is not None and read.former))
        if not is_needed or (checked and base == self.head.snapshot_id):
            return self._new_snapshot_id
        return facts.snapshot_id

    @property
    def _new_snapshot_id(self) -> int | None:
        return self.snapshot_id or self.head.snapshot_id

    @property
    def _forgets_former(self) -> bool:
        """Whether the inline tier will have nothing that deletes of former files go with."""
        is_everything = isinstance(self.changes.removal, RemoveEverything)
        return self.changes.inline.forgets_former or is_everything

    def _rewritten(self) -> set[str]:
        """Files whose rows were all copied into new ones."""
        if not self.changes.added_data:
            return set()
        paths = {file.path for file in self.changes.removed_data}
        return paths - set(self.changes.replaced_rows)


def are_concerned(changes: FileChanges, check: ConflictCheck) -> bool:
    """Whether a statement changes deletes in the database, or relies on them."""
    return (
        bool(changes.files_with_deleted_rows or changes.inline.consumed or changes.replaced_rows)
        or changes.removes_files
        or changes.inline.located is not None
        or changes.inline.forgets_former
        or check.reads_other_rows
        or check.matched is not None
    )


def _common(some: Positions, others: Positions) -> dict[str, BitMap64]:
    both = {path: rows & others[path] for path, rows in some.items() if path in others}
    return {path: rows for path, rows in both.items() if rows}


def _without(some: Positions, others: Positions) -> dict[str, BitMap64]:
    left = {path: rows - others[path] if path in others else rows for path, rows in some.items()}
    return {path: rows for path, rows in left.items() if rows}


def _count(positions: Positions) -> int:
    return sum(map(len, positions.values()))
