"""UPDATE and DELETE of a table: with Spark, or by the driver alone where the rows are few."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pyarrow as pa
from pyroaring import BitMap64

from icefloe.commands.bind import Bound, bind_statement
from icefloe.commands.context import (
    Context,
    ExplainableCommand,
    NeedsFlushError,
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
    RowChange,
    change_rows,
    count,
    inline_changes,
)
from icefloe.commit.conflicts import ConflictCheck
from icefloe.deletes.dangling import dangling_deletes
from icefloe.file_changes import DeletedRows, FileChanges, RemoveFiles
from icefloe.indexes.definitions import usable
from icefloe.inline.tier import Cut
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import Candidate, FilePlan, plan_files
from icefloe.pruning.comparisons import UNKNOWN
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.results import RowCounts
from icefloe.scan.arrow_rows import ArrowRead, are_few_and_plain, find_arrow_rows
from icefloe.scan.scan import Scan, read_deleted_rows
from icefloe.settings import UpdateMode
from icefloe.statements import Options, RowStatement

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

        Spark is not asked where the statement is certain and the inline tier has all its rows, or
        indexes have their positions.
        """
        may_be_local = state.has_inline_tier or usable(state)
        local = bind_locally(self.statement, state) if may_be_local else None
        if local is not None and (planned := self._plan_locally(state, local)) is not None:
            return planned
        return self._plan_with_spark(state)

    def _plan_with_spark(self, state: TableState) -> _RowPlan:
        bound = bind_statement(self.statement, state, self.context.spark, self.context.resolve)
        if bound.has_subquery and state.has_inline_tier:
            raise NeedsFlushError
        cut = self.context.tier.cut(state, bound.lowered.inclusive)
        return self._planned(state, bound, plan_files(state, bound.lowered), cut)

    def _plan_locally(self, state: TableState, local: LocalBound) -> _RowPlan | None:
        """The plan without Spark; None where files may have more than a few rows to change."""
        files = plan_files(state, local.lowered)
        partly = _partly_matching(local, files)
        if not (_positions_are_known(local, partly) or are_few_and_plain(partly)):
            return None
        cut = self.context.tier.cut(state, local.lowered.inclusive)
        if cut is not None and not cut.is_exact:
            return None
        plan = self._planned(state, local, files, cut)
        if not partly or self._deletes_by_index(plan) or self._goes_inline(plan):
            return plan
        return None

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
            in_files = (
                _delete_by_index(plan, inline=self._goes_inline(plan))
                if self._deletes_by_index(plan)
                else _change_locally(bound, plan)
            )
            if in_files is None:
                return self._change(self._plan_with_spark(plan.state), statement_id)
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


def _change_locally(bound: LocalBound, plan: _RowPlan) -> ChangedRows | None:
    """The rows of small files, read by the driver; None if these are many, or Spark has to read.

    Files all of whose rows a DELETE matches are removed by metadata alone.
    """
    state, partly = plan.state, _partly_matching(bound, plan.files)
    changes, counts = _drop_files(state, plan.files, {c.path for c in partly})
    if not partly:
        return changes, counts
    names = [field.name for field in state.schema.fields] if bound.assigned else []
    read = ArrowRead(state, bound.lowered.inclusive, names, MOST_INLINE_ROWS + 1)
    matches = find_arrow_rows(read, partly)
    if matches is None or sum(len(match.positions) for match in matches) > MOST_INLINE_ROWS:
        return None
    hits = {match.file.path: match.positions for match in matches}
    added = None
    if bound.assigned and hits:
        rows = pa.concat_tables([match.rows for match in matches])
        added = as_schema(with_values(rows, bound.assigned), state.schema)
        if added.nbytes > MOST_INLINE_BYTES:
            return None
    few, few_counts = inline_changes([match.file for match in matches], hits, added)
    return replace(few, removal=changes.removal), counts + few_counts


def _positions_are_known(bound: LocalBound, files: Sequence[Candidate]) -> bool:
    """Whether indexes have exactly the rows of files that a DELETE matches."""
    return not bound.assigned and all(
        c.answer is not None and c.answer.exact and not c.equality_deletes for c in files
    )


def _delete_by_index(plan: _RowPlan, *, inline: bool) -> ChangedRows:
    """Delete the rows at the positions that indexes returned; files without other rows go."""
    state, bound = plan.state, plan.bound
    partly = _partly_matching(bound, plan.files)
    deleted, _ = read_deleted_rows(state, partly)
    hits = {
        c.path: rows
        for c in partly
        if c.answer is not None and (rows := c.answer.positions - deleted.get(c.path, BitMap64()))
    }
    if inline and count(hits) <= MOST_INLINE_ROWS:
        changes, counts = _drop_files(state, plan.files, {c.path for c in partly})
        few, few_counts = inline_changes([c for c in partly if c.path in hits], hits, None)
        return replace(few, removal=changes.removal), counts + few_counts
    left = {
        c.path: DeletedRows(c.live, hits[c.path])
        for c in partly
        if c.path in hits and len(hits[c.path]) < c.live.rows - len(deleted.get(c.path, ()))
    }
    kept = {c.path for c in partly if c.path in left or c.path not in hits}
    changes, counts = _drop_files(state, plan.files, kept)
    marked = RowCounts(rows_deleted=sum(len(rows.positions) for rows in left.values()))
    return replace(changes, deleted_rows=left), counts + marked


def _partly_matching(bound: Bound | LocalBound, files: FilePlan) -> list[Candidate]:
    """Files of which rows have to be read; a DELETE removes others as a whole."""
    if bound.assigned:
        return list(files.candidates)
    return [c for c in files.candidates if not c.covered or c.equality_deletes]


def _drop_files(state: TableState, files: FilePlan, kept: Container[str]) -> ChangedRows:
    """The removal of all candidates but some, with the delete files that only they need."""
    dropped = [c for c in files.candidates if c.path not in kept]
    deleted, contents = read_deleted_rows(state, dropped)
    removed = tuple(c.live for c in dropped)
    removal = RemoveFiles(removed, dangling_deletes(files.files, removed, contents))
    rows = sum(c.live.rows - len(deleted.get(c.path, ())) for c in dropped)
    return FileChanges(removal=removal), RowCounts(rows_deleted=rows)
