"""Run a REPLACE WHERE: rows that predicates are true for go, new rows come, in one commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from icefloe.commit.conflicts import Guard
from icefloe.commit.publish import already_done
from icefloe.deletes.dangling import dangling_deletes
from icefloe.engine import count_live
from icefloe.errors import InvalidPredicateError, ParseError
from icefloe.execute.explained import with_footers
from icefloe.execute.row_changes import RowChange, change_rows
from icefloe.file_changes import FileChanges, RemoveFiles
from icefloe.metadata.table_state import TableState
from icefloe.plan.bind import Bound, bind_statement
from icefloe.plan.plan import Plan, plan_statement
from icefloe.pruning.candidates import FilePlan, plan_files
from icefloe.pruning.comparisons import UNKNOWN, Lowered, any_of
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.publishing import Context, added_bytes, publish_changes, repeated, statement_files
from icefloe.replace.plan import (
    PartitionPlan,
    as_replace,
    bind_predicates,
    explain_partitions,
    plan_partitions,
)
from icefloe.replace.translate import as_condition
from icefloe.results import DmlResult
from icefloe.rows import fit_rows
from icefloe.scan.scan import Scan
from icefloe.settings import UpdateKind
from icefloe.spark import columns
from icefloe.statements import ReplaceStatement, RowStatement, Scope
from icefloe.write.data_files import WrittenRows, write_data

log = logging.getLogger("icefloe")

OPERATION = "replace_where"
PREDICATE_KEY = "icefloe.predicate"
SCOPE_KEY = "icefloe.scope"
DURATION_KEY = "icefloe.work-ms"  # from the start of the statement to its commit


@dataclass(frozen=True, slots=True)
class _RowPlan:
    """A REPLACE WHERE on rows, bound and planned."""

    conditions: tuple[Column, ...]
    lowered: Lowered
    reads_other_rows: bool
    files: FilePlan
    plan: Plan


def run_replace(statement: ReplaceStatement, context: Context) -> DmlResult:
    """Replace the rows that the predicates are true for, as at most one snapshot."""
    result = repeated(context, statement.options, lambda: _run(statement, context))
    log.info(
        "replaceWhere %s: %d data files removed, %d added",
        statement.text,
        result.data_files_removed,
        result.data_files_added,
    )
    return result


def explain_replace(statement: ReplaceStatement, context: Context) -> Plan:
    """What a REPLACE WHERE would do, without doing it."""
    state = context.read_state(statement.options.branch)
    for replacement in statement.replacements:
        fit_rows(replacement.rows, state, context.spark)
    if statement.options.scope is Scope.PARTITIONS:
        return explain_partitions(statement, state, _plan_partitions(statement, context, state))
    planned = _plan_rows(statement, context, state)
    return with_footers(planned.plan, state, planned.files.candidates, ())


def _run(statement: ReplaceStatement, context: Context) -> DmlResult:
    state = context.read_state(statement.options.branch)
    if done := already_done(state, statement.options.idempotency_key):
        return done
    if statement.options.scope is Scope.PARTITIONS:
        return _replace_partitions(statement, context, state)
    return _replace_rows(statement, context, state)


# Whole partitions


def _plan_partitions(
    statement: ReplaceStatement, context: Context, state: TableState
) -> PartitionPlan:
    zone = str(context.spark.conf.get("spark.sql.session.timeZone"))
    return plan_partitions(state, bind_predicates(statement, state, zone))


def _replace_partitions(
    statement: ReplaceStatement, context: Context, state: TableState
) -> DmlResult:
    started = time.monotonic()
    planned = _plan_partitions(statement, context, state)
    conditions = [as_condition(predicate, state.schema) for predicate in planned.predicates]
    scan = Scan.of(context.spark, state, planned.removed)
    removed = tuple(candidate.live for candidate in planned.removed)
    with statement_files(state) as statement_id:
        written = _write(statement, context, state, conditions, statement_id)
        changes = FileChanges(
            added_data=written.files,
            removal=RemoveFiles(
                removed, dangling_deletes(planned.files.files, removed, scan.delete_contents)
            ),
        )
        result = _result(changes, written, planned.files_kept)
        result = replace(result, rows_deleted=count_live(scan))
        guard = _guard(statement, state, planned.lowered, reads_other_rows=False)
        return _publish(statement, context, state, changes, guard, result, started)


# Any rows


def _plan_rows(statement: ReplaceStatement, context: Context, state: TableState) -> _RowPlan:
    """Each predicate is bound like the condition of a DELETE; together they choose the files."""
    deletes = [
        RowStatement(UpdateKind.DELETE, r.predicate, (), statement.options)
        for r in statement.replacements
    ]
    bound = [_bind(d, context, state) for d in deletes]
    has_subquery = any(b.has_subquery for b in bound)
    lowered = any_of([b.lowered for b in bound])
    files = plan_files(state, lowered)
    plan = plan_statement(deletes[0], state, files, assigned=(), has_subquery=has_subquery)
    conditions = tuple(b.condition for b in bound if b.condition is not None)
    return _RowPlan(conditions, lowered, has_subquery, files, as_replace(plan, statement))


def _bind(delete: RowStatement, context: Context, state: TableState) -> Bound:
    try:
        return bind_statement(delete, state, context.spark, context.resolve)
    except ParseError as wrong:
        raise InvalidPredicateError(str(delete.where), f"Spark cannot read it: {wrong}") from wrong


def _replace_rows(statement: ReplaceStatement, context: Context, state: TableState) -> DmlResult:
    started = time.monotonic()
    planned = _plan_rows(statement, context, state)
    scan = Scan.of(context.spark, state, planned.files.candidates)
    with statement_files(state) as statement_id:
        written = _write(statement, context, state, planned.conditions, statement_id)
        outcome = change_rows(
            RowChange(
                scan,
                planned.files,
                planned.plan.mode,
                reduce(lambda a, b: a | b, planned.conditions),
                {},
                statement_id,
            )
        )
        changes = replace(outcome.changes, added_data=(*outcome.changes.added_data, *written.files))
        outcome = replace(outcome, changes=changes)
        result = replace(
            _result(changes, written, planned.plan.files_skipped),
            mode=planned.plan.mode.value,
            rows_deleted=outcome.rows_deleted,
            rows_copied=outcome.rows_copied,
            files_scanned=planned.plan.files_scanned,
            bytes_copied=outcome.bytes_copied,
            bytes_encoded=outcome.bytes_encoded,
            row_groups_copied=outcome.row_groups_copied,
        )
        guard = _guard(statement, state, planned.lowered, reads_other_rows=planned.reads_other_rows)
        return _publish(statement, context, state, changes, guard, result, started)


# Both


def _write(
    statement: ReplaceStatement,
    context: Context,
    state: TableState,
    conditions: Sequence[Column],
    statement_id: str,
) -> WrittenRows:
    """Write all new rows in one job, which also looks whether each satisfies its predicate."""
    frames = [fit_rows(r.rows, state, context.spark) for r in statement.replacements]
    if not statement.options.check:
        return write_data(state, reduce(DataFrame.unionAll, frames), statement_id)
    alias = state.name.rpartition(".")[2]
    checked = [
        frame.alias(alias).select(
            "*",
            F.when(~F.coalesce(condition, F.lit(False)), F.lit(number)).alias(columns.OUTSIDE),
        )
        for number, (frame, condition) in enumerate(zip(frames, conditions, strict=True))
    ]
    return write_data(
        state,
        reduce(DataFrame.unionAll, checked),
        statement_id,
        predicates=[r.predicate for r in statement.replacements],
    )


def _result(changes: FileChanges, written: WrittenRows, files_skipped: int) -> DmlResult:
    removal = changes.removal
    return DmlResult(
        operation=OPERATION,
        rows_inserted=written.rows,
        data_files_added=len(changes.added_data),
        data_files_removed=len(removal.data) if isinstance(removal, RemoveFiles) else 0,
        delete_files_added=len(changes.added_deletes),
        delete_files_removed=len(removal.deletes) if isinstance(removal, RemoveFiles) else 0,
        files_skipped=files_skipped,
        bytes_written=added_bytes(changes),
    )


def _guard(
    statement: ReplaceStatement, state: TableState, lowered: Lowered, *, reads_other_rows: bool
) -> Guard:
    isolation = statement.options.isolation or state.settings.isolation(UpdateKind.DELETE)
    chosen = UNKNOWN if reads_other_rows else lowered
    matcher = FileMatcher(chosen, state.schema, state.metadata.specs())
    return Guard(isolation, matcher, reads_other_rows)


def _publish(
    statement: ReplaceStatement,
    context: Context,
    state: TableState,
    changes: FileChanges,
    guard: Guard,
    result: DmlResult,
    started: float,
) -> DmlResult:
    facts = {
        PREDICATE_KEY: statement.text,
        SCOPE_KEY: statement.options.scope.value,
        DURATION_KEY: str(round((time.monotonic() - started) * 1000)),
    }
    options = replace(statement.options, summary={**statement.options.summary, **facts})
    return publish_changes(context, state, changes, guard, options, lambda _gone: result)
