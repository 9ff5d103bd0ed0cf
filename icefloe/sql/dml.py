"""INSERT, UPDATE, DELETE and MERGE: what was parsed → the statements that the builders make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from pyspark.sql.types import StructType

from icefloe.commands.context import Context
from icefloe.commands.run import explain, run
from icefloe.errors import ColumnNotFoundError, StatementError
from icefloe.maintenance.compact import compact
from icefloe.metadata.table_state import MAIN, TableState, state_of
from icefloe.results import DmlResult
from icefloe.schema.to_spark import spark_schema
from icefloe.settings import UpdateKind
from icefloe.spark.expressions import resolve_tables, views_dropped
from icefloe.spark.table_names import table_names, unqualified
from icefloe.sql import syntax
from icefloe.sql.inserts import explain_insert, explain_truncate, run_insert
from icefloe.sql.names import Names, full_name
from icefloe.sql.queries import define_ctes, placed_errors, run_query
from icefloe.statements import (
    MergeClause,
    MergeStatement,
    RowStatement,
    WriteKind,
    WriteStatement,
)

_ALL_OF = "SELECT * FROM "

Ready: TypeAlias = RowStatement | MergeStatement


def run_dml(parsed: syntax.WithDml, names: Names, whole: str) -> DmlResult:
    """Run a DML statement."""
    spark = names.lake.spark
    with views_dropped(spark), placed_errors(parsed.statement.expressions(), spark, whole):
        target = _Target.of(parsed, names, whole)
        match parsed.statement:
            case syntax.Insert() as insert:
                return run_insert(insert, target.names, target.context, whole)
            case syntax.Truncate():
                return run(WriteStatement(WriteKind.TRUNCATE), target.context)
            case syntax.Optimize(_, where):
                return compact(target.context, target.text(where), None)
            case _ as statement:
                return run(target.ready(statement), target.context)


def explain_dml(parsed: syntax.WithDml, names: Names, whole: str) -> str:
    """What a DML statement would do, for people."""
    spark = names.lake.spark
    with views_dropped(spark), placed_errors(parsed.statement.expressions(), spark, whole):
        target = _Target.of(parsed, names, whole)
        match parsed.statement:
            case syntax.Insert() as insert:
                return explain_insert(insert, target.names, target.context, whole)
            case syntax.Truncate():
                return explain_truncate(target.context)
            case syntax.Optimize():
                raise StatementError("EXPLAIN OPTIMIZE is not supported.")
            case _ as statement:
                return str(explain(target.ready(statement), target.context))


@dataclass(frozen=True, slots=True)
class _Target:
    """The table that a statement changes, and how its texts are read."""

    names: Names
    context: Context
    whole: str
    table: syntax.Name
    alias: str | None
    read_by_with: bool  # whether a WITH before the statement reads it too

    @classmethod
    def of(cls, parsed: syntax.WithDml, names: Names, whole: str) -> _Target:
        """Read the table's state, once: wherever the statement names it, it sees these rows."""
        statement = parsed.statement
        alias = getattr(statement, "alias", None)
        full = full_name(statement.table)
        state = replace(state_of(names.lake.load(full), full), called=alias)
        names = replace(names, reading=state)
        read_by_with = False
        if parsed.ctes is not None:
            read_by_with = _names_target(f"{parsed.ctes.text.text} SELECT 1", names)
            names = replace(names, ctes=define_ctes(parsed.ctes, names, whole))
        context = _context(state, names)
        return cls(names, context, whole, statement.table, alias, read_by_with)

    def ready(self, statement: syntax.Update | syntax.Delete | syntax.Merge) -> Ready:
        match statement:
            case syntax.Update():
                return RowStatement(
                    UpdateKind.UPDATE,
                    self.text(statement.where),
                    self._assigned(statement.assignments),
                )
            case syntax.Delete():
                return RowStatement(UpdateKind.DELETE, self.text(statement.where))
            case syntax.Merge():
                return self._merge(statement)

    def _merge(self, merge: syntax.Merge) -> MergeStatement:
        source = run_query(merge.source, self.names, self.whole, _ALL_OF)
        reads = self.read_by_with or _names_target(_ALL_OF + merge.source.text, self.names)
        clauses = tuple(
            MergeClause(
                clause.when,
                clause.then,
                self.text(clause.condition, merge.source_name),
                None
                if clause.assignments is None
                else self._assigned(clause.assignments, merge.source_name),
            )
            for clause in merge.clauses
        )
        return MergeStatement(
            source,
            str(self.text(merge.on, merge.source_name)),
            self.alias or self.table[-1],
            merge.source_name[-1],
            clauses,
            merge.evolves_schema,
            source_reads_target=reads,
        )

    def _assigned(
        self, assignments: tuple[tuple[syntax.Name, syntax.Slice], ...], *others: syntax.Name
    ) -> tuple[tuple[str, str], ...]:
        schema = spark_schema(self.context.read_state(MAIN).schema)
        return tuple(
            (self._column(name, schema), str(self.text(value, *others)))
            for name, value in assignments
        )

    def text(self, part: syntax.Slice | None, *others: syntax.Name) -> str | None:
        """An expression as Spark will read it: `ns.t.c` of a table without an alias is `t.c`."""
        if part is None:
            return None
        own = () if self.alias else (self.table,)
        return unqualified(part.text, (*own, *others)).text

    def _column(self, name: syntax.Name, schema: StructType) -> str:
        """The column that an assignment names, without what qualifies it."""
        known = {field.name.lower() for field in schema.fields}
        for qualifier in ((self.alias or self.table[-1],), self.table):
            width = len(qualifier)
            given = tuple(part.lower() for part in name[:width])
            if given != tuple(part.lower() for part in qualifier) or len(name) == width:
                continue
            if name[width].lower() in known or name[0].lower() not in known:
                name = name[width:]
                break
        if len(name) > 1 and any("." in part for part in name):
            raise ColumnNotFoundError(".".join(name), schema.names)
        if "." in name[0] and name[0].lower() not in known:
            raise ColumnNotFoundError(name[0], schema.names)
        return ".".join(name)


def _names_target(query: str, names: Names) -> bool:
    return any(map(names.is_target, table_names(query)))


def _context(state: TableState, names: Names) -> Context:
    """What the statement runs with: the table as it was read, names resolved our way."""

    def resolve(text: str, state: TableState) -> str:
        return resolve_tables(text, replace(names, reading=state).rows)

    return replace(names.lake.context(lambda _branch: state), resolve=resolve)
