"""Run one MERGE: pin the source, bind, plan, execute, publish."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from icefloe.commands.context import Context, publish_changes, row_result, statement_files
from icefloe.commands.merge.bind import BoundMerge, bind_merge
from icefloe.commands.merge.files import MergeFiles, choose_merge_files
from icefloe.commands.merge.join import Join, choose_join, plan_merge
from icefloe.commands.merge.label import MergeJoin
from icefloe.commands.merge.rows import MergeRows
from icefloe.commands.merge.source import pinned_source
from icefloe.commands.plan import Plan, with_footers
from icefloe.commit.conflicts import ConflictCheck, MatchedRows
from icefloe.commit.publish import already_done
from icefloe.metadata.table_state import SchemaChange, TableState
from icefloe.pruning.comparisons import UNKNOWN
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.results import DmlResult
from icefloe.scan.scan import Scan
from icefloe.schema.widen import merged_schema
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.session import prepare
from icefloe.statements import MergeStatement, Then, When


@dataclass(frozen=True, slots=True)
class _Planned:
    state: TableState  # with the schema as it will be
    schema_change: SchemaChange | None
    bound: BoundMerge
    files: MergeFiles
    join: Join
    plan: Plan


def explain_merge(statement: MergeStatement, context: Context) -> Plan:
    """What a MERGE would do; its source is measured, the table's rows are not read."""
    with pinned_source(statement.source) as source:
        planned = _plan(statement, source, context, context.read_state(statement.options.branch))
    bound, candidates = planned.bound, planned.files.plan.candidates
    if not (bound.numbers(Then.UPDATE) or bound.numbers(Then.DELETE)):
        return planned.plan
    return with_footers(planned.plan, planned.state, candidates, bound.updated_columns)


def run_merge(statement: MergeStatement, context: Context) -> DmlResult:
    """Run one MERGE and publish it as at most one snapshot."""
    state = context.read_state(statement.options.branch)
    if done := already_done(state, statement.options.idempotency_key):
        return done
    prepare(statement.source.sparkSession)  # a streaming batch comes with a session of its own
    with pinned_source(statement.source) as source:
        planned = _plan(statement, source, context, state)
        state = planned.state
        with statement_files(state) as statement_id:
            work = _work(statement, source, context, planned, statement_id)
            outcome = work.run()
            result = row_result(planned.plan, outcome.rows)
            result = replace(result, clauses=outcome.clauses)
            return publish_changes(
                context,
                state,
                outcome.rows.changes,
                _guard(planned, statement, work.labeller),
                statement.options,
                lambda _gone: result,
                _spark_summary(planned.bound, result),
                planned.schema_change,
            )


def _plan(
    statement: MergeStatement, source: DataFrame, context: Context, state: TableState
) -> _Planned:
    change = _evolution(statement, state) if statement.evolves_schema else None
    before = {field.name for field in state.schema.fields}
    state = change.applied(state) if change else state
    added = [field.name for field in state.schema.fields if field.name not in before]
    bound = bind_merge(statement, source, state, context.spark, context.resolve, added)
    files = choose_merge_files(bound, source, state, statement.options)
    unpartitioned = state.metadata.spec().is_unpartitioned()
    join = choose_join(statement, files, context.spark, unpartitioned=unpartitioned)
    plan = plan_merge(statement, bound, state, files, join)
    return _Planned(state, change, bound, files, join, plan)


def _evolution(statement: MergeStatement, state: TableState) -> SchemaChange | None:
    """The change of the schema that the source's columns ask for."""
    with translate_spark_errors():
        source = statement.source.schema
    known = {field.name.lower() for field in state.schema.fields}
    wanted: set[str] = set()
    for clause in statement.clauses:
        if clause.assignments is None:  # `*`: adds and widens
            wanted |= {name.lower() for name in source.names}
        else:
            wanted |= {name.lower() for name, _ in clause.assignments} - known
    merged = merged_schema(state.schema, source, wanted, state.metadata.last_column_id)
    return SchemaChange.of(state, merged) if merged is not None else None


def _work(
    statement: MergeStatement,
    source: DataFrame,
    context: Context,
    planned: _Planned,
    statement_id: str,
) -> MergeRows:
    labeller = MergeJoin(
        Scan.of(context.spark, planned.state, planned.files.plan.candidates),
        source,
        planned.bound,
        planned.join,
        statement.options.duplicates,
        planned.files.keys,
    )
    return MergeRows(labeller, planned.files.plan, planned.plan.mode, statement_id)


def _spark_summary(bound: BoundMerge, result: DmlResult) -> dict[str, str]:
    """The counts under the keys that Iceberg's Spark runtime writes."""

    def rows(when: When, then: Then) -> int:
        chosen = zip(bound.clauses, result.clauses, strict=True)
        return sum(n for clause, n in chosen if (clause.when, clause.then) == (when, then))

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


def _guard(planned: _Planned, statement: MergeStatement, labeller: MergeJoin) -> ConflictCheck:
    """Rows added since matter when a source row may match them, or a subquery may read them.

    Where rows are inserted, so do the rows that kept source rows from being inserted.
    """
    matcher = planned.files.matcher
    reads_other_rows = planned.bound.has_subquery or statement.source_reads_target
    if reads_other_rows:
        matcher = FileMatcher(UNKNOWN, planned.state.schema, planned.state.metadata.specs())
    matched = None
    if statement.has(When.NOT_MATCHED):
        files = {c.path: c.live for c in planned.files.plan.candidates}
        matched = MatchedRows(files, labeller.matches_any_at)
    return ConflictCheck(planned.plan.isolation, matcher, reads_other_rows, matched=matched)
