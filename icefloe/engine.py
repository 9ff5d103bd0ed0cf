"""Run one statement: bind, plan, execute, publish. The whole story on one screen."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from icefloe.changes import FileChanges, RemoveEverything, RemovePartitions
from icefloe.commit.committer import IDEMPOTENCY_KEY, Commit, already_done, publish
from icefloe.commit.conflicts import Guard
from icefloe.commit.snapshot import Removed
from icefloe.errors import CommitStateUnknownError, ConflictError
from icefloe.execute.row_changes import RowChange, RowChangeOutcome, change_rows
from icefloe.execute.scan import Scan
from icefloe.execute.write_data import WrittenRows, write_data
from icefloe.metadata.files import DeleteIndex, LiveFile, partition_key_of
from icefloe.metadata.matching import FileMatcher
from icefloe.metadata.state import TableState
from icefloe.metadata.storage import remove_written_by
from icefloe.plan.bind import Bound, ResolveTables, bind_statement
from icefloe.plan.files import Candidate, FilePlan, plan_files
from icefloe.plan.plan import Plan, plan_statement
from icefloe.predicates.lowered import UNKNOWN
from icefloe.results import DmlResult
from icefloe.settings import Isolation
from icefloe.statements import Options, RowStatement, WriteKind, WriteStatement

log = logging.getLogger("icefloe")


@dataclass(frozen=True, slots=True)
class Context:
    """What a statement runs with."""

    spark: SparkSession
    catalog: Catalog
    read_state: Callable[[str], TableState]  # the newest state of a branch
    resolve: ResolveTables


@dataclass(frozen=True, slots=True)
class _Planned:
    state: TableState
    bound: Bound
    files: FilePlan
    plan: Plan


def explain(statement: RowStatement, context: Context) -> Plan:
    """What a statement would do, without doing it."""
    return _plan(statement, context, context.read_state(statement.options.branch)).plan


def run(statement: RowStatement | WriteStatement, context: Context) -> DmlResult:
    """Run one statement and publish it as at most one snapshot.

    With `retries`, a statement that loses to another writer is run again from the start.
    """
    if isinstance(statement, RowStatement):
        return repeated(statement.options, lambda: _run_rows(statement, context))
    return repeated(statement.options, lambda: _run_write(statement, context))


def repeated(options: Options, once: Callable[[], DmlResult]) -> DmlResult:
    """Run a statement, and again after a conflict as often as its options say."""
    started = time.monotonic()
    for attempt in range(options.retries + 1):
        try:
            result = once()
            break
        except ConflictError as lost:
            if attempt == options.retries:
                raise
            log.info("%s; running the statement again (%d)", lost.reason, attempt + 1)
    result = replace(result, duration_s=time.monotonic() - started)
    log.info("%s", result)
    return result


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
        result = _row_result(planned.plan, outcome)
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
    plan = plan_statement(statement, state, files, has_subquery=bound.has_subquery)
    return _Planned(state, bound, files, plan)


def _guard(planned: _Planned) -> Guard:
    """Rows added meanwhile matter when the condition may be true for them; a subquery reads all."""
    lowered = UNKNOWN if planned.bound.has_subquery else planned.bound.lowered
    specs = planned.state.metadata.specs()
    matcher = FileMatcher(lowered, planned.state.schema, specs)
    return Guard(planned.plan.isolation, matcher, planned.bound.has_subquery)


def _row_result(plan: Plan, outcome: RowChangeOutcome) -> DmlResult:
    changes = outcome.changes
    return DmlResult(
        operation=plan.operation,
        mode=plan.mode.value,
        rows_updated=outcome.rows_updated,
        rows_deleted=outcome.rows_deleted,
        rows_copied=outcome.rows_copied,
        data_files_added=len(changes.added_data),
        data_files_removed=len(changes.removal.data),  # type: ignore[union-attr]
        delete_files_added=len(changes.added_deletes),
        delete_files_removed=len(changes.removal.deletes),  # type: ignore[union-attr]
        files_scanned=plan.files_scanned,
        files_skipped=plan.files_skipped,
        bytes_written=bytes_of(changes),
        bytes_encoded=outcome.bytes_encoded,
    )


def _run_write(statement: WriteStatement, context: Context) -> DmlResult:
    state = context.read_state(statement.options.branch)
    if done := already_done(state, statement.options.idempotency_key):
        return done
    with statement_files(state) as statement_id:
        written = WrittenRows((), {})
        if statement.rows is not None:
            written = write_data(state, statement.rows, statement_id)
        changes = _written_changes(statement.kind, written)

        def describe(gone: Removed) -> DmlResult:
            return DmlResult(
                operation=statement.kind.value,
                rows_inserted=written.rows,
                rows_deleted=live_rows(context.spark, state, gone),
                data_files_added=len(written.files),
                data_files_removed=len(gone.data),
                delete_files_removed=len(gone.deletes),
                bytes_written=bytes_of(changes),
            )

        guard = Guard(Isolation.SNAPSHOT, None)
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


def live_rows(spark: SparkSession, state: TableState, gone: Removed) -> int:
    """How many rows removed files still had."""
    specs = state.metadata.specs()
    index = DeleteIndex.of(
        gone.deletes, frozenset(i for i, spec in specs.items() if spec.is_unpartitioned())
    )
    return count_live(Scan.of(spark, state, [_candidate(file, index) for file in gone.data]))


def count_live(scan: Scan) -> int:
    """How many rows files still have; a Spark count where equality deletes hide it."""
    candidates = scan.candidates
    plain = [c for c in candidates if not c.equality_deletes]
    hidden = [c for c in candidates if c.equality_deletes]
    counted = sum(scan.live_rows(c) for c in plain)
    return counted + (scan.over(hidden).rows().count() if hidden else 0)


def _candidate(file: LiveFile, index: DeleteIndex) -> Candidate:
    return Candidate(file, index.position_deletes(file), index.equality_deletes(file))


@contextmanager
def statement_files(state: TableState) -> Iterator[str]:
    """An id for the names of a statement's files, which are removed if it fails."""
    statement_id = uuid.uuid4().hex
    try:
        yield statement_id
    except (CommitStateUnknownError, ConflictError):
        raise  # the commit keeps the files, or has removed each of them already
    except BaseException:
        remove_written_by(state.io, state.data_location, statement_id)
        raise


def publish_changes(
    context: Context,
    state: TableState,
    changes: FileChanges,
    guard: Guard,
    options: Options,
    describe: Callable[[Removed], DmlResult],
) -> DmlResult:
    """Publish what a statement did, unless that is nothing."""
    if changes.is_empty:
        return describe(Removed())
    summary = dict(options.summary)
    if options.idempotency_key is not None:
        summary[IDEMPOTENCY_KEY] = options.idempotency_key
    return publish(
        Commit(context.catalog, state, changes, guard, describe, summary, options.idempotency_key)
    )


def bytes_of(changes: FileChanges) -> int:
    """The size of every file that a statement wrote."""
    files = (*changes.added_data, *changes.added_deletes)
    return sum(file.file_size_in_bytes for file in files)
