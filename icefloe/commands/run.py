"""Run one statement: bind, plan, execute, publish. The whole story on one screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import SparkSession

from icefloe.commands.bind import Bound, bind_statement
from icefloe.commands.context import (
    Context,
    added_bytes,
    publish_changes,
    row_result,
    statement_files,
    with_statement_retries,
)
from icefloe.commands.merge.command import explain_merge, run_merge
from icefloe.commands.plan import Plan, plan_statement, with_footers
from icefloe.commands.row_changes import RowChange, change_rows
from icefloe.commit.conflicts import ConflictCheck
from icefloe.commit.publish import already_done
from icefloe.commit.snapshot import RemovedFiles
from icefloe.file_changes import FileChanges, RemoveEverything, RemovePartitions
from icefloe.metadata.files import DeleteIndex, LiveFile, partition_key_of, unpartitioned_specs
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import Candidate, FilePlan, plan_files
from icefloe.pruning.comparisons import UNKNOWN
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.results import DmlResult
from icefloe.scan.scan import Scan
from icefloe.settings import Isolation
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.session import reading_by_id
from icefloe.statements import MergeStatement, RowStatement, WriteKind, WriteStatement
from icefloe.write.data_files import WrittenRows, write_data

Statement: TypeAlias = RowStatement | MergeStatement | WriteStatement


@dataclass(frozen=True, slots=True)
class _Planned:
    state: TableState
    bound: Bound
    files: FilePlan
    plan: Plan


def explain(statement: RowStatement | MergeStatement, context: Context) -> Plan:
    """What a statement would do, without doing it."""
    if isinstance(statement, MergeStatement):
        return explain_merge(statement, context)
    state = context.read_state(statement.options.branch)
    planned = _plan(statement, context, state)
    return with_footers(planned.plan, state, planned.files.candidates, planned.bound.assigned)


def run(statement: Statement, context: Context) -> DmlResult:
    """Run one statement and publish it as at most one snapshot.

    With `retries`, a statement that loses to another writer is run again from the start.
    """
    return with_statement_retries(context, statement.options, lambda: _run_once(statement, context))


def _run_once(statement: Statement, context: Context) -> DmlResult:
    match statement:
        case RowStatement():
            return _run_rows(statement, context)
        case MergeStatement():
            return run_merge(statement, context)
        case WriteStatement():
            return _run_write(statement, context)


def _run_rows(statement: RowStatement, context: Context) -> DmlResult:
    state = context.read_state(statement.options.branch)
    if done := already_done(state, statement.options.idempotency_key):
        return done
    planned = _plan(statement, context, state)
    scan = Scan.of(context.spark, state, planned.files.candidates)
    with statement_files(state) as statement_id:
        outcome = change_rows(
            RowChange(
                scan,
                planned.files,
                planned.plan.mode,
                planned.bound.condition,
                planned.bound.assigned,
                statement_id,
            )
        )
        result = row_result(planned.plan, outcome)
        return publish_changes(
            context,
            state,
            outcome.changes,
            _guard(planned),
            statement.options,
            lambda _gone: result,
        )


def _plan(statement: RowStatement, context: Context, state: TableState) -> _Planned:
    bound = bind_statement(statement, state, context.spark, context.resolve)
    files = plan_files(state, bound.lowered)
    plan = plan_statement(
        statement, state, files, assigned=bound.assigned, has_subquery=bound.has_subquery
    )
    return _Planned(state, bound, files, plan)


def _guard(planned: _Planned) -> ConflictCheck:
    """Rows added meanwhile matter when the condition may be true for them; a subquery reads all."""
    lowered = UNKNOWN if planned.bound.has_subquery else planned.bound.lowered
    specs = planned.state.metadata.specs()
    matcher = FileMatcher(lowered, planned.state.schema, specs)
    return ConflictCheck(planned.plan.isolation, matcher, planned.bound.has_subquery)


def _run_write(statement: WriteStatement, context: Context) -> DmlResult:
    state = context.read_state(statement.options.branch)
    if done := already_done(state, statement.options.idempotency_key):
        return done
    with statement_files(state) as statement_id:
        written = WrittenRows()
        if statement.rows is not None:
            written = write_data(state, statement.rows, statement_id)
        changes = _written_changes(statement.kind, written)

        def describe(gone: RemovedFiles) -> DmlResult:
            return DmlResult(
                operation=statement.kind.value,
                rows_inserted=written.rows,
                rows_deleted=live_rows(context.spark, state, gone),
                data_files_added=len(written.files),
                data_files_removed=len(gone.data),
                delete_files_removed=len(gone.deletes),
                bytes_written=added_bytes(changes),
            )

        guard = ConflictCheck(Isolation.SNAPSHOT, None)
        return publish_changes(context, state, changes, guard, statement.options, describe)


def _written_changes(kind: WriteKind, written: WrittenRows) -> FileChanges:
    match kind:
        case WriteKind.APPEND:
            return FileChanges(added_data=written.files)
        case WriteKind.OVERWRITE | WriteKind.TRUNCATE:
            return FileChanges(added_data=written.files, removal=RemoveEverything())
        case WriteKind.OVERWRITE_PARTITIONS:
            keys = {partition_key_of(file.spec_id, file.partition) for file in written.files}
            return FileChanges(added_data=written.files, removal=RemovePartitions(frozenset(keys)))


def live_rows(spark: SparkSession, state: TableState, gone: RemovedFiles) -> int:
    """How many rows removed files still had."""
    index = DeleteIndex.of(gone.deletes, unpartitioned_specs(state.metadata))
    return count_live(Scan.of(spark, state, [_candidate(file, index) for file in gone.data]))


def count_live(scan: Scan) -> int:
    """How many rows files still have; a Spark count where equality deletes hide it."""
    candidates = scan.candidates
    plain = [c for c in candidates if not c.equality_deletes]
    hidden = [c for c in candidates if c.equality_deletes]
    counted = sum(scan.live_rows(c) for c in plain)
    if not hidden:
        return counted
    with translate_spark_errors(), reading_by_id(scan.spark):
        return counted + scan.restrict_to(hidden).rows().count()


def _candidate(file: LiveFile, index: DeleteIndex) -> Candidate:
    return Candidate(file, index.position_deletes(file), index.equality_deletes(file))
