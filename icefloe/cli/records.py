"""Records of Spark DataFrames and of Arrow tables."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import types as T

# -------------------------------------------------------------------------------------------------
# Rows to show: named columns, and rows that may be a stream.


@dataclass(frozen=True, slots=True)
class Records:
    """Named columns and rows, which may be a stream that can be read once."""

    names: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: Iterable[Sequence[object]]


def of_dicts(found: Sequence[Mapping[str, object]]) -> Records:
    """Records of dicts that have the same keys."""
    names = tuple(found[0]) if found else ()
    numeric = tuple(all(_is_number(row[name]) for row in found) for name in names)
    return Records(names, numeric, [tuple(row.values()) for row in found])


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


Converter = Callable[[Any], object]


def of_arrow(table: pa.Table) -> Records:
    """Records of an Arrow table."""
    kinds = [field.type for field in table.schema]
    numeric = [
        pa.types.is_integer(k) or pa.types.is_floating(k) or pa.types.is_decimal(k) for k in kinds
    ]
    columns = [column.to_pylist() for column in table.columns]
    return Records(tuple(table.column_names), tuple(numeric), list(zip(*columns, strict=True)))


def of_frame(frame: DataFrame, rows: Iterable[Row]) -> Records:
    """Records of a DataFrame, of the rows given."""
    fields = frame.schema.fields
    converters = [_converter(field.dataType) for field in fields]
    return Records(
        tuple(field.name for field in fields),
        tuple(isinstance(field.dataType, T.NumericType) for field in fields),
        _converted(rows, converters),
    )


def _converted(
    rows: Iterable[Row], converters: Sequence[Converter]
) -> Iterator[tuple[object, ...]]:
    for row in rows:
        yield tuple(
            None if value is None else convert(value)
            for value, convert in zip(row, converters, strict=True)
        )


def _converter(kind: T.DataType) -> Converter:
    """What makes a value of a Spark type plain: moments in UTC, structs as dicts."""
    match kind:
        case T.TimestampType():
            return _moment
        case T.StructType():
            inner = [_optional(_converter(field.dataType)) for field in kind.fields]
            names = kind.names
            return lambda row: {
                name: convert(value) for name, convert, value in zip(names, inner, row, strict=True)
            }
        case T.ArrayType():
            element = _optional(_converter(kind.elementType))
            return lambda values: [element(value) for value in values]
        case T.MapType():
            key = _converter(kind.keyType)
            value = _optional(_converter(kind.valueType))
            return lambda pairs: {key(k): value(v) for k, v in pairs.items()}
        case T.VariantType():
            return lambda variant: variant.toPython()
        case _:
            return lambda plain: plain


def _optional(convert: Converter) -> Converter:
    return lambda value: None if value is None else convert(value)


def _moment(value: datetime) -> datetime:
    """PySpark gives moments as local times without a zone."""
    return value.astimezone(UTC)


# -------------------------------------------------------------------------------------------------
# One value: as JSON, as text in a cell, as a field of CSV.

_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 0x0A}


def to_json(value: object) -> object:
    """What JSON has for a value: times as ISO text, decimals as text, bytes as base64."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else _unbounded(value)
        case Decimal():
            return format(value, "f")
        case datetime() | date() | time():
            return value.isoformat()
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case Mapping():
            return {_key(key): to_json(each) for key, each in value.items()}
        case Sequence():
            return [to_json(each) for each in value]
        case _:
            return str(value)


def json_text(value: object) -> str:
    """A value as one line of JSON."""
    return json.dumps(to_json(value), ensure_ascii=False)


def cell_text(value: object) -> str:
    """A value as a person reads it; control characters are spelled out, lines are kept."""
    match value:
        case bool():
            text = str(value).lower()
        case float():
            text = str(value) if math.isfinite(value) else _unbounded(value)
        case datetime():
            text = value.isoformat(sep=" ")
        case bytes() | bytearray():
            text = f"X'{value.hex().upper()}'"
        case Mapping():
            text = json_text(value)
        case Sequence() if not isinstance(value, str):
            text = json_text(value)
        case _:
            text = _scalar(value)
    return text.translate(_ESCAPED)


def csv_field(value: object) -> str:
    """A field of CSV; NULL is empty, an empty text is quoted."""
    if value is None:
        return ""
    if isinstance(value, Mapping) or (
        isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
    ):
        text = json_text(value)
    else:
        text = _scalar(to_json(value))
    if text and not any(mark in text for mark in '",\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _key(key: object) -> str:
    return key if isinstance(key, str) else _scalar(to_json(key))


def _unbounded(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
