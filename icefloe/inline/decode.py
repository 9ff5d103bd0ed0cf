"""Database values as Arrow tables: the reverse of `encode`.

Values are read by field id, into the types that the schema has now. A field without a value reads
NULL, at the top level and in structs; numbers and decimals stored before a promotion read as what
they are; a column of an earlier kind is read where the present one has NULL.
"""

from __future__ import annotations

import json
from binascii import a2b_base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import (
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StructType,
    UnknownType,
)

from icefloe.errors import StorageError
from icefloe.inline.encode import DECIMAL_BYTES, MAGNITUDE_BITS, SIGN_BIT, Json
from icefloe.inline.layout import (
    BINARY,
    DATE,
    DECIMAL,
    EARLIER_KINDS,
    FLOAT,
    INTEGER,
    MICROSECONDS,
    NANOSECONDS,
    NESTED,
    STRING,
    ColumnValues,
    InlineColumn,
    kind_of,
)
from icefloe.schema.arrow_values import arrow_schema

_Decoder = Callable[[ColumnValues, pa.DataType], pa.Array]


@dataclass(frozen=True, slots=True)
class RowNames:
    """What to call rows in messages: their table and their ids."""

    table: str
    row_ids: Sequence[int]


def decode_rows(
    columns: Mapping[str, ColumnValues],
    schema: Schema,
    rows: int,
    names: RowNames | None = None,
) -> pa.Table:
    """Rows of the database as an Arrow table with the schema's columns and types.

    Args:
        columns: Values by name of the database column; columns of other fields are ignored.
        schema: The table's schema, or a part of it.
        rows: How many rows there are.
        names: For messages about values that cannot be decoded.

    Raises:
        StorageError: A value is not one that `encode_rows` writes for its field.
    """
    expected = arrow_schema(schema)
    arrays = [
        _Field(field, arrow_field.type, columns, names).array(rows)
        for field, arrow_field in zip(schema.fields, expected, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=expected)


@dataclass(frozen=True, slots=True)
class _Field:
    """A top-level field, its Arrow type, and all columns that were read."""

    field: NestedField
    expected: pa.DataType
    columns: Mapping[str, ColumnValues]
    names: RowNames | None

    def array(self, rows: int) -> pa.Array:
        """The values, from the field's column and from those of its earlier kinds."""
        if isinstance(self.field.field_type, UnknownType):
            return pa.nulls(rows, self.expected)
        kind = kind_of(self.field.field_type)
        stored = [
            self._decode(values, each)
            for each in (kind, *EARLIER_KINDS.get(kind, ()))
            if (values := self.columns.get(InlineColumn(self.field.field_id, each).name))
            is not None
        ]
        if not stored:
            return pa.nulls(rows, self.expected)
        return stored[0] if len(stored) == 1 else pc.coalesce(*stored)

    def _decode(self, values: ColumnValues, kind: str) -> pa.Array:
        try:
            return self._decode_all(values, kind)
        except _DECODE_ERRORS:
            for row, value in enumerate(_listed(values)):
                try:
                    self._decode_all([value], kind)
                except _DECODE_ERRORS as error:
                    raise self._damaged(row) from error
            raise

    def _decode_all(self, values: ColumnValues, kind: str) -> pa.Array:
        if kind == NESTED:
            values = _listed(values)
            parts = (values[n : n + _PARSED] for n in range(0, max(len(values), 1), _PARSED))
            arrays = [_from_json(_parse(p), self.field.field_type, self.expected) for p in parts]
            return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
        return _decode_leaves(values, kind, self.expected)

    def _damaged(self, row: int) -> StorageError:
        place = f"row {row} of those read"
        if self.names is not None:
            place = f"row {self.names.row_ids[row]} of {self.names.table}"
        return StorageError(
            f"The inline value of column {self.field.name!r} in {place} is not a valid "
            f"{self.field.field_type}. Restore the database from a backup."
        )


_PARSED = 500  # documents at a time: of more, Python's collector would look at each again
_DECODE_ERRORS = (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError)


def _listed(values: ColumnValues) -> Sequence[Any]:
    return values.to_pylist() if isinstance(values, pa.Array) else values


def _array(values: ColumnValues, kind: pa.DataType) -> pa.Array:
    """The values as an array without an offset."""
    if not isinstance(values, pa.Array):
        return pa.array(values, kind)
    array = values.cast(kind)
    return pa.concat_arrays([array, array[:0]]) if array.offset else array


# -------------------------------------------------------------------------------------------------
# Leaves


def _decode_leaves(values: ColumnValues, kind: str, expected: pa.DataType) -> pa.Array:
    if isinstance(expected, pa.BaseExtensionType):
        storage = _DECODERS[kind](values, expected.storage_type)
        return pa.ExtensionArray.from_storage(expected, storage)
    return _DECODERS[kind](values, expected)


def _decode_integers(values: ColumnValues, expected: pa.DataType) -> pa.Array:
    numbers = _array(values, pa.int64())
    if pa.types.is_boolean(expected):
        if pc.any(pc.invert(pc.is_in(numbers, pa.array([0, 1, None])))).as_py():
            raise ValueError("neither 0 nor 1")
        return numbers.cast(expected)
    if pa.types.is_date32(expected):
        return numbers.cast(pa.int32()).cast(expected)
    return numbers.cast(expected)


def _decode_days(values: ColumnValues, expected: pa.DataType) -> pa.Array:
    """Dates, also those of a column that has timestamps now."""
    days = _decode_integers(values, pa.date32())
    return days if pa.types.is_date32(expected) else days.cast(expected)


def _decode_floats(values: ColumnValues, expected: pa.DataType) -> pa.Array:
    numbers = _array(values, pa.int64())
    bits = pc.fill_null(numbers, 0).to_numpy()
    doubles = np.where(bits < 0, bits ^ MAGNITUDE_BITS, bits).view(np.float64)
    mask = numbers.is_null().to_numpy(zero_copy_only=False) if numbers.null_count else None
    return pa.array(doubles, pa.float64(), mask=mask, from_pandas=False).cast(expected)


def _decode_decimals(values: ColumnValues, expected: pa.DataType) -> pa.Array:
    biased = _array(values, pa.binary(DECIMAL_BYTES))
    if not len(biased):
        return pa.array([], expected)
    validity, data = biased.buffers()
    words = np.frombuffer(data, dtype=">u8").reshape(-1, 2)
    unscaled = np.empty((len(biased), 2), dtype="<u8")
    unscaled[:, 0] = words[:, 1]
    unscaled[:, 1] = words[:, 0] ^ SIGN_BIT
    decimals = pa.Array.from_buffers(
        expected, len(biased), [validity, pa.py_buffer(unscaled.tobytes())]
    )
    decimals.validate(full=True)
    return decimals


def _decode_bytes(values: ColumnValues, expected: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_binary(expected):
        return _array(values, expected)
    return _array(values, pa.large_binary()).cast(expected)


_DECODERS: Mapping[str, _Decoder] = {
    INTEGER: _decode_integers,
    DATE: _decode_days,
    MICROSECONDS: _decode_integers,
    NANOSECONDS: _decode_integers,
    FLOAT: _decode_floats,
    DECIMAL: _decode_decimals,
    STRING: _decode_bytes,
    BINARY: _decode_bytes,
}
_KINDS_OF_BYTES = frozenset({DECIMAL, STRING, BINARY})


# -------------------------------------------------------------------------------------------------
# Nested values


def _parse(values: Sequence[Any]) -> list[Any]:
    """The documents of a column, parsed as one: a call for each takes twice the time."""
    texts = b",".join([b"null" if value is None else value for value in values])
    documents: list[Any] = json.loads(b"[" + texts + b"]")
    if len(documents) != len(values):
        raise ValueError("not one document per row")
    return documents


def _from_json(documents: Sequence[Any], kind: IcebergType, expected: pa.DataType) -> pa.Array:
    match kind:
        case StructType():
            return _structs(documents, kind, expected)
        case ListType():
            elements = _from_json(_flat(documents), kind.element_type, expected.value_type)
            return pa.LargeListArray.from_arrays(
                pa.array(_offsets(documents), pa.int64()),
                elements,
                type=expected,
                mask=_null_mask(documents),
            )
        case MapType():
            return _maps(documents, kind, expected)
        case UnknownType():
            return pa.nulls(len(documents), expected)
        case _:
            leaf_kind = kind_of(kind)
            if leaf_kind in _KINDS_OF_BYTES:
                documents = [
                    None if v is None else a2b_base64(v, strict_mode=True) for v in documents
                ]
            return _decode_leaves(documents, leaf_kind, expected)


def _structs(documents: Sequence[Any], kind: StructType, expected: pa.DataType) -> pa.Array:
    if not kind.fields:
        return pa.array([None if d is None else {} for d in documents], expected)
    children = []
    for index, field in enumerate(kind.fields):
        key = str(field.field_id)
        values: list[Json] = [None if d is None else d.get(key) for d in documents]
        children.append(_from_json(values, field.field_type, expected.field(index).type))
    return pa.StructArray.from_arrays(children, fields=list(expected), mask=_null_mask(documents))


def _maps(documents: Sequence[Any], kind: MapType, expected: pa.DataType) -> pa.Array:
    pairs = _flat(documents)
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("not an array of pairs")
    keys = _from_json([key for key, _ in pairs], kind.key_type, expected.key_type)
    items = _from_json([item for _, item in pairs], kind.value_type, expected.item_type)
    return pa.MapArray.from_arrays(
        pa.array(_offsets(documents), pa.int32()),
        keys,
        items,
        type=expected,
        mask=_null_mask(documents),
    )


def _flat(documents: Sequence[Any]) -> list[Any]:
    return [element for document in documents if document is not None for element in document]


def _offsets(documents: Sequence[Any]) -> list[int]:
    return list(accumulate([0 if d is None else len(d) for d in documents], initial=0))


def _null_mask(documents: Sequence[Any]) -> pa.Array:
    return pa.array([document is None for document in documents], pa.bool_())
