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

from icefloe.commands.context import Command, Context, ExplainableCommand, Outcome
from icefloe.commands.merge.command import MergeCommand
from icefloe.commands.plan import Plan
from icefloe.commands.replace.overwrite_partitions import OverwritePartitionsCommand
from icefloe.commands.replace.using import ReplaceUsingCommand
from icefloe.commands.replace.where import replace_where_command
from icefloe.commands.row_changes import RowChangeCommand
from icefloe.commands.write import WriteCommand
from icefloe.commit.catalog import refuse_partial_history
from icefloe.commit.publish import IDEMPOTENCY_KEY, Commit, find_earlier_result, publish
from icefloe.commit.snapshot import RemovedFiles
from icefloe.errors import ConflictError
from icefloe.metadata.table_state import TableState
from icefloe.results import DmlResult
from icefloe.spark.errors import detect_jvm_exit, translate_spark_errors
from icefloe.statements import (
    MergeStatement,
    ReplaceStatement,
    RowStatement,
    UsingStatement,
    WriteKind,
    WriteStatement,
)
from icefloe.storage.files import delete_files_of_statement

log = logging.getLogger("icefloe")

P = TypeVar("P")
ExplainableStatement: TypeAlias = RowStatement | MergeStatement | ReplaceStatement | UsingStatement
Statement: TypeAlias = ExplainableStatement | WriteStatement


def run(statement: Statement, context: Context) -> DmlResult:
    """Run one statement and publish it as at most one snapshot."""
    return run_command(_command(statement, context), context)


def explain(statement: ExplainableStatement, context: Context) -> Plan:
    """What a statement would do, without doing it."""
    command = _explainable(statement, context)
    with ExitStack() as resources:
        plan = command.plan(context.read_state(command.options.branch), resources)
        return command.explain(plan)


def run_command(command: Command[P], context: Context) -> DmlResult:
    """Run a command; with `retries`, again from the start after each conflict."""
    started = time.monotonic()
    refuse_partial_history(context.catalog)
    retries = command.options.retries
    for attempt in range(retries + 1):
        try:
            with detect_jvm_exit(), translate_spark_errors():
                result = _run_once(command, context)
            break
        except ConflictError as conflict:
            if attempt == retries:
                raise
            log.info("%s; running the statement again (%d)", conflict.reason, attempt + 1)
    result = replace(result, duration_s=time.monotonic() - started)
    log.info("%s", result)
    command.log_result(result)
    return result


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
    state = context.read_state(command.options.branch)
    if earlier := find_earlier_result(state, command.options.idempotency_key):
        return earlier
    with ExitStack() as resources:
        plan = command.plan(state, resources)
        statement_id = uuid.uuid4().hex
        try:
            outcome = command.work(plan, statement_id)
            context.before_publish()
        except BaseException:
            # A task that has not heard of the failure yet may still write a file: an orphan.
            delete_files_of_statement(state.io, state.data_location, statement_id)
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
    return publish(
        Commit(
            context.catalog,
            state,
            statement_id,
            outcome.changes,
            outcome.conflict_check,
            lambda removed, deletes: _result(outcome, removed, deletes),
            summary,
            options.idempotency_key,
        )
    )


def _result(
    outcome: Outcome, removed: RemovedFiles, added_deletes: tuple[DataFile, ...]
) -> DmlResult:
    """The report, with the files and bytes that the commit adds and removes."""
    report, added_data = outcome.report, outcome.changes.added_data
    if outcome.count_removed is not None:
        report = replace(report, rows_deleted=outcome.count_removed(removed))
    return replace(
        report,
        data_files_added=len(added_data),
        data_files_removed=len(removed.data),
        delete_files_added=len(added_deletes),
        delete_files_removed=len(removed.deletes),
        bytes_written=sum(file.file_size_in_bytes for file in (*added_data, *added_deletes)),
    )
