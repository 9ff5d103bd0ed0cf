"""SQL expressions as Columns, whole: no word of the user's text is taken for something else."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from icefloe.lexing import Kind, Token, tokenize

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
