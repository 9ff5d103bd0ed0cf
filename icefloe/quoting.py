"""Column names as Spark takes them, whatever characters they have."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def quote(name: str) -> str:
    """A name in backticks."""
    return "`" + name.replace("`", "``") + "`"


def quoted(*path: str) -> Column:
    """The column of exactly this name; with more names, a field of its struct."""
    return F.col(".".join(map(quote, path)))
