"""Run INSERT, UPDATE, DELETE, MERGE, TRUNCATE and OPTIMIZE as the statements of the builders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from icefloe.commands.context import Context
from icefloe.commands.input_rows import fit_rows
from icefloe.commands.plan import Plan
from icefloe.commands.run import explain, flush, run
from icefloe.commands.run import insert as insert_rows
from icefloe.errors import (
    ColumnNotFoundError,
    ReplaceWhereError,
    SchemaMismatchError,
    StatementError,
)
from icefloe.maintenance.compact import compact
from icefloe.metadata.table_state import MAIN, TableState, state_of
from icefloe.results import DmlResult
from icefloe.schema.to_spark import spark_schema
from icefloe.settings import UpdateKind
from icefloe.spark.columns import quote, quoted
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.expressions import TempViews, expression
from icefloe.spark.sql_text import SqlText, unqualified
from icefloe.spark.table_names import TableName
from icefloe.sql import syntax
from icefloe.sql.names import Names, full_name
from icefloe.sql.queries import define_ctes, placed_errors, run_query
from icefloe.sql.syntax import Insert, InsertKind
from icefloe.statements import (
    MergeClause,
    MergeStatement,
    Replacement,
    ReplaceStatement,
    RowStatement,
    Scope,
    UsingStatement,
    WriteKind,
    WriteStatement,
)

_OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"
_ALL_OF = "SELECT * FROM "


def run_dml(parsed: syntax.WithDml, names: Names, whole: str) -> DmlResult:
    """Run a DML statement."""
    spark = names.tables.spark
    with (
        TempViews(lambda: spark) as views,
        placed_errors(parsed.statement.expressions(), spark, whole),
    ):
        target = _Target.of(parsed, names, whole, views)
        match parsed.statement:
            case syntax.Insert() as insert:
                return _run_insert(insert, target.names, target.context, whole)
            case syntax.Truncate():
                return run(WriteStatement(WriteKind.TRUNCATE), target.context)
            case syntax.Optimize(_, where):
                return compact(target.context, target.text(where), None)
            case _ as statement:
                return run(target.statement(statement), target.context)


def explain_dml(parsed: syntax.WithDml, names: Names, whole: str) -> Plan | str:
    """The plan of a DML statement; of those that read no file of the table, a text."""
    spark = names.tables.spark
    with (
        TempViews(lambda: spark) as views,
        placed_errors(parsed.statement.expressions(), spark, whole),
    ):
        target = _Target.of(parsed, names, whole, views, flushes=False)
        match parsed.statement:
            case syntax.Insert() as insert:
                return _explain_insert(insert, target.names, target.context, whole)
            case syntax.Truncate():
                return _explain_truncate(target.context)
            case syntax.Optimize():
                raise StatementError("EXPLAIN OPTIMIZE is not supported.")
            case _ as statement:
                return explain(target.statement(statement), target.context)


@dataclass(frozen=True, slots=True)
class _Target:
    """The table that a statement changes, and how the statement's names are resolved."""

    names: Names
    context: Context
    whole: str
    table: syntax.Name
    alias: str | None
    read_by_with: bool  # whether the WITH before the statement reads this table

    @classmethod
    def of(
        cls,
        parsed: syntax.WithDml,
        names: Names,
        whole: str,
        views: TempViews,
        *,
        flushes: bool = True,
    ) -> _Target:
        """Read the state of the table once: everywhere in the statement it has the same rows.

        Statements that may read the table more than once have its inline rows flushed before.
        """
        statement = parsed.statement
        alias = getattr(statement, "alias", None)
        full = full_name(statement.table)

        def read_state(branch: str = MAIN) -> TableState:
            return replace(state_of(names.tables.load(full), full, branch), called=alias)

        state = read_state()
        in_place = (
            state.has_inline_tier
            and parsed.ctes is None
            and _is_in_place(statement, replace(names, reading=state))
        )
        if state.has_inline_tier and not in_place and not _is_blind(statement):
            if flushes:
                flush(names.tables.context(read_state))
                state = read_state()
            state = replace(state, files_only=True)
        names = replace(names, reading=state)
        read_by_with = False
        if parsed.ctes is not None:
            read_by_with = _names_target(SqlText(f"{parsed.ctes.text.text} SELECT 1"), names)
            names = replace(names, ctes=define_ctes(parsed.ctes, names, whole))
        context = _context(read_state if in_place else lambda _branch: state, names)
        context = replace(context, views=views)
        return cls(names, context, whole, statement.table, alias, read_by_with)

    def statement(
        self, statement: syntax.UpdateTable | syntax.DeleteFrom | syntax.MergeInto
    ) -> RowStatement | MergeStatement:
        match statement:
            case syntax.UpdateTable():
                return RowStatement(
                    UpdateKind.UPDATE,
                    self.text(statement.where),
                    self._assigned(statement.assignments),
                )
            case syntax.DeleteFrom():
                return RowStatement(UpdateKind.DELETE, self.text(statement.where))
            case syntax.MergeInto():
                return self._merge(statement)

    def _merge(self, merge: syntax.MergeInto) -> MergeStatement:
        source = run_query(merge.source, self.names, self.whole, _ALL_OF)
        reads = self.read_by_with or _names_target(SqlText(_ALL_OF + merge.source.text), self.names)
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
            self._unqualified(merge.on, merge.source_name),
            self.alias or self.table[-1],
            merge.source_name[-1],
            clauses,
            merge.evolves_schema,
            source_reads_target=reads,
        )

    def _assigned(
        self, assignments: tuple[tuple[syntax.Name, syntax.Slice], ...], *others: syntax.Name
    ) -> tuple[tuple[str, SqlText], ...]:
        schema = spark_schema(self.context.read_state(MAIN).schema)
        return tuple(
            (self._column(name, schema), self._unqualified(value, *others))
            for name, value in assignments
        )

    def text(self, part: syntax.Slice | None, *others: syntax.Name) -> SqlText | None:
        """An optional expression as Spark will read it."""
        return None if part is None else self._unqualified(part, *others)

    def _unqualified(self, part: syntax.Slice, *others: syntax.Name) -> SqlText:
        """An expression with `t.c` for `ns.t.c` of a table without an alias, as Spark needs it."""
        own = () if self.alias else (self.table,)
        return unqualified(part.text, (*own, *others))

    def _column(self, name: syntax.Name, schema: StructType) -> str:
        """The column of an assignment, without its qualifier."""
        columns = {field.name.lower() for field in schema.fields}
        for qualifier in ((self.alias or self.table[-1],), self.table):
            width = len(qualifier)
            prefix = tuple(part.lower() for part in name[:width])
            if prefix != tuple(part.lower() for part in qualifier) or len(name) == width:
                continue
            if name[width].lower() in columns or name[0].lower() not in columns:
                name = name[width:]
                break
        if len(name) > 1 and any("." in part for part in name):
            raise ColumnNotFoundError(".".join(name), schema.names)
        if "." in name[0] and name[0].lower() not in columns:
            raise ColumnNotFoundError(name[0], schema.names)
        return ".".join(name)


def _names_target(query: SqlText, names: Names) -> bool:
    return any(map(names.is_target, query.query_tables))


def _is_in_place(statement: syntax.Dml, names: Names) -> bool:
    """Whether a statement changes inline rows where they are, and may read the table again."""
    match statement:
        case syntax.UpdateTable() | syntax.DeleteFrom():
            return True
        case syntax.MergeInto():
            return not _names_target(SqlText(_ALL_OF + statement.source.text), names)
        case syntax.Insert(kind=InsertKind.INTO):
            return _is_values(statement)
        case syntax.Insert(kind=InsertKind.REPLACE_WHERE | InsertKind.REPLACE_USING):
            return not _names_target(statement.query.text, names)
        case _:
            return False


def _is_blind(statement: syntax.Dml) -> bool:
    """Whether a statement needs no row of its table."""
    match statement:
        case syntax.Truncate() | syntax.Optimize():
            return True
        case syntax.Insert():
            return statement.kind is InsertKind.INTO
        case _:
            return False


def _context(read_state: Callable[[str], TableState], names: Names) -> Context:
    """The context of the statement: the state of the table, and the names of the whole text."""

    def rows_of(name: TableName, reading: TableState) -> DataFrame | None:
        return replace(names, reading=reading).rows(name)

    return replace(names.tables.context(read_state), rows_of=rows_of)


# -------------------------------------------------------------------------------------------------
# INSERT


def _run_insert(insert: Insert, names: Names, context: Context, whole: str) -> DmlResult:
    """Run an INSERT."""
    state = context.read_state(MAIN)
    rows = _fitted(insert, run_query(insert.query, names, whole), state)
    match insert.kind:
        case InsertKind.INTO if _is_values(insert):
            return insert_rows(rows, None, context, state)[0]
        case InsertKind.INTO:
            return run(_write(WriteKind.APPEND, rows, state, context), context)
        case InsertKind.REPLACE_USING:
            return run(UsingStatement(insert.using, rows), context)
        case InsertKind.REPLACE_WHERE:
            return _replace_where(insert, rows, context)
    if insert.partition is not None:
        return run(_of_partition(insert, rows), context)
    if _is_dynamic(context, state):
        statement = _write(WriteKind.OVERWRITE_PARTITIONS, rows, state, context)
        return run(statement, context)
    return run(_write(WriteKind.OVERWRITE, rows, state, context), context)


def _is_values(insert: Insert) -> bool:
    """Whether the rows are written in the statement: such are few, and may go inline."""
    first = insert.query.text.tokens[0]
    return first.text.upper() == "VALUES"


def _explain_insert(insert: Insert, names: Names, context: Context, whole: str) -> Plan | str:
    """The plan of an INSERT; the query is analysed, not run."""
    state = context.read_state(MAIN)
    rows = _fitted(insert, run_query(insert.query, names, whole), state)
    match insert.kind:
        case InsertKind.REPLACE_USING:
            return explain(UsingStatement(insert.using, rows), context)
        case InsertKind.REPLACE_WHERE:
            return _explain_replace_where(insert, rows, context)
        case InsertKind.OVERWRITE if insert.partition is not None:
            return explain(_of_partition(insert, rows), context)
    fit_rows(rows, state, context.spark)
    at = f"{state.name} at snapshot {state.snapshot_id}"
    if insert.kind is InsertKind.INTO and _is_values(insert) and state.settings.inline_enabled:
        return f"insert into {at}\n  rows are stored inline; no file is written"
    if insert.kind is InsertKind.INTO:
        return f"append to {at}\n  rows become new data files; no file of the table is read"
    if _is_dynamic(context, state):
        return f"overwrite partitions of {at}\n  the partitions of the new rows are replaced"
    return f"overwrite {at}\n  {_existing(state)} replaced; no file of the table is read"


def _explain_truncate(context: Context) -> str:
    """The plan of a TRUNCATE."""
    state = context.read_state(MAIN)
    return (
        f"truncate {state.name} at snapshot {state.snapshot_id}\n"
        f"  {_existing(state)} removed in metadata only"
    )


def _existing(state: TableState) -> str:
    summary = state.snapshot.summary if state.snapshot else None
    facts = summary.additional_properties if summary else {}
    files, rows = facts.get("total-data-files", "0"), facts.get("total-records", "0")
    return f"{files} data files of {rows} rows are"


def _write(kind: WriteKind, rows: DataFrame, state: TableState, context: Context) -> WriteStatement:
    return WriteStatement(kind, fit_rows(rows, state, context.spark))


def _is_dynamic(context: Context, state: TableState) -> bool:
    """Whether Spark's dynamic overwrite mode is set and the table is partitioned."""
    mode = str(context.spark.conf.get(_OVERWRITE_MODE, "static"))
    return mode.lower() == "dynamic" and not state.metadata.spec().is_unpartitioned()


def _replace_where(insert: Insert, rows: DataFrame, context: Context) -> DmlResult:
    """Replace whole partitions if the predicate selects partitions, else rows."""
    by_partitions, by_rows = _of_predicate(insert, rows)
    try:
        return run(by_partitions, context)
    except ReplaceWhereError:
        return run(by_rows, context)


def _explain_replace_where(insert: Insert, rows: DataFrame, context: Context) -> Plan:
    by_partitions, by_rows = _of_predicate(insert, rows)
    try:
        return explain(by_partitions, context)
    except ReplaceWhereError:
        return explain(by_rows, context)


def _of_predicate(insert: Insert, rows: DataFrame) -> tuple[ReplaceStatement, ReplaceStatement]:
    statement = ReplaceStatement((Replacement(str(insert.predicate), rows),))
    rowwise = replace(statement, options=statement.options.with_(scope=Scope.ROWS))
    return statement, rowwise


def _of_partition(insert: Insert, rows: DataFrame) -> ReplaceStatement:
    terms = [
        f"{quote(column)} IS NULL"
        if value.text.upper() == "NULL"
        else f"{quote(column)} = ({value.text}\n)"
        for column, value in insert.partition or ()
    ]
    return ReplaceStatement((Replacement(" AND ".join(terms), rows),))


def _fitted(insert: Insert, rows: DataFrame, state: TableState) -> DataFrame:
    """The rows of the query with the columns of the table, matched by position or by name."""
    schema = spark_schema(state.schema)
    fixed = {
        (name := _column_name(column, schema)): expression(value.text).cast(schema[name].dataType)
        for column, value in insert.partition or ()
    }
    with translate_spark_errors():
        selected = rows.schema.names
    if insert.by_name:
        indexes = {_column_name(name, schema): i for i, name in enumerate(selected)}
        if len(indexes) < len(selected):
            raise SchemaMismatchError("The query gives a column twice.")
    else:
        columns = _by_position(insert, len(selected), schema, fixed)
        indexes = {name: i for i, name in enumerate(columns)}
    both = sorted(set(indexes) & set(fixed))
    if both:
        raise SchemaMismatchError(f"Both PARTITION and the query give column {both[0]!r}.")
    numbered = rows.toDF(*(f"c{i}" for i in range(len(selected))))

    def value(name: str) -> Column:
        if name in indexes:
            return quoted(f"c{indexes[name]}")
        return fixed.get(name, F.lit(None))

    with translate_spark_errors():
        return numbered.select(*(value(name).alias(name) for name in schema.names))


def _by_position(
    insert: Insert, count: int, schema: StructType, fixed: dict[str, Column]
) -> list[str]:
    """The columns of the table that the query's `count` columns are for."""
    if insert.columns is not None:
        columns = [_column_name(name, schema) for name in insert.columns]
    else:
        columns = [name for name in schema.names if name not in fixed]
    if count != len(columns):
        raise SchemaMismatchError(
            f"The query gives {count} columns, but {len(columns)} are needed: {', '.join(columns)}."
        )
    return columns


def _column_name(name: str, schema: StructType) -> str:
    for column in schema.names:
        if column.lower() == name.lower():
            return str(column)
    raise ColumnNotFoundError(name, schema.names)
