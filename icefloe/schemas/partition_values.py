"""Partition values read back from Spark or Arrow, as PyIceberg writes them into manifests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation

from pyiceberg import types as ice
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

_EXACT = Context(prec=39, traps=[Inexact, InvalidOperation])  # raises instead of rounding


def to_record(values: Sequence[object], spec: PartitionSpec, schema: Schema) -> Record:
    """The partition record of `values`, one per field of `spec`, in its order.

    Takes what the columns of `partition_columns` give, and also dates, and datetimes that are
    aware for timestamptz and naive for timestamp; others are refused with ValueError, because
    which instant they mean depends on the machine's time zone.
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
            # The manifest holds the digits alone, so they must be those of the type's scale.
            return value.quantize(Decimal(1).scaleb(-result_type.scale), context=_EXACT)
        case bytearray() | memoryview():
            return bytes(value)
        case _:
            return value


def _micros(value: datetime, result_type: ice.IcebergType) -> int:
    aware = isinstance(result_type, ice.TimestamptzType)
    if aware is (value.tzinfo is None):
        raise ValueError(
            f"{value!r} is no value of a {result_type} partition: it must be "
            f"{'with' if aware else 'without'} a time zone"
        )
    return datetime_to_micros(value)
