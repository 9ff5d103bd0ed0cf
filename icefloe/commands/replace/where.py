"""Run a REPLACE WHERE: rows that predicates are true for go, new rows come, in one commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from icefloe.commands.bind import Bound, bind_statement
from icefloe.commands.context import (
    Context,
    added_bytes,
    publish_changes,
    statement_files,
    with_statement_retries,
)
from icefloe.commands.input_rows import fit_rows
from icefloe.commands.plan import FileAction, Plan, PlannedFile, plan_statement, with_footers
from icefloe.commands.replace.partition_match import (
    Match,
    match_partition,
    refuse_between_borders,
    straddling,
)
from icefloe.commands.replace.predicate import parse_predicate
from icefloe.commands.replace.predicate_bind import PartitionPredicate, bind_predicate
from icefloe.commands.replace.translate import as_condition, as_lowered
from icefloe.commands.row_changes import RowChange, change_rows
from icefloe.commands.run import count_live
from icefloe.commit.conflicts import ConflictCheck
from icefloe.commit.publish import already_done
from icefloe.deletes.dangling import dangling_deletes
from icefloe.errors import InvalidPredicateError, ParseError
from icefloe.file_changes import FileChanges, RemoveFiles
from icefloe.metadata.files import PartitionKey
from icefloe.metadata.manifests import schema_for_spec
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import Candidate, FilePlan, SkippedFile, plan_files
from icefloe.pruning.comparisons import UNKNOWN, FilePredicate, any_of
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.results import DmlResult
from icefloe.scan.scan import Scan
from icefloe.settings import UpdateKind
from icefloe.spark import columns
from icefloe.statements import ReplaceStatement, RowStatement, Scope
from icefloe.write.data_files import WrittenRows, write_data

# -------------------------------------------------------------------------------------------------
# What a REPLACE WHERE on partitions removes: files told by their partition tuples, none read.


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The files that go, and those that stay."""

    predicates: tuple[PartitionPredicate, ...]
    lowered: FilePredicate
    removed: tuple[Candidate, ...]
    files: FilePlan

    @property
    def files_kept(self) -> int:
        """Live data files that are not touched."""
        return self.files.files_skipped + len(self.files.candidates) - len(self.removed)


def bind_predicates(
    statement: ReplaceStatement, state: TableState, time_zone: str
) -> tuple[PartitionPredicate, ...]:
    """The predicates of a statement, known to fit the table's partitions."""
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
    """Choose the files to remove; raises where a file may hold rows that stay besides some that go.

    Files are judged by their partition tuple, of whatever spec. Where the tuple does not tell, as
    in files of an older spec, column bounds may.
    """
    lowered = any_of([as_lowered(predicate) for predicate in predicates])
    files = plan_files(state, lowered)
    known: dict[PartitionKey, Match] = {}
    removed = []
    for candidate in files.candidates:
        key = candidate.live.partition_key
        if key not in known:
            known[key] = _match(state, predicates, candidate)
        if known[key] is Match.ALL or (known[key] is Match.SOME and candidate.covered):
            removed.append(candidate)
        elif known[key] is Match.SOME:
            raise _straddling(state, predicates, candidate)
    return PartitionPlan(predicates, lowered, tuple(removed), files)


def _match(
    state: TableState, predicates: Sequence[PartitionPredicate], candidate: Candidate
) -> Match:
    spec = state.metadata.specs()[candidate.live.spec_id]
    found = {match_partition(p, spec, candidate.live.file.partition) for p in predicates}
    if Match.ALL in found:
        return Match.ALL
    return Match.SOME if Match.SOME in found else Match.NONE


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
    """The plan for people: every file that goes is dropped by metadata."""
    options = statement.options
    gone = {candidate.path for candidate in planned.removed}
    kept = [c for c in planned.files.candidates if c.path not in gone]
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
        manifests_skipped=planned.files.manifests_skipped,
        estimated_bytes_read=0,
        estimated_bytes_written=0,
        reasons=(
            "scope partitions: whole files go by metadata, so no mode is needed",
            check_told(statement),
        ),
    )


def as_replace(plan: Plan, statement: ReplaceStatement) -> Plan:
    """The plan of the DELETE inside a REPLACE WHERE, told as the whole."""
    reasons = ("scope rows: any file may hold rows to replace", check_told(statement))
    return replace(
        plan,
        operation="replace_where",
        where=statement.text,
        reasons=(*plan.reasons, *reasons),
    )


def check_told(statement: ReplaceStatement) -> str:
    """What happens to new rows that do not satisfy the predicate."""
    if statement.options.check:
        return "new rows are checked while they are written"
    return "new rows are not checked (check=False)"


log = logging.getLogger("icefloe")


OPERATION = "replace_where"
PREDICATE_KEY = "icefloe.predicate"
SCOPE_KEY = "icefloe.scope"
DURATION_KEY = "icefloe.work-ms"  # from the start of the statement to its commit


@dataclass(frozen=True, slots=True)
class _RowPlan:
    """A REPLACE WHERE on rows, bound and planned."""

    conditions: tuple[Column, ...]
    lowered: FilePredicate
    reads_other_rows: bool
    files: FilePlan
    plan: Plan


def run_replace(statement: ReplaceStatement, context: Context) -> DmlResult:
    """Replace the rows that the predicates are true for, as at most one snapshot."""
    result = with_statement_retries(context, statement.options, lambda: _run(statement, context))
    log.info(
        "replaceWhere %s: %d data files removed, %d added",
        statement.text,
        result.data_files_removed,
        result.data_files_added,
    )
    return result


def explain_replace(statement: ReplaceStatement, context: Context) -> Plan:
    """What a REPLACE WHERE would do, without doing it."""
    state = context.read_state(statement.options.branch)
    for replacement in statement.replacements:
        fit_rows(replacement.rows, state, context.spark)
    if statement.options.scope is Scope.PARTITIONS:
        return explain_partitions(statement, state, _plan_partitions(statement, context, state))
    planned = _plan_rows(statement, context, state)
    return with_footers(planned.plan, state, planned.files.candidates, ())


def _run(statement: ReplaceStatement, context: Context) -> DmlResult:
    state = context.read_state(statement.options.branch)
    if done := already_done(state, statement.options.idempotency_key):
        return done
    if statement.options.scope is Scope.PARTITIONS:
        return _replace_partitions(statement, context, state)
    return _replace_rows(statement, context, state)


# Whole partitions


def _plan_partitions(
    statement: ReplaceStatement, context: Context, state: TableState
) -> PartitionPlan:
    zone = str(context.spark.conf.get("spark.sql.session.timeZone"))
    return plan_partitions(state, bind_predicates(statement, state, zone))


def _replace_partitions(
    statement: ReplaceStatement, context: Context, state: TableState
) -> DmlResult:
    started = time.monotonic()
    planned = _plan_partitions(statement, context, state)
    conditions = [as_condition(predicate, state.schema) for predicate in planned.predicates]
    scan = Scan.of(context.spark, state, planned.removed)
    removed = tuple(candidate.live for candidate in planned.removed)
    with statement_files(state) as statement_id:
        written = _write(statement, context, state, conditions, statement_id)
        changes = FileChanges(
            added_data=written.files,
            removal=RemoveFiles(
                removed, dangling_deletes(planned.files.files, removed, scan.delete_contents)
            ),
        )
        result = _result(changes, written, planned.files_kept)
        result = replace(result, rows_deleted=count_live(scan))
        guard = _guard(statement, state, planned.lowered, reads_other_rows=False)
        return _publish(statement, context, state, changes, guard, result, started)


# Any rows


def _plan_rows(statement: ReplaceStatement, context: Context, state: TableState) -> _RowPlan:
    """Each predicate is bound like the condition of a DELETE; together they choose the files."""
    deletes = [
        RowStatement(UpdateKind.DELETE, r.predicate, (), statement.options)
        for r in statement.replacements
    ]
    bound = [_bind(d, context, state) for d in deletes]
    has_subquery = any(b.has_subquery for b in bound)
    lowered = any_of([b.lowered for b in bound])
    files = plan_files(state, lowered)
    plan = plan_statement(deletes[0], state, files, assigned=(), has_subquery=has_subquery)
    conditions = tuple(b.condition for b in bound if b.condition is not None)
    return _RowPlan(conditions, lowered, has_subquery, files, as_replace(plan, statement))


def _bind(delete: RowStatement, context: Context, state: TableState) -> Bound:
    try:
        return bind_statement(delete, state, context.spark, context.resolve)
    except ParseError as wrong:
        raise InvalidPredicateError(str(delete.where), f"Spark cannot read it: {wrong}") from wrong


def _replace_rows(statement: ReplaceStatement, context: Context, state: TableState) -> DmlResult:
    started = time.monotonic()
    planned = _plan_rows(statement, context, state)
    scan = Scan.of(context.spark, state, planned.files.candidates)
    with statement_files(state) as statement_id:
        written = _write(statement, context, state, planned.conditions, statement_id)
        outcome = change_rows(
            RowChange(
                scan,
                planned.files,
                planned.plan.mode,
                reduce(lambda a, b: a | b, planned.conditions),
                {},
                statement_id,
            )
        )
        changes = replace(outcome.changes, added_data=(*outcome.changes.added_data, *written.files))
        outcome = replace(outcome, changes=changes)
        result = replace(
            _result(changes, written, planned.plan.files_skipped),
            mode=planned.plan.mode.value,
            rows_deleted=outcome.rows_deleted,
            rows_copied=outcome.rows_copied,
            files_scanned=planned.plan.files_scanned,
            bytes_copied=outcome.bytes_copied,
            bytes_encoded=outcome.bytes_encoded,
            row_groups_copied=outcome.row_groups_copied,
        )
        guard = _guard(statement, state, planned.lowered, reads_other_rows=planned.reads_other_rows)
        return _publish(statement, context, state, changes, guard, result, started)


# Both


def _write(
    statement: ReplaceStatement,
    context: Context,
    state: TableState,
    conditions: Sequence[Column],
    statement_id: str,
) -> WrittenRows:
    """Write all new rows in one job, which also looks whether each satisfies its predicate."""
    frames = [fit_rows(r.rows, state, context.spark) for r in statement.replacements]
    if not statement.options.check:
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
        predicates=[r.predicate for r in statement.replacements],
    )


def _result(changes: FileChanges, written: WrittenRows, files_skipped: int) -> DmlResult:
    removal = changes.removal
    return DmlResult(
        operation=OPERATION,
        rows_inserted=written.rows,
        data_files_added=len(changes.added_data),
        data_files_removed=len(removal.data) if isinstance(removal, RemoveFiles) else 0,
        delete_files_added=len(changes.added_deletes),
        delete_files_removed=len(removal.deletes) if isinstance(removal, RemoveFiles) else 0,
        files_skipped=files_skipped,
        bytes_written=added_bytes(changes),
    )


def _guard(
    statement: ReplaceStatement,
    state: TableState,
    lowered: FilePredicate,
    *,
    reads_other_rows: bool,
) -> ConflictCheck:
    isolation = statement.options.isolation or state.settings.isolation(UpdateKind.DELETE)
    chosen = UNKNOWN if reads_other_rows else lowered
    matcher = FileMatcher(chosen, state.schema, state.metadata.specs())
    return ConflictCheck(isolation, matcher, reads_other_rows)


def _publish(
    statement: ReplaceStatement,
    context: Context,
    state: TableState,
    changes: FileChanges,
    guard: ConflictCheck,
    result: DmlResult,
    started: float,
) -> DmlResult:
    facts = {
        PREDICATE_KEY: statement.text,
        SCOPE_KEY: statement.options.scope.value,
        DURATION_KEY: str(round((time.monotonic() - started) * 1000)),
    }
    options = replace(statement.options, summary={**statement.options.summary, **facts})
    return publish_changes(context, state, changes, guard, options, lambda _gone: result)
