"""Tables of the lake that an expression's subqueries name become views Spark can read."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pyspark.sql import DataFrame, SparkSession

from icefloe.table_names import TableName, rename_tables, table_names

_made: ContextVar[list[str] | None] = ContextVar("_made", default=None)


def resolve_tables(text: str, rows_of: Callable[[TableName], DataFrame | None]) -> str:
    """Replace tables that `rows_of` knows by temporary views; other names are left to Spark.

    Only the names are replaced: the rest of the text stays as it is, to the letter.
    """
    found = [(name, rows_of(name)) for name in table_names(text, is_query=False)]
    views = [(name, _view(rows)) for name, rows in found if rows is not None]
    return rename_tables(text, views).text


@contextmanager
def views_dropped(spark: SparkSession) -> Iterator[None]:
    """Drop, at the end, the views that texts of a statement needed."""
    made: list[str] = []
    token = _made.set(made)
    try:
        yield
    finally:
        _made.reset(token)
        for view in made:
            spark.catalog.dropTempView(view)


def _view(rows: DataFrame) -> str:
    name = f"_icefloe_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    if (made := _made.get()) is not None:
        made.append(name)
    return name
