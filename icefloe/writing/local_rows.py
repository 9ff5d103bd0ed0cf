"""Write rows that the driver holds as data files, without a Spark job.

The rows are partitioned, sorted and written by the same task that Spark's workers run, so the files
do not depend on who wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection

from icefloe.errors import ColumnNotFoundError, StatementError
from icefloe.metadata.table_state import TableState
from icefloe.schema.arrow_values import arrow_schema, transformed
from icefloe.spark import columns
from icefloe.spark.errors import translate_task_errors
from icefloe.tasks.messages import TaskMessage, from_bytes
from icefloe.tasks.write import partition_path, write_rows
from icefloe.writing.data_files import WrittenRows, file_layout, written_names, written_rows

# More rows than this are Spark's work, wherever they are.
MOST_ROWS, MOST_BYTES = 10_000, 8 * 2**20

SortKey = tuple[pa.Array, str]  # values, and "ascending" or "descending"


def can_write_locally(state: TableState, rows: pa.Table) -> bool:
    """Whether the driver can write these rows: few, with the table's types and simple layouts."""
    if rows.num_rows > MOST_ROWS or rows.nbytes > MOST_BYTES:
        return False
    return has_types(rows, state.schema) and has_local_layout(state, rows)


def has_local_layout(state: TableState, rows: pa.Table) -> bool:
    """Whether the driver can compute the partition and sort values of rows with these columns."""
    none = rows.slice(0, 0)
    return _partition_values(state, none) is not None and _sort_keys(state, none) is not None


def write_local_rows(
    state: TableState, rows: pa.Table, statement_id: str
) -> tuple[WrittenRows, list[int] | None]:
    """Write rows that `has_local_layout` accepts, under the table's current spec.

    Returns:
        What was written, and the order of the rows in the files; None if it is that of `rows`.
    """
    rows = in_schema_order(rows, state.schema)
    partition = _partition_values(state, rows) or []
    order = [*_grouping(partition), *(_sort_keys(state, rows) or [])]
    written = pa.table(
        [*rows.columns, *partition],
        names=[*written_names(state), *map(columns.partition_field, range(len(partition)))],
    )
    indices = _sort_indices(order) if order else None
    if indices is not None:
        written = written.take(indices)
    task = write_rows(file_layout(state, statement_id), written_names(state))
    with translate_task_errors(state.data_location):
        messages = list(_messages(task(iter(written.combine_chunks().to_batches()))))
    return written_rows(state, messages), None if indices is None else indices.to_pylist()


def check_partitions(state: TableState, rows: pa.Table) -> None:
    """Refuse rows that have no partition, such as numbers that truncate has no value for."""
    if state.metadata.spec().is_unpartitioned():
        return
    fields = file_layout(state, "").partition_fields
    values = _partition_values(state, rows)
    if not fields or values is None:
        return
    partitions = set(zip(*(value.to_pylist() for value in values), strict=True))
    for partition in partitions:
        try:
            partition_path(fields, partition)
        except OverflowError as far:
            raise StatementError(f"A row has a date that no partition can hold: {far}.") from far


def _messages(batches: Iterator[pa.RecordBatch]) -> Iterator[TaskMessage]:
    for batch in batches:
        for encoded in batch.column("result"):
            yield from_bytes(encoded.as_py())


def in_schema_order(rows: pa.Table, schema: Schema) -> pa.Table:
    """The table's columns; it may have got others since the rows were fitted."""
    by_name = {name.lower(): index for index, name in enumerate(rows.column_names)}
    for field in schema.fields:
        if field.name.lower() not in by_name:
            raise ColumnNotFoundError(field.name, rows.column_names)
    indexes = [by_name[field.name.lower()] for field in schema.fields]
    return pa.table(
        [rows.column(index) for index in indexes], names=[field.name for field in schema.fields]
    )


def has_types(rows: pa.Table, schema: Schema) -> bool:
    """Whether the rows have the table's columns in types that need no cast."""
    expected = arrow_schema(schema)
    names = {name.lower() for name in rows.column_names}
    if len(names) != rows.num_columns or names != {name.lower() for name in expected.names}:
        return False
    types = {field.name.lower(): field.type for field in rows.schema}
    return all(_is_same(types[field.name.lower()], field.type) for field in expected)


@lru_cache(maxsize=1000)
def _is_same(given: pa.DataType, expected: pa.DataType) -> bool:
    """Whether a type is the expected one; nested fields may be optional where they must not."""
    if pa.types.is_list(expected) or pa.types.is_large_list(expected):
        return type(given) is type(expected) and _is_same(given.value_type, expected.value_type)
    if pa.types.is_map(expected):
        return (
            pa.types.is_map(given)
            and _is_same(given.key_type, expected.key_type)
            and _is_same(given.item_type, expected.item_type)
        )
    if pa.types.is_struct(expected):
        return (
            pa.types.is_struct(given)
            and [field.name for field in given] == [field.name for field in expected]
            and all(_is_same(a.type, b.type) for a, b in zip(given, expected, strict=True))
        )
    plain = _OF_ANY_SIZE.get(given, given)
    return bool(plain == _OF_ANY_SIZE.get(expected, expected)) and any(
        is_kind(plain) for is_kind in _PLAIN
    )


_OF_ANY_SIZE = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
_PLAIN = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal128,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
    pa.types.is_timestamp,
)


# -------------------------------------------------------------------------------------------------
# Partitions and sort order


def _partition_values(state: TableState, rows: pa.Table) -> list[pa.Array] | None:
    """The value of each partition field; None where only Spark can compute one."""
    schema, values = state.schema, []
    for field in state.metadata.spec().fields:
        value = transformed(rows, field.transform, field.source_id, schema)
        if value is None:
            return None
        values.append(value)
    return values


def _grouping(values: Sequence[pa.Array]) -> list[SortKey]:
    """Keys that bring the rows of a partition together."""
    return [(v.dictionary_encode().indices.fill_null(-1), "ascending") for v in values]


def _sort_keys(state: TableState, rows: pa.Table) -> list[SortKey] | None:
    """The table's sort order; None where only Spark can compute a value."""
    keys: list[SortKey] = []
    for field in state.metadata.sort_order().fields:
        value = transformed(rows, field.transform, field.source_id, state.schema)
        if value is None:
            return None
        nulls_first = field.null_order == NullOrder.NULLS_FIRST
        direction = "ascending" if field.direction == SortDirection.ASC else "descending"
        keys.append((value.is_null(), "descending" if nulls_first else "ascending"))
        keys.append((_comparable(value), direction))
    return keys


def _comparable(values: pa.Array) -> pa.Array:
    """Values that PyArrow sorts as Spark does: NaN is the largest number, 0.0 equals -0.0."""
    if not pa.types.is_floating(values.type):
        return values
    numbers = values.fill_null(0.0).cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0
    bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
    return pa.array(np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits))


def _sort_indices(keys: Sequence[SortKey]) -> pa.Array:
    names = [f"k{i}" for i in range(len(keys))]
    table = pa.table([values for values, _ in keys], names=names)
    order = [(name, direction) for name, (_, direction) in zip(names, keys, strict=True)]
    return pc.sort_indices(table, sort_keys=order)
