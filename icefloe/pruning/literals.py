"""SQL literals as values of a column, and back.

Spark converts one side of a comparison to the type of the other, or both to a third type. A literal
becomes a value of the column's type here only when the comparison then has the same result for
every value of the column, under ANSI and non-ANSI rules alike; every other pair is unknown (None).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from pyiceberg.expressions.literals import (
    BooleanLiteral,
    DateLiteral,
    DecimalLiteral,
    DoubleLiteral,
    Literal,
    LongLiteral,
    StringLiteral,
    TimestampLiteral,
)
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from sqlglot import exp

AnyLiteral = Literal[bool] | Literal[int] | Literal[float] | Literal[str] | Literal[Decimal]

_MAX_PRECISION = 38
_LONG_DIGITS = 20  # Spark reads a BIGINT as DECIMAL(20, 0) beside a decimal
_EXACT_DOUBLE_DIGITS = 15  # up to here every correct conversion to double gives the same value
_EXACT_DOUBLE_POWER = 22
_FIRST_SAFE_YEAR = 1970  # before it Java and Python may have different zone histories

_NUMBER = re.compile(r"-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,2})?", re.ASCII)
_CANONICAL_INTEGER = re.compile(r"0|-?[1-9]\d*", re.ASCII)
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_ISO_TIMESTAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2})"
    r"(?:[ T](\d{2}:\d{2}:\d{2})(?:\.(\d{1,6}))?(Z|[+-](?:0\d|1[0-4]):[0-5]\d)?)?",
    re.ASCII,
)

_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH = _EPOCH_UTC.replace(tzinfo=None)
_MICROSECOND = timedelta(microseconds=1)
_DAY_MICROS = 86_400_000_000


class LiteralKind(Enum):
    """The type of a literal in Spark, before it is compared with a column."""

    NULL = "null"
    BOOLEAN = "boolean"
    NUMBER = "number"
    DOUBLE = "double"  # of a Column; its text has every digit
    STRING = "string"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"


@dataclass(frozen=True, slots=True)
class SqlLiteral:
    """A constant as in the SQL text."""

    kind: LiteralKind
    text: str


_CASTS: Mapping[Any, LiteralKind | int] = {
    exp.DataType.Type.DATE: LiteralKind.DATE,
    exp.DataType.Type.TIMESTAMPTZ: LiteralKind.TIMESTAMP,
    exp.DataType.Type.TIMESTAMPLTZ: LiteralKind.TIMESTAMP,
    exp.DataType.Type.TIMESTAMPNTZ: LiteralKind.TIMESTAMP_NTZ,
    exp.DataType.Type.TINYINT: 8,
    exp.DataType.Type.SMALLINT: 16,
    exp.DataType.Type.INT: 32,
    exp.DataType.Type.BIGINT: 64,
}


def read_literal(node: exp.Expr, *, strings_are_plain: bool) -> SqlLiteral | None:
    """The constant that a node is; None if it is not a constant or its value is in doubt.

    Unless `strings_are_plain`, the value of every string is in doubt.
    """
    node = node.unnest()
    if isinstance(node, exp.Cast):
        inner = read_literal(node.this, strings_are_plain=strings_are_plain)
        to = _CASTS.get(node.to.this)
        return cast_literal(inner, to) if inner is not None and to is not None else None
    if isinstance(node, exp.Literal) and node.is_string:
        return SqlLiteral(LiteralKind.STRING, node.this) if strings_are_plain else None
    return _read_plain(node)


def _read_plain(node: exp.Expr) -> SqlLiteral | None:
    match node:
        case exp.Null():
            return SqlLiteral(LiteralKind.NULL, "NULL")
        case exp.Boolean():
            return SqlLiteral(LiteralKind.BOOLEAN, "TRUE" if node.this else "FALSE")
        case exp.Literal():
            return _number(node.this)
        case exp.Neg(this=exp.Literal(is_string=False) as digits):
            return _number("-" + digits.this)
        case _:
            return None


def _number(text: str) -> SqlLiteral | None:
    if len(text) > _MAX_PRECISION + 2 or not _NUMBER.fullmatch(text):
        return None
    return SqlLiteral(LiteralKind.NUMBER, text)


def cast_literal(inner: SqlLiteral, to: LiteralKind | int) -> SqlLiteral | None:
    """DATE '…', TIMESTAMP '…', CAST('…' AS DATE) and the like, and integers with a suffix: 5L.

    `to` is the kind of the result, or how many bits an integer has.
    """
    if inner.kind is LiteralKind.STRING and isinstance(to, LiteralKind):
        return SqlLiteral(to, inner.text)
    if inner.kind is LiteralKind.NUMBER and isinstance(to, int):
        value = _integer(inner)
        # Without a point, by which a decimal is known: CAST(2.0 AS BIGINT) is compared as a BIGINT.
        plain = SqlLiteral(LiteralKind.NUMBER, str(value))
        return plain if value is not None and fits(value, to) else None
    return None


def coerce(literal: SqlLiteral, column: PrimitiveType, time_zone: str | None) -> AnyLiteral | None:
    """The literal as a value of the column's type, or None when that would not be exact."""
    match column:
        case TimestamptzType():
            return _coerce_timestamp(literal, time_zone)
        case DecimalType():
            return _coerce_decimal(literal, column)
        case _:
            rule = _RULES.get(type(column))
            return rule(literal) if rule is not None else None


def fits(value: int, bits: int) -> bool:
    """Whether a signed integer of so many bits has the value."""
    return -(1 << (bits - 1)) <= value < (1 << (bits - 1))


def _integer(literal: SqlLiteral) -> int | None:
    """The value of an integral number or string: of 5.0, but not of 1.5 or 1e3."""
    if literal.kind is LiteralKind.STRING:
        # Without ANSI, IN compares as strings: only '5' then equals 5, not '05' or ' 5'.
        return int(literal.text) if _CANONICAL_INTEGER.fullmatch(literal.text) else None
    if literal.kind is not LiteralKind.NUMBER or "e" in literal.text.lower():
        return None
    if _scale(literal.text) > _MAX_PRECISION - _LONG_DIGITS:
        return None
    value = Fraction(literal.text)
    return value.numerator if value.denominator == 1 else None


def _scale(number: str) -> int:
    return len(number.partition(".")[2])


def _whole_digits(number: str) -> int:
    return len(number.removeprefix("-").partition(".")[0])


def _coerce_boolean(literal: SqlLiteral) -> AnyLiteral | None:
    is_boolean = literal.kind is LiteralKind.BOOLEAN
    return BooleanLiteral(literal.text == "TRUE") if is_boolean else None


def _coerce_string(literal: SqlLiteral) -> AnyLiteral | None:
    return StringLiteral(literal.text) if literal.kind is LiteralKind.STRING else None


def _coerce_date(literal: SqlLiteral) -> AnyLiteral | None:
    if literal.kind not in (LiteralKind.STRING, LiteralKind.DATE):
        return None
    day = _parse_date(literal.text)
    return DateLiteral((day - _EPOCH.date()).days) if day is not None else None


def _coerce_integer(literal: SqlLiteral, *, bits: int) -> AnyLiteral | None:
    value = _integer(literal)
    return LongLiteral(value) if value is not None and fits(value, bits) else None


def _coerce_decimal(literal: SqlLiteral, column: DecimalType) -> AnyLiteral | None:
    """Only when Spark's common type of both sides has every digit of either."""
    if literal.kind is not LiteralKind.NUMBER or "e" in literal.text.lower():
        return None
    integer_digits = max(column.precision - column.scale, _whole_digits(literal.text))
    if "." not in literal.text:
        integer_digits = max(integer_digits, _LONG_DIGITS)
    if integer_digits + max(column.scale, _scale(literal.text)) > _MAX_PRECISION:
        return None
    value = to_decimal(Fraction(literal.text), column)
    return DecimalLiteral(value) if value is not None else None


def to_decimal(number: Fraction, kind: DecimalType) -> Decimal | None:
    """The number as a decimal of the type's scale; None when the type does not have it exactly."""
    unscaled = number * 10**kind.scale
    if unscaled.denominator != 1 or abs(unscaled.numerator) >= 10**kind.precision:
        return None
    sign, digits, _ = Decimal(unscaled.numerator).as_tuple()
    return Decimal((sign, digits, -kind.scale))


def _coerce_double(literal: SqlLiteral) -> AnyLiteral | None:
    if literal.kind is LiteralKind.DOUBLE:
        return DoubleLiteral(float(literal.text))
    if literal.kind is not LiteralKind.NUMBER:
        return None
    mantissa, _, power = literal.text.lower().partition("e")
    digits = mantissa.lstrip("-").replace(".", "").lstrip("0")
    if len(digits) > _EXACT_DOUBLE_DIGITS or _scale(mantissa) > _EXACT_DOUBLE_POWER:
        return None
    if power and abs(int(power)) + _scale(mantissa) > _EXACT_DOUBLE_POWER:
        return None
    return DoubleLiteral(float(literal.text))


def _coerce_float(literal: SqlLiteral) -> AnyLiteral | None:
    """Spark compares a FLOAT column as double: 0.1 equals no float, so it must not become one."""
    if _coerce_double(literal) is None:
        return None
    try:
        single: float = struct.unpack("<f", struct.pack("<f", float(literal.text)))[0]
    except OverflowError:
        return None
    return DoubleLiteral(single) if Fraction(single) == Fraction(literal.text) else None


def _parse_date(text: str) -> date | None:
    if not _ISO_DATE.fullmatch(text):
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _parse_timestamp(text: str) -> datetime | None:
    """A strict ISO timestamp, aware if the text has an offset; a date alone is midnight."""
    parts = _ISO_TIMESTAMP.fullmatch(text)
    if parts is None:
        return None
    day, clock, fraction, offset = parts.groups()
    try:
        timestamp = datetime.fromisoformat(day + "T" + (clock or "00:00:00"))
    except ValueError:
        return None
    timestamp = timestamp.replace(microsecond=int((fraction or "0").ljust(6, "0")))
    return timestamp.replace(tzinfo=_offset(offset)) if offset else timestamp


def _offset(text: str) -> tzinfo:
    if text == "Z":
        return UTC
    hours, minutes = text[1:].split(":")
    size = timedelta(hours=int(hours), minutes=int(minutes))
    return timezone(-size if text[0] == "-" else size)


def _coerce_timestamp_ntz(literal: SqlLiteral) -> AnyLiteral | None:
    if literal.kind is LiteralKind.DATE:
        day = _parse_date(literal.text)
        return TimestampLiteral((day - _EPOCH.date()).days * _DAY_MICROS) if day else None
    if literal.kind not in (LiteralKind.STRING, LiteralKind.TIMESTAMP_NTZ):
        return None
    timestamp = _parse_timestamp(literal.text)
    if timestamp is None or timestamp.tzinfo is not None:
        return None
    return TimestampLiteral((timestamp - _EPOCH) // _MICROSECOND)


def _coerce_timestamp(literal: SqlLiteral, time_zone: str | None) -> AnyLiteral | None:
    if literal.kind is LiteralKind.DATE:
        day = _parse_date(literal.text)
        return _in_zone(datetime.combine(day, time.min), time_zone) if day is not None else None
    if literal.kind not in (
        LiteralKind.STRING,
        LiteralKind.TIMESTAMP,
        LiteralKind.TIMESTAMP_NTZ,
    ):
        return None
    timestamp = _parse_timestamp(literal.text)
    if timestamp is None or timestamp.tzinfo is None:
        return _in_zone(timestamp, time_zone) if timestamp is not None else None
    if literal.kind is LiteralKind.TIMESTAMP_NTZ:
        return None
    return _instant(timestamp)


def _in_zone(local: datetime, time_zone: str | None) -> AnyLiteral | None:
    """The instant of a local time; None if the zone has it twice or never, or is unknown."""
    if time_zone is None:
        return None
    if time_zone in ("UTC", "Etc/UTC", "Z"):
        return _instant(local.replace(tzinfo=UTC))
    try:
        zone = ZoneInfo(time_zone)
    except (KeyError, ValueError, OSError):
        return None
    early, late = local.replace(tzinfo=zone, fold=0), local.replace(tzinfo=zone, fold=1)
    if local.year < _FIRST_SAFE_YEAR or early.utcoffset() != late.utcoffset():
        return None
    return _instant(early)


def _instant(timestamp: datetime) -> AnyLiteral:
    return TimestampLiteral((timestamp - _EPOCH_UTC) // _MICROSECOND)


_RULES: Mapping[type[PrimitiveType], Callable[[SqlLiteral], AnyLiteral | None]] = {
    IntegerType: partial(_coerce_integer, bits=32),
    LongType: partial(_coerce_integer, bits=64),
    FloatType: _coerce_float,
    DoubleType: _coerce_double,
    BooleanType: _coerce_boolean,
    StringType: _coerce_string,
    DateType: _coerce_date,
    TimestampType: _coerce_timestamp_ntz,
}


# -------------------------------------------------------------------------------------------------
# Values of a column as SQL literals


def sql_literal(value: Any, kind: PrimitiveType) -> SqlLiteral:
    """A value as Iceberg stores it, as a SQL constant."""
    match kind:
        case _ if value is None:
            return SqlLiteral(LiteralKind.NULL, "NULL")
        case DateType():
            return SqlLiteral(LiteralKind.DATE, day_text(value))
        case TimestamptzType():
            return SqlLiteral(LiteralKind.TIMESTAMP, f"{timestamp_text(value)}+00:00")
        case TimestampType():
            return SqlLiteral(LiteralKind.TIMESTAMP_NTZ, timestamp_text(value))
        case StringType():
            return SqlLiteral(LiteralKind.STRING, str(value))
        case DecimalType():
            return SqlLiteral(LiteralKind.NUMBER, f"{Decimal(value):f}")
        case _ if isinstance(value, bool):
            return SqlLiteral(LiteralKind.BOOLEAN, str(value).upper())
        case _:
            return SqlLiteral(LiteralKind.NUMBER, str(value))


def sql_text(literal: SqlLiteral) -> str:
    """A constant as it is written in SQL."""
    match literal.kind:
        case LiteralKind.NULL | LiteralKind.BOOLEAN | LiteralKind.NUMBER:
            return literal.text
        case LiteralKind.DOUBLE:
            return f"{literal.text}D"
        case LiteralKind.STRING:
            return "'" + literal.text.replace("'", "''") + "'"
        case kind:
            return f"{kind.value.upper()} '{literal.text}'"


def day_text(days: int) -> str:
    """Days since 1970 as `2024-01-31`."""
    return (_EPOCH.date() + timedelta(days=days)).isoformat()


def timestamp_text(micros: int) -> str:
    """Microseconds since 1970 as `2024-01-31 00:00:00`."""
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(sep=" ")
