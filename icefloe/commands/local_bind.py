"""UPDATE and DELETE that need no Spark: a condition and values that are certain from their text.

Binding here only ever succeeds where binding with Spark would succeed, with the same rows and the
same values. Everything else, errors included, is left to Spark: the result is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
)

from icefloe.commands.bind import readable
from icefloe.commands.input_rows import as_schema
from icefloe.file_changes import InlineChanges
from icefloe.inline.cut import Cut
from icefloe.metadata.table_state import TableState
from icefloe.pruning.comparisons import FilePredicate
from icefloe.pruning.conditions import is_plain_sql, lower_certain
from icefloe.pruning.literals import (
    LiteralKind,
    SqlLiteral,
    coerce,
    fits,
    read_literal,
    to_decimal,
)
from icefloe.schema.arrow_values import arrow_schema
from icefloe.spark.column_trees import ColumnReader, ColumnTree
from icefloe.spark.sql_text import SqlText
from icefloe.statements import Expression, RowStatement

_FIRST_PLAIN_YEAR = 1970
_MAX_DIGITS = 38  # of a literal that Spark reads as a decimal
_BITS: Mapping[type[IcebergType], int] = {IntegerType: 32, LongType: 64}


@dataclass(frozen=True, slots=True)
class LocalBound:
    """A statement whose rows and values are certain."""

    lowered: FilePredicate  # exact for rows
    assigned: Mapping[str, pa.Scalar]  # new values by column; none for a DELETE
    has_subquery: bool = False


def bind_locally(
    statement: RowStatement, state: TableState, columns: ColumnReader
) -> LocalBound | None:
    """Bind a statement without Spark; None where only Spark can, or can say what is wrong."""
    lowered = lower_locally(readable(statement.where, columns), state)
    if lowered is None:
        return None
    values = _values(statement.assignments, state.schema)
    return None if values is None else LocalBound(lowered, values)


def lower_locally(
    where: str | ColumnTree | None, state: TableState, time_zone: str | None = None
) -> FilePredicate | None:
    """A condition that is exact for rows and that Spark accepts; None in doubt.

    Timestamps without an offset need the session's time zone.
    """
    return lower_certain(
        where, state.schema, time_zone=time_zone, qualifiers=frozenset({state.alias})
    )


def change_exact_rows(bound: LocalBound, cut: Cut | None) -> InlineChanges:
    """The changes of the rows of an exact cut: all of them get the values, or are removed."""
    if cut is None or not len(cut.rows):
        return InlineChanges()
    versions = tuple(cut.rows.versions)
    read = InlineChanges(read=frozenset(versions), read_at=cut.read_at)
    if not bound.assigned:
        return replace(read, removed=versions)
    new_values = as_schema(with_values(cut.arrow(), bound.assigned), cut.schema)
    return replace(read, replaced=versions, new_values=new_values)


def with_values(rows: pa.Table, assigned: Mapping[str, pa.Scalar]) -> pa.Table:
    """Rows with the same new values in each."""
    for name, value in assigned.items():
        index = rows.schema.get_field_index(name)
        column = pa.repeat(value, rows.num_rows)
        rows = rows.set_column(index, rows.schema.field(index).with_nullable(True), column)
    return rows


# -------------------------------------------------------------------------------------------------
# Values


def _values(
    assignments: Sequence[tuple[str, Expression]], schema: Schema
) -> dict[str, pa.Scalar] | None:
    """The literal values by column; None in doubt about one of them, or about its column."""
    types = arrow_schema(schema)
    values: dict[str, pa.Scalar] = {}
    for name, written in assignments:
        fields = [field for field in schema.fields if field.name.lower() == name.lower()]
        if len(fields) != 1 or fields[0].name != name or name in values:
            return None
        [value] = _value(written, fields[0]) or [_DOUBT]
        if value is _DOUBT or types.get_all_field_indices(name) != [types.get_field_index(name)]:
            return None
        values[name] = pa.scalar(value, types.field(name).type)
    return values


_DOUBT = object()


def _value(written: Expression, field: NestedField) -> tuple[Any] | None:
    """What a column stores, in a tuple of one, for NULL is a value; None in doubt."""
    kind = field.field_type
    if not isinstance(kind, PrimitiveType):
        return None
    if isinstance(written, str):
        return _of_text(written, field)
    if type(written) not in (bool, int, float, date):
        return None
    match written, kind:
        case bool(), BooleanType():
            return (written,)
        case bool(), _:
            return None
        case int(), IntegerType() | LongType():
            return (written,) if fits(written, _BITS[type(kind)]) else None
        case float(), DoubleType() if written != 0:  # the sign of zero
            return (written,)
        case date(), DateType():
            # Spark gets it as a java.sql.Date, which has other calendars and zones in the past.
            return (written,) if written.year >= _FIRST_PLAIN_YEAR else None
        case _:
            return None


def _of_text(text: str, field: NestedField) -> tuple[Any] | None:
    sql = SqlText.of(text)
    if not is_plain_sql(sql, frozenset()) or sql.tree is None:
        return None
    literal = read_literal(sql.tree, strings_are_plain=True)
    if literal is None:
        return None
    if literal.kind is LiteralKind.NULL:
        return None if field.required else (None,)
    return _stored(literal, field.field_type)


def _stored(literal: SqlLiteral, kind: IcebergType) -> tuple[Any] | None:
    """The value that store assignment gives, where no digit is lost and no zone is needed."""
    match literal.kind, kind:
        case LiteralKind.STRING, StringType():
            return (literal.text,)
        case LiteralKind.BOOLEAN, BooleanType():
            return (literal.text == "TRUE",)
        case LiteralKind.DATE, DateType():
            days = coerce(literal, kind, None)
            return None if days is None else (days.value,)
        case LiteralKind.NUMBER, _:
            return _stored_number(literal, kind)
        case _:
            return None


def _stored_number(literal: SqlLiteral, kind: IcebergType) -> tuple[Any] | None:
    text = literal.text
    is_integer = text.removeprefix("-").isdecimal()
    match kind:
        case IntegerType() | LongType() if is_integer and fits(int(text), _BITS[type(kind)]):
            return (int(text),)
        case DecimalType() if "e" not in text.lower() and len(text) <= _MAX_DIGITS:
            value = to_decimal(Fraction(text), kind)
            return None if value is None else (value,)
        case DoubleType() | FloatType():
            number = coerce(literal, kind, None)
            # The zero of a decimal has no sign, that of a double has one.
            return None if number is None or number.value == 0 else (number.value,)
        case _:
            return None
