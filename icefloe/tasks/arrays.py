"""Arrow arrays in the types that files have."""

from __future__ import annotations

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
    if not (pa.types.is_struct(kind) and pa.types.is_struct(values.type)):
        return pc.cast(values, kind)
    names = [field.name for field in kind]
    if [field.name for field in values.type] != names:
        return pc.cast(values, kind)
    children = [fitted(values.field(i), field.type) for i, field in enumerate(kind)]
    missing = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)
