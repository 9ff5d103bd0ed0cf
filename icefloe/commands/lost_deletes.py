"""Deletes of rows in files that are in the database, whose files another engine has replaced.

An engine that compacts a table knows nothing of rows that are deleted inline: it copies them into
new files, where the deletes do not find them. Before a state of the table is used, icefloe finds
out whether all files with such deletes are still live. If not, it follows the deleted rows through
the snapshots since: each has an equal row among the files that a snapshot put in place of its own,
or it was deleted or changed by that snapshot. Which of several equal rows is deleted makes no
difference. Where an engine rolled the table back, they are followed back in the same way; and until
the next flush the deletes of files that left the table are kept, since a rollback may bring the
files back. Where this cannot be decided, reads and statements are refused: deleted rows never come
back silently.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import PrimitiveType
from pyroaring import BitMap64
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from icefloe.commands.context import Context
from icefloe.commit.conflicts import changes_of
from icefloe.errors import ConflictError, StorageError
from icefloe.inline.bookkeeping import next_stamp
from icefloe.inline.cut import PointerMovedError
from icefloe.inline.deletes import (
    DeleteFacts,
    add_deletes,
    read_facts,
    remove_deletes_of_files,
    write_facts,
    write_former_deletes,
)
from icefloe.metadata.manifests import read_snapshot_files
from icefloe.metadata.table_state import MAIN, InlineDeletes, TableState, ancestors
from icefloe.pruning.candidates import Candidate, choose_files
from icefloe.pruning.comparisons import UNKNOWN
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.scan.read_guard import guarded
from icefloe.scan.scan import Scan
from icefloe.spark import columns
from icefloe.spark.columns import quoted
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.frames import frame_of
from icefloe.storage.files import open_input
from icefloe.storage.locations import spark_uri

log = logging.getLogger("icefloe")

_MOST_EQUAL_ROWS = 100_000  # that are compared in the driver
_MOST_SNAPSHOTS = 20  # that every process follows by itself
_SHOWN = 3


def current_state(context: Context, *, discard_lost: bool = False) -> TableState:
    """The newest state of the main branch, with its inlined deletes."""
    while True:
        try:
            state = context.read_state(MAIN)
            return with_inline_deletes(context, state, discard_lost=discard_lost)
        except PointerMovedError:
            log.debug("the table was committed to while it was read; reading it again")


def with_inline_deletes(
    context: Context, state: TableState, *, discard_lost: bool = False
) -> TableState:
    """The state with the rows of its files that are deleted inline, which all refer to live files.

    Args:
        context: What a statement runs with.
        state: The newest state of a table.
        discard_lost: Whether deletes that cannot be moved are given up.

    Raises:
        PointerMovedError: `state` is no longer the table's current state.
        ConflictError: Another engine replaced files with deleted rows, and these are not found.
    """
    if state.inline_cut is not None:  # they were read before its rows
        return state
    while True:
        state = context.tier.with_deletes(state)
        deletes = state.inline_deletes
        if deletes is None or not (deletes.positions or deletes.former):
            return state
        if deletes.live_in == state.snapshot_id:
            return state
        moves = _Moves(context, state, dict(deletes.positions), dict(deletes.former))
        moves.follow(deletes.live_in)
        if moves.undecided and not discard_lost:
            raise _lost_error(state, deletes.positions, moves.undecided)
        is_same = (moves.positions, moves.former) == (deletes.positions, deletes.former)
        if is_same and moves.followed <= _MOST_SNAPSHOTS:
            context.tier.note_live_files(state)
            return state
        _store(context, state, deletes, moves)
        if is_same:
            continue
        before, after = deletes.rows, sum(map(len, moves.positions.values()))
        log.warning(
            "%s: another engine replaced, removed or brought back files with rows that are deleted "
            "inline. There were %d such rows in the table's files; there are %d now%s.",
            state.name,
            before,
            after,
            ", and deletes were given up" if moves.undecided else "",
        )


# -------------------------------------------------------------------------------------------------
# Follow the deleted rows through the snapshots since all of their files were live


class _AmbiguousError(Exception):
    """It cannot be decided which rows are deleted."""


@dataclass(slots=True)
class _Moves:
    """Where the deleted rows are after each snapshot, and of which files that is undecided."""

    context: Context
    state: TableState
    positions: dict[str, BitMap64]
    former: dict[str, BitMap64]  # of files that left the table: they may be added again
    undecided: dict[str, str] = field(default_factory=dict)  # why, by data file location
    followed: int = 0  # snapshots

    def follow(self, live_in: int | None) -> None:
        """Follow the rows from the snapshot in which all files were live to the current one.

        Where another engine rolled the table back, that is back to the last snapshot that both
        histories have, and on from there.
        """
        since = _snapshots_since(self.state, live_in)
        if since is None:
            undone = _snapshots_undone(self.state, live_in)
            if not undone:
                self._look_without_history()
                return
            for snapshot in undone:
                self._undo(snapshot)
            live_in = undone[-1].parent_snapshot_id
            since = _snapshots_since(self.state, live_in) or []
        self.followed = len(since)
        before = self.state.metadata.snapshot_by_id(live_in) if live_in is not None else None
        for number, snapshot in enumerate(since):
            following = since[number + 1] if number + 1 < len(since) else None
            self._follow(before, snapshot, following)
            before = snapshot

    def _follow(self, before: Snapshot | None, after: Snapshot, following: Snapshot | None) -> None:
        added, removed = _data_changes(self.state, after)
        self._bring_back(added)
        lost = {path: self.positions.pop(path) for path in removed & self.positions.keys()}
        if not lost:
            return
        self.former |= lost
        try:
            rows = self._deleted_rows(before, lost)
            if added:
                self._add(self._equal_rows(rows, after, added))
                return
            appended = _data_changes(self.state, following)[0] if following else frozenset()
            appended -= lost.keys()
            if following and appended and self._equal_rows(rows, following, appended):
                # An overwrite in two steps, such as PyIceberg's, or new rows: nobody can tell.
                raise _AmbiguousError("the next snapshot added equal rows")
        except _AmbiguousError as error:
            self.undecided |= dict.fromkeys(lost, str(error))

    def _undo(self, snapshot: Snapshot) -> None:
        """Follow the rows to the snapshot before this one: copies are in the files that it removed.

        Rows that it added have no equal ones there: the rollback takes them out of the table.
        """
        added, removed = _data_changes(self.state, snapshot)
        lost = {path: self.positions.pop(path) for path in added & self.positions.keys()}
        self._bring_back(removed)
        self.former |= lost
        before = snapshot.parent_snapshot_id
        parent = None if before is None else self.state.metadata.snapshot_by_id(before)
        if not (lost and removed and parent):
            return
        try:
            self._add(self._equal_rows(self._deleted_rows(snapshot, lost), parent, removed))
        except _AmbiguousError as error:
            self.undecided |= dict.fromkeys(lost, str(error))

    def _bring_back(self, paths: Set[str]) -> None:
        """Files are part of the table again, and what was deleted in them is still deleted."""
        self._add({path: self.former.pop(path) for path in paths & self.former.keys()})

    def _add(self, positions: Mapping[str, BitMap64]) -> None:
        for path, rows in positions.items():
            self.positions[path] = self.positions.get(path, BitMap64()) | rows

    def _look_without_history(self) -> None:
        """Snapshots expired, or the two have none in common any more."""
        files = read_snapshot_files(self.state.io, self.state.snapshot).data
        live = {file.path for file in files}
        self._bring_back(live)
        for path in self.positions.keys() - live:
            self.former[path] = self.positions.pop(path)
            self.undecided[path] = "it is not in the snapshots that the table has left"

    def _deleted_rows(self, before: Snapshot | None, lost: Mapping[str, BitMap64]) -> pa.Table:
        """The rows as they were before a snapshot removed their files, less those deleted then."""
        state = replace(self.state, snapshot=before, inline_deletes=InlineDeletes())
        for path in lost:
            _check_exists(state, path)
        candidates = [c for c in _candidates(state) if c.path in lost]
        if len(candidates) < len(lost):
            raise _AmbiguousError("it was not part of the table")
        scan = Scan.of(self.context.spark, state, candidates)
        names = [field.name for field in state.schema.fields]
        with translate_spark_errors(names):
            rows = guarded(scan, scan.rows_at(lost)).select(*map(quoted, names))
            return rows.limit(_MOST_EQUAL_ROWS + 1).toArrow()

    def _equal_rows(
        self, deleted: pa.Table, snapshot: Snapshot, paths: frozenset[str]
    ) -> dict[str, BitMap64]:
        """Rows of files of a snapshot that equal the deleted ones, as many as were deleted.

        Those that are known to be deleted in these files count.
        """
        state = replace(self.state, snapshot=snapshot, inline_deletes=InlineDeletes())
        candidates = [c for c in _candidates(state) if c.path in paths]
        if not candidates or not deleted.num_rows:
            return {}
        if deleted.num_rows > _MOST_EQUAL_ROWS:
            raise _AmbiguousError(f"it has more than {_MOST_EQUAL_ROWS} deleted rows")
        for candidate in candidates:
            _check_exists(state, candidate.path)
        among = _rows_like(Scan.of(self.context.spark, state, candidates), deleted)
        locations = {spark_uri(c.path): c.path for c in candidates}
        places: dict[str, list[tuple[str, int]]] = {}
        for value, file, pos in zip(
            _values(among.select(deleted.column_names)),
            among.column(columns.FILE).to_pylist(),
            among.column(columns.POS).to_pylist(),
            strict=True,
        ):
            places.setdefault(value, []).append((locations[file], pos))
        moved: dict[str, BitMap64] = {}
        for value, count in Counter(_values(deleted)).items():
            equal = sorted(places.get(value, []))
            if 0 < len(equal) < count:
                raise _AmbiguousError(
                    f"{count} equal rows were deleted and {len(equal)} of them are in new files"
                )
            other = [(path, pos) for path, pos in equal if pos not in self.positions.get(path, ())]
            for path, pos in other[: max(0, count - (len(equal) - len(other)))]:
                moved.setdefault(path, BitMap64()).add(pos)
        return moved


def _snapshots_since(state: TableState, snapshot_id: int | None) -> list[Snapshot] | None:
    """The snapshots after one, the oldest first; None if the table's history does not have it."""
    since: list[Snapshot] = []
    for snapshot in ancestors(state.metadata, state.snapshot):
        if snapshot.snapshot_id == snapshot_id:
            return since[::-1]
        since.append(snapshot)
    return None


def _data_changes(state: TableState, snapshot: Snapshot) -> tuple[frozenset[str], frozenset[str]]:
    """The data files that a snapshot added and removed."""
    changes = [(s, f.path) for s, f in changes_of(snapshot, state.io) if f.is_data]
    added = frozenset(path for s, path in changes if s == ManifestEntryStatus.ADDED)
    return added, frozenset(path for s, path in changes if s == ManifestEntryStatus.DELETED)


def _snapshots_undone(state: TableState, snapshot_id: int | None) -> list[Snapshot]:
    """The snapshots back to the last one that the table's history has, the newest first.

    There are none if the table's history has none of them.
    """
    start = None if snapshot_id is None else state.metadata.snapshot_by_id(snapshot_id)
    current = {s.snapshot_id for s in ancestors(state.metadata, state.snapshot)}
    undone: list[Snapshot] = []
    for snapshot in ancestors(state.metadata, start) if start else ():
        if snapshot.snapshot_id in current:
            return undone
        undone.append(snapshot)
    return []


def _check_exists(state: TableState, path: str) -> None:
    try:
        with open_input(state.io, path) as source:
            source.size()
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise _AmbiguousError("the file was deleted") from error
        raise


def _rows_like(scan: Scan, deleted: pa.Table) -> pa.Table:
    """Live rows of files that equal deleted rows in all columns that are not nested."""
    fields = scan.state.schema.fields
    flat = [f.name for f in fields if isinstance(f.field_type, PrimitiveType)]
    with translate_spark_errors([field.name for field in fields]):
        rows = guarded(scan, scan.rows())
        like = _renamed(frame_of(scan.spark, deleted.select(flat)).distinct(), flat)
        condition = F.lit(True)
        for number, name in enumerate(flat):
            condition = condition & quoted(name).eqNullSafe(F.col(_of_deleted(number)))
        matching = rows.join(F.broadcast(like), condition, "left_semi")
        among = matching.limit(_MOST_EQUAL_ROWS + 1).toArrow()
    if among.num_rows > _MOST_EQUAL_ROWS:
        raise _AmbiguousError(f"more than {_MOST_EQUAL_ROWS} rows equal the deleted ones")
    return among


def _renamed(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    return rows.select(*(quoted(name).alias(_of_deleted(n)) for n, name in enumerate(names)))


def _of_deleted(number: int) -> str:
    return f"{columns.PREFIX}deleted{number}"


def _values(rows: pa.Table) -> list[str]:
    """Rows as texts, which are equal where every bit of every value is."""
    return [repr(tuple(row.values())) for row in rows.to_pylist()]


def _candidates(state: TableState) -> tuple[Candidate, ...]:
    return choose_files(state, _every_file(state)).candidates


def _every_file(state: TableState) -> FileMatcher:
    return FileMatcher(UNKNOWN, state.schema, state.metadata.specs())


def _store(
    context: Context,
    state: TableState,
    deletes: InlineDeletes,
    moves: _Moves,
) -> None:
    """Write the deletes in their new places, unless the table or its deletes were changed."""
    positions = moves.positions
    moved = {path for path, rows in deletes.positions.items() if positions.get(path) != rows}
    tier = context.tier
    with tier.store.reading() as connection:
        table = tier.find(connection, state)
    if table is None:
        raise PointerMovedError
    with tier.store.writing(table) as connection:
        facts = read_facts(connection, table)
        is_current = tier.has_pointer(connection, state, keep=True)
        if facts.version != deletes.version or not is_current:
            raise PointerMovedError
        removed = remove_deletes_of_files(connection, table, moved)
        stamp = next_stamp(connection)
        added = add_deletes(connection, table, positions, stamp)
        write_former_deletes(connection, table, moves.former)
        rows = facts.rows - removed + added
        since = facts.since if facts.rows else stamp.at
        write_facts(connection, table, DeleteFacts(stamp.seq, rows, since, state.snapshot_id))


def _lost_error(
    state: TableState, positions: Mapping[str, BitMap64], undecided: Mapping[str, str]
) -> ConflictError:
    files = [
        f"{path} (positions {', '.join(map(str, list(positions[path])[:_SHOWN]))}"
        f"{', …' if len(positions[path]) > _SHOWN else ''}: {why})"
        for path, why in list(undecided.items())[:_SHOWN]
    ]
    return ConflictError(
        f"another engine replaced {len(undecided)} data files with rows that are deleted in the "
        f"inline tier, and these rows cannot be found in the new files: {'; '.join(files)}. "
        "flush(discard_lost_deletes=True) gives up these deletes: rows that the other engine "
        "copied are then back",
        table=state.name,
        base_snapshot_id=None,
        current_snapshot_id=state.snapshot_id,
        files=tuple(undecided),
    )
