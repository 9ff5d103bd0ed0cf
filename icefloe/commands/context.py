"""What every statement shares: what it runs with, the names of its files, how it is published."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession

from icefloe.commands.plan import Plan
from icefloe.commands.row_changes import RowChangeOutcome
from icefloe.commit.catalog import refuse_partial_history
from icefloe.commit.conflicts import ConflictCheck
from icefloe.commit.publish import IDEMPOTENCY_KEY, Commit, publish
from icefloe.commit.snapshot import RemovedFiles
from icefloe.errors import CommitStateUnknownError, ConflictError
from icefloe.file_changes import FileChanges
from icefloe.metadata.table_state import SchemaChange, TableState
from icefloe.results import DmlResult
from icefloe.spark.errors import detect_jvm_exit, translate_spark_errors
from icefloe.spark.expressions import TempViews, resolve_tables
from icefloe.spark.table_names import TableName
from icefloe.statements import Options
from icefloe.storage.files import remove_written_by

log = logging.getLogger("icefloe")


@dataclass(frozen=True, slots=True)
class Context:
    """What a statement runs with."""

    spark: SparkSession
    catalog: Catalog
    read_state: Callable[[str], TableState]  # the newest state of a branch
    rows_of: Callable[[TableName, TableState], DataFrame | None]  # of a name that a text uses
    views: TempViews = field(default_factory=TempViews)

    def resolve(self, text: str, state: TableState) -> str:
        """A text whose tables are views, where the table of `state` is read as in that state."""
        return resolve_tables(text, lambda name: self.rows_of(name, state), self.views)

    @contextmanager
    def temp_views(self, *others: SparkSession) -> Iterator[Context]:
        """A context for one statement: its views, in `others` too, are dropped at the end."""
        with TempViews(self.spark, *others) as views:
            yield replace(self, views=views)


def with_statement_retries(
    context: Context, options: Options, once: Callable[[], DmlResult]
) -> DmlResult:
    """Run a statement, and again after a conflict as often as its options say."""
    started = time.monotonic()
    refuse_partial_history(context.catalog)
    for attempt in range(options.retries + 1):
        try:
            with detect_jvm_exit(), translate_spark_errors():
                result = once()
            break
        except ConflictError as lost:
            if attempt == options.retries:
                raise
            log.info("%s; running the statement again (%d)", lost.reason, attempt + 1)
    result = replace(result, duration_s=time.monotonic() - started)
    log.info("%s", result)
    return result


# Whether the statement has come to its commit, which takes care of its files itself.
_publishing: ContextVar[bool] = ContextVar("publishing", default=False)


@contextmanager
def statement_files(state: TableState) -> Iterator[str]:
    """An id for the names of a statement's files, which are removed if it fails.

    A task that has not heard of it yet may still write one: an orphan.
    """
    statement_id = uuid.uuid4().hex
    before = _publishing.set(False)
    try:
        yield statement_id
    except (CommitStateUnknownError, ConflictError):
        raise  # the commit keeps the files, or has removed each of them already
    except BaseException as error:
        # Ctrl-C may come when the files are published and the statement is about to return.
        if isinstance(error, Exception) or not _publishing.get():
            remove_written_by(state.io, state.data_location, statement_id)
        raise
    finally:
        _publishing.reset(before)


def publish_changes(
    context: Context,
    state: TableState,
    changes: FileChanges,
    guard: ConflictCheck,
    options: Options,
    describe: Callable[[RemovedFiles], DmlResult],
    facts: Mapping[str, str] | None = None,
    schema_change: SchemaChange | None = None,
) -> DmlResult:
    """Publish what a statement changed, if it changed anything; `facts` go into its summary."""
    if changes.is_empty:
        return describe(RemovedFiles())
    summary = {**options.summary, **(facts or {})}
    if options.idempotency_key is not None:
        summary[IDEMPOTENCY_KEY] = options.idempotency_key
    _publishing.set(True)
    return publish(
        Commit(
            context.catalog,
            state,
            changes,
            guard,
            describe,
            summary,
            options.idempotency_key,
            schema_change,
        )
    )


def row_result(plan: Plan, outcome: RowChangeOutcome) -> DmlResult:
    """What a statement that changes rows did, before it is published."""
    changes = outcome.changes
    return DmlResult(
        operation=plan.operation,
        mode=plan.mode.value,
        rows_inserted=outcome.rows_inserted,
        rows_updated=outcome.rows_updated,
        rows_deleted=outcome.rows_deleted,
        rows_copied=outcome.rows_copied,
        data_files_added=len(changes.added_data),
        data_files_removed=len(changes.removal.data),  # type: ignore[union-attr]
        delete_files_added=len(changes.added_deletes),
        delete_files_removed=len(changes.removal.deletes),  # type: ignore[union-attr]
        files_scanned=plan.files_scanned,
        files_skipped=plan.files_skipped,
        bytes_written=added_bytes(changes),
        bytes_copied=outcome.bytes_copied,
        bytes_encoded=outcome.bytes_encoded,
        row_groups_copied=outcome.row_groups_copied,
        dpp_applied=plan.dpp_applied,
        dpp_partition_count=plan.dpp_partition_count,
    )


def added_bytes(changes: FileChanges) -> int:
    """The size of every file a statement wrote."""
    files = (*changes.added_data, *changes.added_deletes)
    return sum(file.file_size_in_bytes for file in files)
