"""Predicates on files: PyIceberg expressions that say for which rows a condition is TRUE.

AND and OR combine them; each test of a column has a function that makes one. What a literal means
to Spark beside a column is in `literals`; NaN and NULL are dealt with here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    NotNull,
    NotStartsWith,
    Or,
    Reference,
    StartsWith,
)
from pyiceberg.expressions.literals import BooleanLiteral, StringLiteral
from pyiceberg.types import (
    DoubleType,
    FloatType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from icefloe.pruning.literals import AnyLiteral, LiteralKind, SqlLiteral, coerce
from icefloe.pruning.predicate import Comparison

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FilePredicate:
    """A SQL condition as PyIceberg expressions, for selecting files, and rows where it is exact.

    `inclusive` is TRUE for every row the condition is TRUE for, and maybe for more; AlwaysTrue when
    nothing is known. `exact` is TRUE for exactly those rows (SQL TRUE, not NULL), None when no
    expression is. Neither has a NOT node. `exact` never compares a float or double column: bounds
    leave NaN out, so no file can be proven to match.
    """

    inclusive: BooleanExpression
    exact: BooleanExpression | None
    exact_beside_nan: bool = False  # `inclusive` is exact where NaN is compared as Spark does

    @property
    def exact_for_rows(self) -> bool:
        """Whether `inclusive` is TRUE for exactly the rows that the condition is TRUE for.

        Whoever evaluates it takes NaN for the largest value and for equal to itself, as Spark does.
        """
        return self.exact is not None or self.exact_beside_nan


ALWAYS = FilePredicate(AlwaysTrue(), AlwaysTrue())
NEVER = FilePredicate(AlwaysFalse(), AlwaysFalse())
UNKNOWN = FilePredicate(AlwaysTrue(), None)


def all_of(parts: Sequence[FilePredicate]) -> FilePredicate:
    """AND: each part narrows the whole, also beside unknown ones."""
    if any(part.exact is AlwaysFalse() for part in parts):
        return NEVER
    return _joined(And, parts)


def any_of(parts: Sequence[FilePredicate]) -> FilePredicate:
    """OR: one unknown part makes the whole unknown, unless another is always true."""
    if any(part.exact is AlwaysTrue() for part in parts):
        return ALWAYS
    return _joined(Or, parts)


def _joined(join: type[And | Or], parts: Sequence[FilePredicate]) -> FilePredicate:
    exacts = [part.exact for part in parts if part.exact is not None]
    return FilePredicate(
        balanced(join, [part.inclusive for part in parts]),
        balanced(join, exacts) if len(exacts) == len(parts) else None,
        all(part.exact_for_rows for part in parts),
    )


def balanced(join: Callable[[T, T], T], parts: Sequence[T]) -> T:
    """Join the parts to a tree of logarithmic depth: PyIceberg and Spark recurse into it."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(balanced(join, parts[:middle]), balanced(join, parts[middle:]))


# -------------------------------------------------------------------------------------------------
# Tests of one column

_PREDICATES: Mapping[
    Comparison,
    type[EqualTo | LessThan | LessThanOrEqual | GreaterThan | GreaterThanOrEqual],
] = {
    Comparison.EQUAL: EqualTo,
    Comparison.LESS: LessThan,
    Comparison.LESS_OR_EQUAL: LessThanOrEqual,
    Comparison.GREATER: GreaterThan,
    Comparison.GREATER_OR_EQUAL: GreaterThanOrEqual,
}
_TRUE_FOR_NAN = frozenset(
    {Comparison.NOT_EQUAL, Comparison.GREATER, Comparison.GREATER_OR_EQUAL},
)


@dataclass(frozen=True, slots=True)
class PredicateColumn:
    """A top-level column of primitive type, by its name in the schema."""

    name: str
    type: PrimitiveType
    time_zone: str | None  # of timestamp literals without an offset

    @property
    def may_be_nan(self) -> bool:
        """Whether the column may have values that bounds leave out."""
        return isinstance(self.type, FloatType | DoubleType)

    def value(self, literal: SqlLiteral) -> AnyLiteral | None:
        """The literal as a value of this column; None when Spark may compare it differently."""
        return coerce(literal, self.type, self.time_zone)


def compare(column: PredicateColumn, comparison: Comparison, literal: SqlLiteral) -> FilePredicate:
    """`column <op> literal`; with NULL it is never TRUE."""
    if literal.kind is LiteralKind.NULL:
        return NEVER
    value = column.value(literal)
    if value is None:
        return UNKNOWN
    predicate = _predicate(column.name, comparison, value)
    return _leaf(column, predicate, true_for_nan=comparison in _TRUE_FOR_NAN)


def _predicate(name: str, comparison: Comparison, value: AnyLiteral) -> BooleanExpression:
    term = Reference(name)
    if comparison is Comparison.NOT_EQUAL and isinstance(value, BooleanLiteral):
        return EqualTo(term=term, value=BooleanLiteral(not value.value))  # which bounds can refute
    if comparison is Comparison.NOT_EQUAL:
        return And(NotNull(term=term), NotEqualTo(term=term, value=value))
    return _PREDICATES[comparison](term=term, value=value)


def compare_null_safe(
    column: PredicateColumn, literal: SqlLiteral, *, negated: bool
) -> FilePredicate:
    """`column <=> literal`, which is never NULL: its NOT is TRUE for NULL columns."""
    if literal.kind is LiteralKind.NULL:
        return is_null(column, negated=negated)
    if not negated:
        return compare(column, Comparison.EQUAL, literal)
    value = column.value(literal)
    if value is None:
        return UNKNOWN
    differs = Or(
        IsNull(term=Reference(column.name)), NotEqualTo(term=Reference(column.name), value=value)
    )
    return _leaf(column, differs, true_for_nan=True)


def is_null(column: PredicateColumn, *, negated: bool) -> FilePredicate:
    """`column IS [NOT] NULL`, exact for every type: NaN is not NULL."""
    predicate: BooleanExpression = (
        NotNull(term=Reference(column.name)) if negated else IsNull(term=Reference(column.name))
    )
    return FilePredicate(predicate, predicate)


def is_in(
    column: PredicateColumn, literals: Sequence[SqlLiteral], *, negated: bool
) -> FilePredicate:
    """`column [NOT] IN (…)`; a NULL in the list makes NOT IN never TRUE.

    Spark compares the whole list in one common type, which without ANSI is string as soon as one
    literal is a string. So lists of several kinds, and timestamps as strings, are unknown.
    """
    listed = [literal for literal in literals if literal.kind is not LiteralKind.NULL]
    kinds = {literal.kind for literal in listed}
    if (kinds != _NUMBERS and len(kinds) > 1) or _compares_as_string(column, listed):
        return UNKNOWN
    values = [value for value in map(column.value, listed) if value is not None]
    if len(values) < len(listed):
        return UNKNOWN
    if not values or (negated and len(listed) < len(literals)):
        return NEVER
    if negated:
        unlisted = And(
            NotNull(term=Reference(column.name)),
            NotIn(term=Reference(column.name), values=set(values)),  # type: ignore[call-arg]
        )
        return _leaf(column, unlisted, true_for_nan=True)
    among = In(term=Reference(column.name), values=set(values))  # type: ignore[call-arg]
    return _leaf(column, among, true_for_nan=False)


# Both become a value of a floating-point column, and of no other one.
_NUMBERS = {LiteralKind.NUMBER, LiteralKind.DOUBLE}


def _compares_as_string(column: PredicateColumn, literals: Sequence[SqlLiteral]) -> bool:
    is_timestamp = isinstance(column.type, TimestampType | TimestamptzType)
    return is_timestamp and any(literal.kind is LiteralKind.STRING for literal in literals)


def is_like(column: PredicateColumn, literal: SqlLiteral, *, negated: bool) -> FilePredicate:
    """`column [NOT] LIKE 'prefix%'`, or a pattern without wildcards; other patterns are unknown."""
    if literal.kind is LiteralKind.NULL:
        return NEVER
    prefix = literal.text.removesuffix("%")
    is_text = literal.kind is LiteralKind.STRING and isinstance(column.type, StringType)
    if not is_text or "%" in prefix or "_" in prefix:
        return UNKNOWN
    if prefix == literal.text:
        return compare(column, Comparison.NOT_EQUAL if negated else Comparison.EQUAL, literal)
    return _starts_with(column, prefix, negated=negated)


def _starts_with(column: PredicateColumn, prefix: str, *, negated: bool) -> FilePredicate:
    if not prefix:
        return NEVER if negated else is_null(column, negated=True)
    term, value = Reference(column.name), StringLiteral(prefix)
    predicate: BooleanExpression = StartsWith(term=term, value=value)
    if negated:
        predicate = And(NotNull(term=term), NotStartsWith(term=term, value=value))
    return FilePredicate(predicate, predicate)


def _leaf(
    column: PredicateColumn, predicate: BooleanExpression, *, true_for_nan: bool
) -> FilePredicate:
    """NaN is the largest value in Spark and equal to itself; Iceberg's bounds leave it out."""
    if not column.may_be_nan:
        return FilePredicate(predicate, predicate)
    inclusive = Or(predicate, IsNaN(term=Reference(column.name))) if true_for_nan else predicate
    return FilePredicate(inclusive, None, exact_beside_nan=True)
