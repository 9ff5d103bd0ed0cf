"""The source of a MERGE: the same rows for the whole statement, measured before the table is read.

Here Spark keeps and measures the rows; `held_source` has sources whose few rows the driver holds.
Measuring aggregates only: rows stay in Spark. The first job also persists the source, which is
read several times and must be the same each time.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    LessThanOrEqual,
)
from pyiceberg.expressions.literals import (
    DateLiteral,
    DecimalLiteral,
    Literal,
    LongLiteral,
    StringLiteral,
    TimestampLiteral,
)
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from icefloe.commands.merge.keys import MergeKey, MergeSides, is_identical
from icefloe.pruning.source_matcher import Interval, KeyValues, PartitionValues
from icefloe.schema.partition_values import has_value, partition_columns, to_record
from icefloe.schema.to_spark import spark_type
from icefloe.spark import columns
from icefloe.spark.columns import quote, quoted
from icefloe.spark.errors import cleaning_up, translate_spark_errors
from icefloe.spark.session import spark_conf

_CELLS = 4096
_PREFIX_BYTES = 6  # of a text: what a double holds exactly


@dataclass(frozen=True, slots=True)
class SourceKey:
    """A key that can choose files: its values compare like the table's stored values."""

    name: str
    source: str
    field_id: int
    type: PrimitiveType

    @property
    def value(self) -> Column:
        """The source's value in the column's type; one that does not fit matches no row."""
        return quoted(self.source).try_cast(spark_type(self.type))

    @property
    def has_order(self) -> bool:
        """Whether the column's bounds can exclude values."""
        return not isinstance(self.type, BooleanType)


@dataclass(frozen=True, slots=True)
class Cells:
    """A key's values grouped into cells between two bounds, and one cell on either side.

    The grouping decides how narrow the intervals are, never whether they contain every value.
    """

    key: SourceKey
    low: Any
    high: Any

    @property
    def number(self) -> Column:
        """The cell of the source's value."""
        if isinstance(self.key.type, StringType):
            start = _common_bytes(self.low, self.high)
            value = _text_ordinal(self.key.value, start)
            low, high = (_number_of(text.encode()[start:]) for text in (self.low, self.high))
        else:
            value, low, high = _ordinal(self.key), ordinal_of(self.low), ordinal_of(self.high)
        width = max((high - low) / _CELLS, 1e-9)
        cell = (value - F.lit(low)) / F.lit(width)
        # Clamped first: the cell of a distant value may not be an integer that Spark can hold.
        return F.floor(F.greatest(F.lit(-1.0), F.least(F.lit(float(_CELLS)), cell))).cast("int")


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """The size of the source, and the ranges of its keys."""

    rows: int
    bytes: int  # estimated, as rows in memory
    key_bytes: int  # of the columns that probing the table needs
    keys: tuple[KeyValues, ...]  # in the order of the keys; no interval: all values are NULL


class MergeSource(Protocol):
    """A source whose rows are the same each time they are read."""

    @property
    def frame(self) -> DataFrame:
        """The rows, with their numbers."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether measuring takes no Spark job."""
        ...

    def measure(
        self, keys: Sequence[SourceKey], needed: Sequence[str], files: Sequence[DataFile] = ()
    ) -> SourceFacts:
        """Count the source and find the ranges of its keys.

        `needed` are the columns that probing the table uses, for their size; `files` the data
        files that the ranges shall tell apart.
        """
        ...

    def partition_values(
        self,
        keys: Mapping[SourceKey, KeyValues],
        spec: PartitionSpec,
        schema: Schema,
        limit: int,
    ) -> tuple[PartitionValues | None, int]:
        """The partitions of `spec` that source rows can match, by their keys, and how many.

        None where no key is a source column of the spec, or where there are more than `limit`.
        """
        ...

    def key_values(self, keys: Sequence[SourceKey]) -> tuple[pa.Array, ...]:
        """The values of keys, one array for each; rows with a NULL are left out."""
        ...


@dataclass(frozen=True, slots=True)
class SparkSource:
    """A source that Spark keeps."""

    frame: DataFrame

    @property
    def is_held(self) -> bool:
        """Whether measuring takes no Spark job."""
        return False

    def measure(
        self, keys: Sequence[SourceKey], needed: Sequence[str], files: Sequence[DataFile] = ()
    ) -> SourceFacts:
        """Count the source and find the ranges of its keys, in one job."""
        return _measure(self.frame, keys, needed, choose_cells(keys, files))

    def partition_values(
        self,
        keys: Mapping[SourceKey, KeyValues],
        spec: PartitionSpec,
        schema: Schema,
        limit: int,
    ) -> tuple[PartitionValues | None, int]:
        """The partitions that source rows can match, in a job or two."""
        by_id = {key.field_id: key for key in keys}
        positions = determined_fields(keys, spec)
        if not positions:
            return None, 0
        determined = PartitionSpec(*(spec.fields[i] for i in positions))
        used = [by_id[field.source_id] for field in determined.fields]
        with translate_spark_errors():
            rows = self.frame.select(*(key.value.alias(key.name) for key in dict.fromkeys(used)))
            for key in used:
                rows = rows.filter(quoted(key.name).isNotNull())
            values = partition_columns(determined, schema)
            distinct = rows.select(*(v.alias(f"p{i}") for i, v in enumerate(values))).distinct()
            table = distinct.limit(limit + 1).toArrow()
            if table.num_rows > limit:
                return None, distinct.count()
        tuples = zip(*(column.to_pylist() for column in table.columns), strict=True)
        return partitions_of_spec(tuples, positions, spec, schema), table.num_rows

    def key_values(self, keys: Sequence[SourceKey]) -> tuple[pa.Array, ...]:
        """The values of keys; rows with a NULL are left out."""
        names = [f"k{i}" for i in range(len(keys))]
        with translate_spark_errors():
            rows = self.frame.select(
                *(key.value.alias(name) for key, name in zip(keys, names, strict=True))
            )
            table = rows.filter(" AND ".join(f"{name} IS NOT NULL" for name in names)).toArrow()
        return tuple(column.combine_chunks() for column in table.columns)


def comparable_keys(
    keys: Sequence[MergeKey], schema: Schema, sides: MergeSides
) -> tuple[SourceKey, ...]:
    """The keys whose equality in Spark is equality of the values in the table's own type."""
    comparable = []
    for key in keys:
        field = next(field for field in schema.fields if field.name == key.target)
        if isinstance(field.field_type, PrimitiveType) and is_identical(key, sides):
            comparable.append(SourceKey(key.target, key.source, field.field_id, field.field_type))
    return tuple(comparable)


def _measure(
    source: DataFrame, keys: Sequence[SourceKey], needed: Sequence[str], cells: Cells | None
) -> SourceFacts:
    """The key of `cells` is described by intervals with gaps, every other key by one interval."""
    aggregates = [
        F.count(F.lit(1)).alias("rows"),
        _size(source, source.columns).alias("bytes"),
        _size(source, needed).alias("key_bytes"),
    ]
    for i, key in enumerate(keys):
        aggregates += [F.min(key.value).alias(f"min{i}"), F.max(key.value).alias(f"max{i}")]
    spark = source.sparkSession
    # Adaptive planning would store the source in a job of its own, and read it back in the next.
    with (
        translate_spark_errors(),
        spark_conf(spark, "spark.sql.adaptive.enabled", "false"),
        spark_conf(spark, "spark.sql.shuffle.partitions", "1"),
    ):
        grouped = source.groupBy(cells.number.alias("cell")) if cells else source.groupBy()
        measured = grouped.agg(*aggregates).toArrow()
    values = []
    for i, key in enumerate(keys):
        intervals = _intervals(measured[f"min{i}"], measured[f"max{i}"])
        if not (cells and cells.key == key) and intervals:
            intervals = ((intervals[0][0], max(high for _, high in intervals)),)
        values.append(KeyValues(key.field_id, key.type, intervals))
    rows, size, key_size = (
        sum(n or 0 for n in measured[name].to_pylist()) for name in ("rows", "bytes", "key_bytes")
    )
    return SourceFacts(rows, size, key_size, tuple(values))


def range_expression(keys: Sequence[SourceKey], values: Sequence[KeyValues]) -> BooleanExpression:
    """What the ranges of the keys require of a matching row."""
    required: BooleanExpression = AlwaysTrue()
    for key, ranges in zip(keys, values, strict=True):
        if not ranges.intervals:
            return AlwaysFalse()
        if key.has_order:
            low, high = ranges.intervals[0][0], ranges.intervals[-1][1]
            required = And(
                required,
                And(
                    GreaterThanOrEqual(term=key.name, value=_literal(key.type, low)),
                    LessThanOrEqual(term=key.name, value=_literal(key.type, high)),
                ),
            )
    return required


def choose_cells(keys: Sequence[SourceKey], files: Sequence[DataFile]) -> Cells | None:
    """Cells of the key whose bounds overlap least between files; None where none has bounds."""
    best: tuple[float, Cells] | None = None
    for key in keys:
        values = KeyValues(key.field_id, key.type, ())
        bounds = [b for b in map(values.bounds, files) if b is not None]
        if len(files) < 2 or not bounds or not key.has_order:
            continue
        cells = Cells(key, min(b[0] for b in bounds), max(b[1] for b in bounds))
        span = _overlap(cells, bounds)
        if best is None or span < best[0]:
            best = (span, cells)
    return best[1] if best else None


def determined_fields(keys: Mapping[SourceKey, KeyValues], spec: PartitionSpec) -> tuple[int, ...]:
    """The positions of the fields of a spec that have a value for every source row's keys."""
    by_id = {key.field_id: values for key, values in keys.items()}
    return tuple(
        i
        for i, field in enumerate(spec.fields)
        if field.source_id in by_id and _determines(field, by_id[field.source_id])
    )


def partitions_of_spec(
    tuples: Iterable[tuple[object, ...]],
    positions: tuple[int, ...],
    spec: PartitionSpec,
    schema: Schema,
) -> PartitionValues:
    """Values of the fields at some positions of a spec, as manifests have them."""
    determined = PartitionSpec(*(spec.fields[i] for i in positions))
    records = (to_record(values, determined, schema) for values in tuples)
    partitions = frozenset(tuple(record[i] for i in range(len(positions))) for record in records)
    return PartitionValues(positions, len(spec.fields), partitions)


def _determines(field: PartitionField, values: KeyValues) -> bool:
    """Whether the partition field has a value for every source value of the column."""
    if isinstance(field.transform, VoidTransform | UnknownTransform):
        return False
    lows = values.intervals[:1]
    return all(has_value(field.transform, values.type, low) for low, _ in lows)


def _size(source: DataFrame, needed: Sequence[str]) -> Column:
    """Estimated bytes of the needed columns, as rows in memory."""
    types = {field.name: field.dataType for field in source.schema.fields}
    parts = ["16L", *(_width(name, types[name]) for name in needed)]
    return F.expr(f"sum({' + '.join(parts)})")


def _width(name: str, kind: T.DataType) -> str:
    """Bytes of a value; an estimate for nested ones."""
    if isinstance(kind, T.StringType | T.BinaryType):
        return f"8 + coalesce(octet_length({quote(name)}), 0)"
    return "8" if isinstance(kind, T.AtomicType) else "64"


def ordinal_of(value: Any) -> float:
    """A number that grows with a value as Iceberg stores it; for grouping only."""
    return float(value) if isinstance(value, int | float | Decimal) else 0.0


def _overlap(cells: Cells, bounds: Sequence[Interval]) -> float:
    """The average part of the whole range that one file covers."""
    if isinstance(cells.key.type, StringType):
        start = _common_bytes(cells.low, cells.high)

        def ordinal(value: Any) -> float:
            return _number_of(value.encode()[start:])
    else:
        ordinal = ordinal_of
    whole = max(ordinal(cells.high) - ordinal(cells.low), 1e-9)
    return sum(ordinal(high) - ordinal(low) for low, high in bounds) / whole / len(bounds)


def _ordinal(key: SourceKey) -> Column:
    """The same number as a Spark expression."""
    match key.type:
        case DateType():
            return F.unix_date(key.value).cast("double")
        case TimestampType() | TimestamptzType():
            return F.unix_micros(key.value.cast("timestamp")).cast("double")
        case _:
            return key.value.cast("double")


def _text_ordinal(value: Column, start: int) -> Column:
    """The bytes after the prefix that all texts share, as a number."""
    piece = F.hex(F.substring(F.encode(value, "UTF-8"), start + 1, _PREFIX_BYTES))
    return F.conv(F.rpad(piece, 2 * _PREFIX_BYTES, "0"), 16, 10).cast("double")


def _number_of(piece: bytes) -> float:
    return float(int.from_bytes(piece[:_PREFIX_BYTES].ljust(_PREFIX_BYTES, b"\0"), "big"))


def _common_bytes(low: str, high: str) -> int:
    first, second = low.encode(), high.encode()
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _intervals(lows: pa.ChunkedArray, highs: pa.ChunkedArray) -> tuple[Interval, ...]:
    """Disjoint intervals in ascending order; pairs without values are left out."""
    pairs = zip(internal_values(lows), internal_values(highs), strict=True)
    merged: list[Interval] = []
    for low, high in sorted(pair for pair in pairs if pair[0] is not None):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def internal_values(column: pa.ChunkedArray) -> list[Any]:
    """Values as Iceberg stores them: days and microseconds as integers."""
    if pa.types.is_date32(column.type):
        return list(column.cast(pa.int32()).to_pylist())
    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist())
    return list(column.to_pylist())


def _literal(kind: PrimitiveType, value: Any) -> Literal[Any]:
    match kind:
        case DateType():
            return DateLiteral(value)
        case TimestampType() | TimestamptzType():
            return TimestampLiteral(value)
        case DecimalType():
            return DecimalLiteral(value)
        case StringType():
            return StringLiteral(value)
        case _:
            return LongLiteral(value)


# -------------------------------------------------------------------------------------------------
# DataFrames that a MERGE reads more than once: each read sees the same rows in the same order

_COMPRESSES = "spark.sql.inMemoryColumnarStorage.compressed"
_BATCH_ROWS = "spark.sql.inMemoryColumnarStorage.batchSize"


@contextmanager
def pinned_source(source: DataFrame) -> Iterator[SparkSource]:
    """The source with its rows numbered, persisted by Spark."""
    # Spark caches equal plans once and drops them for all users: a unique condition avoids that.
    own = source.filter(F.lit(uuid.uuid4().hex).isNotNull())
    with persisted(
        own.select("*", F.monotonically_increasing_id().alias(columns.SOURCE_ROW))
    ) as rows:
        yield SparkSource(rows)


@contextmanager
def persisted(rows: DataFrame) -> Iterator[DataFrame]:
    """The rows, stored by Spark on disk once they have been read.

    In memory they could take more than half of the heap, which readers of wide files need too. A
    small DataFrame takes 10 ms longer this way.
    """
    spark = rows.sparkSession
    # Compression takes longer than everything else here. Java's serialization, by which batches
    # are written to disk, holds a hundred of them in memory: they must be small.
    with (
        translate_spark_errors(),
        spark_conf(spark, _COMPRESSES, "false"),
        spark_conf(spark, _BATCH_ROWS, "500"),
    ):
        rows.persist(StorageLevel.DISK_ONLY)
    try:
        yield rows
    finally:
        with cleaning_up("releasing persisted rows"):
            rows.unpersist()
