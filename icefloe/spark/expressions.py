"""SQL expressions as Columns, and the tables that their subqueries read as temporary views."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import cached_property
from types import TracebackType
from typing import Self

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from icefloe.spark.errors import cleaning_up
from icefloe.spark.sql_text import SqlText, rename_tables
from icefloe.spark.table_names import QUERY_STARTS, TableName
from icefloe.spark.tokens import Token, TokenKind

_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")


def expression(text: SqlText) -> Column:
    """The Column of an expression, in parentheses.

    Without them Spark takes a word after an expression as its alias, and ignores it where an alias
    has no meaning: a condition that ends in AND would silently lose its last part.
    """
    tokens = text.tokens
    if not tokens or not _is_closed(tokens):
        return F.expr(str(text))  # Spark reports what is wrong
    # A column named `from` or `values` would start a query in plain parentheses.
    function = "coalesce" if tokens[0].word in QUERY_STARTS else ""
    return F.expr(f"{function}({text}\n)")


def _is_closed(tokens: Sequence[Token]) -> bool:
    """Whether all brackets are balanced and no comma is outside them; Spark refuses the rest."""
    depth = 0
    for token in tokens:
        depth += (token.word in _OPEN) - (token.word in _CLOSE)
        if depth < 0 or (depth == 0 and token.word == ","):
            return False
    return depth == 0 and tokens[-1].kind is not TokenKind.OPEN


# -------------------------------------------------------------------------------------------------
# Tables in subqueries


class TempViews:
    """The temporary views of one statement, in each of its sessions; dropped when it ends.

    A MERGE has two sessions where its source is a streaming batch, which has its own. Without
    sessions the views are in the session of their rows, and stay. Sessions are opened for the
    first view: most statements have none.
    """

    def __init__(self, *sessions: Callable[[], SparkSession]) -> None:
        self._opened = sessions
        self._names: list[str] = []

    @cached_property
    def _sessions(self) -> tuple[SparkSession, ...]:
        sessions = [opened() for opened in self._opened]
        return tuple({id(session): session for session in sessions}.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in self._names:
            for session in self._sessions:
                with cleaning_up(f"dropping the view {name}"):
                    session.catalog.dropTempView(name)

    def create(self, rows: DataFrame) -> str:
        """Create a view of these rows in every session; returns its name."""
        name = f"_icefloe_{uuid.uuid4().hex}"
        rows.createOrReplaceTempView(name)
        self._names.append(name)
        for session in self._sessions:
            if session is not rows.sparkSession:
                _in_session(rows, session).createOrReplaceTempView(name)
        return name


def resolve_tables(
    text: SqlText, rows_of: Callable[[TableName], DataFrame | None], views: TempViews
) -> SqlText:
    """Replace the tables for which `rows_of` returns rows by views; Spark resolves other names."""
    tables = [(name, rows_of(name)) for name in text.tables]
    renamed = [(name, views.create(rows)) for name, rows in tables if rows is not None]
    return rename_tables(text, renamed).text


def _in_session(rows: DataFrame, session: SparkSession) -> DataFrame:
    """The rows in a plan of another session: a union with no rows, which the optimizer removes."""
    return session.createDataFrame([], rows.schema).limit(0).union(rows)
