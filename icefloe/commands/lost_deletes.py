"""Deletes of rows in files that are in the database, whose files another engine has replaced.

An engine that compacts a table knows nothing of rows that are deleted inline: it copies them into
new files, where the deletes do not find them. Before a state of the table is used, icefloe finds
out whether all files with such deletes are still live. If not, the deletes are moved: each deleted
row has an equal one among the files that took the place of its own, and which of several equal rows
is deleted makes no difference. Where that cannot be decided, reads and statements are refused:
deleted rows never come back silently.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import PrimitiveType
from pyroaring import BitMap64
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from icefloe.commands.context import Context
from icefloe.commit.conflicts import changes_of
from icefloe.errors import ConflictError, IcefloeError
from icefloe.inline.bookkeeping import next_stamp
from icefloe.inline.deletes import (
    DeleteFacts,
    add_deletes,
    read_facts,
    remove_deletes_of_files,
    write_facts,
)
from icefloe.inline.tier import PointerMovedError
from icefloe.metadata.files import LiveFile, SnapshotFiles
from icefloe.metadata.manifests import read_snapshot_files
from icefloe.metadata.table_state import InlineDeletes, TableState, ancestors
from icefloe.pruning.candidates import Candidate, choose_files
from icefloe.pruning.comparisons import UNKNOWN
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.scan.read_guard import guarded
from icefloe.scan.scan import Scan
from icefloe.spark import columns
from icefloe.spark.columns import quoted
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.frames import frame_of
from icefloe.storage.locations import spark_uri

log = logging.getLogger("icefloe")

_MOST_EQUAL_ROWS = 100_000  # that are compared in the driver
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _LostFiles:
    """Data files with deletes that are no longer live, and the live ones that took their place."""

    files: Mapping[str, LiveFile]  # those that a snapshot of the table's history removed
    successors: frozenset[str] = frozenset()
    rolled_back: frozenset[str] = frozenset()  # not in the table's history: their rows neither
    unknown: frozenset[str] = frozenset()  # of which the history no longer says what happened

    @property
    def paths(self) -> list[str]:
        """All of them."""
        return [*self.files, *self.rolled_back, *self.unknown]


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
    while True:
        state = context.tier.with_deletes(state)
        deletes = state.inline_deletes
        if deletes is None or not deletes.positions or deletes.live_in == state.snapshot_id:
            return state
        lost = _find_lost(state, deletes)
        if not lost.paths:
            context.tier.note_live_files(state)
            return state
        _move_deletes(context, state, deletes, lost, discard_lost=discard_lost)


# -------------------------------------------------------------------------------------------------
# Find files that are no longer live


def _find_lost(state: TableState, deletes: InlineDeletes) -> _LostFiles:
    since = _snapshots_since(state, deletes.live_in)
    if since is None:
        return _find_lost_without_history(state, deletes)
    lost: dict[str, LiveFile] = {}
    successors: set[str] = set()
    for snapshot in since:
        if snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND:
            continue
        changes = [(s, f) for s, f in changes_of(snapshot, state.io) if f.is_data]
        removed = {f.path: f for s, f in changes if s == ManifestEntryStatus.DELETED}
        lost.update({path: f for path, f in removed.items() if path in deletes.positions})
        if removed.keys() & (deletes.positions.keys() | successors):
            added = {f.path for s, f in changes if s == ManifestEntryStatus.ADDED}
            successors = (successors - removed.keys()) | added
    return _LostFiles(lost, frozenset(successors))


def _snapshots_since(state: TableState, snapshot_id: int | None) -> list[Snapshot] | None:
    """The snapshots after one, the oldest first; None if the table's history does not have it."""
    since: list[Snapshot] = []
    for snapshot in ancestors(state.metadata, state.snapshot):
        if snapshot.snapshot_id == snapshot_id:
            return since[::-1]
        since.append(snapshot)
    return None


def _find_lost_without_history(state: TableState, deletes: InlineDeletes) -> _LostFiles:
    """The table was rolled back by another engine, or snapshots expired."""
    live = {file.path for file in read_snapshot_files(state.io, state.snapshot).data}
    lost = set(deletes.positions) - live
    current = {s.snapshot_id for s in ancestors(state.metadata, state.snapshot)}
    others = [s for s in state.metadata.snapshots if s.snapshot_id not in current] if lost else []
    rolled_back = {
        file.path for s in others for _, file in changes_of(s, state.io) if file.path in lost
    }
    return _LostFiles({}, frozenset(), frozenset(rolled_back), frozenset(lost - rolled_back))


# -------------------------------------------------------------------------------------------------
# Move the deletes


def _move_deletes(
    context: Context,
    state: TableState,
    deletes: InlineDeletes,
    lost: _LostFiles,
    *,
    discard_lost: bool,
) -> None:
    positions = deletes.positions
    moved: dict[str, BitMap64] = {}
    undecided = dict.fromkeys(lost.unknown, "it is not in the snapshots that the table has left")
    if lost.files:
        try:
            moved = _equal_rows(context, state, positions, lost)
        except (IcefloeError, _AmbiguousError) as error:
            undecided |= dict.fromkeys(lost.files, str(error))
    if undecided and not discard_lost:
        raise _lost_error(state, positions, undecided)
    _store(context, state, deletes, lost, moved)
    before = sum(len(positions[path]) for path in lost.paths)
    after = sum(map(len, moved.values()))
    log.warning(
        "%s: another engine replaced %d files with %d rows that were deleted inline; "
        "%d of these rows are deleted in the new files, %d are not there.",
        state.name,
        len(lost.paths),
        before,
        after,
        before - after,
    )


class _AmbiguousError(Exception):
    """It cannot be decided which rows are deleted."""


def _equal_rows(
    context: Context, state: TableState, positions: Mapping[str, BitMap64], lost: _LostFiles
) -> dict[str, BitMap64]:
    """Rows of the successors that equal the deleted rows, as many as were deleted."""
    names = [field.name for field in state.schema.fields]
    deleted = _deleted_rows(context, state, positions, lost, names)
    wanted = Counter(_values(deleted))
    candidates = [c for c in _candidates(state) if c.path in lost.successors]
    if not candidates:
        return {}
    among = _rows_like(context, state, candidates, deleted)
    locations = {spark_uri(c.path): c.path for c in candidates}
    places: dict[str, list[tuple[str, int]]] = {}
    for value, file, pos in zip(
        _values(among.select(names)),
        among.column(columns.FILE).to_pylist(),
        among.column(columns.POS).to_pylist(),
        strict=True,
    ):
        places.setdefault(value, []).append((locations[file], pos))
    moved: dict[str, BitMap64] = {}
    for value, count in wanted.items():
        equal = sorted(places.get(value, []))
        if 0 < len(equal) < count:
            raise _AmbiguousError(
                f"{count} equal rows were deleted and {len(equal)} of them are in the new files"
            )
        for path, pos in equal[:count]:
            moved.setdefault(path, BitMap64()).add(pos)
    return moved


def _deleted_rows(
    context: Context,
    state: TableState,
    positions: Mapping[str, BitMap64],
    lost: _LostFiles,
    names: Sequence[str],
) -> pa.Table:
    """The rows as they are in the files that were replaced."""
    before = replace(state, inline_deletes=InlineDeletes())
    files = SnapshotFiles(data=tuple(lost.files.values()))
    scan = Scan(context.spark, before, choose_files(before, _every_file(state), files).candidates)
    rows_at = {path: positions[path] for path in lost.files}
    with translate_spark_errors(names):
        rows = guarded(scan, scan.rows_at(rows_at)).select(*map(quoted, names)).toArrow()
    if rows.num_rows != sum(map(len, rows_at.values())):
        raise _AmbiguousError("the files that were replaced do not have the deleted rows")
    return rows


def _rows_like(
    context: Context, state: TableState, candidates: Sequence[Candidate], deleted: pa.Table
) -> pa.Table:
    """Live rows of files that equal deleted rows in all columns that are not nested."""
    scan = Scan.of(context.spark, state, candidates)
    flat = [f.name for f in state.schema.fields if isinstance(f.field_type, PrimitiveType)]
    with translate_spark_errors([field.name for field in state.schema.fields]):
        rows = guarded(scan, scan.rows())
        like = _renamed(frame_of(context.spark, deleted.select(flat)).distinct(), flat)
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
    lost: _LostFiles,
    moved: Mapping[str, BitMap64],
) -> None:
    """Write the deletes in their new places, unless the table or its deletes were changed."""
    tier = context.tier
    with tier.store.reading() as connection:
        table = tier.find(connection, state)
    if table is None:
        raise PointerMovedError
    with tier.store.writing(table) as connection:
        facts = read_facts(connection, table)
        if facts.version != deletes.version or not tier.has_pointer(connection, state):
            raise PointerMovedError
        removed = remove_deletes_of_files(connection, table, lost.paths)
        stamp = next_stamp(connection)
        added = add_deletes(connection, table, moved, stamp)
        rows = facts.rows - removed + added
        write_facts(connection, table, DeleteFacts(stamp.seq, rows, facts.since, state.snapshot_id))


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
