"""Tables of the lake that an expression's subqueries name become views Spark can read."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import sqlglot
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp
from sqlglot.errors import SqlglotError


def resolve_tables(
    text: str, spark: SparkSession, rows_of: Callable[[str], DataFrame | None]
) -> str:
    """Replace lake tables in subqueries by temporary views; other names are left to Spark.

    A name that the session knows as a view is that view. `rows_of` gives the rows of a lake table,
    None where there is none of that name.
    """
    if "select" not in text.lower():
        return text
    try:
        tree = sqlglot.parse_one(text, read="spark")
    except SqlglotError:
        return text
    local = {cte.alias for cte in tree.find_all(exp.CTE)}
    for table in list(tree.find_all(exp.Table)):
        name = ".".join(part.name for part in table.parts)
        if name in local or (not table.db and _is_view(spark, name)):
            continue
        rows = rows_of(name)
        if rows is None:
            continue
        view = f"_icefloe_{uuid.uuid4().hex}"
        rows.createOrReplaceTempView(view)
        alias = table.alias or table.name
        table.replace(exp.alias_(exp.to_table(view), alias, table=True))
    return tree.sql(dialect="spark")


def _is_view(spark: SparkSession, name: str) -> bool:
    return bool(spark.catalog.tableExists(name))
