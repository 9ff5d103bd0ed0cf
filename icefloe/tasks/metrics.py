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
