"""Move inline rows to data files: `flush()`, and before statements that read files alone.

The rows are written by the driver with PyArrow. Their data files, and the removal of exactly the
versions that were written, are published in one database transaction, so that every reader sees
each row once; for a catalog in another database see `inline.intents`. Few rows that other writers
changed while the files were written are deleted in them; many make the flush start again. Rows of
files that are deleted inline become delete files in the same commit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import accumulate

from pyiceberg.table.update import SetPropertiesUpdate
from pyroaring import BitMap64

from icefloe.commands.context import Command, Context, Outcome
from icefloe.commands.write import NO_ROWS_READ
from icefloe.deletes.dangling import dangling_deletes
from icefloe.file_changes import (
    DeletedRows,
    FileChanges,
    InlineChanges,
    RemoveFiles,
    RowVersion,
)
from icefloe.inline.cut import Cut
from icefloe.metadata.files import unpartitioned_specs
from icefloe.metadata.table_state import MetadataUpdates, TableState
from icefloe.pruning.candidates import choose_files
from icefloe.pruning.comparisons import UNKNOWN
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.results import FLUSH, DmlResult
from icefloe.scan.scan import read_deleted_rows
from icefloe.spark.frames import frame_of
from icefloe.statements import Options
from icefloe.writing.data_files import WrittenRows, write_data
from icefloe.writing.local_rows import has_local_layout, write_local_rows

_ATTEMPTS = 10  # each is needed only if a row was changed while the one before wrote files


@dataclass(frozen=True, slots=True)
class _FlushPlan:
    state: TableState
    cut: Cut | None


@dataclass(frozen=True, slots=True)
class FlushCommand(Command[_FlushPlan]):
    """Move inline rows to data files."""

    context: Context
    rows: int | None = None  # how many, the oldest first; None: all
    properties: Mapping[str, str] = field(default_factory=dict)  # set in the same commit

    @property
    def options(self) -> Options:
        """Flushes are repeated when a row was changed in between."""
        return Options(retries=_ATTEMPTS - 1)

    def plan(self, state: TableState, _resources: ExitStack) -> _FlushPlan:
        """Read the rows: all of them where rows of files are deleted inline.

        An UPDATE of a row of a file is such a delete and an inline row, and other engines must not
        see one without the other.
        """
        rows = self.rows if self._takes_some(state) else None
        return _FlushPlan(state, self.context.tier.cut_to_flush(state, rows))

    def _takes_some(self, state: TableState) -> bool:
        return self.rows is not None and not _has_deletes(state)

    def work(self, plan: _FlushPlan, statement_id: str) -> Outcome:
        """Write the rows under the table's current partitioning and sort order."""
        written, inline = WrittenRows(), InlineChanges()
        if plan.cut is not None and len(plan.cut.rows):
            written, inline = self._write(plan.state, plan.cut, statement_id)
        deleted = plan.state.deleted_inline
        changes = replace(
            file_deletes(plan.state) if deleted else FileChanges(),
            added_data=written.files,
            inline=replace(inline, consumed=deleted, forgets_former=_has_deletes(plan.state)),
        )
        if self.properties and changes.changes_files:
            updates = MetadataUpdates((SetPropertiesUpdate(updates=dict(self.properties)),))
            changes = replace(changes, metadata_updates=updates)
        return Outcome(DmlResult(FLUSH, rows_copied=written.rows), changes, NO_ROWS_READ)

    def _write(
        self, state: TableState, cut: Cut, statement_id: str
    ) -> tuple[WrittenRows, InlineChanges]:
        rows, versions = cut.arrow(), tuple(cut.rows.versions)
        all_read_at = None if self._takes_some(state) else cut.read_at
        removed = InlineChanges(versions, through=cut.through, all_read_at=all_read_at)
        if not has_local_layout(state, rows):
            frame = frame_of(self.context.spark, rows)
            return write_data(state, frame, statement_id), removed
        written, order = write_local_rows(state, rows, statement_id)
        if state.settings.inline_deletes and state.metadata.format_version > 1:
            removed = replace(removed, located=lambda few: _located(few, versions, order, written))
        return written, removed


def _has_deletes(state: TableState) -> bool:
    """Whether rows of files were deleted inline since the last flush."""
    deletes = state.inline_deletes
    return deletes is not None and bool(deletes.positions or deletes.former)


def _located(
    changed: Collection[RowVersion],
    versions: Sequence[RowVersion],
    order: Sequence[int] | None,
    written: WrittenRows,
) -> dict[str, BitMap64]:
    """Where some of the rows are in the files, which have them one after the other."""
    if not changed:
        return {}
    among = set(changed)
    places = [n for n, row in enumerate(order or range(len(versions))) if versions[row] in among]
    starts = list(accumulate((file.record_count for file in written.files), initial=0))
    located: dict[str, BitMap64] = {}
    for place in places:
        number = bisect_right(starts, place) - 1
        path = written.files[number].file_path
        located.setdefault(path, BitMap64()).add(place - starts[number])
    return located


def file_deletes(state: TableState) -> FileChanges:
    """Rows of files that are deleted inline as rows to delete in files; emptied files go."""
    plan = choose_files(state, FileMatcher(UNKNOWN, state.schema, state.metadata.specs()))
    files = [c for c in plan.candidates if c.path in state.deleted_inline]
    if len(files) < len(state.deleted_inline):  # without a delete file, the rows would come back
        raise AssertionError(f"{state.name} lacks files that rows are deleted of inline")
    deleted, contents = read_deleted_rows(state, files)
    emptied = tuple(
        c.live for c in files if not c.equality_deletes and len(deleted[c.path]) == c.live.rows
    )
    paths = {live.path for live in emptied}
    everywhere = unpartitioned_specs(state.metadata)
    return FileChanges(
        removal=RemoveFiles(emptied, dangling_deletes(plan.files, emptied, contents, everywhere)),
        deleted_rows={
            c.path: DeletedRows(c.live, state.deleted_inline[c.path])
            for c in files
            if c.path not in paths
        },
    )
