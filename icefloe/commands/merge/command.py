"""Run one MERGE: pin the source, bind, plan, execute, publish."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pyarrow as pa

from icefloe.commands.context import (
    Context,
    ExplainableCommand,
    NeedsFlushError,
    Outcome,
    row_report,
)
from icefloe.commands.inline_rows import with_inline_changes
from icefloe.commands.merge.bind import BoundClause, BoundMerge, bind_merge, merge_has_subquery
from icefloe.commands.merge.files import MergeFiles, choose_merge_files
from icefloe.commands.merge.held_source import fetch_kept_rows, held_rows, held_source
from icefloe.commands.merge.inline import MergedInlineRows, merge_inline_rows
from icefloe.commands.merge.join import choose_join, plan_merge
from icefloe.commands.merge.label import MergeJoin
from icefloe.commands.merge.local import LocalUpsert, may_be_local, plan_locally
from icefloe.commands.merge.lookup import MergeLookup, choose_lookup
from icefloe.commands.merge.rows import MergedRows, MergeRows
from icefloe.commands.merge.source import MergeSource, pinned_source
from icefloe.commands.plan import Plan, with_footers
from icefloe.commit.conflicts import ConflictCheck, MatchedRows
from icefloe.file_changes import FileChanges, InlineChanges
from icefloe.inline.cut import Cut
from icefloe.metadata.table_state import MetadataUpdates, TableState
from icefloe.pruning.comparisons import UNKNOWN
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.results import DmlResult, RowCounts
from icefloe.scan.scan import Scan
from icefloe.schema.widen import merged_schema
from icefloe.settings import UpdateMode
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.session import prepare
from icefloe.statements import MergeClause, MergeStatement, Options, Then, When


@dataclass(frozen=True, slots=True)
class _MergePlan:
    state: TableState  # with the schema as it will be
    metadata_updates: MetadataUpdates | None
    bound: BoundMerge
    files: MergeFiles
    joined: MergeJoin
    plan: Plan
    source: MergeSource
    cut: Cut | None = None  # the inline rows that the statement may change
    lookup: MergeLookup | None = None  # finds rows of files by the source's keys

    @property
    def reads_no_data(self) -> bool:
        """Whether sidecars alone have what is needed of the files that they cover."""
        mode = self.plan.mode is UpdateMode.MERGE_ON_READ
        return mode and self.lookup is not None and self.lookup.reads_no_data(self.joined.scan)


@dataclass(frozen=True, slots=True)
class MergeCommand(ExplainableCommand[_MergePlan | LocalUpsert]):
    """MERGE."""

    statement: MergeStatement
    context: Context

    @property
    def options(self) -> Options:
        """How the statement runs."""
        return self.statement.options

    def plan(self, state: TableState, resources: ExitStack) -> _MergePlan | LocalUpsert:
        """Pin the source, bind every clause, choose files by the source's keys, choose the join.

        Spark joins nothing where the driver holds the rows of a plain upsert and an index says
        which rows they replace.
        """
        statement, context = self.statement, self.context
        prepare(statement.source.sparkSession)  # a streaming batch comes with a session of its own
        rows = held_rows(statement, context.columns)
        if rows is None:
            source: MergeSource = resources.enter_context(pinned_source(statement.source))
        else:
            local = plan_locally(statement, rows, state, context)
            if local is not None:
                return local
            source = held_source(statement, rows, context.spark)
        return self._plan_with_spark(source, state)

    def _plan_with_spark(self, source: MergeSource, state: TableState) -> _MergePlan | LocalUpsert:
        statement, context = self.statement, self.context
        updates = _evolution(statement, state) if statement.evolves_schema else None
        before = {field.name for field in state.schema.fields}
        state = updates.applied(state) if updates else state
        added = [field.name for field in state.schema.fields if field.name not in before]
        if state.has_inline_tier and (updates or statement.source_reads_target):
            raise NeedsFlushError
        if state.has_inline_tier and merge_has_subquery(statement, context.columns):
            state = context.tier.pin(state)
        bound = bind_merge(statement, source.frame, state, context.columns, context.resolve, added)
        files = choose_merge_files(bound, source, state, statement.options)
        if not source.is_held and may_be_local(statement, state, files):
            rows = fetch_kept_rows(source.frame)
            local = None if rows is None else plan_locally(statement, rows, state, context)
            if local is not None:
                return local
        cut = context.tier.cut(state, files.matcher.row_condition)
        unpartitioned = state.metadata.spec().is_unpartitioned()
        join = choose_join(statement, files, context.columns, unpartitioned=unpartitioned)
        joined = MergeJoin(
            Scan.of(context.spark, state, files.plan.candidates),
            source.frame,
            bound,
            join,
            statement.options.duplicates,
            files.keys,
        )
        plan = plan_merge(statement, bound, state, files, join)
        choice = choose_lookup(statement, bound, joined.scan, files, join)
        plan = replace(plan, reasons=(*plan.reasons, *choice.reasons))
        return _MergePlan(state, updates, bound, files, joined, plan, source, cut, choice.lookup)

    def explain(self, plan: _MergePlan | LocalUpsert) -> Plan:
        """The plan, with what the footers of files to rewrite say."""
        if isinstance(plan, LocalUpsert):
            return plan.plan
        bound, candidates = plan.bound, plan.files.plan.candidates
        if plan.reads_no_data and plan.lookup is not None:
            read = sum(c.live.size for c in candidates if c.path not in plan.lookup.files)
            return replace(plan.plan, estimated_bytes_read=read)
        if not (bound.numbers(Then.UPDATE) or bound.numbers(Then.DELETE)):
            return plan.plan
        return with_footers(plan.plan, plan.state, candidates, bound.updated_columns)

    def work(self, plan: _MergePlan | LocalUpsert, statement_id: str) -> Outcome:
        """Join, give each row one action, write what the actions ask for."""
        if isinstance(plan, LocalUpsert):
            outcome = plan.work(self.statement, statement_id)
            return replace(outcome, summary=_spark_summary(self.statement.clauses, outcome.report))
        inline = _merged_inline_rows(plan)
        joined = plan.joined
        if plan.lookup is not None:
            lookup = replace(plan.lookup, values=plan.source.key_values(plan.lookup.keys))
            probes = plan.plan.mode is not UpdateMode.MERGE_ON_READ
            joined = joined.looking_up(lookup, probes=probes)
        joined = joined.except_inline(inline.source_rows)
        if plan.files.plan.candidates or len(inline.source_rows) < plan.files.facts.rows:
            merged = MergeRows(joined, plan.files.plan, plan.plan.mode, statement_id).run()
        else:  # every source row matches an inline row
            merged = MergedRows(FileChanges(), RowCounts(), (0,) * len(plan.bound.clauses))
        changes = replace(merged.changes, metadata_updates=plan.metadata_updates)
        report = row_report(plan.plan, changes, merged.counts)
        if plan.reads_no_data and plan.lookup is not None:
            report = replace(report, files_scanned=report.files_scanned - len(plan.lookup.files))
        clauses = map(sum, zip(merged.clauses, inline.clauses, strict=True))
        report = replace(report, clauses=tuple(clauses))
        report, changes = with_inline_changes(self.context.tier, report, changes, inline.changes)
        return Outcome(
            report,
            changes,
            _conflict_check(plan, self.statement),
            _spark_summary(plan.bound.clauses, report),
        )


def _merged_inline_rows(plan: _MergePlan) -> MergedInlineRows:
    if plan.cut is None or not len(plan.cut.rows):
        no_rows = pa.array([], pa.int64())
        return MergedInlineRows(InlineChanges(), (0,) * len(plan.bound.clauses), no_rows)
    return merge_inline_rows(plan.joined, plan.cut)


def _evolution(statement: MergeStatement, state: TableState) -> MetadataUpdates | None:
    """The change of the schema that the source's columns ask for."""
    with translate_spark_errors():
        source = statement.source.schema
    existing = {field.name.lower() for field in state.schema.fields}
    columns: set[str] = set()
    for clause in statement.clauses:
        if clause.assignments is None:  # `*`: adds and widens
            columns |= {name.lower() for name in source.names}
        else:
            columns |= {name.lower() for name, _ in clause.assignments} - existing
    merged = merged_schema(state.schema, source, columns, state.metadata.last_column_id)
    return MetadataUpdates.new_schema(state, merged) if merged is not None else None


def _spark_summary(bound: Sequence[BoundClause | MergeClause], result: DmlResult) -> dict[str, str]:
    """The counts under the keys that Iceberg's Spark runtime writes."""

    def rows(when: When, then: Then) -> int:
        clauses = zip(bound, result.clauses, strict=True)
        return sum(n for clause, n in clauses if (clause.when, clause.then) == (when, then))

    counts = {
        "copied": result.rows_copied,
        "deleted": result.rows_deleted,
        "updated": result.rows_updated,
        "inserted": result.rows_inserted,
        "matched-updated": rows(When.MATCHED, Then.UPDATE),
        "matched-deleted": rows(When.MATCHED, Then.DELETE),
        "not-matched-by-source-updated": rows(When.NOT_MATCHED_BY_SOURCE, Then.UPDATE),
        "not-matched-by-source-deleted": rows(When.NOT_MATCHED_BY_SOURCE, Then.DELETE),
    }
    return {f"spark.merge-into.num-target-rows-{k}": str(v) for k, v in counts.items()}


def _conflict_check(plan: _MergePlan, statement: MergeStatement) -> ConflictCheck:
    """Rows added since matter when a source row may match them, or a subquery may read them.

    Where rows are inserted, so do the rows that kept source rows from being inserted.
    """
    matcher = plan.files.matcher
    reads_other_rows = plan.bound.has_subquery or statement.source_reads_target
    if reads_other_rows:
        matcher = FileMatcher(UNKNOWN, plan.state.schema, plan.state.metadata.specs())
    matched = None
    if statement.has(When.NOT_MATCHED):
        files = {c.path: c.live for c in plan.files.plan.candidates}
        matched = MatchedRows(files, plan.joined.matches_any_at)
    return ConflictCheck(plan.plan.isolation, matcher, reads_other_rows, matched=matched)
