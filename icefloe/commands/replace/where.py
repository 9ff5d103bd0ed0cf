"""REPLACE WHERE: the rows that predicates are true for are replaced by new rows, in one commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from icefloe.commands.bind import Bound, bind_statement, row_statement_has_subquery
from icefloe.commands.context import (
    Context,
    ExplainableCommand,
    Outcome,
    row_report,
)
from icefloe.commands.inline_rows import remove_inline_rows, with_inline_changes
from icefloe.commands.input_rows import fit_rows
from icefloe.commands.plan import FileAction, Plan, PlannedFile, plan_statement, with_footers
from icefloe.commands.replace.partition_match import (
    Match,
    match_partition,
    refuse_between_borders,
    straddling,
)
from icefloe.commands.replace.predicate import (
    PartitionPredicate,
    bind_predicate,
    parse_predicate,
)
from icefloe.commands.replace.translate import as_condition, as_lowered
from icefloe.commands.row_changes import RowChange, change_rows
from icefloe.commit.conflicts import ConflictCheck
from icefloe.deletes.dangling import dangling_deletes
from icefloe.errors import InvalidPredicateError, ParseError
from icefloe.file_changes import FileChanges, RemoveFiles
from icefloe.inline.cut import Cut
from icefloe.metadata.files import PartitionKey
from icefloe.metadata.manifests import schema_for_spec
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import Candidate, FilePlan, SkippedFile, plan_files
from icefloe.pruning.comparisons import UNKNOWN, FilePredicate, any_of
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.results import DmlResult, RowCounts
from icefloe.scan.row_counts import count_live_rows
from icefloe.scan.scan import Scan
from icefloe.settings import UpdateKind
from icefloe.spark import columns
from icefloe.spark.session import time_zone
from icefloe.statements import ReplaceOptions, ReplaceStatement, RowStatement, Scope
from icefloe.writing.data_files import WrittenRows, write_data

log = logging.getLogger("icefloe")

OPERATION = "replace_where"
PREDICATE_KEY = "icefloe.predicate"
SCOPE_KEY = "icefloe.scope"
DURATION_KEY = "icefloe.work-ms"  # from the start of the statement to its commit


def replace_where_command(
    statement: ReplaceStatement, context: Context
) -> ReplacePartitionsCommand | ReplaceRowsCommand:
    """The command for the statement's scope."""
    if statement.options.scope is Scope.PARTITIONS:
        return ReplacePartitionsCommand(statement, context)
    return ReplaceRowsCommand(statement, context)


@dataclass(frozen=True, slots=True)
class _ReplaceWhere:
    """What both scopes share."""

    statement: ReplaceStatement
    context: Context

    @property
    def options(self) -> ReplaceOptions:
        """How the statement runs."""
        return self.statement.options

    def log_result(self, result: DmlResult) -> None:
        """Log which predicate replaced how many files."""
        log.info(
            "replaceWhere %s: %d data files removed, %d added",
            self.statement.text,
            result.data_files_removed,
            result.data_files_added,
        )

    def _fitted(self, state: TableState) -> list[DataFrame]:
        return [
            fit_rows(replacement.rows, state, self.context.spark)
            for replacement in self.statement.replacements
        ]

    def _conflict_check(
        self, state: TableState, lowered: FilePredicate, *, reads_other_rows: bool
    ) -> ConflictCheck:
        isolation = self.options.isolation or state.settings.isolation(UpdateKind.DELETE)
        predicate = UNKNOWN if reads_other_rows else lowered
        matcher = FileMatcher(predicate, state.schema, state.metadata.specs())
        return ConflictCheck(isolation, matcher, reads_other_rows)

    def _with_inline_rows(
        self,
        cut: Cut | None,
        state: TableState,
        conditions: Sequence[Column],
        report: DmlResult,
        changes: FileChanges,
    ) -> tuple[DmlResult, FileChanges]:
        """Also remove the inline rows that one of the predicates is true for."""
        condition = reduce(lambda a, b: a | b, conditions)
        inline = remove_inline_rows(
            self.context.spark, cut, lambda rows: rows.alias(state.alias).filter(condition)
        )
        return with_inline_changes(self.context.tier, report, changes, inline)

    def _summary(self, started: float) -> dict[str, str]:
        return {
            PREDICATE_KEY: self.statement.text,
            SCOPE_KEY: self.options.scope.value,
            DURATION_KEY: str(round((time.monotonic() - started) * 1000)),
        }

    def _write(
        self,
        state: TableState,
        frames: Sequence[DataFrame],
        conditions: Sequence[Column],
        statement_id: str,
    ) -> WrittenRows:
        """Write all new rows in one job, which also checks each against its predicate."""
        if not self.options.check:
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
            predicates=[r.predicate for r in self.statement.replacements],
        )


# -------------------------------------------------------------------------------------------------
# Scope "partitions": whole files are removed by metadata, none is read


@dataclass(frozen=True, slots=True)
class _PartitionsPlan:
    state: TableState
    frames: list[DataFrame]
    partitions: PartitionPlan
    cut: Cut | None  # the inline rows that may be replaced
    started: float


@dataclass(frozen=True, slots=True)
class ReplacePartitionsCommand(_ReplaceWhere, ExplainableCommand[_PartitionsPlan]):
    """REPLACE WHERE on whole partitions."""

    def plan(self, state: TableState, _resources: ExitStack) -> _PartitionsPlan:
        """Bind the predicates to the partitions and choose the files to remove."""
        started = time.monotonic()
        zone = time_zone(self.context.spark)
        planned = plan_partitions(state, bind_predicates(self.statement, state, zone))
        cut = self.context.tier.cut(state, planned.lowered.inclusive)
        return _PartitionsPlan(state, self._fitted(state), planned, cut, started)

    def explain(self, plan: _PartitionsPlan) -> Plan:
        """The plan for people."""
        return explain_partitions(self.statement, plan.state, plan.partitions)

    def work(self, plan: _PartitionsPlan, statement_id: str) -> Outcome:
        """Write the new rows and count those of the removed files."""
        state, partitions = plan.state, plan.partitions
        conditions = [as_condition(predicate, state.schema) for predicate in partitions.predicates]
        scan = Scan.of(self.context.spark, state, partitions.removed)
        removed = tuple(candidate.live for candidate in partitions.removed)
        written = self._write(state, plan.frames, conditions, statement_id)
        dangling = dangling_deletes(partitions.files.files, removed, scan.delete_contents)
        changes = FileChanges(added_data=written.files, removal=RemoveFiles(removed, dangling))
        report = DmlResult(
            operation=OPERATION,
            rows_inserted=written.rows,
            rows_deleted=count_live_rows(scan),
            files_skipped=partitions.files_kept,
        )
        report, changes = self._with_inline_rows(plan.cut, state, conditions, report, changes)
        check = self._conflict_check(state, partitions.lowered, reads_other_rows=False)
        return Outcome(report, changes, check, self._summary(plan.started))


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The files to remove, and those that stay."""

    predicates: tuple[PartitionPredicate, ...]
    lowered: FilePredicate
    removed: tuple[Candidate, ...]
    files: FilePlan

    @property
    def files_kept(self) -> int:
        """Live data files that stay."""
        return self.files.files_skipped + len(self.files.candidates) - len(self.removed)


def bind_predicates(
    statement: ReplaceStatement, state: TableState, time_zone: str
) -> tuple[PartitionPredicate, ...]:
    """The predicates of a statement, bound to the table's partitions."""
    spec = state.metadata.spec()
    bound = []
    for replacement in statement.replacements:
        text = replacement.predicate
        tree = parse_predicate(text)
        predicate = bind_predicate(
            text, tree, state.schema, spec, table=state.name, time_zone=time_zone
        )
        refuse_between_borders(predicate, spec)
        bound.append(predicate)
    return tuple(bound)


def plan_partitions(state: TableState, predicates: tuple[PartitionPredicate, ...]) -> PartitionPlan:
    """Choose the files to remove; raises where a file may hold both rows to remove and others.

    Files are matched by their partition tuple, of any spec. Where the tuple does not decide, as in
    files of an older spec, column bounds may.
    """
    lowered = any_of([as_lowered(predicate) for predicate in predicates])
    files = plan_files(state, lowered)
    matches: dict[PartitionKey, Match] = {}
    removed = []
    for candidate in files.candidates:
        key = candidate.live.partition_key
        if key not in matches:
            matches[key] = _match(state, predicates, candidate)
        if matches[key] is Match.ALL or (matches[key] is Match.SOME and candidate.covered):
            removed.append(candidate)
        elif matches[key] is Match.SOME:
            raise _straddling(state, predicates, candidate)
    return PartitionPlan(predicates, lowered, tuple(removed), files)


def _match(
    state: TableState, predicates: Sequence[PartitionPredicate], candidate: Candidate
) -> Match:
    spec = state.metadata.specs()[candidate.live.spec_id]
    matches = {match_partition(p, spec, candidate.live.file.partition) for p in predicates}
    if Match.ALL in matches:
        return Match.ALL
    return Match.SOME if Match.SOME in matches else Match.NONE


def _straddling(
    state: TableState, predicates: Sequence[PartitionPredicate], candidate: Candidate
) -> Exception:
    spec = state.metadata.specs()[candidate.live.spec_id]
    partition = candidate.live.file.partition
    text = next(p.text for p in predicates if match_partition(p, spec, partition) is Match.SOME)
    return straddling(text, spec, schema_for_spec(state.metadata, spec), partition)


def explain_partitions(
    statement: ReplaceStatement, state: TableState, planned: PartitionPlan
) -> Plan:
    """The plan for people: removed files are dropped by metadata."""
    options = statement.options
    removed = {candidate.path for candidate in planned.removed}
    kept = [c for c in planned.files.candidates if c.path not in removed]
    return Plan(
        operation="replace_where",
        table=state.name,
        snapshot_id=state.snapshot_id,
        mode=options.mode or state.settings.mode(UpdateKind.DELETE),
        isolation=options.isolation or state.settings.isolation(UpdateKind.DELETE),
        where=statement.text,
        assignments=(),
        files=tuple(
            PlannedFile(c.path, c.live.rows, c.live.size, FileAction.DROP, "its partition matches")
            for c in planned.removed
        ),
        skipped=(
            *planned.files.skipped,
            *(SkippedFile(c.path, "partition") for c in kept),
        ),
        files_skipped=planned.files_kept,
        manifests_read=planned.files.manifests_read,
        manifests_cached=planned.files.manifests_cached,
        manifests_skipped=planned.files.manifests_skipped,
        estimated_bytes_read=0,
        estimated_bytes_written=0,
        reasons=(
            "scope partitions: whole files are removed by metadata, so no mode applies",
            check_reason(statement),
        ),
    )


def as_replace(plan: Plan, statement: ReplaceStatement) -> Plan:
    """The plan of the DELETE inside a REPLACE WHERE, as the plan of the whole."""
    reasons = ("scope rows: any file may hold rows to replace", check_reason(statement))
    return replace(
        plan,
        operation="replace_where",
        where=statement.text,
        reasons=(*plan.reasons, *reasons),
    )


def check_reason(statement: ReplaceStatement) -> str:
    """What happens to new rows that do not satisfy the predicate."""
    if statement.options.check:
        return "new rows are checked while they are written"
    return "new rows are not checked (check=False)"


# -------------------------------------------------------------------------------------------------
# Scope "rows": any rows, by the table's delete mode


@dataclass(frozen=True, slots=True)
class _RowsPlan:
    state: TableState
    frames: list[DataFrame]
    conditions: tuple[Column, ...]
    lowered: FilePredicate
    reads_other_rows: bool
    files: FilePlan
    plan: Plan
    cut: Cut | None  # the inline rows that may be replaced
    started: float


@dataclass(frozen=True, slots=True)
class ReplaceRowsCommand(_ReplaceWhere, ExplainableCommand[_RowsPlan]):
    """REPLACE WHERE on any rows."""

    def plan(self, state: TableState, _resources: ExitStack) -> _RowsPlan:
        """Bind each predicate like the condition of a DELETE; together they choose the files."""
        started = time.monotonic()
        deletes = [
            RowStatement(UpdateKind.DELETE, r.predicate, (), self.options)
            for r in self.statement.replacements
        ]
        columns = self.context.columns
        has_subquery = any(row_statement_has_subquery(delete, columns) for delete in deletes)
        if has_subquery:
            state = self.context.tier.pin(state)
        bound = [_bind(delete, self.context, state) for delete in deletes]
        lowered = any_of([b.lowered for b in bound])
        cut = self.context.tier.cut(state, lowered.inclusive)
        files = plan_files(state, lowered)
        plan = plan_statement(deletes[0], state, files, assigned=(), has_subquery=has_subquery)
        return _RowsPlan(
            state,
            self._fitted(state),
            tuple(b.condition for b in bound if b.condition is not None),
            lowered,
            has_subquery,
            files,
            as_replace(plan, self.statement),
            cut,
            started,
        )

    def explain(self, plan: _RowsPlan) -> Plan:
        """The plan, with what the footers of files to rewrite say."""
        return with_footers(plan.plan, plan.state, plan.files.candidates, ())

    def work(self, plan: _RowsPlan, statement_id: str) -> Outcome:
        """Write the new rows, then delete the old ones."""
        written = self._write(plan.state, plan.frames, plan.conditions, statement_id)
        changes, counts = change_rows(
            RowChange(
                Scan.of(self.context.spark, plan.state, plan.files.candidates),
                plan.files,
                plan.plan.mode,
                reduce(lambda a, b: a | b, plan.conditions),
                {},
                statement_id,
            )
        )
        changes = replace(changes, added_data=(*changes.added_data, *written.files))
        counts += RowCounts(rows_inserted=written.rows)
        check = self._conflict_check(
            plan.state, plan.lowered, reads_other_rows=plan.reads_other_rows
        )
        report = row_report(plan.plan, changes, counts)
        report, changes = self._with_inline_rows(
            plan.cut, plan.state, plan.conditions, report, changes
        )
        return Outcome(report, changes, check, self._summary(plan.started))


def _bind(delete: RowStatement, context: Context, state: TableState) -> Bound:
    try:
        return bind_statement(delete, state, context.columns, context.resolve)
    except ParseError as error:
        reason = f"Spark cannot parse it: {error}"
        raise InvalidPredicateError(str(delete.where), reason) from error
