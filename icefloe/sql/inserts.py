"""INSERT in its forms: the query's rows fitted to the table, then appended or put in place."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from icefloe.commands.context import Context
from icefloe.commands.input_rows import fit_rows
from icefloe.commands.replace.overwrite_partitions import overwrite_partitions
from icefloe.commands.replace.using import explain_using, run_using
from icefloe.commands.replace.where import explain_replace, run_replace
from icefloe.commands.run import run
from icefloe.errors import ColumnNotFoundError, ReplaceWhereError, SchemaMismatchError
from icefloe.metadata.table_state import MAIN, TableState
from icefloe.results import DmlResult
from icefloe.schema.to_spark import spark_schema
from icefloe.spark.columns import quote, quoted
from icefloe.spark.errors import translated
from icefloe.spark.expressions import expression
from icefloe.sql.names import Names
from icefloe.sql.queries import run_query
from icefloe.sql.syntax import Insert, InsertKind
from icefloe.statements import (
    Replacement,
    ReplaceStatement,
    Scope,
    UsingStatement,
    WriteKind,
    WriteStatement,
)

_OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"


def run_insert(insert: Insert, names: Names, context: Context, whole: str) -> DmlResult:
    """Run an INSERT."""
    state = context.read_state(MAIN)
    rows = _fitted(insert, run_query(insert.query, names, whole), state)
    match insert.kind:
        case InsertKind.INTO:
            return run(_write(WriteKind.APPEND, rows, state, context), context)
        case InsertKind.REPLACE_USING:
            return run_using(UsingStatement(insert.using, rows), context)
        case InsertKind.REPLACE_WHERE:
            return _replace_where(insert, rows, context)
    if insert.partition is not None:
        return run_replace(_of_partition(insert, rows), context)
    if _is_dynamic(context, state):
        statement = _write(WriteKind.OVERWRITE_PARTITIONS, rows, state, context)
        return overwrite_partitions(statement, context)
    return run(_write(WriteKind.OVERWRITE, rows, state, context), context)


def explain_insert(insert: Insert, names: Names, context: Context, whole: str) -> str:
    """What an INSERT would do; the query is analysed, not run."""
    state = context.read_state(MAIN)
    rows = _fitted(insert, run_query(insert.query, names, whole), state)
    match insert.kind:
        case InsertKind.REPLACE_USING:
            return str(explain_using(UsingStatement(insert.using, rows), context))
        case InsertKind.REPLACE_WHERE:
            return _explain_replace_where(insert, rows, context)
        case InsertKind.OVERWRITE if insert.partition is not None:
            return str(explain_replace(_of_partition(insert, rows), context))
    fit_rows(rows, state, context.spark)
    at = f"{state.name} at snapshot {state.snapshot_id}"
    if insert.kind is InsertKind.INTO:
        return f"append to {at}\n  rows become new data files; no file of the table is read"
    if _is_dynamic(context, state):
        return f"overwrite partitions of {at}\n  those that the new rows lie in are replaced"
    return f"overwrite {at}\n  {_existing(state)} replaced; no file of the table is read"


def explain_truncate(context: Context) -> str:
    """What a TRUNCATE would do."""
    state = context.read_state(MAIN)
    return (
        f"truncate {state.name} at snapshot {state.snapshot_id}\n"
        f"  {_existing(state)} removed, by metadata alone"
    )


def _existing(state: TableState) -> str:
    summary = state.snapshot.summary if state.snapshot else None
    facts = summary.additional_properties if summary else {}
    files, rows = facts.get("total-data-files", "0"), facts.get("total-records", "0")
    return f"{files} data files of {rows} rows are"


def _write(kind: WriteKind, rows: DataFrame, state: TableState, context: Context) -> WriteStatement:
    return WriteStatement(kind, fit_rows(rows, state, context.spark))


def _is_dynamic(context: Context, state: TableState) -> bool:
    """Whether the session asks for Spark's dynamic overwrite, and the table has partitions."""
    mode = str(context.spark.conf.get(_OVERWRITE_MODE, "static"))
    return mode.lower() == "dynamic" and not state.metadata.spec().is_unpartitioned()


def _replace_where(insert: Insert, rows: DataFrame, context: Context) -> DmlResult:
    """By partitions where the predicate goes by them, else by rows."""
    by_partitions, by_rows = _of_predicate(insert, rows)
    try:
        return run_replace(by_partitions, context)
    except ReplaceWhereError:
        return run_replace(by_rows, context)


def _explain_replace_where(insert: Insert, rows: DataFrame, context: Context) -> str:
    by_partitions, by_rows = _of_predicate(insert, rows)
    try:
        return str(explain_replace(by_partitions, context))
    except ReplaceWhereError:
        return str(explain_replace(by_rows, context))


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
    """The query's rows under the table's names: by position, or by name where that is said."""
    schema = spark_schema(state.schema)
    fixed = {
        (name := _known(column, schema)): expression(value.text).cast(schema[name].dataType)
        for column, value in insert.partition or ()
    }
    with translated():
        given = rows.schema.names
    if insert.by_name:
        places = {_known(name, schema): i for i, name in enumerate(given)}
        if len(places) < len(given):
            raise SchemaMismatchError("The query gives a column twice.")
    else:
        places = {name: i for i, name in enumerate(_by_position(insert, given, schema, fixed))}
    both = sorted(set(places) & set(fixed))
    if both:
        raise SchemaMismatchError(f"PARTITION gives {both[0]!r}, and so does the query.")
    numbered = rows.toDF(*(f"c{i}" for i in range(len(given))))

    def value(name: str) -> Column:
        if name in places:
            return quoted(f"c{places[name]}")
        return fixed.get(name, F.lit(None))

    with translated():
        return numbered.select(*(value(name).alias(name) for name in schema.names))


def _by_position(
    insert: Insert, given: list[str], schema: StructType, fixed: dict[str, Column]
) -> list[str]:
    if insert.columns is not None:
        wanted = [_known(name, schema) for name in insert.columns]
    else:
        wanted = [name for name in schema.names if name not in fixed]
    if len(given) != len(wanted):
        raise SchemaMismatchError(
            f"The query gives {len(given)} columns, but {len(wanted)} are needed: "
            f"{', '.join(wanted)}."
        )
    return wanted


def _known(name: str, schema: StructType) -> str:
    for known in schema.names:
        if known.lower() == name.lower():
            return str(known)
    raise ColumnNotFoundError(name, schema.names)
