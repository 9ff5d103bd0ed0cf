"""The source of a MERGE whose few rows the driver holds: measured there, without a Spark job.

The rows come to the driver once and go back as a local relation, so every read sees the same rows
in the same order, as with rows that Spark keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, PrimitiveType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from icefloe.commands.merge.source import (
    SourceFacts,
    SourceKey,
    SparkSource,
    determined_fields,
    internal_values,
    partitions_of_spec,
)
from icefloe.pruning.source_matcher import Interval, KeyValues, PartitionValues
from icefloe.schema.arrow_values import transformed
from icefloe.spark import columns
from icefloe.spark.column_trees import ColumnReader
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.frames import few_rows, frame_of
from icefloe.statements import MergeStatement
from icefloe.tasks.sidecars import combined

# Above, Spark keeps the rows: the driver's conversion of them takes longer than measuring them.
_MOST_ROWS, _MOST_BYTES = 50_000, 8 * 2**20
_MOST_INTERVALS = 4096
_ROW_BYTES, _VALUE_BYTES, _NESTED_BYTES = 16, 8, 64  # in Spark's memory, estimated
_OF_ANY_SIZE = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
# PySpark 4.1 has no such argument: timestamps are in UTC.
_TAKES_ZONE = "timezone" in signature(to_arrow_schema).parameters
_IN_UTC: Mapping[str, Any] = {"timezone": "UTC"} if _TAKES_ZONE else {}
_SAME_IN_ARROW = (
    T.BooleanType,
    T.IntegralType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)


@dataclass(frozen=True, slots=True)
class HeldSource:
    """Source rows that the driver holds, and a DataFrame of them with their numbers."""

    frame: DataFrame
    rows: pa.Table

    @property
    def is_held(self) -> bool:
        """Whether measuring takes no Spark job."""
        return True

    def measure(
        self,
        keys: Sequence[SourceKey],
        needed: Sequence[str],
        files: Sequence[DataFile] = (),  # noqa: ARG002 - all values are known without bounds
    ) -> SourceFacts:
        """Count the source and find the intervals of its keys."""
        values = (KeyValues(k.field_id, k.type, intervals(self._values(k))) for k in keys)
        return SourceFacts(
            self.rows.num_rows,
            self._bytes(self.rows.column_names) + _VALUE_BYTES * self.rows.num_rows,  # numbered
            self._bytes(needed),
            tuple(values),
        )

    def partition_values(
        self,
        keys: Mapping[SourceKey, KeyValues],
        spec: PartitionSpec,
        schema: Schema,
        limit: int,
    ) -> tuple[PartitionValues | None, int]:
        """The partitions that source rows can match; see SparkSource."""
        by_id = {key.field_id: key for key in keys}
        positions = determined_fields(keys, spec)
        if not positions:
            return None, 0
        determined = PartitionSpec(*(spec.fields[i] for i in positions))
        used = list(dict.fromkeys(by_id[field.source_id] for field in determined.fields))
        rows = pa.table([self._values(key) for key in used], names=[key.name for key in used])
        rows = rows.drop_null()
        values = [transformed(rows, f.transform, f.source_id, schema) for f in determined.fields]
        if any(value is None for value in values):
            return SparkSource(self.frame).partition_values(keys, spec, schema, limit)
        names = [f"p{i}" for i in range(len(values))]
        distinct = pa.table(values, names=names).group_by(names).aggregate([])
        if distinct.num_rows > limit:
            return None, distinct.num_rows
        tuples = zip(*(distinct.column(name).to_pylist() for name in names), strict=True)
        return partitions_of_spec(tuples, positions, spec, schema), distinct.num_rows

    def key_values(self, keys: Sequence[SourceKey]) -> tuple[pa.Array, ...]:
        """The values of keys, one array for each; rows with a NULL are left out."""
        names = [f"k{i}" for i in range(len(keys))]
        table = pa.table([self._values(key) for key in keys], names=names).drop_null()
        return tuple(combined(column) for column in table.columns)

    def _values(self, key: SourceKey) -> pa.Array:
        return in_type_of(combined(self.rows.column(key.source)), key.type)

    def _bytes(self, names: Sequence[str]) -> int:
        rows: int = self.rows.num_rows
        return _ROW_BYTES * rows + sum(_bytes_of(self.rows.column(name)) for name in names)


def held_rows(statement: MergeStatement, reader: ColumnReader) -> pa.Table | None:
    """The source's rows, if they are few and Arrow has each value as Spark has it.

    They are read once. Where there are too many after all, the statement does not use what was
    read, and keeps the rows of another read.
    """
    # A Column may be bound to the source's own DataFrame, which a new one would not satisfy.
    if not all(map(reader.is_unbound, statement.columns)):
        return None
    with translate_spark_errors():
        schema = statement.source.schema
    if not _may_be_held(schema):
        return None
    local = statement.local
    if local is None or not _has_types(local, schema):
        try:
            return _in_utc(few_rows(statement.source, _MOST_ROWS, _MOST_BYTES))
        except pa.ArrowException:  # of PySpark, for a NULL that has fields which must not be NULL
            return None
    return local if local.num_rows <= _MOST_ROWS and local.nbytes <= _MOST_BYTES else None


def fetch_kept_rows(kept: DataFrame) -> pa.Table | None:
    """The rows of a source that Spark keeps, in order, without their numbers.

    None if Arrow does not have each value as Spark has it.
    """
    with translate_spark_errors():
        fields = [field for field in kept.schema.fields if field.name != columns.SOURCE_ROW]
        if not _may_be_held(T.StructType(fields)):
            return None
        try:
            rows = kept.toArrow()
        except pa.ArrowException:
            return None
    return _in_utc(rows.sort_by(columns.SOURCE_ROW).select([field.name for field in fields]))


def held_source(statement: MergeStatement, rows: pa.Table, spark: SparkSession) -> HeldSource:
    """A source of the rows that `held_rows` has returned."""
    numbers = pa.array(range(rows.num_rows), pa.int64())
    numbered = rows.append_column(pa.field(columns.SOURCE_ROW, pa.int64(), False), numbers)
    number = T.StructField(columns.SOURCE_ROW, T.LongType(), False)
    schema = T.StructType([*statement.source.schema.fields, number])
    with translate_spark_errors():
        return HeldSource(frame_of(spark, numbered, schema), rows)


def intervals(values: pa.Array) -> tuple[Interval, ...]:
    """Disjoint intervals, ascending, that have every value; one for each value if these are few."""
    distinct = pc.unique(values).drop_null()
    ordered = distinct.take(pc.sort_indices(distinct))
    starts = _starts(ordered)
    ends = np.append(starts[1:], len(ordered))[: len(starts)] - 1
    lows, highs = (ordered.take(pa.array(at, pa.int64())) for at in (starts, ends))
    return tuple(
        zip(*(internal_values(pa.chunked_array([side])) for side in (lows, highs)), strict=True)
    )


def _starts(ordered: pa.Array) -> npt.NDArray[np.int64]:
    """Where intervals of ascending values start: after the widest gaps, if values have distances.

    An interval over a wide gap would have every file in the gap read.
    """
    count = len(ordered)
    if count <= _MOST_INTERVALS:
        return np.arange(count)
    numbers = _as_floats(ordered)
    if numbers is None:
        return np.arange(0, count, -(-count // _MOST_INTERVALS))
    with np.errstate(invalid="ignore"):  # of infinities
        gaps = np.nan_to_num(np.diff(numbers), nan=np.inf)
    widest = np.argpartition(gaps, -(_MOST_INTERVALS - 1))[-(_MOST_INTERVALS - 1) :]
    return np.concatenate([[0], np.sort(widest) + 1])


def _as_floats(values: pa.Array) -> npt.NDArray[np.float64] | None:
    """Numbers, dates and timestamps as floats; None for others."""
    kind = values.type
    if pa.types.is_date32(kind):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return None
    return np.asarray(values.cast(pa.float64(), safe=False))


def in_type_of(values: pa.Array, kind: PrimitiveType) -> pa.Array:
    """Integers as the table's column has them; NULL for one that does not fit, like try_cast."""
    if not pa.types.is_integer(values.type) or not isinstance(kind, IntegerType | LongType):
        return values
    fits = pc.and_(pc.greater_equal(values, kind.min), pc.less_equal(values, kind.max))
    target = pa.int32() if isinstance(kind, IntegerType) else pa.int64()
    return pc.if_else(fits, values, pa.scalar(None, values.type)).cast(target)


def _bytes_of(column: pa.ChunkedArray) -> int:
    if _plain(column.type) in (pa.string(), pa.binary()):
        length: int = pc.sum(pc.binary_length(column)).as_py() or 0
        return length + _VALUE_BYTES * len(column)
    return (_NESTED_BYTES if pa.types.is_nested(column.type) else _VALUE_BYTES) * len(column)


def _may_be_held(schema: T.StructType) -> bool:
    """Whether names tell columns apart, and Arrow has each value as Spark has it."""
    names = {field.name.lower() for field in schema.fields}
    return len(names) == len(schema.fields) and _is_same_in_arrow(schema)


def _is_same_in_arrow(kind: T.DataType) -> bool:
    match kind:
        case T.StructType():
            names = {field.name for field in kind.fields}
            types = (field.dataType for field in kind.fields)
            return len(names) == len(kind.fields) and all(map(_is_same_in_arrow, types))
        case T.ArrayType():
            return _is_same_in_arrow(kind.elementType)
        case T.MapType():
            return _is_same_in_arrow(kind.keyType) and _is_same_in_arrow(kind.valueType)
    # A text with a collation, and a char or varchar, are subclasses or unequal.
    return kind == T.StringType() or isinstance(kind, _SAME_IN_ARROW)


def _has_types(rows: pa.Table, schema: T.StructType) -> bool:
    """Whether Arrow rows have the types that Spark would give rows of a schema."""
    expected = to_arrow_schema(schema, **_IN_UTC)
    types = [*map(_plain, rows.schema.types)]
    return rows.column_names == expected.names and types == [*map(_plain, expected.types)]


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of texts and binaries whose offsets may be of either size."""
    return _OF_ANY_SIZE.get(kind, kind)


def _in_utc(rows: pa.Table | None) -> pa.Table | None:
    """The same instants with UTC as their time zone, instead of the session's."""
    if rows is None:
        return None
    utc = pa.timestamp("us", "UTC")
    fields = [
        field.with_type(utc) if pa.types.is_timestamp(field.type) and field.type.tz else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))
