"""From a SQL condition to PyIceberg expressions that choose files.

What is lowered is not the condition but "the condition IS TRUE", so NOT is pushed down to the
leaves. Whatever is not known to mean the same in Spark is unknown: it may be true for any row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType
from sqlglot import exp

from icefloe.pruning.comparisons import (
    ALWAYS,
    NEVER,
    UNKNOWN,
    Column,
    Comparison,
    FilePredicate,
    all_of,
    any_of,
    compare,
    compare_null_safe,
    is_in,
    is_like,
    is_null,
    is_true,
)
from icefloe.pruning.literals import SqlLiteral, read_literal
from icefloe.spark.sql_text import SqlText

__all__ = ["FilePredicate", "lower"]

_COMPARISONS: Mapping[type[exp.Expr], Comparison] = {
    exp.EQ: Comparison.EQUAL,
    exp.NEQ: Comparison.NOT_EQUAL,
    exp.LT: Comparison.LESS,
    exp.LTE: Comparison.LESS_OR_EQUAL,
    exp.GT: Comparison.GREATER,
    exp.GTE: Comparison.GREATER_OR_EQUAL,
}


def lower(
    condition: str | None,
    schema: Schema,
    *,
    time_zone: str,
    qualifiers: frozenset[str] = frozenset(),
) -> FilePredicate:
    """Lower a Spark SQL condition; None is no condition. Never raises: Spark judges the syntax.

    A column is known bare or behind one of `qualifiers` (any case). Timestamps without a zone are
    read in `time_zone`, the session's.
    """
    if condition is None:
        return ALWAYS
    # Spark replaces variables before it parses, in string literals too; its comments go on after
    # a backslash at the end of a line. sqlglot knows neither.
    if "${" in condition or "\\\n" in condition:
        return UNKNOWN
    scope = _Scope(
        schema,
        time_zone,
        frozenset(name.lower() for name in qualifiers),
        strings_are_plain="\\" not in condition and '"' not in condition,
    )
    tree = SqlText.of(condition).tree
    if tree is None:
        return UNKNOWN
    try:
        return _truth(tree, scope, negated=False)
    except Exception:  # noqa: BLE001 - whatever sqlglot fails on, in any way, is Spark's to judge
        return UNKNOWN


@dataclass(frozen=True, slots=True)
class _Scope:
    """What the names and literals of a condition mean."""

    schema: Schema
    time_zone: str
    qualifiers: frozenset[str]
    strings_are_plain: bool

    def column(self, node: exp.Expr) -> Column | None:
        """The column a node names; None for nested fields and for names that fit two columns."""
        node = node.unnest()
        if type(node) is not exp.Column or not isinstance(node.this, exp.Identifier):
            return None
        *qualifier, name = (part.name.lower() for part in node.parts)
        if len(qualifier) > 1 or not self.qualifiers.issuperset(qualifier):
            return None
        fields = [field for field in self.schema.fields if field.name.lower() == name]
        if len(fields) != 1 or not isinstance(fields[0].field_type, PrimitiveType):
            return None
        if self.schema.find_field(fields[0].name).field_id != fields[0].field_id:
            return None  # a name with a dot, that PyIceberg takes for a nested field
        return Column(fields[0].name, fields[0].field_type, self.time_zone)

    def literal(self, node: exp.Expr) -> SqlLiteral | None:
        """The constant a node is, None if it is none or in doubt."""
        return read_literal(node, strings_are_plain=self.strings_are_plain)


class _Rule(Protocol):
    """When one kind of node, or its NOT, is TRUE."""

    def __call__(self, node: exp.Expr, scope: _Scope, /, *, negated: bool) -> FilePredicate: ...


def _truth(node: exp.Expr, scope: _Scope, *, negated: bool) -> FilePredicate:
    """When the node, or NOT node if `negated`, is TRUE."""
    rule = _RULES.get(type(node))
    return rule(node, scope, negated=negated) if rule is not None else UNKNOWN


def _paren(node: exp.Expr, scope: _Scope, *, negated: bool) -> FilePredicate:
    return _truth(node.this, scope, negated=negated)


def _not(node: exp.Expr, scope: _Scope, *, negated: bool) -> FilePredicate:
    return _truth(node.this, scope, negated=not negated)


def _and(node: exp.Expr, scope: _Scope, *, negated: bool) -> FilePredicate:
    parts = [_truth(part, scope, negated=negated) for part in node.flatten()]
    return any_of(parts) if negated else all_of(parts)


def _or(node: exp.Expr, scope: _Scope, *, negated: bool) -> FilePredicate:
    parts = [_truth(part, scope, negated=negated) for part in node.flatten()]
    return all_of(parts) if negated else any_of(parts)


def _boolean(node: exp.Expr, _scope: _Scope, *, negated: bool) -> FilePredicate:
    return ALWAYS if bool(node.this) is not negated else NEVER


def _null(_node: exp.Expr, _scope: _Scope, *, negated: bool) -> FilePredicate:
    del negated  # NOT NULL is NULL
    return NEVER


def _bare_column(node: exp.Expr, scope: _Scope, *, negated: bool) -> FilePredicate:
    column = scope.column(node)
    return is_true(column, negated=negated) if column else UNKNOWN


def _has_only(node: exp.Expr, *names: str) -> bool:
    """Whether no other argument is set; one we do not know may change what the node means."""
    return all(name in names for name, value in node.args.items() if value)


def _sides(node: exp.Expr, scope: _Scope) -> tuple[Column, SqlLiteral, bool] | None:
    """The column and the literal of a comparison, and whether the literal stands left."""
    for named, constant, mirrored in (
        (node.this, node.expression, False),
        (node.expression, node.this, True),
    ):
        column, literal = scope.column(named), scope.literal(constant)
        if column is not None and literal is not None:
            return column, literal, mirrored
    return None


def _compare(node: exp.Expr, scope: _Scope, *, negated: bool) -> FilePredicate:
    sides = _sides(node, scope)
    if sides is None:
        return UNKNOWN
    column, literal, mirrored = sides
    comparison = _COMPARISONS[type(node)]
    comparison = comparison.mirrored if mirrored else comparison
    return compare(column, comparison.negated if negated else comparison, literal)


def _null_safe(node: exp.Expr, scope: _Scope, *, negated: bool) -> FilePredicate:
    sides = _sides(node, scope)
    return compare_null_safe(sides[0], sides[1], negated=negated) if sides else UNKNOWN


def _in(node: exp.Expr, scope: _Scope, *, negated: bool) -> FilePredicate:
    column = scope.column(node.this)
    if column is None or not node.expressions or not _has_only(node, "this", "expressions"):
        return UNKNOWN
    literals = [scope.literal(item) for item in node.expressions]
    known = [literal for literal in literals if literal is not None]
    return is_in(column, known, negated=negated) if len(known) == len(literals) else UNKNOWN


def _between(node: exp.Expr, scope: _Scope, *, negated: bool) -> FilePredicate:
    column = scope.column(node.this)
    if column is None or not _has_only(node, "this", "low", "high"):
        return UNKNOWN
    low, high = scope.literal(node.args["low"]), scope.literal(node.args["high"])
    bounds = [
        compare(column, comparison.negated if negated else comparison, bound) if bound else UNKNOWN
        for comparison, bound in (
            (Comparison.GREATER_OR_EQUAL, low),
            (Comparison.LESS_OR_EQUAL, high),
        )
    ]
    return any_of(bounds) if negated else all_of(bounds)


def _is(node: exp.Expr, scope: _Scope, *, negated: bool) -> FilePredicate:
    """IS [NOT] NULL of a column, IS TRUE and IS FALSE of anything; IS NOT TRUE is unknown."""
    if isinstance(node.expression, exp.Null):
        column = scope.column(node.this)
        return is_null(column, negated=negated) if column else UNKNOWN
    if isinstance(node.expression, exp.Boolean) and not negated:
        return _truth(node.this, scope, negated=not node.expression.this)
    return UNKNOWN


def _like(node: exp.Expr, scope: _Scope, *, negated: bool) -> FilePredicate:
    column, pattern = scope.column(node.this), scope.literal(node.expression)
    if not column or not pattern or not _has_only(node, "this", "expression", "negate"):
        return UNKNOWN
    return is_like(column, pattern, negated=negated is not bool(node.args.get("negate")))


_RULES: Mapping[type[exp.Expr], _Rule] = {
    exp.Paren: _paren,
    exp.Not: _not,
    exp.And: _and,
    exp.Or: _or,
    exp.Boolean: _boolean,
    exp.Null: _null,
    exp.Column: _bare_column,
    exp.In: _in,
    exp.Between: _between,
    exp.Is: _is,
    exp.Like: _like,
    exp.NullSafeEQ: _null_safe,
    **dict.fromkeys(_COMPARISONS, _compare),
}
