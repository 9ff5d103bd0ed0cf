"""Old rows that new rows, written already, take the place of: by partition or by key.

The new rows are written first and looked at as files: what is then deleted is chosen by exactly
the rows that will be published, and the rows given are read once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from icefloe.commit.conflicts import Guard
from icefloe.execute.row_changes import RowChange, change_rows
from icefloe.metadata.table_state import TableState
from icefloe.plan.plan import Plan, plan_statement
from icefloe.pruning.candidates import FilePlan
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.publishing import Context, publish_changes, row_result
from icefloe.results import DmlResult
from icefloe.scan.scan import Scan
from icefloe.settings import UpdateKind
from icefloe.statements import Options, RowStatement
from icefloe.write.data_files import WrittenRows


@dataclass(frozen=True, slots=True)
class Removal:
    """Which old rows go: files that may hold them, and how to tell them apart in one."""

    operation: str
    state: TableState
    files: FilePlan
    matcher: FileMatcher
    choose: Callable[[DataFrame], DataFrame]
    summary: dict[str, str]


def plan_removal(
    operation: str, state: TableState, files: FilePlan, options: Options, where: str
) -> Plan:
    """What happens to the files, as in a DELETE."""
    statement = RowStatement(UpdateKind.DELETE, None, (), options)
    plan = plan_statement(statement, state, files, assigned=(), has_subquery=False)
    return replace(plan, operation=operation, where=where)


def replace_rows(
    context: Context, removal: Removal, written: WrittenRows, options: Options, statement_id: str
) -> DmlResult:
    """Delete the old rows and publish them with the new ones."""
    state = removal.state
    plan = plan_removal(removal.operation, state, removal.files, options, "")
    scan = Scan.of(context.spark, state, removal.files.candidates)
    outcome = change_rows(
        RowChange(scan, removal.files, plan.mode, None, {}, statement_id, choose=removal.choose)
    )
    changes = replace(outcome.changes, added_data=(*outcome.changes.added_data, *written.files))
    outcome = replace(outcome, changes=changes, rows_inserted=written.rows)
    result = row_result(plan, outcome)
    guard = Guard(plan.isolation, removal.matcher)
    return publish_changes(
        context, state, changes, guard, options, lambda _gone: result, removal.summary
    )
