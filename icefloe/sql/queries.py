"""Run queries in Spark, with tables of the lake as DataFrames; map errors to the user's text."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from icefloe.errors import IcefloeError, ParseError
from icefloe.spark.columns import quote
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.expressions import expression
from icefloe.spark.sql_text import SqlText, rename_tables
from icefloe.spark.table_names import TableName
from icefloe.sql.names import Names
from icefloe.sql.syntax import Ctes, Slice

_ALL_OF = " SELECT * FROM "
_CLASSIC_VIEW = len("_pyspark_") + 32  # as long as the names that spark.sql gives to frames
_CONNECT_VIEW = len("_pyspark_connect_temp_view_") + 32


def run_query(query: Slice, names: Names, whole: str, prefix: str = "") -> DataFrame:
    """The rows of a query after a `prefix` such as `SELECT * FROM` or EXPLAIN.

    DataFrames are passed to `spark.sql` as format arguments: it keeps them in the plan over Spark
    Connect and drops its temporary views otherwise. Braces in the text are doubled for it.
    """
    text = SqlText(f"{prefix}{query.text}") if prefix else query.text
    if prefix.startswith("EXPLAIN"):
        named = [name.moved(len(prefix)) for name in query.text.query_tables]
    else:
        named = list(text.query_tables)
    resolved = [(name, names.rows(name)) for name in named]
    frames = [(name, rows) for name, rows in resolved if rows is not None]
    with translate_spark_errors():
        try:
            return _run(text, frames, names)
        except ParseError as wrong:
            raise _placed(wrong, text, query, whole, prefix, frames) from wrong


def define_ctes(ctes: Ctes, names: Names, whole: str) -> dict[str, DataFrame]:
    """The queries of a WITH before a DML statement, by name."""
    frames: dict[str, DataFrame] = {}
    for name in ctes.names:
        query = Slice(SqlText(ctes.text.text + _ALL_OF + quote(name)), ctes.text.start)
        frames[name.lower()] = run_query(query, names, whole)
    return frames


@contextmanager
def placed_errors(expressions: Iterable[Slice], spark: SparkSession, whole: str) -> Iterator[None]:
    """Raise a ParseError of these expressions with its position in the user's text."""
    try:
        yield
    except ParseError as wrong:
        for written in expressions:
            _refuse_invalid(written, spark, whole)
        raise wrong from None


def _refuse_invalid(written: Slice, spark: SparkSession, whole: str) -> None:
    """Let Spark parse an expression alone; unknown names in it do not matter here."""
    for column in (F.expr(str(written.text)), expression(written.text)):
        try:
            with translate_spark_errors():
                _ = spark.range(0).select(column).schema
        except ParseError as wrong:
            raise _placed(wrong, written.text, written, whole) from wrong
        except IcefloeError:
            continue


def check_columns(columns: Slice, whole: str) -> None:
    """Let Spark parse the columns of a CREATE TABLE, for errors with a position."""
    try:
        with translate_spark_errors():
            DataType.fromDDL(str(columns.text))
    except ParseError as wrong:
        raise _placed(wrong, columns.text, columns, whole) from wrong


def _run(text: SqlText, frames: list[tuple[TableName, DataFrame]], names: Names) -> DataFrame:
    spark = names.tables.spark
    if not frames:
        with translate_spark_errors():
            return _analysed(spark.sql(str(text)))
    keys = [f"icefloe{uuid.uuid4().hex}" for _ in frames]
    renamed = [(name, key) for (name, _), key in zip(frames, keys, strict=True)]
    template = rename_tables(text, renamed).text.replace("{", "{{").replace("}", "}}")
    for key in keys:
        template = template.replace(key, f"{{{key}}}")
    arguments: dict[str, Any] = {key: rows for key, (_, rows) in zip(keys, frames, strict=True)}
    with translate_spark_errors():
        return _analysed(spark.sql(template, **arguments))


def _analysed(rows: DataFrame) -> DataFrame:
    _ = rows.schema  # makes Spark Connect analyse the query now
    return rows


def _placed(
    wrong: ParseError,
    text: SqlText,
    written: Slice,
    whole: str,
    prefix: str = "",
    frames: list[tuple[TableName, DataFrame]] | None = None,
) -> ParseError:
    """The error with its position in the whole text, if Spark reports a position."""
    if wrong.line is None or wrong.column is None:
        return wrong
    connect = any("connect" in type(rows).__module__ for _, rows in frames or ())
    view = "v" * (_CONNECT_VIEW if connect else _CLASSIC_VIEW)
    edited = rename_tables(text, [(name, view) for name, _ in frames or ()])
    lines = edited.text.split("\n")
    position = sum(len(line) + 1 for line in lines[: wrong.line - 1]) + wrong.column - 1
    inside = min(max(edited.origin(position) - len(prefix), 0), len(written.text))
    return ParseError(wrong.reason, whole, written.start + inside)
