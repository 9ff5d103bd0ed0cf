"""Column names as Spark takes them, whatever characters they have."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def quote(name: str) -> str:
    """A name in backticks."""
    return "`" + name.replace("`", "``") + "`"


def quoted(*path: str) -> Column:
    """The column of exactly this name; with more names, a field of its struct."""
    return F.col(quote_path(*path))


def quote_path(*path: str) -> str:
    """The same as text."""
    return ".".join(map(quote, path))


def selected(rows: DataFrame, values: Sequence[str | Column]) -> DataFrame:
    """Select values, texts of SQL among them.

    A text takes one call to the JVM where a Column takes half a dozen: on wide tables these add up.
    """
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) == len(values):
        return rows.selectExpr(*texts)
    return rows.select(*(F.expr(v) if isinstance(v, str) else v for v in values))
