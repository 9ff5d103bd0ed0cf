"""Tables of the lake that an expression's subqueries name become views Spark can read."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import sqlglot
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp
from sqlglot.errors import SqlglotError

from icefloe.quoting import quote


def resolve_tables(
    text: str, spark: SparkSession, rows_of: Callable[[str], DataFrame | None]
) -> str:
    """Replace lake tables in subqueries by temporary views; other names are left to Spark.

    Only the names are replaced: the rest of the text stays as it is, to the letter. A name that the
    session knows as a view is that view. `rows_of` gives the rows of a lake table,
    None where there is none of that name.
    """
    if "select" not in text.lower():
        return text
    try:
        tree = sqlglot.parse_one(text, read="spark")
    except SqlglotError:
        return text
    local = {cte.alias for cte in tree.find_all(exp.CTE)}
    replaced: list[tuple[int, int, str]] = []
    for table in tree.find_all(exp.Table):
        name = ".".join(part.name for part in table.parts)
        if name in local or (not table.db and _is_view(spark, name)):
            continue
        rows = rows_of(name)
        if rows is None:
            continue
        view = f"_icefloe_{uuid.uuid4().hex}"
        rows.createOrReplaceTempView(view)
        alias = "" if table.alias else f" AS {quote(table.name)}"
        start, end = table.parts[0].meta["start"], table.parts[-1].meta["end"]
        replaced.append((start, end + 1, view + alias))
    for start, end, view in sorted(replaced, reverse=True):
        text = text[:start] + view + text[end:]
    return text


def _is_view(spark: SparkSession, name: str) -> bool:
    return bool(spark.catalog.tableExists(name))
