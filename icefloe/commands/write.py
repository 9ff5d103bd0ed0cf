"""Append, overwrite and truncate: new rows as data files, and what they replace by metadata."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

from icefloe.commands.context import Command, Context, Outcome
from icefloe.commit.conflicts import ConflictCheck
from icefloe.file_changes import FileChanges, RemoveEverything
from icefloe.metadata.table_state import TableState
from icefloe.results import DmlResult
from icefloe.scan.row_counts import count_rows_of_files
from icefloe.settings import Isolation
from icefloe.statements import Options, WriteKind, WriteStatement
from icefloe.writing.data_files import WrittenRows, write_data
from icefloe.writing.local_rows import write_local_rows

# The statement reads no rows: nothing that others commit can conflict with it.
NO_ROWS_READ = ConflictCheck(Isolation.SNAPSHOT, None)


@dataclass(frozen=True, slots=True)
class WriteCommand(Command[TableState]):
    """Append rows, replace all rows, or remove all rows."""

    statement: WriteStatement
    context: Context

    @property
    def options(self) -> Options:
        """How the statement runs."""
        return self.statement.options

    def plan(self, state: TableState, _resources: ExitStack) -> TableState:
        """Nothing has to be planned: no file of the table is read."""
        return state

    def work(self, plan: TableState, statement_id: str) -> Outcome:
        """Write the new rows."""
        state, kind = plan, self.statement.kind
        written = WrittenRows()
        if isinstance(self.statement.rows, pa.Table):
            written, _ = write_local_rows(state, self.statement.rows, statement_id)
        elif self.statement.rows is not None:
            written = write_data(state, self.statement.rows, statement_id)
        changes = FileChanges(added_data=written.files)
        if kind is not WriteKind.APPEND:
            changes = FileChanges(added_data=written.files, removal=RemoveEverything())
        return Outcome(
            DmlResult(operation=kind.value, rows_inserted=written.rows),
            changes,
            NO_ROWS_READ,
            count_removed=lambda removed: count_rows_of_files(
                self.context.spark, state, removed.data, removed.deletes
            ),
        )
