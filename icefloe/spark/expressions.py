"""SQL expressions as Columns, whole: no word of the user's text is taken for something else."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from icefloe.spark.errors import cleaning_up
from icefloe.spark.table_names import TableName, rename_tables, table_names
from icefloe.spark.tokens import Kind, Token, tokenize

_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")
_QUERIES = frozenset({"SELECT", "WITH", "FROM", "TABLE", "VALUES", "MAP", "REDUCE"})


def expression(text: str) -> Column:
    """The Column of an expression.

    Left alone, Spark takes a word after an expression for its name, and drops it where a name means
    nothing: a condition that ends in AND would be one without its last part. In parentheses it
    cannot.
    """
    tokens = tokenize(text)
    if not tokens or not _is_closed(tokens):
        return F.expr(text)  # Spark will say what is wrong
    # In parentheses alone, a column called `from` or `values` would begin a query.
    around = "coalesce" if tokens[0].word in _QUERIES else ""
    return F.expr(f"{around}({text}\n)")


def _is_closed(tokens: Sequence[Token]) -> bool:
    """Whether parentheses close what was opened, and no comma is outside; else Spark refuses."""
    depth = 0
    for token in tokens:
        depth += (token.word in _OPEN) - (token.word in _CLOSE)
        if depth < 0 or (depth == 0 and token.word == ","):
            return False
    return depth == 0 and tokens[-1].kind is not Kind.OPEN


# -------------------------------------------------------------------------------------------------
# Tables of the lake that an expression's subqueries name become views Spark can read.


@dataclass(frozen=True, slots=True)
class _Views:
    """The views of one statement, which all its sessions have."""

    sessions: tuple[SparkSession, ...]
    names: list[str] = field(default_factory=list)


_made: ContextVar[_Views | None] = ContextVar("_made", default=None)


def resolve_tables(text: str, rows_of: Callable[[TableName], DataFrame | None]) -> str:
    """Replace tables that `rows_of` knows by temporary views; other names are left to Spark.

    Only the names are replaced: the rest of the text stays as it is, to the letter.
    """
    found = [(name, rows_of(name)) for name in table_names(text, is_query=False)]
    views = [(name, _view(rows)) for name, rows in found if rows is not None]
    return rename_tables(text, views).text


@contextmanager
def temp_views(*sessions: SparkSession) -> Iterator[None]:
    """Drop, at the end, the views that texts of a statement needed.

    A MERGE has two sessions where its source is a streaming batch, which brings its own.
    """
    views = _Views(tuple({id(session): session for session in sessions}.values()))
    token = _made.set(views)
    try:
        yield
    finally:
        _made.reset(token)
        for session in views.sessions:
            for name in views.names:
                with cleaning_up(f"dropping the view {name}"):
                    session.catalog.dropTempView(name)


def _view(rows: DataFrame) -> str:
    name = f"_icefloe_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    if (views := _made.get()) is not None:
        views.names.append(name)
        for session in views.sessions:
            if session is not rows.sparkSession:
                _in_session(rows, session).createOrReplaceTempView(name)
    return name


def _in_session(rows: DataFrame, session: SparkSession) -> DataFrame:
    """The rows added to none of that session, which Spark's optimizer takes away again."""
    return session.createDataFrame([], rows.schema).limit(0).union(rows)
