"""Records of Spark DataFrames and of Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import types as T

from icefloe.cli.records import Records

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
