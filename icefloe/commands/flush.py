"""Move inline rows to data files: `flush()`, and before statements that read files alone.

The rows are written by the driver with PyArrow. Their data files, and the removal of exactly the
versions that were written, are published in one database transaction, so that every reader sees
each row once; for a catalog in another database see `inline.intents`. A row that another writer
changed while the files were written makes the flush start again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from pyiceberg.table.update import SetPropertiesUpdate

from icefloe.commands.context import Command, Context, Outcome
from icefloe.commands.write import NO_ROWS_READ
from icefloe.file_changes import FileChanges, InlineChanges
from icefloe.inline.tier import Cut
from icefloe.metadata.table_state import MetadataUpdates, TableState
from icefloe.results import DmlResult
from icefloe.spark.frames import frame_of
from icefloe.statements import Options
from icefloe.writing.data_files import WrittenRows, write_data
from icefloe.writing.local_rows import has_local_layout, write_local_rows

FLUSH = "flush"  # the operation in results and snapshot summaries
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
        """Read the rows."""
        return _FlushPlan(state, self.context.tier.cut_to_flush(state, self.rows))

    def work(self, plan: _FlushPlan, statement_id: str) -> Outcome:
        """Write the rows under the table's current partitioning and sort order."""
        written, changes = WrittenRows(), FileChanges()
        if plan.cut is not None and len(plan.cut.rows):
            written = self._write(plan.state, plan.cut, statement_id)
            removed = InlineChanges(tuple(plan.cut.rows.versions), through=plan.cut.through)
            updates = None
            if self.properties:
                updates = MetadataUpdates((SetPropertiesUpdate(updates=dict(self.properties)),))
            changes = FileChanges(
                added_data=written.files, inline=removed, metadata_updates=updates
            )
        return Outcome(DmlResult(FLUSH, rows_copied=written.rows), changes, NO_ROWS_READ)

    def _write(self, state: TableState, cut: Cut, statement_id: str) -> WrittenRows:
        rows = cut.arrow()
        if has_local_layout(state, rows):
            return write_local_rows(state, rows, statement_id)
        return write_data(state, frame_of(self.context.spark, rows), statement_id)
