"""PyIceberg expressions evaluated on Arrow columns, as Spark evaluates the condition on rows.

Columns are compared in the encodings of the inline tier: NaN is the largest value and equal to
itself, strings are ordered by their bytes. Expressions have no NOT, so that a comparison with NULL
can be FALSE instead of NULL: the same rows are TRUE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
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
    NotNull,
    NotStartsWith,
    Or,
    Reference,
    SetPredicate,
    StartsWith,
    UnaryPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import Literal
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType

from icefloe.inline.encode import encode_literal, sortable_bits
from icefloe.inline.layout import DATE, DECIMAL, FLOAT, INTEGER, MICROSECONDS, STRING, kind_of
from icefloe.inline.where import literal_value

Mask: TypeAlias = npt.NDArray[np.bool_]

_NEGATIVE_ZERO = encode_literal(FLOAT, -0.0)
_ZERO = encode_literal(FLOAT, 0.0)
_NAN = encode_literal(FLOAT, float("nan"))
_COMPARED = frozenset({INTEGER, DATE, MICROSECONDS, FLOAT, DECIMAL, STRING})


class UnjudgedError(Exception):
    """An expression or a type that is not evaluated here."""


def columns_in(expression: BooleanExpression) -> set[str]:
    """The columns that an expression names."""
    match expression:
        case And(left=left, right=right) | Or(left=left, right=right):
            return columns_in(left) | columns_in(right)
        case UnboundPredicate(term=Reference(name=name)):
            return {name}
        case _:
            return set()


def matching_rows(expression: BooleanExpression, rows: pa.Table, schema: Schema) -> Mask:
    """For each row whether the expression is TRUE.

    Args:
        expression: As `FilePredicate.inclusive`, with names of top-level columns.
        rows: Rows with the columns that it names, in the Arrow types of the schema.
        schema: The table's schema.

    Raises:
        UnjudgedError: Only Spark can evaluate the expression.
    """
    types = {field.name: field.field_type for field in schema.fields}
    return _Evaluation(rows, types, {}).of(expression)


@dataclass(frozen=True, slots=True)
class _Evaluation:
    rows: pa.Table
    types: Mapping[str, IcebergType]
    columns: dict[str, _Column]  # those that were encoded already

    def of(self, expression: BooleanExpression) -> Mask:
        match expression:
            case AlwaysTrue():
                return np.ones(self.rows.num_rows, np.bool_)
            case AlwaysFalse():
                return np.zeros(self.rows.num_rows, np.bool_)
            case And(left=left, right=right):
                return self.of(left) & self.of(right)
            case Or(left=left, right=right):
                return self.of(left) | self.of(right)
            case UnboundPredicate(term=Reference(name=name)):
                return self._column(name).test(expression)
            case _:
                raise UnjudgedError(str(expression))

    def _column(self, name: str) -> _Column:
        if name not in self.columns:
            values = self.rows.column(name).combine_chunks()
            self.columns[name] = _Column.of(values, self.types[name])
        return self.columns[name]


@dataclass(frozen=True, slots=True)
class _Column:
    """Encoded values: their order and equality are Spark's, but for the two zeros."""

    values: pa.Array
    type: IcebergType

    @classmethod
    def of(cls, values: pa.Array, kind: IcebergType) -> _Column:
        encode = _ENCODERS.get(kind_of(kind))
        return cls(values if encode is None else encode(values), kind)

    def test(self, predicate: UnboundPredicate) -> Mask:
        match predicate:
            case UnaryPredicate():
                return self._unary(predicate)
            case StartsWith() | NotStartsWith():
                return self._starts_with(predicate)
            case LiteralPredicate():
                return self._compare(predicate, self._encode(predicate.literal))
            case SetPredicate():
                return self._in(predicate)
            case _:
                raise UnjudgedError(str(predicate))

    def _unary(self, predicate: UnaryPredicate) -> Mask:
        match predicate:
            case IsNull():
                return _mask(self.values.is_null())
            case NotNull():
                return _mask(self.values.is_valid())
            case IsNaN() if kind_of(self.type) == FLOAT:
                return _mask(pc.equal(self.values, self._scalar(_NAN)))
            case _:
                raise UnjudgedError(str(predicate))

    def _compare(self, predicate: LiteralPredicate, value: Any) -> Mask:
        """A comparison; of a zero with both zeros, of which -0.0 is the least."""
        is_zero = kind_of(self.type) == FLOAT and value in (_NEGATIVE_ZERO, _ZERO)
        least, greatest = (_NEGATIVE_ZERO, _ZERO) if is_zero else (value, value)
        match predicate:
            case EqualTo():
                return self._between(least, greatest)
            case NotEqualTo():
                return ~self._between(least, greatest)
            case LessThan():
                return _mask(pc.less(self.values, self._scalar(least)))
            case LessThanOrEqual():
                return _mask(pc.less_equal(self.values, self._scalar(greatest)))
            case GreaterThan():
                return _mask(pc.greater(self.values, self._scalar(greatest)))
            case GreaterThanOrEqual():
                return _mask(pc.greater_equal(self.values, self._scalar(least)))
            case _:
                raise UnjudgedError(str(predicate))

    def _between(self, least: Any, greatest: Any) -> Mask:
        if least == greatest:
            return _mask(pc.equal(self.values, self._scalar(least)))
        above = _mask(pc.greater_equal(self.values, self._scalar(least)))
        return above & _mask(pc.less_equal(self.values, self._scalar(greatest)))

    def _in(self, predicate: SetPredicate) -> Mask:
        listed = {self._encode(literal) for literal in predicate.literals}
        if kind_of(self.type) == FLOAT and not listed.isdisjoint((_NEGATIVE_ZERO, _ZERO)):
            listed |= {_NEGATIVE_ZERO, _ZERO}
        among = _mask(pc.is_in(self.values, pa.array(sorted(listed), self.values.type)))
        match predicate:
            case In():
                return among
            case NotIn():
                return ~among
            case _:
                raise UnjudgedError(str(predicate))

    def _starts_with(self, predicate: LiteralPredicate) -> Mask:
        prefix = predicate.literal.value
        if kind_of(self.type) != STRING or not isinstance(prefix, str):
            raise UnjudgedError(str(predicate))
        starts = _mask(pc.starts_with(self.values, prefix.encode()))
        return ~starts if isinstance(predicate, NotStartsWith) else starts

    def _encode(self, literal: Literal[Any]) -> Any:
        """The literal as an encoded value; a decimal stays one."""
        kind = kind_of(self.type)
        value = literal_value(literal, self.type) if kind in _COMPARED else None
        if value is None:
            raise UnjudgedError(str(literal))
        return value if kind == DECIMAL else encode_literal(kind, value)

    def _scalar(self, value: Any) -> pa.Scalar:
        return pa.scalar(value, self.values.type)


def _mask(tested: pa.Array) -> Mask:
    """A comparison with NULL is not TRUE."""
    mask: Mask = pc.fill_null(tested, False).to_numpy(zero_copy_only=False)
    return mask


# -------------------------------------------------------------------------------------------------
# Encodings


def _integers(values: pa.Array) -> pa.Array:
    values = values.cast(pa.int32()) if pa.types.is_date32(values.type) else values
    return values.cast(pa.int64())


def _floats(values: pa.Array) -> pa.Array:
    doubles = pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy()
    mask = values.is_null().to_numpy(zero_copy_only=False)
    return pa.array(sortable_bits(doubles), pa.int64(), mask=mask)


_ENCODERS: Mapping[str, Callable[[pa.Array], pa.Array]] = {
    INTEGER: _integers,
    DATE: _integers,
    MICROSECONDS: _integers,
    FLOAT: _floats,
    STRING: lambda values: values.cast(pa.large_binary()),
}
