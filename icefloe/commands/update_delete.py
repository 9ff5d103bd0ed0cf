"""UPDATE and DELETE of a table: with Spark, or by the driver alone where the rows are few."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pyarrow as pa
from pyroaring import BitMap64

from icefloe.commands.bind import Bound, bind_statement, row_statement_has_subquery
from icefloe.commands.context import (
    Context,
    ExplainableCommand,
    Outcome,
    row_report,
)
from icefloe.commands.inline_rows import change_inline_rows, with_inline_changes
from icefloe.commands.input_rows import as_schema
from icefloe.commands.local_bind import LocalBound, bind_locally, change_exact_rows, with_values
from icefloe.commands.plan import Plan, plan_statement, with_footers
from icefloe.commands.row_changes import (
    MOST_INLINE_BYTES,
    MOST_INLINE_ROWS,
    ChangedRows,
    PositionsByFile,
    RowChange,
    change_rows,
    count,
    inline_changes,
)
from icefloe.commit.conflicts import ConflictCheck
from icefloe.deletes.dangling import dangling_deletes
from icefloe.file_changes import DeletedRows, FileChanges, RemoveFiles
from icefloe.inline.cut import Cut
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import Candidate, FilePlan, plan_files
from icefloe.pruning.comparisons import UNKNOWN
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.results import RowCounts
from icefloe.scan.arrow_rows import ArrowRead, are_few_and_plain, find_arrow_rows
from icefloe.scan.scan import Scan, read_deleted_rows
from icefloe.schema.arrow_values import arrow_schema
from icefloe.settings import UpdateMode
from icefloe.statements import Options, RowStatement
from icefloe.writing.carried_values import check_carried_values
from icefloe.writing.data_files import WrittenRows
from icefloe.writing.local_rows import MOST_ROWS, has_local_layout, write_local_rows
from icefloe.writing.rewrite import row_count_mismatch

_MOST_TIMES_LIMIT = 4  # of `icefloe.inline.row-limit`: more deletes are not stored


@dataclass(frozen=True, slots=True)
class _RowPlan:
    state: TableState
    bound: Bound | LocalBound  # bound without Spark: no file can have rows to change
    files: FilePlan
    plan: Plan
    cut: Cut | None = None  # the inline rows that the condition may be TRUE for


@dataclass(frozen=True, slots=True)
class RowChangeCommand(ExplainableCommand[_RowPlan]):
    """UPDATE or DELETE."""

    statement: RowStatement
    context: Context

    @property
    def options(self) -> Options:
        """How the statement runs."""
        return self.statement.options

    def plan(self, state: TableState, _resources: ExitStack) -> _RowPlan:
        """Bind names and types, choose the files, decide what happens to each.

        Spark is not asked where the statement is certain and the driver can read its rows: no file
        has any, indexes have their positions, or the files are few and small.
        """
        local = bind_locally(self.statement, state, self.context.columns)
        if local is None:
            return self._plan_with_spark(state)
        files = plan_files(state, local.lowered)
        planned = self._plan_locally(state, local, files)
        return planned or self._plan_with_spark(state, chosen=(local, files))

    def _plan_with_spark(
        self, state: TableState, chosen: tuple[LocalBound, FilePlan] | None = None
    ) -> _RowPlan:
        """The plan of a statement that Spark binds; its files may be chosen already."""
        context = self.context
        if state.has_inline_tier and row_statement_has_subquery(self.statement, context.columns):
            state = context.tier.pin(state)
        bound = bind_statement(self.statement, state, context.columns, context.resolve)
        files = None
        if chosen is not None:
            local, files = chosen
            bound = replace(bound, lowered=local.lowered)
        cut = self.context.tier.cut(state, bound.lowered.inclusive)
        return self._planned(state, bound, files or plan_files(state, bound.lowered), cut)

    def _plan_locally(
        self, state: TableState, local: LocalBound, files: FilePlan
    ) -> _RowPlan | None:
        """The plan without Spark; None where files may have more than a few rows to change."""
        partly = _partly_matching(local, files)
        if not (_positions_are_known(local, partly) or are_few_and_plain(partly)):
            return None
        cut = self.context.tier.cut(state, local.lowered.inclusive)
        if cut is not None and not cut.is_exact:
            return None
        plan = self._planned(state, local, files, cut)
        is_local = (
            not partly
            or self._deletes_by_index(plan)
            or self._goes_inline(plan)
            or commits_locally(plan)
        )
        return plan if is_local else None

    def _deletes_by_index(self, plan: _RowPlan) -> bool:
        """Whether positions from indexes become deletes: no data file is read."""
        if not isinstance(plan.bound, LocalBound) or plan.plan.mode is not UpdateMode.MERGE_ON_READ:
            return False
        partly = _partly_matching(plan.bound, plan.files)
        return bool(partly) and _positions_are_known(plan.bound, partly)

    def _goes_inline(self, plan: _RowPlan) -> bool:
        """Whether few rows of files are changed in the database, without new files."""
        state, deletes = plan.state, plan.state.inline_deletes
        if not state.has_inline_tier or not self.context.tier.shares_database or deletes is None:
            return False
        settings = state.settings
        return (
            settings.inline_enabled
            and settings.inline_deletes
            and plan.plan.mode is not UpdateMode.COPY_ON_WRITE
            and state.metadata.format_version > 1
            and deletes.rows < _MOST_TIMES_LIMIT * settings.inline_row_limit
        )

    def _planned(
        self, state: TableState, bound: Bound | LocalBound, files: FilePlan, cut: Cut | None
    ) -> _RowPlan:
        plan = plan_statement(
            self.statement,
            state,
            files,
            assigned=bound.assigned,
            has_subquery=bound.has_subquery,
        )
        return _RowPlan(state, bound, files, plan, cut)

    def explain(self, plan: _RowPlan) -> Plan:
        """The plan, with what the footers of files to rewrite say."""
        shown = with_footers(plan.plan, plan.state, plan.files.candidates, plan.bound.assigned)
        if self._deletes_by_index(plan):
            no_read = "positions are known from the index: no data file is read"
            shown = replace(shown, reasons=(*shown.reasons, no_read), estimated_bytes_read=0)
        elif isinstance(plan.bound, LocalBound) and _partly_matching(plan.bound, plan.files):
            by_driver = "the files are few and small: the driver reads them, without a Spark job"
            shown = replace(shown, reasons=(*shown.reasons, by_driver))
        if not (plan.files.candidates and self._goes_inline(plan)):
            return shown
        few = f"up to {MOST_INLINE_ROWS:,} rows of files change in the database, without a snapshot"
        return replace(shown, reasons=(*shown.reasons, few))

    def work(self, plan: _RowPlan, statement_id: str) -> Outcome:
        """Find the rows and write what replaces them."""
        self.context.tier.index_lookups(plan.cut, plan.bound.lowered.inclusive)
        changes, counts = self._change(plan, statement_id)
        report = row_report(plan.plan, changes, counts)
        if self._deletes_by_index(plan):
            report = replace(report, files_scanned=0)
        inline = changes.inline
        report, changes = with_inline_changes(self.context.tier, report, changes, inline)
        return Outcome(report, changes, _conflict_check(plan))

    def _change(self, plan: _RowPlan, statement_id: str) -> ChangedRows:
        """What changes in both tiers, and the rows of files that do."""
        bound = plan.bound
        if isinstance(bound, LocalBound):
            local = LocalChange(plan, bound, statement_id, inline=self._goes_inline(plan))
            in_files = local.by_index() if self._deletes_by_index(plan) else local.by_reading()
            if in_files is None:
                spark_plan = self._plan_with_spark(plan.state, chosen=(bound, plan.files))
                return self._change(spark_plan, statement_id)
            changes, counts = in_files
            inline = change_exact_rows(bound, plan.cut)
        else:
            scan = Scan.of(self.context.spark, plan.state, plan.files.candidates)
            mode = plan.plan.mode
            change = RowChange(
                scan, plan.files, mode, bound.condition, bound.assigned, statement_id
            )
            change = replace(change, goes_inline=self._goes_inline(plan), named=bound.named)
            changes, counts = change_rows(change)
            inline = change_inline_rows(self.context.spark, bound, plan.cut, plan.state.alias)
        of_files = changes.inline
        inline = replace(inline, deleted=of_files.deleted, added=of_files.added)
        return replace(changes, inline=inline), counts


def _conflict_check(plan: _RowPlan) -> ConflictCheck:
    """Rows added since matter when the condition may be true for them; a subquery reads all."""
    predicate = UNKNOWN if plan.bound.has_subquery else plan.bound.lowered
    matcher = FileMatcher(predicate, plan.state.schema, plan.state.metadata.specs())
    return ConflictCheck(plan.plan.isolation, matcher, plan.bound.has_subquery)


def commits_locally(plan: _RowPlan) -> bool:
    """Whether the driver can write delete files for few rows, and files of their new versions."""
    state, bound = plan.state, plan.bound
    if not isinstance(bound, LocalBound) or plan.plan.mode is not UpdateMode.MERGE_ON_READ:
        return False
    no_rows = arrow_schema(state.schema).empty_table()
    return not bound.assigned or has_local_layout(state, no_rows)


@dataclass(frozen=True, slots=True)
class LocalChange:
    """A certain statement whose rows the driver finds and changes, without Spark."""

    plan: _RowPlan
    bound: LocalBound
    statement_id: str
    inline: bool  # few rows are changed in the database, without new files

    def by_reading(self) -> ChangedRows | None:
        """Change rows of small files that the driver reads.

        None if the rows are many, or Spark has to read. Files all of whose rows a DELETE matches
        are removed by metadata alone.
        """
        state, bound = self.plan.state, self.bound
        partly = _partly_matching(bound, self.plan.files)
        if not partly:
            return self._drop_files(kept=())
        names = [field.name for field in state.schema.fields] if bound.assigned else []
        most_rows = MOST_INLINE_ROWS if self.inline else MOST_ROWS
        matches = find_arrow_rows(
            ArrowRead(state, bound.lowered.inclusive, names, most_rows + 1), partly
        )
        if matches is None or sum(len(match.positions) for match in matches) > most_rows:
            return None
        hits = {match.file.path: match.positions for match in matches}
        added = None
        if bound.assigned and hits:
            rows = pa.concat_tables([match.rows for match in matches])
            added = as_schema(with_values(rows, bound.assigned), state.schema)
            if added.nbytes > MOST_INLINE_BYTES:
                return None
        return self._change_at(hits, added)

    def by_index(self) -> ChangedRows:
        """Delete the rows at the positions that indexes returned."""
        partly = _partly_matching(self.bound, self.plan.files)
        deleted, _ = read_deleted_rows(self.plan.state, partly)
        hits = {
            c.path: rows
            for c in partly
            if c.answer is not None
            and (rows := c.answer.positions - deleted.get(c.path, BitMap64()))
        }
        return self._change_at(hits, None)

    def _change_at(self, hits: PositionsByFile, added: pa.Table | None) -> ChangedRows:
        """Delete the rows at these positions; an UPDATE adds their new versions."""
        partly = _partly_matching(self.bound, self.plan.files)
        if self.inline and count(hits) <= MOST_INLINE_ROWS:
            changes, counts = self._drop_files(kept={c.path for c in partly})
            few, few_counts = inline_changes([c for c in partly if c.path in hits], hits, added)
            return replace(few, removal=changes.removal), counts + few_counts
        deleted, _ = read_deleted_rows(self.plan.state, [c for c in partly if c.path in hits])
        left = {
            c.path: DeletedRows(c.live, hits[c.path])
            for c in partly
            if c.path in hits and len(hits[c.path]) < c.live.rows - len(deleted.get(c.path, ()))
        }
        kept = {c.path for c in partly if c.path in left or c.path not in hits}
        changes, dropped = self._drop_files(kept=kept)
        changes = replace(changes, deleted_rows=left)
        if added is None:
            marked = RowCounts(rows_deleted=sum(len(rows.positions) for rows in left.values()))
            return changes, dropped + marked
        written = self._write(added, [c for c in partly if c.path in hits])
        changes = replace(changes, added_data=written.files, replaced_rows=hits)
        return changes, RowCounts(rows_updated=written.rows)

    def _write(self, added: pa.Table, read: Sequence[Candidate]) -> WrittenRows:
        state = self.plan.state
        written, _ = write_local_rows(state, added, self.statement_id)
        if written.rows != added.num_rows:
            raise row_count_mismatch(written.rows, added.num_rows)
        old = [c.live.file for c in read]
        check_carried_values(state.schema, old, written.files, assigned=self.bound.assigned)
        return written

    def _drop_files(self, kept: Container[str]) -> ChangedRows:
        """The removal of all candidates but some, with delete files that only they need."""
        state, files = self.plan.state, self.plan.files
        dropped = [c for c in files.candidates if c.path not in kept]
        deleted, contents = read_deleted_rows(state, dropped)
        removed = tuple(c.live for c in dropped)
        removal = RemoveFiles(removed, dangling_deletes(files.files, removed, contents))
        rows = sum(c.live.rows - len(deleted.get(c.path, ())) for c in dropped)
        return FileChanges(removal=removal), RowCounts(rows_deleted=rows)


def _positions_are_known(bound: LocalBound, files: Sequence[Candidate]) -> bool:
    """Whether indexes have exactly the rows of files that a DELETE matches."""
    return not bound.assigned and all(
        c.answer is not None and c.answer.exact and not c.equality_deletes for c in files
    )


def _partly_matching(bound: Bound | LocalBound, files: FilePlan) -> list[Candidate]:
    """Files of which rows have to be read; a DELETE removes others as a whole."""
    if bound.assigned:
        return list(files.candidates)
    return [c for c in files.candidates if not c.covered or c.equality_deletes]
