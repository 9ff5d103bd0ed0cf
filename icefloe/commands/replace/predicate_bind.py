"""A parsed predicate and a table → a predicate whose columns and values are the table's own.

Values are as Iceberg keeps them: days for dates, microseconds for timestamps. A literal is taken
when it is exactly a value of the column's type, and refused otherwise: nothing is compared as text
that is not text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestamptzType,
)

from icefloe.commands.replace.predicate import (
    And,
    Compare,
    Constant,
    In,
    IsNull,
    Node,
    Not,
    Or,
    Tree,
)
from icefloe.errors import (
    NonPartitionedTableError,
    PartitionColumnNotFoundError,
    PartitionTypeMismatchError,
)
from icefloe.pruning.comparisons import Comparison
from icefloe.pruning.literals import LiteralKind, SqlLiteral, coerce
from icefloe.schema.partition_spec import source_path

_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_NUMERIC = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column that the table is partitioned by."""

    name: str  # full name, dots between levels
    path: tuple[str, ...]  # the same level by level
    field_id: int
    type: PrimitiveType


@dataclass(frozen=True, slots=True)
class PartitionPredicate:
    """A predicate over partition columns; its values are of the columns' types."""

    text: str
    tree: Node[Any]
    columns: Mapping[str, SourceColumn]
    time_zone: str


def source_columns(schema: Schema, spec: PartitionSpec) -> dict[str, SourceColumn]:
    """The columns that `spec` partitions by, by full name."""
    found: dict[str, SourceColumn] = {}
    for field in partitioning_fields(spec):
        path = source_path(schema, field.source_id)
        if path is not None:
            kind, name = schema.find_type(field.source_id), ".".join(path)
            if isinstance(kind, PrimitiveType):
                found[name] = SourceColumn(name, path, field.source_id, kind)
    return found


def partitioning_fields(spec: PartitionSpec) -> list[PartitionField]:
    """The fields that tell partitions apart."""
    return [field for field in spec.fields if not isinstance(field.transform, VoidTransform)]


def bind_predicate(
    text: str, tree: Tree, schema: Schema, spec: PartitionSpec, *, table: str, time_zone: str
) -> PartitionPredicate:
    """Check a parsed predicate against a table's partition columns and their types."""
    columns = source_columns(schema, spec)
    if not columns:
        raise NonPartitionedTableError(table)
    binder = _Binder(columns, table.rpartition(".")[2].lower(), time_zone)
    return PartitionPredicate(text, binder.node(tree), columns, time_zone)


@dataclass(frozen=True, slots=True)
class _Binder:
    columns: Mapping[str, SourceColumn]
    qualifier: str
    time_zone: str
    negated: bool = False  # below a NOT

    def node(self, node: Tree) -> Node[Any]:
        match node:
            case And(parts):
                return And(tuple(self.node(part) for part in parts))
            case Or(parts):
                return Or(tuple(self.node(part) for part in parts))
            case Not(part):
                return Not(replace(self, negated=True).node(part))
            case Constant():
                return node
            case IsNull(name):
                return IsNull(self._column(name).name)
            case Compare(name, comparison, literal):
                column = self._column(name)
                value = self._value(column, literal, is_equality=comparison is Comparison.EQUAL)
                return Compare(column.name, comparison, value)
            case In(name, literals):
                column = self._column(name)
                values = [self._value(column, literal, is_equality=True) for literal in literals]
                return In(column.name, tuple(dict.fromkeys(values)))

    def _column(self, name: str) -> SourceColumn:
        first, _, rest = name.partition(".")
        spellings = [name, rest] if first.lower() == self.qualifier and rest else [name]
        for wanted in spellings:
            if wanted in self.columns:
                return self.columns[wanted]
            same = [c for c in self.columns.values() if c.name.lower() == wanted.lower()]
            if len(same) == 1:
                return same[0]
        raise PartitionColumnNotFoundError(name, sorted(self.columns))

    def _value(self, column: SourceColumn, literal: SqlLiteral, *, is_equality: bool) -> Any:
        if literal.kind is LiteralKind.NULL:
            return None
        is_equality = is_equality and not self.negated
        value = typed_value(literal, column.type, self.time_zone, is_equality=is_equality)
        if value is None:
            raise PartitionTypeMismatchError(
                column.name,
                str(column.type),
                f"the {literal.kind.value} {literal.text!r}",
                _advice(column.type),
            )
        return value


def typed_value(
    literal: SqlLiteral, kind: PrimitiveType, time_zone: str, *, is_equality: bool
) -> Any:
    """A literal as a value of a type, None when it is not exactly one.

    A number is a text only where a column is to equal it: `'10' < 9` would compare letters, and
    `'09' <> 9` would be true of texts, though not of numbers.
    """
    match kind:
        case IntegerType():
            return _whole(literal, bits=32)
        case LongType():
            return _whole(literal, bits=64)
        case DecimalType():
            return _decimal(literal, kind)
        case BooleanType():
            return _boolean(literal)
        case StringType():
            return _text(literal) if is_equality or literal.kind is LiteralKind.STRING else None
        case FloatType() | DoubleType() if literal.kind is LiteralKind.STRING:
            literal = SqlLiteral(LiteralKind.NUMBER, literal.text.strip().removeprefix("+"))
            if not _NUMERIC.fullmatch(literal.text):
                return None
    found = coerce(literal, kind, time_zone)
    return found.value if found is not None else None


def _whole(literal: SqlLiteral, *, bits: int) -> int | None:
    number = _fraction(literal)
    if number is None or number.denominator != 1:
        return None
    if literal.kind is LiteralKind.STRING and not _WHOLE.fullmatch(literal.text.strip()):
        return None
    limit = 1 << (bits - 1)
    return number.numerator if -limit <= number.numerator < limit else None


def _decimal(literal: SqlLiteral, kind: DecimalType) -> Decimal | None:
    number = _fraction(literal)
    unscaled = number * 10**kind.scale if number is not None else None
    if unscaled is None or unscaled.denominator != 1:
        return None
    if abs(unscaled.numerator) >= 10**kind.precision:
        return None
    sign, digits, _ = Decimal(unscaled.numerator).as_tuple()
    return Decimal((sign, digits, -kind.scale))


def _fraction(literal: SqlLiteral) -> Fraction | None:
    text = literal.text.strip()
    if literal.kind not in (LiteralKind.NUMBER, LiteralKind.STRING) or not _NUMERIC.fullmatch(text):
        return None
    return Fraction(text)


def _boolean(literal: SqlLiteral) -> bool | None:
    text = literal.text.upper()
    is_one = literal.kind in (LiteralKind.BOOLEAN, LiteralKind.STRING) and text in ("TRUE", "FALSE")
    return text == "TRUE" if is_one else None


def _text(literal: SqlLiteral) -> str | None:
    if literal.kind is LiteralKind.STRING:
        return literal.text
    is_whole = literal.kind is LiteralKind.NUMBER and _WHOLE.fullmatch(literal.text)
    return literal.text if is_whole else None


def _advice(kind: PrimitiveType) -> str:
    match kind:
        case StringType():
            return "Write it in single quotes."
        case TimestamptzType():
            return "Write it as TIMESTAMP '2024-01-31 00:00:00+00:00', with an offset."
        case _:
            return f"Write a literal of type {kind}."
