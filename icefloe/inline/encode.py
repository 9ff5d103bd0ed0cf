"""Arrow values as database values: BIGINT or bytes, in Spark's order.

| type                          | value in the database                                            |
|-------------------------------|------------------------------------------------------------------|
| boolean, int, long            | the number                                                       |
| date; time and timestamps     | days; microseconds, or nanoseconds for the types that have them  |
| float, double                 | bits of the double, negative ones flipped; NaN is one value      |
| decimal                       | unscaled value + 2^127 in 16 bytes, big-endian                   |
| string; binary, fixed, uuid   | UTF-8; the bytes                                                 |
| struct, list, map             | JSON: objects by field id, arrays, arrays of pairs; bytes base64 |

NULL is NULL. Conversions go through NumPy, column by column.
"""

from __future__ import annotations

import json
from binascii import b2a_base64
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, StructType, UnknownType

from icefloe.errors import SchemaMismatchError
from icefloe.inline.layout import (
    BINARY,
    DATE,
    DECIMAL,
    FLOAT,
    INTEGER,
    MICROSECONDS,
    NANOSECONDS,
    NESTED,
    STRING,
    InlineColumn,
    Value,
    kind_of,
)
from icefloe.schema.arrow_values import arrow_schema

Json: TypeAlias = int | str | list[Any] | dict[str, Any] | None

DECIMAL_BIAS = 1 << 127
DECIMAL_BYTES = 16
SIGN_BIT = np.uint64(1 << 63)
MAGNITUDE_BITS = np.int64((1 << 63) - 1)
CANONICAL_NAN = 0x7FF8_0000_0000_0000

_to_text = json.JSONEncoder(separators=(",", ":")).encode


def encode_rows(rows: pa.Table, schema: Schema) -> list[list[Value]]:
    """The values of each column of `inline_columns(schema)`, in that order.

    Args:
        rows: Rows with the columns of the schema, in its order and with its Arrow types, strings
            and lists with offsets of 32 or 64 bits.
        schema: The table's schema, which `inline_columns` accepts.

    Raises:
        SchemaMismatchError: The rows have other columns, or other types.
    """
    names = [field.name for field in schema.fields]
    if rows.column_names != names:
        raise SchemaMismatchError(
            f"The rows have the columns {rows.column_names}, the table has {names}."
        )
    types = arrow_schema(schema).types
    encoded: list[list[Value]] = []
    for field, column, expected in zip(schema.fields, rows.columns, types, strict=True):
        if isinstance(field.field_type, UnknownType):
            continue
        try:
            encoded.append(_encode(column.combine_chunks(), field.field_type, expected))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError) as error:
            raise SchemaMismatchError(
                f"Column {field.name!r} has the type {column.type}, expected {expected}."
            ) from error
    return encoded


def encode_literal(kind: str, value: bool | int | float | str | bytes | Decimal) -> int | bytes:
    """A value of a predicate as the database has it.

    Args:
        kind: The kind of the column, any but nested.
        value: As PyIceberg's literals have it: dates and timestamps are integers. A decimal has
            the scale of its column.
    """
    match value:
        case bytes():
            return value
        case str():
            return value.encode()
        case Decimal():
            return _encode_unscaled(value)
        case _ if kind == FLOAT:
            return int(sortable_bits(np.array([value], dtype=np.float64))[0])
        case _:
            return int(value)


def _encode_unscaled(value: Decimal) -> bytes:
    sign, digits, _ = value.as_tuple()
    unscaled = int("".join(map(str, digits)))
    return (DECIMAL_BIAS + (-unscaled if sign else unscaled)).to_bytes(DECIMAL_BYTES, "big")


# -------------------------------------------------------------------------------------------------
# Arrays


def _encode(array: pa.Array, kind: IcebergType, expected: pa.DataType) -> list[Value]:
    if kind_of(kind) == NESTED:
        documents = _as_json(array, kind, expected)
        return [None if each is None else _to_text(each).encode() for each in documents]
    return _encode_leaves(array, kind_of(kind), expected)


def _encode_leaves(array: pa.Array, kind: str, expected: pa.DataType) -> list[Value]:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(expected, pa.BaseExtensionType):
        expected = expected.storage_type
    if array.type != expected:
        array = array.cast(expected)
    values = _ENCODERS[kind](array)
    if array.null_count:
        for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[row] = None
    return values


def _encode_integers(array: pa.Array) -> list[Value]:
    if pa.types.is_date32(array.type):
        array = array.cast(pa.int32())
    numbers: list[Value] = _without_nulls(array, pa.int64(), 0).to_numpy().tolist()
    return numbers


def _without_nulls(array: pa.Array, kind: pa.DataType, instead: float) -> pa.Array:
    """The values in a type; most inserts need neither of the calls, each of which counts."""
    array = array if array.type == kind else array.cast(kind)
    return pc.fill_null(array, instead) if array.null_count else array


def _encode_floats(array: pa.Array) -> list[Value]:
    doubles = _without_nulls(array, pa.float64(), 0.0).to_numpy()
    numbers: list[Value] = sortable_bits(doubles).tolist()
    return numbers


def sortable_bits(doubles: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
    """Integers in the order of the doubles: -0.0 before 0.0, NaN last."""
    bits = np.where(np.isnan(doubles), np.int64(CANONICAL_NAN), doubles.view(np.int64))
    return np.where(bits < 0, bits ^ MAGNITUDE_BITS, bits)


def _encode_decimals(array: pa.Array) -> list[Value]:
    if not len(array):
        return []
    words = np.frombuffer(array.buffers()[1], dtype="<u8").reshape(-1, 2)
    words = words[array.offset : array.offset + len(array)]
    biased = np.empty((len(array), 2), dtype=">u8")
    biased[:, 0] = words[:, 1] ^ SIGN_BIT
    biased[:, 1] = words[:, 0]
    data = biased.tobytes()
    return [data[at : at + DECIMAL_BYTES] for at in range(0, len(data), DECIMAL_BYTES)]


def _encode_bytes(array: pa.Array) -> list[Value]:
    array = array.cast(pa.large_binary())
    if not len(array):
        return []
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    first = int(ends[0])
    content = data.slice(first, int(ends[-1]) - first).to_pybytes() if data is not None else b""
    return [content[start:end] for start, end in pairwise((ends - first).tolist())]


_ENCODERS: Mapping[str, Callable[[pa.Array], list[Value]]] = {
    INTEGER: _encode_integers,
    DATE: _encode_integers,
    MICROSECONDS: _encode_integers,
    NANOSECONDS: _encode_integers,
    FLOAT: _encode_floats,
    DECIMAL: _encode_decimals,
    STRING: _encode_bytes,
    BINARY: _encode_bytes,
}


# -------------------------------------------------------------------------------------------------
# Nested values


def _as_json(array: pa.Array, kind: IcebergType, expected: pa.DataType) -> Sequence[Json]:
    """Each value as what JSON has: by field id, so that renamed fields are found."""
    if not len(array):
        return []
    match kind:
        case StructType():
            documents = _structs_as_json(array, kind, expected)
        case ListType():
            offsets = array.offsets.to_pylist()
            elements = _as_json(
                _between(array.values, offsets), kind.element_type, expected.value_type
            )
            documents = _split(elements, offsets)
        case MapType():
            offsets = array.offsets.to_pylist()
            keys = _as_json(_between(array.keys, offsets), kind.key_type, expected.key_type)
            items = _as_json(_between(array.items, offsets), kind.value_type, expected.item_type)
            pairs: list[Json] = [list(pair) for pair in zip(keys, items, strict=True)]
            documents = _split(pairs, offsets)
        case UnknownType():
            return [None] * len(array)
        case _:
            leaves = _encode_leaves(array, kind_of(kind), expected)
            return [_base64(v) if isinstance(v, bytes) else v for v in leaves]
    return _with_nulls(documents, array)


def _base64(value: bytes) -> str:
    return b2a_base64(value, newline=False).decode()


def _structs_as_json(array: pa.Array, kind: StructType, expected: pa.DataType) -> list[Json]:
    children = array.flatten()
    columns = [
        _as_json(
            children[_index_of(array.type, field.name)],
            field.field_type,
            expected.field(index).type,
        )
        for index, field in enumerate(kind.fields)
    ]
    ids = [str(field.field_id) for field in kind.fields]
    if not columns:
        return [{} for _ in range(len(array))]
    return [dict(zip(ids, values, strict=True)) for values in zip(*columns, strict=True)]


def _index_of(struct: pa.StructType, name: str) -> int:
    index: int = struct.get_field_index(name)
    if index < 0:
        raise KeyError(name)
    return index


def _between(values: pa.Array, offsets: Sequence[int]) -> pa.Array:
    """The elements of these lists alone: a slice keeps the elements of its whole array."""
    return values.slice(offsets[0], offsets[-1] - offsets[0])


def _split(elements: Sequence[Json], offsets: Sequence[int]) -> list[Json]:
    first = offsets[0]
    return [list(elements[start - first : end - first]) for start, end in pairwise(offsets)]


def _with_nulls(documents: list[Json], array: pa.Array) -> list[Json]:
    for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
        documents[row] = None
    return documents


# -------------------------------------------------------------------------------------------------
# Values of many rows for PostgreSQL: one parameter per column, an array in its own notation

_MANY_NUMBERS = 1000  # from here on Arrow makes the text of an array


def names_of(columns: Sequence[InlineColumn]) -> str:
    """The names of columns as SQL."""
    return ", ".join(column.name for column in columns)


def unnested(columns: Sequence[InlineColumn], before: Sequence[str] = ()) -> str:
    """Arrays of the columns' values, after those of the types of `before`, as a table in SQL."""
    types = [*before, *("bigint[]" if column.is_integer else "bytea[]" for column in columns)]
    return f"unnest({', '.join(f'%s::{each}' for each in types)})"


def array_text(values: Sequence[Value]) -> str:
    """An array of numbers or bytes in PostgreSQL's notation.

    It is one text, which takes a tenth of the time of a list of values that psycopg converts.
    """
    return f"{{{','.join(map(_element, values))}}}"


def number_array_text(values: Sequence[int]) -> str:
    """The same of numbers alone; many are joined without Python's lock, which inserts need."""
    if len(values) < _MANY_NUMBERS:
        return array_text(values)
    texts = pa.array(values, pa.int64()).cast(pa.string())
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), ",")
    return f"{{{joined[0].as_py()}}}"


def _element(value: Value) -> str:
    if value is None:
        return "NULL"
    return f'"\\\\x{value.hex()}"' if isinstance(value, bytes) else str(value)
