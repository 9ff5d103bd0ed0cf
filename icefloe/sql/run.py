"""`lake.sql`: parse all statements of a text, then run them in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeGuard

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from icefloe.errors import IcefloeError, ParseError, StatementError
from icefloe.results import DmlResult
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.frames import frame_of
from icefloe.sql.ddl import SqlLake, run_ddl
from icefloe.sql.dml import explain_dml, run_dml
from icefloe.sql.names import Names, TablesRead
from icefloe.sql.parse import parse_statements
from icefloe.sql.queries import run_query
from icefloe.sql.show import run_show, text_frame
from icefloe.sql.syntax import (
    Describe,
    Explain,
    Parsed,
    Query,
    ShowCreateTable,
    ShowIndexes,
    ShowNamespaces,
    ShowProperties,
    ShowTables,
    WithDml,
)

SqlResult: TypeAlias = DataFrame | DmlResult


def run_sql(text: str, sources: Mapping[str, object], lake: SqlLake) -> SqlResult:
    """Run the statements of a text and return the result of the last one.

    Nothing runs unless all of them can be parsed. A statement that fails ends the run; the results
    of those before it stay.
    """
    statements = parse_statements(text)
    names = Names(lake, _source_frames(sources, lake.spark))
    results: list[SqlResult] = []
    for number, statement in enumerate(statements, 1):
        try:
            of_statement = replace(names, read=TablesRead())
            results.append(_run(statement.parsed, of_statement, lake, text))
        except IcefloeError as wrong:
            if len(statements) > 1 and not isinstance(wrong, ParseError):
                wrong.args = (f"Statement {number} (line {statement.line}): {wrong}",)
            raise
    return results[-1]


def _run(parsed: Parsed, names: Names, lake: SqlLake, whole: str) -> SqlResult:
    match parsed:
        case Query():
            return run_query(parsed.text, names, whole)
        case WithDml():
            return run_dml(parsed, names, whole)
        case Explain():
            return _explain(parsed, names, whole)
        case (
            Describe()
            | ShowTables()
            | ShowNamespaces()
            | ShowCreateTable()
            | ShowProperties()
            | ShowIndexes()
        ):
            return run_show(parsed, lake)
        case _:
            return run_ddl(parsed, names, lake, whole)


def _explain(explain: Explain, names: Names, whole: str) -> DataFrame:
    match explain.statement:
        case Query(text):
            return run_query(text, names, whole, f"EXPLAIN {explain.how} ")
        case WithDml() as dml:
            plan = str(explain_dml(dml, names, whole))
            return text_frame("plan", [plan], names.tables.spark)


# -------------------------------------------------------------------------------------------------
# Sources: rows of any accepted kind as DataFrames


def _source_frames(sources: Mapping[str, object], spark: SparkSession) -> dict[str, DataFrame]:
    """DataFrames by name in lower case, since Spark ignores case in names."""
    frames: dict[str, DataFrame] = {}
    for name, rows in sources.items():
        if name.lower() in frames:
            raise StatementError(f"Two sources are named {name!r}: case is ignored in names.")
        frames[name.lower()] = _frame(name, rows, spark)
    return frames


def is_source(rows: object) -> bool:
    """Whether an object has rows, so that it can be a source."""
    return _is_frame(rows) or isinstance(rows, _HELD) or _is_dicts(rows)


_HELD = (pa.Table, pa.RecordBatch, pd.DataFrame)


def _is_frame(rows: object) -> TypeGuard[DataFrame]:
    """Whether it is a DataFrame, classic or Connect."""
    return hasattr(rows, "mapInArrow") and hasattr(rows, "schema")


def _is_dicts(rows: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    if not isinstance(rows, Sequence) or not rows:
        return False
    return all(isinstance(row, Mapping) for row in rows)


def _frame(name: str, rows: object, spark: SparkSession) -> DataFrame:
    if _is_frame(rows):
        return rows
    try:
        table = _arrow(name, rows)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as wrong:
        raise StatementError(f"Source {name!r} has values of several types: {wrong}") from wrong
    with translate_spark_errors():
        return frame_of(spark, table)


def _arrow(name: str, rows: object) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pd.DataFrame):
        return pa.Table.from_pandas(rows, preserve_index=False)
    if _is_dicts(rows):
        names = dict.fromkeys(str(key) for row in rows for key in row)
        return pa.table({key: pa.array([row.get(key) for row in rows]) for key in names})
    raise StatementError(
        f"Source {name!r} is a {type(rows).__name__}. A source is a Spark DataFrame, an Arrow "
        "table or batch, a pandas DataFrame, or a non-empty list of dicts."
    )
