"""Bare column names in a text, told which side of a MERGE they belong to."""

from __future__ import annotations

from collections.abc import Collection

from sqlglot import exp

from icefloe.spark.columns import quote
from icefloe.spark.tokens import parse_expression


def qualify(text: str, names: Collection[str], alias: str) -> str:
    """Put `alias` before each name of `names` that does not follow it; change nothing else.

    As in Spark, what may be the alias is the alias: `a.b` is the column `b` where `a` is the alias,
    and a field of the column `a` only where there is no such column.

    A clause that sees one side only may name its columns bare, but is evaluated where the other
    side's columns of the same name are at hand too. Names inside subqueries and names that a
    lambda binds are left alone.
    """
    tree = parse_expression(text)
    if tree is None:
        return text
    known = {name.lower() for name in names}
    places = sorted(
        {
            column.parts[0].meta["start"]
            for column in tree.find_all(exp.Column)
            if (first := column.parts[0].name.lower()) in known
            and not _is_qualified([part.name.lower() for part in column.parts], alias, known)
            and "start" in column.parts[0].meta
            and not _is_local(column, first)
        },
        reverse=True,
    )
    for start in places:
        text = f"{text[:start]}{quote(alias)}.{text[start:]}"
    return text


def _is_qualified(parts: list[str], alias: str, known: Collection[str]) -> bool:
    return len(parts) > 1 and parts[0] == alias.lower() and parts[1] in known


def _is_local(column: exp.Column, first: str) -> bool:
    if column.find_ancestor(exp.Select) is not None:
        return True
    scope = column.find_ancestor(exp.Lambda)
    while scope is not None:
        if any(argument.name.lower() == first for argument in scope.expressions):
            return True
        scope = scope.find_ancestor(exp.Lambda)
    return False
