"""What every statement shares: what it runs with, and the steps that a command supplies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, Protocol, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable
from pyspark.sql import DataFrame, SparkSession

from icefloe.commands.plan import Plan
from icefloe.commit.conflicts import ConflictCheck
from icefloe.commit.snapshot import RemovedFiles
from icefloe.file_changes import FileChanges
from icefloe.inline.cut import Cut
from icefloe.inline.tier import InlineTier
from icefloe.metadata.table_state import TableState
from icefloe.results import DmlResult, RowCounts
from icefloe.settings import UpdateMode
from icefloe.spark.column_trees import ColumnReader
from icefloe.spark.expressions import TempViews, resolve_tables
from icefloe.spark.sql_text import SqlText
from icefloe.spark.table_names import TableName
from icefloe.statements import Options

P = TypeVar("P")


@dataclass(frozen=True)
class Context:
    """What a statement runs with."""

    session: Callable[[], SparkSession]  # starts Spark if need be: some commands need none
    catalog: Catalog
    read_state: Callable[[str], TableState]  # the newest state of a branch
    rows_of: Callable[[TableName, TableState], DataFrame | None]  # of a name that a text uses
    before_publish: Callable[[], object]  # called when a statement's files are written
    tier: InlineTier
    make_room: Callable[[TableState], object]  # called before rows are inserted inline
    # Called with the rows that there may be, and the bytes of new ones: they may be due.
    flush_soon: Callable[[TableState, int, int], object]
    views: TempViews = field(default_factory=TempViews)

    @cached_property
    def columns(self) -> ColumnReader:
        """What reads the Columns of statements."""
        return ColumnReader(self.session)

    @property
    def spark(self) -> SparkSession:
        """The Spark session."""
        return self.session()

    def resolve(self, text: SqlText, state: TableState) -> SqlText:
        """A text whose tables are views, where the table of `state` is read as in that state."""
        return resolve_tables(text, lambda name: self.rows_of(name, state), self.views)

    @contextmanager
    def temp_views(self, other: SparkSession | None = None) -> Iterator[Context]:
        """A context for one statement: its views, in `other` too, are dropped at the end."""
        with TempViews(self.session, lambda: self.spark if other is None else other) as views:
            yield replace(self, views=views)


class NeedsFlushError(Exception):
    """A statement cannot change inline rows where they are.

    Its source reads the table, or it also changes rows in files while the catalog has another
    database.
    """


class Tables(Protocol):
    """What a table and the names in a SQL text need of their lake."""

    @property
    def spark(self) -> SparkSession:
        """The Spark session."""
        ...

    @property
    def catalog(self) -> Catalog:
        """The PyIceberg catalog."""
        ...

    @property
    def tier(self) -> InlineTier:
        """The inline tier of the catalog's tables."""
        ...

    def load(self, full: str) -> IcebergTable:
        """The PyIceberg table of that full name; raises TableNotFoundError."""
        ...

    def context(self, read_state: Callable[[str], TableState]) -> Context:
        """What a statement on one table runs with."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the work of a statement produced; nothing is published yet.

    `report` has the operation, the mode and the counts. Files and bytes are counted when the
    commit is laid out.
    """

    report: DmlResult
    changes: FileChanges
    conflict_check: ConflictCheck
    summary: Mapping[str, str] = field(default_factory=dict)  # goes into the snapshot summary
    # Rows of removed files, where only the commit knows which files it removes.
    count_removed: Callable[[RemovedFiles], int] | None = None


class Command(ABC, Generic[P]):
    """One statement: `commands.run.run_command` calls these steps in order."""

    @property
    @abstractmethod
    def options(self) -> Options:
        """How the statement runs."""

    @abstractmethod
    def plan(self, state: TableState, resources: ExitStack) -> P:
        """Bind the statement and decide what to do; writes nothing.

        `resources` are released when the statement has been published or has failed.
        """

    @abstractmethod
    def work(self, plan: P, statement_id: str) -> Outcome:
        """Do the data work; every file that is written has `statement_id` in its name."""

    def log_result(self, result: DmlResult) -> None:
        """Log what the statement did, beyond its result."""


class ReadsInlineRows(Protocol):
    """The plan of a statement that reads inline rows."""

    @property
    def cut(self) -> Cut | None:
        """The inline rows that the statement may change; None if there is no tier."""
        ...


E = TypeVar("E", bound=ReadsInlineRows)


class ExplainableCommand(Command[E]):
    """A statement that can say beforehand what it would do."""

    @abstractmethod
    def explain(self, plan: E) -> Plan:
        """The plan for people."""


def row_report(plan: Plan, changes: FileChanges, counts: RowCounts) -> DmlResult:
    """What a statement that changes rows did."""
    encoded = 0
    if plan.mode is not UpdateMode.MERGE_ON_READ:
        written = sum(file.file_size_in_bytes for file in changes.added_data)
        encoded = written - counts.bytes_copied
    return DmlResult(
        operation=plan.operation,
        mode=plan.mode.value,
        files_scanned=plan.files_scanned,
        files_skipped=plan.files_skipped,
        dpp_applied=plan.dpp_applied,
        dpp_partition_count=plan.dpp_partition_count,
    ).counting(counts + RowCounts(bytes_encoded=encoded))
