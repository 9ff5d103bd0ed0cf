"""PyIceberg expressions as SQL conditions over encoded columns.

The encodings keep Spark's order and equality, so a comparison in the database says what Spark says,
with one exception: -0.0 and 0.0 are equal to Spark and are two values here. Only top-level columns
are translated. All values are bound parameters, all identifiers are icefloe's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import sqlalchemy as sa
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
    LiteralPredicate,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    Reference,
    SetPredicate,
    StartsWith,
    UnaryPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import AboveMax, BelowMin, Literal
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    NestedField,
    PrimitiveType,
    UnknownType,
)

from icefloe.inline.encode import encode_literal
from icefloe.inline.layout import (
    EARLIER_KINDS,
    FLOAT,
    STRING,
    InlineColumn,
    database_type,
    kind_of,
)

_Sql: TypeAlias = sa.ColumnElement[bool]

MAX_IN_VALUES = 500  # a longer list becomes the range of its values
_MAX_TESTS = 500  # SQLite's expressions have a depth of 1,000 at most
_MAX_VALUES = 10_000  # SQLite has 32,766 parameters per statement, PostgreSQL 65,535
_NEGATIVE_ZERO = encode_literal(FLOAT, -0.0)
_ZERO = encode_literal(FLOAT, 0.0)
_NAN = encode_literal(FLOAT, float("nan"))


def row_filter(expression: BooleanExpression, schema: Schema, table: sa.Table) -> _Sql:
    """A condition that is TRUE for every row the expression is TRUE for, and maybe for more.

    What cannot be translated is left out of an AND and makes an OR true.

    Args:
        expression: An expression without NOT, as `FilePredicate.inclusive`: NaN is the largest
            value and equal to itself, as in Spark; `NotEqualTo`, `NotIn` and `NotStartsWith` are
            TRUE for NULL, as in Iceberg.
        schema: The schema whose columns it names.
        table: The rows table; a field without a column there has NULL in every row.
    """
    return translate(expression, schema, table).where


def is_exact(expression: BooleanExpression, schema: Schema, table: sa.Table) -> bool:
    """Whether `row_filter` is TRUE for exactly the rows that the expression is TRUE for."""
    return translate(expression, schema, table).exact


@dataclass(frozen=True, slots=True)
class SqlCondition:
    """The SQL of an expression, and whether it is TRUE for no row more."""

    where: _Sql
    exact: bool = True


_UNTRANSLATED = SqlCondition(sa.true(), exact=False)


def translate(expression: BooleanExpression, schema: Schema, table: sa.Table) -> SqlCondition:
    """What `row_filter` and `is_exact` return, by one translation."""
    if not _within_limits(expression):
        return _UNTRANSLATED
    return _Translator(schema, table).part(expression)


def _within_limits(expression: BooleanExpression) -> bool:
    tests = values = 0
    pending = [expression]
    while pending:
        match pending.pop():
            case And(left=left, right=right) | Or(left=left, right=right):
                pending += [left, right]
            case SetPredicate(literals=literals):
                tests, values = tests + 1, values + min(len(literals), MAX_IN_VALUES)
            case _:
                tests, values = tests + 1, values + 2
    return tests <= _MAX_TESTS and values <= _MAX_VALUES


@dataclass(frozen=True, slots=True)
class _Translator:
    schema: Schema
    table: sa.Table

    def part(self, expression: BooleanExpression) -> SqlCondition:
        match expression:
            case AlwaysTrue():
                return SqlCondition(sa.true())
            case AlwaysFalse():
                return SqlCondition(sa.false())
            case And(left=left, right=right):
                parts = self.part(left), self.part(right)
                return SqlCondition(sa.and_(*(p.where for p in parts)), all(p.exact for p in parts))
            case Or(left=left, right=right):
                parts = self.part(left), self.part(right)
                return SqlCondition(sa.or_(*(p.where for p in parts)), all(p.exact for p in parts))
            case UnboundPredicate(term=Reference(name=name)):
                column = self._column(name)
                return _UNTRANSLATED if column is None else column.test(expression)
            case _:
                return _UNTRANSLATED

    def _column(self, name: str) -> _Column | None:
        """The column of a name; None unless all values are in one column of the database."""
        fields = [field for field in self.schema.fields if field.name == name]
        if len(fields) != 1 or not isinstance(fields[0].field_type, PrimitiveType):
            return None
        if self.schema.find_field(name).field_id != fields[0].field_id:
            return None  # a name with a dot, which PyIceberg takes for a nested field
        return self._of_field(fields[0])

    def _of_field(self, field: NestedField) -> _Column | None:
        kind = field.field_type
        if isinstance(kind, UnknownType):
            return _Column(sa.null(), kind, "")
        inline = InlineColumn(field.field_id, kind_of(kind))
        earlier = (InlineColumn(field.field_id, k) for k in EARLIER_KINDS.get(inline.kind, ()))
        if any(each.name in self.table.c for each in earlier):
            return None
        stored = self.table.c.get(inline.name)
        value = sa.cast(sa.null(), database_type(inline)) if stored is None else stored
        return _Column(value, kind, inline.kind)


@dataclass(frozen=True, slots=True)
class _Column:
    """The value of a field in SQL, and how literals beside it are encoded."""

    value: sa.ColumnElement[Any]
    type: IcebergType
    kind: str

    def test(self, predicate: UnboundPredicate) -> SqlCondition:
        match predicate:
            case UnaryPredicate():
                return self._unary(predicate)
            case StartsWith() | NotStartsWith():
                return self._starts_with(predicate)
            case LiteralPredicate():
                encoded = self._encode(predicate.literal)
                return _UNTRANSLATED if encoded is None else self._compare(predicate, encoded)
            case SetPredicate():
                return self._in(predicate)
            case _:
                return _UNTRANSLATED

    def _unary(self, predicate: UnaryPredicate) -> SqlCondition:
        match predicate:
            case IsNull():
                return SqlCondition(self.value.is_(None))
            case NotNull():
                return SqlCondition(self.value.is_not(None))
            case IsNaN() if self.kind == FLOAT:
                return SqlCondition(self.value == _NAN)
            case NotNaN() if self.kind == FLOAT:
                return SqlCondition(self._or_null(self.value != _NAN))
            case _:
                return _UNTRANSLATED

    def _compare(self, predicate: LiteralPredicate, encoded: int | bytes) -> SqlCondition:
        """A comparison; of a zero with all zeros, of which -0.0 is the least."""
        is_zero = self.kind == FLOAT and encoded in (_NEGATIVE_ZERO, _ZERO)
        least, greatest = (_NEGATIVE_ZERO, _ZERO) if is_zero else (encoded, encoded)
        match predicate:
            case EqualTo():
                return SqlCondition(
                    self.value.in_([least, greatest]) if is_zero else self.value == least
                )
            case NotEqualTo():
                differs = self.value.not_in([least, greatest]) if is_zero else self.value != least
                return SqlCondition(self._or_null(differs))
            case LessThan():
                return SqlCondition(self.value < least)
            case LessThanOrEqual():
                return SqlCondition(self.value <= greatest)
            case GreaterThan():
                return SqlCondition(self.value > greatest)
            case GreaterThanOrEqual():
                return SqlCondition(self.value >= least)
            case _:
                return _UNTRANSLATED

    def _in(self, predicate: SetPredicate) -> SqlCondition:
        encoded = [self._encode(literal) for literal in predicate.literals]
        known = {value for value in encoded if value is not None}
        if None in encoded or not isinstance(predicate, In | NotIn):
            return _UNTRANSLATED
        if self.kind == FLOAT and not known.isdisjoint((_NEGATIVE_ZERO, _ZERO)):
            known |= {_NEGATIVE_ZERO, _ZERO}
        values = sorted(known)
        if len(values) <= MAX_IN_VALUES:
            if isinstance(predicate, In):
                return SqlCondition(self.value.in_(values))
            return SqlCondition(self._or_null(self.value.not_in(values)))
        if isinstance(predicate, NotIn):
            return _UNTRANSLATED
        return SqlCondition(self.value.between(values[0], values[-1]), exact=False)

    def _starts_with(self, predicate: LiteralPredicate) -> SqlCondition:
        if self.kind != STRING or not isinstance(prefix := predicate.literal.value, str):
            return _UNTRANSLATED
        negated = isinstance(predicate, NotStartsWith)
        if not prefix:
            return SqlCondition(self.value.is_(None) if negated else self.value.is_not(None))
        start = prefix.encode()
        # No byte of UTF-8 is the largest one, so the last byte can always be raised.
        end = start[:-1] + bytes([start[-1] + 1])
        if negated:
            return SqlCondition(self._or_null(sa.or_(self.value < start, self.value >= end)))
        return SqlCondition(sa.and_(self.value >= start, self.value < end))

    def _or_null(self, where: _Sql) -> _Sql:
        return sa.or_(self.value.is_(None), where)

    def _encode(self, literal: Literal[Any]) -> int | bytes | None:
        """The literal as a value of the column; None if the type does not have it."""
        value = literal_value(literal, self.type)
        return None if value is None else encode_literal(self.kind, value)


def literal_value(literal: Literal[Any], kind: IcebergType) -> Any | None:
    """The value of a literal that is compared with values of a type; None if it has no such value.

    Spark compares a FLOAT as double: 0.1 is no float, and must not become one.
    """
    try:
        converted = literal.to(DoubleType() if isinstance(kind, FloatType) else kind)
    except (TypeError, ValueError):
        return None
    if isinstance(converted, AboveMax | BelowMin):
        return None
    return converted.value if _same_number(literal.value, converted.value) else None


def _same_number(literal: object, converted: object) -> bool:
    """Whether a number was converted without rounding; NaN is not equal to itself."""
    if not isinstance(literal, int | float | Decimal) or literal != literal:  # noqa: PLR0124
        return True
    return literal == converted
