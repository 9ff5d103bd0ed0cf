"""Arrow arrays in the types that files have."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def fitted(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """The values in another type; NULLs are judged elsewhere, by name.

    PyArrow's own cast refuses a NULL struct one of whose fields is required: it sees that field as
    NULL, whatever the struct is.
    """
    if values.type == kind:
        return values
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([fitted(chunk, kind) for chunk in values.chunks], kind)
    missing = values.is_null() if values.null_count else None
    if _is_list(kind) and _is_list(values.type) and _has_required(kind):
        items = fitted(values.values, kind.value_type)
        return _lists(kind).from_arrays(_offsets(values, kind), items, type=kind, mask=missing)
    if pa.types.is_map(kind) and pa.types.is_map(values.type) and _has_required(kind):
        keys, items = fitted(values.keys, kind.key_type), fitted(values.items, kind.item_type)
        return pa.MapArray.from_arrays(_offsets(values, kind), keys, items, type=kind, mask=missing)
    if not (pa.types.is_struct(kind) and pa.types.is_struct(values.type)):
        return pc.cast(values, kind)
    names = [field.name for field in kind]
    if [field.name for field in values.type] != names:
        return pc.cast(values, kind)
    children = [fitted(values.field(i), field.type) for i, field in enumerate(kind)]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _lists(kind: pa.DataType) -> Any:
    return pa.ListArray if pa.types.is_list(kind) else pa.LargeListArray


def _offsets(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Where lists or maps begin and end, in an array of its own: a mask needs that."""
    width = pa.int64() if pa.types.is_large_list(kind) else pa.int32()
    return pa.array(array.offsets.to_numpy(zero_copy_only=False), width)


def with_values_below_nulls(rows: pa.Table) -> pa.Table:
    """Rows as PyArrow's writer takes them: required fields of NULL structs have some value.

    Iceberg allows a NULL struct whatever its fields are; nothing is written of such fields. PyArrow
    refuses a required field that it sees as NULL. NULLs of structs that are there must have been
    refused before.
    """
    for number, field in enumerate(rows.schema):
        if _has_required(field.type):
            column = rows.column(number)
            chunks = [_with_values(chunk, required=False) for chunk in column.chunks]
            rows = rows.set_column(number, field, pa.chunked_array(chunks, field.type))
    return rows


def _has_required(kind: pa.DataType) -> bool:
    """Whether a type has a struct with a required field."""
    if pa.types.is_struct(kind):
        return any(not field.nullable or _has_required(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _has_required(kind.key_type) or _has_required(kind.item_type)
    return _is_list(kind) and _has_required(kind.value_type)


def _with_values(array: pa.Array, *, required: bool) -> pa.Array:
    """The array with values in required fields below; with `required`, without NULLs itself."""
    kind = array.type
    if not (_has_required(kind) or (required and array.null_count)):
        return array
    mask = array.is_null() if array.null_count and not required else None
    if pa.types.is_struct(kind):
        children = [
            _with_values(array.field(i), required=not field.nullable)
            for i, field in enumerate(kind)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        keys = _with_values(array.keys, required=True)
        items = _with_values(array.items, required=not kind.item_field.nullable)
        return pa.MapArray.from_arrays(_offsets(array, kind), keys, items, type=kind, mask=mask)
    if _is_list(kind):
        values = _with_values(array.values, required=not kind.value_field.nullable)
        return _lists(kind).from_arrays(_offsets(array, kind), values, type=kind, mask=mask)
    buffers = [None, *array.buffers()[1:]]
    return pa.Array.from_buffers(kind, len(array), buffers, 0, array.offset)
