"""A Column's tree as a condition of the predicate language, which text is read into as well.

A literal of a Column has a type; it becomes the SQL literal that Spark gives that type. What text
does not have, or reads in another way, is `Unsupported`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal

from icefloe.pruning.literals import (
    LiteralKind,
    SqlLiteral,
    cast_literal,
    day_text,
    timestamp_text,
)
from icefloe.pruning.predicate import (
    And,
    ColumnName,
    Compare,
    Comparison,
    Condition,
    Constant,
    In,
    IsNull,
    IsTruth,
    Like,
    Not,
    NullSafeEqual,
    Or,
    Unsupported,
    is_true,
    read_operand,
    read_sql,
)
from icefloe.spark.column_trees import Call, ColumnPath, ColumnTree, SqlPart, TypedLiteral

_COMPARISONS: Mapping[str, Comparison] = {
    **{comparison.value: comparison for comparison in Comparison},
    "==": Comparison.EQUAL,
    "!=": Comparison.NOT_EQUAL,
}
_INTEGERS = frozenset({"byte", "short", "integer", "long"})
_CASTS: Mapping[str, LiteralKind | int] = {
    "date": LiteralKind.DATE,
    "timestamp": LiteralKind.TIMESTAMP,
    "timestamp_ltz": LiteralKind.TIMESTAMP,
    "timestamp_ntz": LiteralKind.TIMESTAMP_NTZ,
    "byte": 8,
    "tinyint": 8,
    "short": 16,
    "smallint": 16,
    "int": 32,
    "integer": 32,
    "long": 64,
    "bigint": 64,
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def read_tree(tree: ColumnTree) -> Condition:
    """The condition that a Column is."""
    match tree:
        case Call("and" | "or" as name):
            parts = tuple(read_tree(part) for part in operands(tree, name))
            return And(parts) if name == "and" else Or(parts)
        case Call("not" | "!", (part,)):
            return Not(read_tree(part))
        case TypedLiteral("boolean", value):
            return Constant(bool(value))
        case TypedLiteral("void"):
            return Constant(None)
        case ColumnPath(parts):
            return is_true(parts)
        case SqlPart(text):
            return read_sql(text)
        case Call():
            return _test(tree)
        case _:
            return _UNSUPPORTED


_UNSUPPORTED = Unsupported("Column")


def operands(tree: ColumnTree, name: str) -> list[ColumnTree]:
    """The operands of nested ANDs or ORs, from left to right: chains may be long."""
    parts: list[ColumnTree] = []
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, Call) and node.name == name:
            pending += reversed(node.children)
        else:
            parts.append(node)
    return parts


def _test(call: Call) -> Condition:
    match call.name, call.children:
        case name, (left, right) if name in _COMPARISONS:
            return _compare(left, _COMPARISONS[name], right)
        case "<=>", (left, right):
            return _null_safe_equal(left, right)
        case "in", (value, *listed):
            return _in(value, listed)
        case "between", (value, low, high):
            lowest = _compare(value, Comparison.GREATER_OR_EQUAL, low)
            return And((lowest, _compare(value, Comparison.LESS_OR_EQUAL, high)))
        case "isnull", (value,):
            column = _column(value)
            return IsNull(column) if column else _UNSUPPORTED
        case "isnotnull", (value,):
            column = _column(value)
            return Not(IsNull(column)) if column else _UNSUPPORTED
        case "like" | "startswith" as name, (value, pattern):
            return _like(value, pattern, is_prefix=name == "startswith")
        case _:
            return _UNSUPPORTED


def _compare(left: ColumnTree, comparison: Comparison, right: ColumnTree) -> Condition:
    for named, sign, constant in (
        (left, comparison, right),
        (right, comparison.mirrored, left),
    ):
        column, literal = _column(named), _literal(constant)
        if column is not None and literal is not None:
            return Compare(column, sign, literal)
    return _UNSUPPORTED


def _null_safe_equal(left: ColumnTree, right: ColumnTree) -> Condition:
    for named, constant in ((left, right), (right, left)):
        column, literal = _column(named), _literal(constant)
        if column is not None and literal is not None:
            return NullSafeEqual(column, literal)
    if isinstance(right, TypedLiteral) and right.type == "boolean":  # IS TRUE
        return IsTruth(read_tree(left), bool(right.value))
    return _UNSUPPORTED


def _in(value: ColumnTree, listed: list[ColumnTree]) -> Condition:
    """A list without values is FALSE or NULL: which one is a setting."""
    column, literals = _column(value), [_literal(item) for item in listed]
    known = tuple(literal for literal in literals if literal is not None)
    if column is None or not known or len(known) < len(literals):
        return _UNSUPPORTED
    return In(column, known)


def _like(value: ColumnTree, pattern: ColumnTree, *, is_prefix: bool) -> Condition:
    column, literal = _column(value), _literal(pattern)
    if column is None or literal is None or "\\" in literal.text:
        return _UNSUPPORTED
    if not is_prefix:
        return Like(column, literal)
    if literal.kind is not LiteralKind.STRING or "%" in literal.text or "_" in literal.text:
        return _UNSUPPORTED
    return Like(column, SqlLiteral(LiteralKind.STRING, literal.text + "%"))


def _column(tree: ColumnTree) -> ColumnName | None:
    if isinstance(tree, SqlPart):
        operand = read_operand(tree.text)
        return operand if isinstance(operand, tuple) else None
    return tree.parts if isinstance(tree, ColumnPath) else None


def _literal(tree: ColumnTree) -> SqlLiteral | None:
    match tree:
        case TypedLiteral(kind, value):
            return _typed(kind, value)
        case SqlPart(text):
            operand = read_operand(text)
            return operand if isinstance(operand, SqlLiteral) else None
        case Call("cast", (child,), to_type) if to_type in _CASTS:
            inner = _literal(child)
            return cast_literal(inner, _CASTS[to_type]) if inner is not None else None
        case _:
            return None


def _typed(kind: str, value: bool | int | float | str) -> SqlLiteral | None:
    match kind:
        case "void":
            return SqlLiteral(LiteralKind.NULL, "NULL")
        case "boolean":
            return SqlLiteral(LiteralKind.BOOLEAN, "TRUE" if value else "FALSE")
        case "string":
            return SqlLiteral(LiteralKind.STRING, str(value))
        case "double":
            is_finite = math.isfinite(float(value))
            return SqlLiteral(LiteralKind.DOUBLE, repr(float(value))) if is_finite else None
        case _ if kind in _INTEGERS:
            return SqlLiteral(LiteralKind.NUMBER, str(int(value)))
        case _ if digits := _DECIMAL.fullmatch(kind):
            return _decimal(Decimal(str(value)), int(digits[1]), int(digits[2]))
        case _:
            return _time(kind, int(value)) if kind in _TIMES else None


_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})


def _time(kind: str, value: int) -> SqlLiteral | None:
    try:
        if kind == "date":
            return SqlLiteral(LiteralKind.DATE, day_text(value))
        if kind == "timestamp":
            return SqlLiteral(LiteralKind.TIMESTAMP, f"{timestamp_text(value)}+00:00")
        return SqlLiteral(LiteralKind.TIMESTAMP_NTZ, timestamp_text(value))
    except OverflowError:  # Python has no such year
        return None


def _decimal(value: Decimal, precision: int, scale: int) -> SqlLiteral:
    """With the digits of its type on both sides of the point, which decide how Spark compares."""
    sign = "-" if value < 0 else ""
    whole, _, fraction = f"{value.copy_abs():.{scale}f}".partition(".")
    number = f"{sign}{whole.rjust(precision - scale, '0')}"
    return SqlLiteral(LiteralKind.NUMBER, f"{number}.{fraction}" if scale else number)
