"""What is measured of a MERGE's source before the table is read: how much, and where its keys lie.

Aggregates only: the source's rows stay where they are. The first job also pins the source, which
is read several times and must be the same each time.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

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
    """A key that can choose files: its values compare as the table keeps them."""

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
        """Whether the column's bounds say anything."""
        return not isinstance(self.type, BooleanType)


@dataclass(frozen=True, slots=True)
class Cells:
    """A key's values sorted into cells between two bounds; what lies outside has two more.

    How values are sorted decides how fine the intervals found are, never whether they hold all.
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
        # Clamped first: the cell of a value far away is no whole number that Spark has.
        return F.floor(F.greatest(F.lit(-1.0), F.least(F.lit(float(_CELLS)), cell))).cast("int")


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """How large the source is, and where the values of its keys lie."""

    rows: int
    bytes: int  # about, as rows in memory
    key_bytes: int  # of the columns that a probe of the table needs
    keys: tuple[KeyValues, ...]  # in the order of the keys asked for; no interval: all are NULL


def comparable_keys(
    keys: Sequence[MergeKey], schema: Schema, sides: MergeSides
) -> tuple[SourceKey, ...]:
    """The keys whose equality in Spark is equality of the values in the table's own type."""
    found = []
    for key in keys:
        field = next(field for field in schema.fields if field.name == key.target)
        if isinstance(field.field_type, PrimitiveType) and is_identical(key, sides):
            found.append(SourceKey(key.target, key.source, field.field_id, field.field_type))
    return tuple(found)


def measure(
    source: DataFrame, keys: Sequence[SourceKey], needed: Sequence[str], cells: Cells | None = None
) -> SourceFacts:
    """Count the source and find where its keys lie; one job.

    `needed` are the source columns that a probe of the table uses, for their size. The key of
    `cells` is told in intervals with gaps between, the others as one interval each.
    """
    wanted = [
        F.count(F.lit(1)).alias("rows"),
        _size(source, source.columns).alias("bytes"),
        _size(source, needed).alias("key_bytes"),
    ]
    for i, key in enumerate(keys):
        wanted += [F.min(key.value).alias(f"min{i}"), F.max(key.value).alias(f"max{i}")]
    with translate_spark_errors():
        grouped = source.groupBy(cells.number.alias("cell")) if cells else source.groupBy()
        told = grouped.agg(*wanted).toArrow()
    values = []
    for i, key in enumerate(keys):
        intervals = _intervals(told[f"min{i}"], told[f"max{i}"])
        if not (cells and cells.key == key) and intervals:
            intervals = ((intervals[0][0], max(high for _, high in intervals)),)
        values.append(KeyValues(key.field_id, key.type, intervals))
    rows, size, key_size = (
        sum(n or 0 for n in told[name].to_pylist()) for name in ("rows", "bytes", "key_bytes")
    )
    return SourceFacts(rows, size, key_size, tuple(values))


def range_expression(keys: Sequence[SourceKey], values: Sequence[KeyValues]) -> BooleanExpression:
    """What the keys' ranges demand of a matching row's columns."""
    demanded: BooleanExpression = AlwaysTrue()
    for key, found in zip(keys, values, strict=True):
        if not found.intervals:
            return AlwaysFalse()
        if key.has_order:
            low, high = found.intervals[0][0], found.intervals[-1][1]
            demanded = And(
                demanded,
                And(
                    GreaterThanOrEqual(term=key.name, value=_literal(key.type, low)),
                    LessThanOrEqual(term=key.name, value=_literal(key.type, high)),
                ),
            )
    return demanded


def choose_cells(keys: Sequence[SourceKey], files: Sequence[DataFile]) -> Cells | None:
    """Cells of the key whose bounds tell files apart best; None where none does."""
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


def partition_values(
    source: DataFrame,
    keys: Mapping[SourceKey, KeyValues],
    spec: PartitionSpec,
    schema: Schema,
    limit: int,
) -> tuple[PartitionValues | None, int]:
    """The partitions of `spec` that source rows are of, as far as the keys tell; and how many.

    None where the keys tell nothing of the spec, or where there are more than `limit`.
    """
    by_id = {key.field_id: key for key in keys}
    places = tuple(
        i
        for i, field in enumerate(spec.fields)
        if field.source_id in by_id and _is_told(field, keys[by_id[field.source_id]])
    )
    if not places:
        return None, 0
    told_of = PartitionSpec(*(spec.fields[i] for i in places))
    used = [by_id[field.source_id] for field in told_of.fields]
    with translate_spark_errors():
        known = source.select(*(key.value.alias(key.name) for key in dict.fromkeys(used)))
        for key in used:
            known = known.filter(quoted(key.name).isNotNull())
        values = partition_columns(told_of, schema)
        distinct = known.select(*(v.alias(f"p{i}") for i, v in enumerate(values))).distinct()
        table = distinct.limit(limit + 1).toArrow()
        if table.num_rows > limit:
            return None, distinct.count()
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    records = (to_record(row, told_of, schema) for row in rows)
    found = frozenset(tuple(record[i] for i in range(len(places))) for record in records)
    return PartitionValues(places, len(spec.fields), found), len(found)


def _is_told(field: PartitionField, values: KeyValues) -> bool:
    """Whether each of the source's values of a column has a value of the partition field."""
    if isinstance(field.transform, VoidTransform | UnknownTransform):
        return False
    lows = values.intervals[:1]
    return all(has_value(field.transform, values.type, low) for low, _ in lows)


def _size(source: DataFrame, needed: Sequence[str]) -> Column:
    """About how many bytes the needed columns have, as rows in memory."""
    types = {field.name: field.dataType for field in source.schema.fields}
    parts = ["16L", *(_width(name, types[name]) for name in needed)]
    return F.expr(f"sum({' + '.join(parts)})")


def _width(name: str, kind: T.DataType) -> str:
    """Bytes of a value; a guess for nested ones."""
    if isinstance(kind, T.StringType | T.BinaryType):
        return f"8 + coalesce(octet_length({quote(name)}), 0)"
    return "8" if isinstance(kind, T.AtomicType) else "64"


def ordinal_of(value: Any) -> float:
    """A number that grows with a value as Iceberg keeps it; for grouping only."""
    return float(value) if isinstance(value, int | float | Decimal) else 0.0


def _overlap(cells: Cells, bounds: Sequence[Interval]) -> float:
    """How much of the whole range a file covers, on average."""
    if isinstance(cells.key.type, StringType):
        start = _common_bytes(cells.low, cells.high)

        def place(value: Any) -> float:
            return _number_of(value.encode()[start:])
    else:
        place = ordinal_of
    whole = max(place(cells.high) - place(cells.low), 1e-9)
    return sum(place(high) - place(low) for low, high in bounds) / whole / len(bounds)


def _ordinal(key: SourceKey) -> Column:
    """The same number of a value in Spark."""
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
    """Disjoint intervals, ascending; pairs without values are left out."""
    pairs = zip(_internal(lows), _internal(highs), strict=True)
    merged: list[Interval] = []
    for low, high in sorted(pair for pair in pairs if pair[0] is not None):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _internal(column: pa.ChunkedArray) -> list[Any]:
    """Values as Iceberg keeps them: days and microseconds as whole numbers."""
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
# Frames that a MERGE reads more than once: later reads see the same rows in the same order.

_COMPRESSES = "spark.sql.inMemoryColumnarStorage.compressed"
_BATCH_ROWS = "spark.sql.inMemoryColumnarStorage.batchSize"


@contextmanager
def pinned_source(source: DataFrame) -> Iterator[DataFrame]:
    """The source with its rows numbered, kept by Spark."""
    # Spark keeps equal plans once, and drops them for all: a condition of its own makes it unequal.
    own = source.filter(F.lit(uuid.uuid4().hex).isNotNull())
    with persisted(
        own.select("*", F.monotonically_increasing_id().alias(columns.SOURCE_ROW))
    ) as rows:
        yield rows


@contextmanager
def persisted(rows: DataFrame) -> Iterator[DataFrame]:
    """The rows, kept by Spark on disk once they are read.

    Spark would fill more than half of its heap with rows kept in memory, and the readers of wide
    files need that too. A small frame takes 10 ms longer this way.
    """
    spark = rows.sparkSession
    # Compressing what is kept takes longer than the rest of the keeping. Java's serialization,
    # by which batches go to disk, holds a hundred of them in memory: they must be small.
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
