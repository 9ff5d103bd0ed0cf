"""A REPLACE WHERE predicate over partition columns: SQL text to typed tree, and tree to bound tree.

The tree is that of `pruning/predicate`, here in strict mode: what partition matching cannot decide
is refused with its name. Two things differ from the conditions that file pruning reads, because
Spark never sees the text of these predicates:

* Strings are read by rules of their own: single quotes, '' for a quote inside, no backslashes.
* A literal becomes a value of the column's type wherever it is exactly one ('09' is 9 beside an
  integer), and is refused otherwise. Nothing is compared as text that is not text.

Values are as Iceberg stores them: days for dates, microseconds for timestamps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

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
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from icefloe.errors import (
    InvalidPredicateError,
    NonPartitionedTableError,
    PartitionColumnNotFoundError,
    PartitionTypeMismatchError,
    UnsupportedOperatorError,
)
from icefloe.pruning.literals import LiteralKind, SqlLiteral, coerce, fits, to_decimal
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
    Malformed,
    Node,
    Not,
    NullSafeEqual,
    Or,
    Test,
    Unsupported,
    read_condition,
)
from icefloe.schema.partition_spec import source_path

# Names, comments and strings of a text; a quote or backslash elsewhere is not readable.
_PIECES = re.compile(
    r"`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/|(?P<string>'(?:[^'\\]|'')*')|(?P<other>['\"\\])",
    re.DOTALL,
)
_PLACEHOLDER = "§"  # before the number that replaces a string
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_NUMERIC = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)", re.ASCII)

ParsedPredicate: TypeAlias = Node[Test[ColumnName, SqlLiteral]]


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column that the table is partitioned by."""

    name: str  # full name, dots between levels
    path: tuple[str, ...]  # the same level by level
    field_id: int
    type: PrimitiveType


PartitionTest: TypeAlias = Test[SourceColumn, Any]


@dataclass(frozen=True, slots=True)
class PartitionPredicate:
    """A predicate over partition columns; its values are of the columns' types."""

    text: str
    tree: Node[PartitionTest]
    columns: tuple[SourceColumn, ...]
    time_zone: str


# -------------------------------------------------------------------------------------------------
# Parse: text to tree


def parse_predicate(text: str) -> ParsedPredicate:
    """The tree of a predicate; raises on invalid SQL and on what partitions cannot decide."""
    if "\\\n" in text:  # where Spark continues a comment, and sqlglot does not
        raise InvalidPredicateError(text, "it has a backslash at the end of a line")
    strings: list[str] = []
    plain = _PIECES.sub(_set_aside(text, strings), text)
    try:
        parsed = parse_one(plain, read="spark", into=exp.Condition)
    except (SqlglotError, RecursionError) as error:
        raise InvalidPredicateError(text, "it is not a SQL condition") from error
    for literal in parsed.find_all(exp.Literal):
        if literal.is_string:
            if not literal.this.startswith(_PLACEHOLDER):  # sqlglot's own, as for the number 1BD
                raise UnsupportedOperatorError(f"the literal {literal.this}")
            literal.set("this", strings[int(literal.this.removeprefix(_PLACEHOLDER))])
    return _partition_tests(read_condition(parsed, strings_are_plain=True), text)


def _set_aside(text: str, strings: list[str]) -> Callable[[re.Match[str]], str]:
    """Replace each string by its number: sqlglot has other rules for quotes."""

    def replace_string(piece: re.Match[str]) -> str:
        if piece["other"]:
            raise InvalidPredicateError(
                text,
                f"it has {piece['other']} outside a string or without an end: write strings "
                "in single quotes ('' for a quote inside), without backslashes",
            )
        if not piece["string"]:
            return piece[0]
        strings.append(piece["string"][1:-1].replace("''", "'"))
        return f"'{_PLACEHOLDER}{len(strings) - 1}'"

    return replace_string


def _partition_tests(node: Condition, text: str) -> ParsedPredicate:
    """The same tree, which has only tests that partition values can be matched with."""
    match node:
        case And(parts):
            return And(tuple(_partition_tests(part, text) for part in parts))
        case Or(parts):
            return Or(tuple(_partition_tests(part, text) for part in parts))
        case Not(part):
            return Not(_partition_tests(part, text))
        case Malformed(reason):
            raise InvalidPredicateError(text, reason)
        case Unsupported(operator):
            raise UnsupportedOperatorError(operator, text)
        case NullSafeEqual():
            raise UnsupportedOperatorError("<=>", text)
        case Like():
            raise UnsupportedOperatorError("LIKE", text)
        case IsTruth():
            raise UnsupportedOperatorError("IS", text)
        case _:
            return node


# -------------------------------------------------------------------------------------------------
# Bind: tree and table to a tree of the table's own columns and values


def bind_predicate(
    text: str,
    tree: ParsedPredicate,
    schema: Schema,
    spec: PartitionSpec,
    *,
    table: str,
    time_zone: str,
) -> PartitionPredicate:
    """Check a parsed predicate against a table's partition columns and their types."""
    columns = source_columns(schema, spec)
    if not columns:
        raise NonPartitionedTableError(table)
    binder = _Binder(columns, table.rpartition(".")[2].lower(), time_zone)
    return PartitionPredicate(text, binder.node(tree), tuple(columns.values()), time_zone)


def source_columns(schema: Schema, spec: PartitionSpec) -> dict[str, SourceColumn]:
    """The columns that `spec` partitions by, by full name."""
    columns: dict[str, SourceColumn] = {}
    for field in partitioning_fields(spec):
        path = source_path(schema, field.source_id)
        if path is not None:
            kind, name = schema.find_type(field.source_id), ".".join(path)
            if isinstance(kind, PrimitiveType):
                columns[name] = SourceColumn(name, path, field.source_id, kind)
    return columns


def partitioning_fields(spec: PartitionSpec) -> list[PartitionField]:
    """The fields that distinguish partitions: all but void ones."""
    return [field for field in spec.fields if not isinstance(field.transform, VoidTransform)]


@dataclass(frozen=True, slots=True)
class _Binder:
    columns: Mapping[str, SourceColumn]
    qualifier: str
    time_zone: str
    negated: bool = False  # under a NOT

    def node(self, node: ParsedPredicate) -> Node[PartitionTest]:
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
                return IsNull(self._column(name))
            case Compare(name, comparison, literal):
                column = self._column(name)
                value = self._value(column, literal, is_equality=comparison is Comparison.EQUAL)
                return Compare(column, comparison, value)
            case In(name, literals):
                column = self._column(name)
                values = [self._value(column, literal, is_equality=True) for literal in literals]
                return In(column, tuple(dict.fromkeys(values)))

    def _column(self, parts: ColumnName) -> SourceColumn:
        name = ".".join(parts)
        first, _, rest = name.partition(".")
        spellings = [name, rest] if first.lower() == self.qualifier and rest else [name]
        for spelling in spellings:
            if spelling in self.columns:
                return self.columns[spelling]
            same = [c for c in self.columns.values() if c.name.lower() == spelling.lower()]
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

    A number is a string only where a column has to equal it: `'10' < 9` would compare letters, and
    `'09' <> 9` would be TRUE for strings, though not for numbers.
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
    value = coerce(literal, kind, time_zone)
    return value.value if value is not None else None


def _whole(literal: SqlLiteral, *, bits: int) -> int | None:
    number = _fraction(literal)
    if number is None or number.denominator != 1:
        return None
    if literal.kind is LiteralKind.STRING and not _WHOLE.fullmatch(literal.text.strip()):
        return None
    return number.numerator if fits(number.numerator, bits) else None


def _decimal(literal: SqlLiteral, kind: DecimalType) -> Decimal | None:
    number = _fraction(literal)
    return to_decimal(number, kind) if number is not None else None


def _fraction(literal: SqlLiteral) -> Fraction | None:
    text = literal.text.strip()
    if literal.kind not in (LiteralKind.NUMBER, LiteralKind.STRING) or not _NUMERIC.fullmatch(text):
        return None
    return Fraction(text)


def _boolean(literal: SqlLiteral) -> bool | None:
    text = literal.text.upper()
    has_kind = literal.kind in (LiteralKind.BOOLEAN, LiteralKind.STRING)
    return text == "TRUE" if has_kind and text in ("TRUE", "FALSE") else None


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
