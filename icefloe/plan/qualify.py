"""Bare column names in a text, told which side of a MERGE they belong to."""

from __future__ import annotations

from collections.abc import Collection

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from icefloe.quoting import quote


def qualify(text: str, names: Collection[str], alias: str, aliases: Collection[str]) -> str:
    """Put `alias` before each name of `names` that follows none of `aliases`; change nothing else.

    A clause that sees one side only may name its columns bare, but is evaluated where the other
    side's columns of the same name are at hand too. Names inside subqueries and names that a
    lambda binds are left alone.
    """
    try:
        tree = sqlglot.parse_one(text, read="spark")
    except SqlglotError:
        return text  # Spark judges the syntax
    known = {name.lower() for name in names}
    taken = {name.lower() for name in aliases}
    places = sorted(
        {
            column.parts[0].meta["start"]
            for column in tree.find_all(exp.Column)
            if (first := column.parts[0].name.lower()) in known
            and (len(column.parts) == 1 or first not in taken)
            and "start" in column.parts[0].meta
            and not _is_local(column, first)
        },
        reverse=True,
    )
    for start in places:
        text = f"{text[:start]}{quote(alias)}.{text[start:]}"
    return text


def _is_local(column: exp.Column, first: str) -> bool:
    if column.find_ancestor(exp.Select) is not None:
        return True
    scope = column.find_ancestor(exp.Lambda)
    while scope is not None:
        if any(argument.name.lower() == first for argument in scope.expressions):
            return True
        scope = scope.find_ancestor(exp.Lambda)
    return False
