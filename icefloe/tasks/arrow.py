"""Metrics of Parquet files, and Arrow arrays in the types that files have."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icefloe.tasks.messages import ColumnMetrics

# -------------------------------------------------------------------------------------------------
# Metrics: from the footer of a written file, and for NaN from its rows.


@dataclass
class NanCounter:
    """Counts NaN values per leaf column while rows are written; the footer does not have them."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, table: pa.Table) -> None:
        """Count in the rows of one row group."""
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


def column_metrics(footer: pq.FileMetaData) -> tuple[ColumnMetrics, ...]:
    """Metrics of every leaf column."""
    totals: dict[str, _Totals] = {}
    for group in range(footer.num_row_groups):
        row_group = footer.row_group(group)
        for index in range(row_group.num_columns):
            chunk = row_group.column(index)
            totals.setdefault(chunk.path_in_schema, _Totals()).add(chunk)
    return tuple(column.metrics(path) for path, column in totals.items())


def split_offsets(footer: pq.FileMetaData) -> tuple[int, ...]:
    """The offset at which each row group starts."""
    offsets = []
    for group in range(footer.num_row_groups):
        chunk = footer.row_group(group).column(0)
        starts = [chunk.data_page_offset]
        if chunk.has_dictionary_page and chunk.dictionary_page_offset:
            starts.append(chunk.dictionary_page_offset)
        offsets.append(min(starts))
    return tuple(sorted(offsets))


@dataclass(slots=True)
class _Totals:
    """Adds up the metrics of a column's chunks."""

    size: int = 0
    values: int = 0
    nulls: int | None = 0
    lower: Any = None
    upper: Any = None
    has_bounds: bool = True

    def add(self, chunk: pq.ColumnChunkMetaData) -> None:
        self.size += chunk.total_compressed_size
        self.values += chunk.num_values
        statistics = chunk.statistics
        nulls = None
        if statistics is not None and statistics.has_null_count:
            nulls = statistics.null_count
        self.nulls = None if self.nulls is None or nulls is None else self.nulls + nulls
        if statistics is not None and statistics.has_min_max:
            lower = _physical(statistics, statistics.min_raw)
            upper = _physical(statistics, statistics.max_raw)
            if _is_nan(lower) or _is_nan(upper):  # some writers use NaN as a bound
                self.has_bounds = False
                return
            lower, upper = _zero(lower, -0.0), _zero(upper, 0.0)
            self.lower = lower if self.lower is None else min(self.lower, lower)
            self.upper = upper if self.upper is None else max(self.upper, upper)
        elif nulls != chunk.num_values:
            self.has_bounds = False

    def metrics(self, path: str) -> ColumnMetrics:
        bounds = (self.lower, self.upper) if self.has_bounds else (None, None)
        return ColumnMetrics(path, self.size, self.values, self.nulls, *bounds)


def _zero(bound: Any, zero: float) -> Any:
    """A bound that includes both zeros: readers may order -0.0 before 0.0, writers may not."""
    return zero if isinstance(bound, float) and bound == 0 else bound


def _is_nan(bound: Any) -> bool:
    return isinstance(bound, float) and math.isnan(bound)


def _physical(statistics: pq.Statistics, value: Any) -> Any:
    """A bound that Python orders as Parquet does: a decimal in bytes becomes its unscaled value."""
    if isinstance(value, bytes) and statistics.logical_type.type == "DECIMAL":
        return int.from_bytes(value, "big", signed=True)
    return value


# -------------------------------------------------------------------------------------------------
# Arrow arrays in the types that files have.


def fitted(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """The values cast to another type; NULLs in required columns are refused elsewhere, by name.

    PyArrow's cast refuses a NULL struct that has a required field: it takes the field for NULL. It
    ends the process where entries of maps were taken or filtered before.
    """
    if values.type == kind:
        return values
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([fitted(chunk, kind) for chunk in values.chunks], kind)
    nulls = values.is_null() if values.null_count else None
    if _is_list(kind) and _is_list(values.type) and (_has_required(kind) or _has_map(kind)):
        items = fitted(values.values, kind.value_type)
        return _lists(kind).from_arrays(_offsets(values, kind), items, type=kind, mask=nulls)
    if pa.types.is_map(kind) and pa.types.is_map(values.type):
        keys, items = fitted(values.keys, kind.key_type), fitted(values.items, kind.item_type)
        return pa.MapArray.from_arrays(_offsets(values, kind), keys, items, type=kind, mask=nulls)
    if not (pa.types.is_struct(kind) and pa.types.is_struct(values.type)):
        return pc.cast(values, kind)
    names = [field.name for field in kind]
    if [field.name for field in values.type] != names:
        return pc.cast(values, kind)
    children = [fitted(values.field(i), field.type) for i, field in enumerate(kind)]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind) or not pa.types.is_nested(kind):
        return bool(pa.types.is_map(kind))
    return any(_has_map(kind.field(i).type) for i in range(kind.num_fields))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _lists(kind: pa.DataType) -> Any:
    return pa.ListArray if pa.types.is_list(kind) else pa.LargeListArray


def _offsets(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The offsets of lists or maps as an array of their own, which a mask requires."""
    width = pa.int64() if pa.types.is_large_list(kind) else pa.int32()
    return pa.array(array.offsets.to_numpy(zero_copy_only=False), width)


def with_values_below_nulls(rows: pa.Table) -> pa.Table:
    """Rows that PyArrow's writer accepts: required fields of NULL structs have some value.

    Iceberg allows a NULL struct with required fields, and nothing is written for them. PyArrow
    refuses them as NULL. NULLs in required fields of other structs must have been refused before.
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
    """The array with values in its required fields; with `required`, also without NULLs itself."""
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
