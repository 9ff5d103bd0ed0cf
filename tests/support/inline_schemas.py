"""Random Iceberg schemas and rows for tests of the inline tier, and how rows are compared."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from itertools import count
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

DAY = 86_400_000_000  # microseconds
FIRST_DAY, LAST_DAY = -719_162, 2_932_896  # years 0001 and 9999
LEAVES: list[IcebergType] = [
    BooleanType(), IntegerType(), LongType(), FloatType(), DoubleType(), DecimalType(38, 10),
    DecimalType(9, 2), DecimalType(38, 0), StringType(), BinaryType(), FixedType(3), UUIDType(),
    DateType(), TimeType(), TimestampType(), TimestamptzType(), TimestampNanoType(),
    TimestamptzNanoType(), UnknownType(),
]  # fmt: skip
KEYS = [leaf for leaf in LEAVES if not isinstance(leaf, UnknownType)]


@st.composite
def schemas(draw: st.DrawFn, max_fields: int = 4) -> Schema:
    ids = count(1)
    kinds = draw(st.lists(types(ids, depth=3), min_size=1, max_size=max_fields))
    if all(isinstance(kind, UnknownType) for kind in kinds):
        kinds.append(LongType())
    return Schema(*(NestedField(next(ids), f"f{n}", k) for n, k in enumerate(kinds)))


@st.composite
def types(draw: st.DrawFn, ids: Any, depth: int) -> IcebergType:
    shape = draw(st.sampled_from(["leaf", "leaf", "struct", "list", "map"])) if depth else "leaf"
    match shape:
        case "struct":
            fewest = 0 if depth == 3 else 1  # PyIceberg takes an empty struct in a list for none
            kinds = draw(st.lists(types(ids, depth - 1), min_size=fewest, max_size=3))
            return StructType(*(NestedField(next(ids), f"n{n}", k) for n, k in enumerate(kinds)))
        case "list":
            return ListType(next(ids), draw(types(ids, depth - 1)), element_required=False)
        case "map":
            key, value = draw(st.sampled_from(KEYS)), draw(types(ids, depth - 1))
            return MapType(next(ids), key, next(ids), value, value_required=False)
        case _:
            return draw(st.sampled_from(LEAVES))


def integers_of(kind: IcebergType) -> st.SearchStrategy[int]:
    match kind:
        case IntegerType():
            return st.integers(-(2**31), 2**31 - 1)
        case DateType():
            return st.sampled_from([FIRST_DAY, LAST_DAY, 0]) | st.integers(-(2**31), 2**31 - 1)
        case TimeType():
            return st.integers(0, DAY - 1)
        case TimestampType() | TimestamptzType():
            return st.sampled_from([FIRST_DAY * DAY, (LAST_DAY + 1) * DAY - 1]) | longs()
        case _:
            return longs()


def longs() -> st.SearchStrategy[int]:
    return st.integers(-(2**63), 2**63 - 1)


def leaves(kind: IcebergType) -> st.SearchStrategy[Any]:
    """Values that PyArrow takes for the type; dates and timestamps as integers."""
    match kind:
        case BooleanType():
            return st.booleans()
        case FloatType():
            return st.floats(width=32)
        case DoubleType():
            return st.floats()
        case DecimalType():
            largest = 10**kind.precision - 1
            unscaled = st.sampled_from([largest, -largest, 0]) | st.integers(-largest, largest)
            return unscaled.map(lambda n: as_decimal(n, kind.scale))
        case StringType():
            return st.text() | st.sampled_from(["", "\0", "a\0b", "😀", "'; DROP TABLE t; --"])
        case BinaryType():
            return st.binary()
        case FixedType():
            return st.binary(min_size=3, max_size=3)
        case UUIDType():
            return st.binary(min_size=16, max_size=16)
        case UnknownType():
            return st.none()
        case _:
            return integers_of(kind)


def as_decimal(unscaled: int, scale: int) -> Decimal:
    sign, digits, _ = Decimal(unscaled).as_tuple()
    return Decimal((sign, digits, -scale))


def values(kind: IcebergType) -> st.SearchStrategy[Any]:
    match kind:
        case StructType():
            fields = {f.name: values(f.field_type) for f in kind.fields}
            value: st.SearchStrategy[Any] = st.fixed_dictionaries(fields)
        case ListType():
            value = st.lists(values(kind.element_type), max_size=3)
        case MapType():
            value = st.lists(st.tuples(leaves(kind.key_type), values(kind.value_type)), max_size=3)
        case _:
            value = leaves(kind)
    return st.none() | value


@st.composite
def tables(draw: st.DrawFn) -> tuple[Schema, pa.Table]:
    schema = draw(schemas())
    size = draw(st.integers(0, 6))
    arrow = schema_to_pyarrow(schema, include_field_ids=False)
    columns = [
        array_of(draw(st.lists(values(f.field_type), min_size=size, max_size=size)), kind)
        for f, kind in zip(schema.fields, arrow.types, strict=True)
    ]
    return schema, pa.Table.from_arrays(columns, schema=arrow)


def array_of(plain: list[Any], kind: pa.DataType) -> pa.Array:
    """An array of values in which dates and timestamps are integers, at any depth."""
    return cast_back(pa.array(plain, stored(kind)), kind)


def rows_of(schema: Schema, *columns: list[Any]) -> pa.Table:
    """Rows of the schema's Arrow types, from the values of each field."""
    arrow = schema_to_pyarrow(schema, include_field_ids=False)
    arrays = [array_of(v, kind) for v, kind in zip(columns, arrow.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=arrow)


def stored(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(stored(f.type)) for f in kind])
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(stored(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(stored(kind.key_type)),
            kind.item_field.with_type(stored(kind.item_type)),
        )
    return kind


def cast_back(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The buffers of an array under another type of the same layout."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, array)
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            return array
        children = [cast_back(array.field(n), f.type) for n, f in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_large_list(kind):
        elements = cast_back(array.values, kind.value_type)
        return pa.LargeListArray.from_arrays(
            array.offsets, elements, type=kind, mask=array.is_null()
        )
    if pa.types.is_map(kind):
        keys, items = cast_back(array.keys, kind.key_type), cast_back(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=array.is_null())
    return array if array.type == kind else array.cast(kind)


def plain_rows(table: pa.Table) -> list[list[Any]]:
    """Columns of comparable values: bits of floats, all NaN alike."""
    return [comparable(c.combine_chunks()) for c in table.columns]


def comparable(array: pa.Array) -> list[Any]:
    plain = underlying(array)
    return [bits(value) for value in plain.to_pylist()]


def underlying(array: pa.Array) -> pa.Array:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return array.storage
    if pa.types.is_struct(kind) and kind.num_fields:
        children = [underlying(child) for child in array.flatten()]
        return pa.StructArray.from_arrays(
            children, names=[f.name for f in kind], mask=array.is_null()
        )
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        flat = underlying(array.values)
        offsets = pa.array(array.offsets.to_pylist() or [0], pa.int64())
        return pa.LargeListArray.from_arrays(offsets, flat, mask=array.is_null())
    if pa.types.is_map(kind):
        offsets = pa.array(array.offsets.to_pylist() or [0], pa.int32())
        keys, items = underlying(array.keys), underlying(array.items)
        return pa.MapArray.from_arrays(offsets, keys, items, mask=array.is_null())
    if pa.types.is_date32(kind):
        return array.cast(pa.int32())
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return array.cast(pa.int64())
    return array


def bits(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack(">d", value)
    if isinstance(value, dict):
        return {name: bits(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [bits(each) for each in value]
    return value
