"""Partition values: computed by Spark for each row, and converted for PyIceberg's manifests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, cast

import pyarrow as pa
from pyiceberg import types as ice
from pyiceberg.partitioning import PartitionField, PartitionSpec
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
from pyiceberg.typedef import Record
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros
from pyiceberg.utils.decimal import decimal_to_unscaled
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as sp

from icefloe.errors import UnsupportedTableError
from icefloe.schema.partition_spec import source_path
from icefloe.schema.to_spark import spark_type
from icefloe.spark.columns import quoted
from icefloe.tasks import bucket_hash

_EXACT = Context(prec=39, traps=[Inexact, InvalidOperation])  # raises instead of rounding


def to_record(values: Sequence[object], spec: PartitionSpec, schema: Schema) -> Record:
    """The partition record of `values`, one per field of `spec`, in its order.

    Takes the values of `partition_columns`, and also dates, and datetimes that are aware for
    timestamptz and naive for timestamp. Others raise ValueError: which instant they mean would
    depend on the machine's time zone.
    """
    fields = spec.partition_type(schema).fields
    return Record(
        *(_internal(value, field.field_type) for value, field in zip(values, fields, strict=True))
    )


def partition_path(record: Record, spec: PartitionSpec, schema: Schema) -> str:
    """The folder of a partition below the table's data folder, as `region=EU/id_bucket=3`."""
    return spec.partition_to_path(record, schema)


def _internal(value: object, result_type: ice.IcebergType) -> object:
    match value:
        case None:
            return None
        case datetime():
            return _micros(value, result_type)
        case date():
            return date_to_days(value)
        case Decimal() if isinstance(result_type, ice.DecimalType):
            # The manifest stores the unscaled digits, so they must have the type's scale.
            return value.quantize(Decimal(1).scaleb(-result_type.scale), context=_EXACT)
        case bytearray() | memoryview():
            return bytes(value)
        case _:
            return value


def _micros(value: datetime, result_type: ice.IcebergType) -> int:
    aware = isinstance(result_type, ice.TimestamptzType)
    if aware is (value.tzinfo is None):
        raise ValueError(
            f"{value!r} is not a value of a {result_type} partition: it must "
            f"{'have a' if aware else 'have no'} time zone"
        )
    return datetime_to_micros(value)


# -------------------------------------------------------------------------------------------------
# Transforms as Spark columns

_SECOND_MICROS = 1_000_000
_HOUR_MICROS = 3600 * _SECOND_MICROS
_DAY_MICROS = 24 * _HOUR_MICROS

# Spark's hash() is murmur3 with seed 42; the hash of each argument is the seed of the next. This
# int hashes to 0, so hash(_ZERO_SEED, x) is the hash of x with Iceberg's seed.
_ZERO_SEED = -1693959553


def partition_columns(spec: PartitionSpec, schema: Schema) -> list[Column]:
    """One column per field of `spec`: its value for each row of `schema`.

    NULL gives NULL. Raises UnsupportedTableError for an unknown transform, and for a source
    column that was dropped or has a type that Spark cannot read. A number below the smallest
    multiple that its type holds fails the Spark job: truncate has no value for it.
    """
    return [_column(field, schema) for field in spec.fields]


def has_value(transform: Transform[Any, Any], source: ice.IcebergType, value: Any) -> bool:
    """Whether a value has a partition value: truncate may round below the type's minimum."""
    if isinstance(transform, TruncateTransform):
        match source:
            case ice.IntegerType() | ice.LongType():
                return bool(value >= smallest_multiple(source, transform.width))
            case ice.DecimalType():
                unscaled = decimal_to_unscaled(value)
                return bool(unscaled - unscaled % transform.width > -(10**source.precision))
    return True


def _column(field: PartitionField, schema: Schema) -> Column:
    if isinstance(field.transform, VoidTransform):
        return F.lit(None).cast("int")
    path = source_path(schema, field.source_id)
    if path is None:
        raise UnsupportedTableError(
            f"Partition field {field.name!r} has no source column: no column has the "
            f"id {field.source_id}. Its partition values cannot be computed."
        )
    source_type = schema.find_field(field.source_id).field_type
    spark_type(source_type)
    value = quoted(*path)
    return _apply(field.transform, value, source_type, field.name)


def _apply(
    transform: Transform[Any, Any], value: Column, source: ice.IcebergType, name: str
) -> Column:
    if transform.can_transform(source):
        match transform:
            case IdentityTransform():
                return _internal_column(value, source)
            case BucketTransform():
                return _bucket(value, source, transform.num_buckets)
            case TruncateTransform():
                return _truncate(value, source, transform.width)
            case YearTransform():
                return F.year(_utc_date(value, source)) - 1970
            case MonthTransform():
                date = _utc_date(value, source)
                return (F.year(date) - 1970) * 12 + F.month(date) - 1
            case DayTransform():
                return _days(value, source)
            case HourTransform():
                return _hours(value, source)
    raise UnsupportedTableError(
        f"Partition field {name!r} applies {transform} to type {source}, which is not supported."
    )


def _internal_column(value: Column, source: ice.IcebergType) -> Column:
    match source:
        case ice.DateType():
            return F.unix_date(value)
        case ice.TimestampType() | ice.TimestamptzType():
            return _micros_column(value, source)
        case _:
            return value


def _bucket(value: Column, source: ice.IcebergType, num_buckets: int) -> Column:
    match source:
        case ice.StringType() | ice.BinaryType() | ice.FixedType():
            return _arrow_call(bucket_hash.bucket_bytes(num_buckets), sp.IntegerType(), value)
        case ice.DecimalType():
            return _arrow_call(bucket_hash.bucket_decimal(num_buckets), sp.IntegerType(), value)
    number = _internal_column(value, source).cast("long")
    positive = F.hash(F.lit(_ZERO_SEED), number).bitwiseAND(F.lit(0x7FFFFFFF))
    # hash() skips a NULL and would return the seed.
    return F.when(value.isNotNull(), positive % F.lit(num_buckets))


def _truncate(value: Column, source: ice.IcebergType, width: int) -> Column:
    match source:
        case ice.DecimalType():
            return _arrow_call(bucket_hash.truncate_decimal(width), spark_type(source), value)
        case ice.IntegerType() | ice.LongType():
            return _truncate_number(value, source, width)
        case _:
            return F.substring(value, 1, width)


def _truncate_number(value: Column, source: ice.IntegerType | ice.LongType, width: int) -> Column:
    smallest = smallest_multiple(source, width)
    failure = F.raise_error(
        F.lit(f"truncate({width}) has no value of type {source} for a number below {smallest}")
    )
    truncated = value - F.pmod(value, F.lit(width))
    return F.when(value < F.lit(smallest), failure).otherwise(truncated).cast(spark_type(source))


def smallest_multiple(source: ice.IntegerType | ice.LongType, width: int) -> int:
    """The smallest multiple of `width` that the type holds."""
    return -(-source.min // width) * width


def _arrow_call(
    function: Callable[[pa.Array], pa.Array], returns: sp.DataType, value: Column
) -> Column:
    udf = F.arrow_udf(function, returns)  # type: ignore[attr-defined]  # PySpark gives it no type
    return cast(Column, udf(value))


def _utc_date(value: Column, source: ice.IcebergType) -> Column:
    match source:
        case ice.TimestamptzType():
            return F.date_from_unix_date(_days(value, source))
        case _:
            return value.cast("date")


def _days(value: Column, source: ice.IcebergType) -> Column:
    match source:
        case ice.TimestamptzType():
            return _floor_div(F.unix_micros(value), _DAY_MICROS).cast("int")
        case _:
            return F.unix_date(value.cast("date"))


def _hours(value: Column, source: ice.IcebergType) -> Column:
    match source:
        case ice.TimestamptzType():
            return _floor_div(F.unix_micros(value), _HOUR_MICROS).cast("int")
        case _:
            return _days(value, source) * 24 + F.hour(value)


def _micros_column(value: Column, source: ice.IcebergType) -> Column:
    if isinstance(source, ice.TimestamptzType):
        return F.unix_micros(value)
    # unix_micros takes TIMESTAMP; a cast to it would apply the session's time zone.
    second = (F.extract(F.lit("SECOND"), value) * _SECOND_MICROS).cast("long")
    minute = (F.hour(value) * 60 + F.minute(value)).cast("long")
    day = F.unix_date(value.cast("date")).cast("long")
    return day * F.lit(_DAY_MICROS) + minute * F.lit(60 * _SECOND_MICROS) + second


def _floor_div(number: Column, divisor: int) -> Column:
    # `div` rounds towards zero and `/` computes in double, so only exact multiples are divided.
    multiple = number - F.pmod(number, F.lit(divisor))
    return F.call_function("div", multiple, F.lit(divisor))


def python_value(value: object, kind: sp.DataType) -> object:
    """A partition value, an int for dates and timestamps, as a Python value for Spark."""
    if value is None or not isinstance(value, int) or isinstance(value, bool):
        return value
    if isinstance(kind, sp.DateType):
        return date(1970, 1, 1) + timedelta(days=value)
    if isinstance(kind, sp.TimestampType):
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
    if isinstance(kind, sp.TimestampNTZType):
        return datetime(1970, 1, 1) + timedelta(microseconds=value)  # noqa: DTZ001 - no zone
    return value
