"""Column metrics of a written Parquet file, from its footer, as plain values.

Bounds are left in Parquet's physical form: the driver knows the Iceberg types and encodes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


@dataclass
class ColumnMetrics:
    """What the footer says of one leaf column, over all row groups."""

    size: int = 0
    values: int = 0
    nulls: int | None = 0
    lower: Any = None
    upper: Any = None
    has_bounds: bool = True


@dataclass
class NanCounter:
    """Counts NaN per leaf column while rows are written; the footer does not have it."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, table: pa.Table) -> None:
        """Take the rows of one row group."""
        for column, name in zip(table.columns, table.column_names, strict=True):
            for chunk in column.chunks:
                self._count(name, chunk)

    def _count(self, path: str, array: pa.Array) -> None:
        if pa.types.is_floating(array.type):
            nans = pc.sum(pc.is_nan(array)).as_py() or 0
            self.counts[path] = self.counts.get(path, 0) + nans
        elif pa.types.is_struct(array.type):
            for index, child in enumerate(array.flatten()):
                self._count(f"{path}.{array.type.field(index).name}", child)


def column_metrics(footer: pq.FileMetaData) -> dict[str, ColumnMetrics]:
    """Metrics of every leaf column by its path in the schema."""
    found: dict[str, ColumnMetrics] = {}
    for group in range(footer.num_row_groups):
        row_group = footer.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            metrics = found.setdefault(column.path_in_schema, ColumnMetrics())
            _merge(metrics, column)
    return found


def split_offsets(footer: pq.FileMetaData) -> list[int]:
    """Where each row group starts."""
    offsets = []
    for group in range(footer.num_row_groups):
        column = footer.row_group(group).column(0)
        starts = [column.data_page_offset]
        if column.has_dictionary_page and column.dictionary_page_offset:
            starts.append(column.dictionary_page_offset)
        offsets.append(min(starts))
    return sorted(offsets)


def _merge(metrics: ColumnMetrics, column: pq.ColumnChunkMetaData) -> None:
    metrics.size += column.total_compressed_size
    metrics.values += column.num_values
    statistics = column.statistics
    if statistics is None or not statistics.has_null_count:
        metrics.nulls = None
    elif metrics.nulls is not None:
        metrics.nulls += statistics.null_count
    all_null = (
        statistics is not None
        and statistics.has_null_count
        and statistics.null_count == column.num_values
    )
    if statistics is not None and statistics.has_min_max:
        lower = _physical(statistics, statistics.min_raw)
        upper = _physical(statistics, statistics.max_raw)
        if _is_nan(lower) or _is_nan(upper):  # of a writer that takes NaN for a bound
            metrics.has_bounds = False
            return
        lower, upper = _zero(lower, -0.0), _zero(upper, 0.0)
        metrics.lower = lower if metrics.lower is None else min(metrics.lower, lower)
        metrics.upper = upper if metrics.upper is None else max(metrics.upper, upper)
    elif not all_null:
        metrics.has_bounds = False


def _zero(bound: Any, zero: float) -> Any:
    """A bound that reaches both zeros: readers may order -0.0 before 0.0, writers may not."""
    return zero if isinstance(bound, float) and bound == 0 else bound


def _is_nan(bound: Any) -> bool:
    return isinstance(bound, float) and math.isnan(bound)


def _physical(statistics: pq.Statistics, value: Any) -> Any:
    """A bound that Python orders as Parquet does: decimals in bytes become their unscaled int."""
    if isinstance(value, bytes) and statistics.logical_type.type == "DECIMAL":
        return int.from_bytes(value, "big", signed=True)
    return value


# -------------------------------------------------------------------------------------------------
# Arrow arrays in the types that files have.


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
    for number, column_field in enumerate(rows.schema):
        if _has_required(column_field.type):
            column = rows.column(number)
            chunks = [_with_values(chunk, required=False) for chunk in column.chunks]
            rows = rows.set_column(
                number, column_field, pa.chunked_array(chunks, column_field.type)
            )
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
