"""Arrow rows that the driver handles itself: their types, their partition and sort values.

The values are those that `partition_values.partition_columns` has Spark compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as ice
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)

from icefloe.errors import StatementError
from icefloe.schema.partition_spec import source_path
from icefloe.schema.partition_values import smallest_multiple
from icefloe.tasks import bucket_hash

_HOUR_MICROS = 3600 * 1_000_000
_DAY_MICROS = 24 * _HOUR_MICROS
_MOST_SCHEMAS = 32

_arrow_schemas: dict[int, tuple[Schema, pa.Schema]] = {}  # by the id of the schema, which it keeps


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of a table's rows, without field ids; the last ones are remembered.

    Converting a schema takes a tenth of the time of a small insert, which needs it four times.
    """
    known = _arrow_schemas.get(id(schema))
    if known is not None and known[0] is schema:
        return known[1]
    arrow = schema_to_pyarrow(schema, include_field_ids=False)
    if len(_arrow_schemas) >= _MOST_SCHEMAS:
        _arrow_schemas.clear()
    _arrow_schemas[id(schema)] = schema, arrow
    return arrow


def transformed(
    rows: pa.Table, transform: Transform[Any, Any], source_id: int, schema: Schema
) -> pa.Array | None:
    """The transform's value for each row; None where only Spark can compute it.

    Dates and timestamps are integers, as in manifests. NULL gives NULL.
    """
    if isinstance(transform, VoidTransform):
        return pa.nulls(rows.num_rows, pa.int32())
    path = source_path(schema, source_id)
    if path is None:
        return None
    source = schema.find_field(source_id).field_type
    return _apply(transform, _values(rows, path), source)


def _values(rows: pa.Table, path: Sequence[str]) -> pa.Array:
    """A column, or a field of a struct column, which is NULL where the struct is."""
    values = rows.column(path[0]).combine_chunks()
    for name in path[1:]:
        values = pc.struct_field(values, values.type.get_field_index(name))
    return values


def _apply(transform: Transform[Any, Any], values: pa.Array, source: Any) -> pa.Array | None:
    match transform:
        case IdentityTransform() if not isinstance(source, ice.TimeType | ice.UUIDType):
            return _internal(values, source)
        case BucketTransform():
            return _bucket(values, source, transform.num_buckets)
        case TruncateTransform():
            return _truncate(values, source, transform.width)
        case YearTransform():
            return pc.cast(pc.subtract(pc.year(_utc(values)), 1970), pa.int32())
        case MonthTransform():
            moment = _utc(values)
            years = pc.multiply(pc.subtract(pc.year(moment), 1970), 12)
            return pc.cast(pc.add(years, pc.subtract(pc.month(moment), 1)), pa.int32())
        case DayTransform():
            return _days(values)
        case HourTransform():
            return _floor_div(values.cast(pa.int64()), _HOUR_MICROS)
    return None


def _internal(values: pa.Array, source: ice.IcebergType) -> pa.Array:
    match source:
        case ice.DateType():
            return values.cast(pa.int32())
        case ice.TimestampType() | ice.TimestamptzType():
            return values.cast(pa.int64())
    return values


def _bucket(values: pa.Array, source: ice.IcebergType, num_buckets: int) -> pa.Array | None:
    match source:
        case ice.StringType() | ice.BinaryType():
            return bucket_hash.bucket_bytes(num_buckets)(values)
        case ice.DecimalType():
            return bucket_hash.bucket_decimal(num_buckets)(values)
        case ice.IntegerType() | ice.LongType() | ice.DateType():
            pass
        case ice.TimestampType() | ice.TimestamptzType():
            pass
        case _:
            return None
    return bucket_hash.bucket_numbers(num_buckets)(_internal(values, source).cast(pa.int64()))


def _truncate(values: pa.Array, source: ice.IcebergType, width: int) -> pa.Array | None:
    match source:
        case ice.IntegerType() | ice.LongType():
            return _truncate_numbers(values, source, width)
        case ice.StringType():
            return pc.utf8_slice_codeunits(values, 0, width)  # counts characters, as Spark does
        case ice.BinaryType():
            return pc.binary_slice(values, 0, width)
    return None


def _truncate_numbers(
    values: pa.Array, source: ice.IntegerType | ice.LongType, width: int
) -> pa.Array:
    smallest = smallest_multiple(source, width)
    least = pc.min(values).as_py()
    if least is not None and least < smallest:
        raise StatementError(
            f"truncate({width}) has no value of type {source} for a number below {smallest}"
        )
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(numbers - numbers % width, values.type, mask=_is_null(values))


def _utc(values: pa.Array) -> pa.Array:
    """Dates and timestamps without a time zone, which PyArrow would read the clock of."""
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.int64()).cast(pa.timestamp("us"))
    return values


def _days(values: pa.Array) -> pa.Array:
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32())
    return _floor_div(values.cast(pa.int64()), _DAY_MICROS)


def _floor_div(numbers: pa.Array, divisor: int) -> pa.Array:
    quotients = numbers.fill_null(0).to_numpy(zero_copy_only=False) // divisor
    return pa.array(quotients.astype(np.int32), pa.int32(), mask=_is_null(numbers))


def _is_null(values: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    mask: np.ndarray[Any, np.dtype[np.bool_]] = values.is_null().to_numpy(zero_copy_only=False)
    return mask
