"""Run one statement: the one skeleton that every command goes through.

Read the table's state, look for the idempotency key, plan, do the work, publish; the whole again
after a conflict, as often as the statement's options allow.
"""

from __future__ import annotations

import logging
import time
import uuid
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from pyiceberg.manifest import DataFile

from icefloe.commands.context import (
    Command,
    Context,
    ExplainableCommand,
    NeedsFlushError,
    Outcome,
    ReadsInlineRows,
)
from icefloe.commands.flush import FlushCommand
from icefloe.commands.inline_rows import InlineInsert, set_inline_store
from icefloe.commands.input_rows import fit_few_rows, fit_new_rows
from icefloe.commands.lost_deletes import current_state, with_inline_deletes
from icefloe.commands.merge.command import MergeCommand
from icefloe.commands.plan import InlinePlan, Plan
from icefloe.commands.replace.overwrite_partitions import OverwritePartitionsCommand
from icefloe.commands.replace.using import ReplaceUsingCommand
from icefloe.commands.replace.where import replace_where_command
from icefloe.commands.update_delete import RowChangeCommand
from icefloe.commands.write import WriteCommand
from icefloe.commit.catalog import refuse_partial_history
from icefloe.commit.handover import flushed_since
from icefloe.commit.publish import IDEMPOTENCY_KEY, Commit, find_earlier_result, publish
from icefloe.commit.snapshot import RemovedFiles
from icefloe.errors import ConflictError, StatementError
from icefloe.indexes.definitions import delete_written_files
from icefloe.inline.cut import PointerMovedError
from icefloe.inline.facts import read_inline_facts
from icefloe.metadata.table_state import MAIN, TableState
from icefloe.results import INLINE_MODE, DmlResult
from icefloe.settings import INLINE_STORE
from icefloe.spark.connectors import check_connector
from icefloe.spark.errors import detect_jvm_exit, translate_spark_errors
from icefloe.statements import (
    MergeStatement,
    Options,
    ReplaceStatement,
    RowStatement,
    UsingStatement,
    WriteKind,
    WriteStatement,
)
from icefloe.storage.spark_files import connector_of

log = logging.getLogger("icefloe")

P = TypeVar("P")
_MOST_RUNS_AFTER_FLUSH = 10
ExplainableStatement: TypeAlias = RowStatement | MergeStatement | ReplaceStatement | UsingStatement
Statement: TypeAlias = ExplainableStatement | WriteStatement


def run(statement: Statement, context: Context) -> DmlResult:
    """Run one statement and publish it as at most one snapshot."""
    return run_command(_command(statement, context), context)


def insert(
    rows: object, key: str | None, context: Context, known: TableState | None = None
) -> tuple[DmlResult, TableState | None]:
    """Insert rows inline where the table has that tier and they are few, else as new data files.

    `known` is a state of the table that may be out of date: the transaction finds out, where the
    catalog is in the same database. Also returns the state to pass the next time.
    """
    started = time.monotonic()
    known = known if context.tier.shares_database else None
    state = known or context.read_state(MAIN)
    while state.settings.inline_enabled:
        try:
            few = fit_few_rows(rows, state, context.session)
        except StatementError:
            if known is None:
                raise
            known, state = None, context.read_state(MAIN)  # its schema may have changed
            continue
        if few is None:
            break
        if not few.num_rows:
            return DmlResult("insert", INLINE_MODE), state
        if INLINE_STORE not in state.metadata.properties:  # another engine switched the tier on
            set_inline_store(context.catalog, context.tier, state)
            known, state = None, context.read_state(MAIN)
            continue
        context.make_room(state)
        try:
            result, span = InlineInsert(context.tier, state, few, key).run()
        except PointerMovedError:
            known, state = None, context.read_state(MAIN)
            continue
        context.flush_soon(state, span, few.nbytes)
        return replace(result, duration_s=time.monotonic() - started), state
    fitted = fit_new_rows(rows, context.read_state(MAIN), context.spark)
    statement = WriteStatement(WriteKind.APPEND, fitted, Options(idempotency_key=key))
    return run(statement, context), None


def flush(
    context: Context, rows: int | None = None, *, discard_lost_deletes: bool = False
) -> DmlResult:
    """Move inline rows to data files, all or so many of the oldest."""
    if discard_lost_deletes:
        current_state(context, discard_lost=True)
    return run_command(FlushCommand(context, rows), context)


def explain(statement: ExplainableStatement, context: Context) -> Plan:
    """What a statement would do, without doing it."""
    command = _explainable(statement, context)
    files_only = False
    while True:
        state = context.read_state(command.options.branch)
        state = replace(state, files_only=state.files_only or files_only)
        try:
            with ExitStack() as resources:
                plan = command.plan(with_inline_deletes(context, state), resources)
                return replace(command.explain(plan), inline=_inline_plan(plan, state, context))
        except NeedsFlushError:
            files_only = True
        except PointerMovedError:
            log.debug("%s was committed to while it was read; reading it again", state.name)


def _inline_plan(plan: ReadsInlineRows, state: TableState, context: Context) -> InlinePlan | None:
    facts = read_inline_facts(context.tier, replace(state, files_only=False))
    if facts is None or not facts.rows:
        return None
    matches = 0 if plan.cut is None else len(plan.cut.rows)
    return InlinePlan(facts.rows, None if state.files_only else matches)


def run_command(command: Command[P], context: Context) -> DmlResult:
    """Run a command; with `retries`, again from the start after each conflict.

    A flush of inline rows changes no row: a conflict after one is always worth another run.
    """
    started = time.monotonic()
    refuse_partial_history(context.catalog)
    retries, runs_after_flush = command.options.retries, 0
    while True:
        try:
            with detect_jvm_exit(), translate_spark_errors():
                result = _run_once(command, context)
            break
        except ConflictError as conflict:
            if retries > 0:
                retries -= 1
            elif runs_after_flush < _MOST_RUNS_AFTER_FLUSH and _was_flushed(conflict, context):
                runs_after_flush += 1
            else:
                raise
            log.info("%s; running the statement again", conflict.reason)
    result = replace(result, duration_s=time.monotonic() - started)
    log.info("%s", result)
    command.log_result(result)
    return result


def _was_flushed(conflict: ConflictError, context: Context) -> bool:
    """Whether inline rows were moved to files since the snapshot that a statement read."""
    state = context.read_state(MAIN)
    return state.has_inline_tier and bool(flushed_since(conflict.base_snapshot_id, state))


def _command(statement: Statement, context: Context) -> Command[Any]:
    match statement:
        case WriteStatement(kind=WriteKind.OVERWRITE_PARTITIONS):
            return OverwritePartitionsCommand(statement, context)
        case WriteStatement():
            return WriteCommand(statement, context)
        case _:
            return _explainable(statement, context)


def _explainable(statement: ExplainableStatement, context: Context) -> ExplainableCommand[Any]:
    match statement:
        case RowStatement():
            return RowChangeCommand(statement, context)
        case MergeStatement():
            return MergeCommand(statement, context)
        case ReplaceStatement():
            return replace_where_command(statement, context)
        case UsingStatement():
            return ReplaceUsingCommand(statement, context)


def _run_once(command: Command[P], context: Context) -> DmlResult:
    """Run a command on one state of the table; it is read again until the inline rows fit it."""
    flush_first = False
    while True:
        state = context.read_state(command.options.branch)
        if (connector := connector_of(state.data_location)) is not None:
            check_connector(context.spark, connector)
        if earlier := find_earlier_result(state, command.options.idempotency_key, context.tier):
            return earlier
        try:
            if flush_first and state.has_inline_tier:
                state = _flushed(state, context)
            return _run_on(with_inline_deletes(context, state), command, context)
        except PointerMovedError:
            log.debug("%s was committed to while it was read; reading it again", state.name)
        except NeedsFlushError:
            flush_first = True


def _flushed(state: TableState, context: Context) -> TableState:
    """A state whose rows are all in files; rows that are inserted from now on are later ones."""
    _, versions, _ = context.tier.versions(state)
    if versions or with_inline_deletes(context, state).deleted_inline:
        flush(context)
        state = context.read_state(state.branch)
    return replace(state, files_only=True)


def _run_on(state: TableState, command: Command[P], context: Context) -> DmlResult:
    with ExitStack() as resources:
        plan = command.plan(state, resources)
        statement_id = uuid.uuid4().hex
        try:
            outcome = command.work(plan, statement_id)
            context.before_publish()
        except BaseException:
            # A task that has not heard of the failure yet may still write a file: an orphan.
            delete_written_files(state, statement_id)
            raise
        return _publish(command, context, state, outcome, statement_id)


def _publish(
    command: Command[P], context: Context, state: TableState, outcome: Outcome, statement_id: str
) -> DmlResult:
    """Publish what a statement changed, if it changed anything."""
    if outcome.changes.is_empty:
        return _result(outcome, RemovedFiles(), ())
    options = command.options
    summary = {**options.summary, **outcome.summary}
    if options.idempotency_key is not None:
        summary[IDEMPOTENCY_KEY] = options.idempotency_key
    result = publish(
        Commit(
            context.catalog,
            state,
            statement_id,
            outcome.changes,
            outcome.conflict_check,
            lambda removed, deletes: _result(outcome, removed, deletes),
            summary,
            context.tier,
            options.idempotency_key,
        )
    )
    if outcome.changes.inline.deleted and state.inline_deletes is not None:
        added = outcome.changes.inline.added
        size = 0 if added is None else added.nbytes
        context.flush_soon(state, state.inline_deletes.rows + result.total_affected, size)
    return result


def _result(
    outcome: Outcome, removed: RemovedFiles, added_deletes: tuple[DataFile, ...]
) -> DmlResult:
    """The report, with the files and bytes that the commit adds and removes."""
    report, added_data = outcome.report, outcome.changes.added_data
    if outcome.count_removed is not None:
        rows = report.rows_deleted + outcome.count_removed(removed)
        report = replace(report, rows_deleted=rows)
    return replace(
        report,
        data_files_added=len(added_data),
        data_files_removed=len(removed.data),
        delete_files_added=len(added_deletes),
        delete_files_removed=len(removed.deletes),
        bytes_written=sum(file.file_size_in_bytes for file in (*added_data, *added_deletes)),
    )
