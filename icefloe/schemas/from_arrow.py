"""Arrow's types as Iceberg's, as far as Spark can read them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count

import pyarrow as pa
import pyarrow.types as pt
from pyiceberg import types as ice

from icefloe.schemas.unsupported import unsupported_column

_DOC = b"doc"  # where PyIceberg keeps a column's comment in Arrow field metadata

_PRIMITIVES: tuple[tuple[tuple[Callable[[pa.DataType], bool], ...], ice.PrimitiveType], ...] = (
    ((pt.is_boolean,), ice.BooleanType()),
    ((pt.is_int8, pt.is_int16, pt.is_int32, pt.is_uint8, pt.is_uint16), ice.IntegerType()),
    ((pt.is_int64, pt.is_uint32), ice.LongType()),
    ((pt.is_float16, pt.is_float32), ice.FloatType()),
    ((pt.is_float64,), ice.DoubleType()),
    ((pt.is_string, pt.is_large_string, pt.is_string_view), ice.StringType()),
    # Spark has no fixed type and would write a fixed column with the wrong physical type.
    (
        (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary),
        ice.BinaryType(),
    ),
    ((pt.is_date,), ice.DateType()),
)


def from_arrow(schema: pa.Schema) -> ice.StructType:
    """The Iceberg struct of an Arrow schema; ids are unique but otherwise without meaning.

    Timestamps of any unit become microseconds; a time zone makes them timestamptz. Unsigned
    integers go to the next wider type. Raises UnsupportedTableError for what has no counterpart.
    """
    return ice.StructType(*_fields(schema, "", count(1)))


def _fields(fields: Iterable[pa.Field], path: str, ids: Iterator[int]) -> list[ice.NestedField]:
    return [
        ice.NestedField(
            field_id=next(ids),
            name=field.name,
            field_type=_type(field.type, f"{path}{field.name}", ids),
            required=not field.nullable,
            doc=_doc(field),
        )
        for field in fields
    ]


def _doc(field: pa.Field) -> str | None:
    doc = (field.metadata or {}).get(_DOC)
    return doc.decode() if doc is not None else None


def _type(data_type: pa.DataType, path: str, ids: Iterator[int]) -> ice.IcebergType:
    if pt.is_dictionary(data_type):
        return _type(data_type.value_type, path, ids)
    if pt.is_struct(data_type):
        return ice.StructType(*_fields(data_type.fields, f"{path}.", ids))
    if _is_list(data_type):
        element = _type(data_type.value_type, f"{path}.element", ids)
        return ice.ListType(next(ids), element, not data_type.value_field.nullable)
    if pt.is_map(data_type):
        key = _type(data_type.key_type, f"{path}.key", ids)
        value = _type(data_type.item_type, f"{path}.value", ids)
        return ice.MapType(next(ids), key, next(ids), value, not data_type.item_field.nullable)
    return _primitive(data_type, path)


def _is_list(data_type: pa.DataType) -> bool:
    kinds = (
        pt.is_list,
        pt.is_large_list,
        pt.is_fixed_size_list,
        pt.is_list_view,
        pt.is_large_list_view,
    )
    return any(is_kind(data_type) for is_kind in kinds)


def _primitive(data_type: pa.DataType, path: str) -> ice.PrimitiveType:
    if pt.is_timestamp(data_type):
        return ice.TimestampType() if data_type.tz is None else ice.TimestamptzType()
    if pt.is_decimal(data_type) and 0 <= data_type.scale <= data_type.precision <= 38:
        return ice.DecimalType(data_type.precision, data_type.scale)
    for kinds, primitive in _PRIMITIVES:
        if any(is_kind(data_type) for is_kind in kinds):
            return primitive
    raise unsupported_column(path, str(data_type), _advice(data_type))


def _advice(data_type: pa.DataType) -> str:
    if pt.is_null(data_type):
        return "Give the column a type, for example pa.string()."
    if pt.is_uint64(data_type):
        return "Cast it to int64 or decimal128(20, 0)."
    return "Cast it to another type, for example string, or leave the column out."
