"""What is measured of a MERGE's source before the table is read: how much, and where its keys lie.

Aggregates only: the source's rows stay where they are. The first job also pins the source, which
is read several times and must be the same each time.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from icefloe.metadata.source_matching import Interval, KeyValues, PartitionValues
from icefloe.plan.merge_keys import MergeKey, Sides, is_identical
from icefloe.quoting import quoted
from icefloe.schemas.partition_values import to_record
from icefloe.schemas.spark_types import spark_type
from icefloe.schemas.transforms import partition_columns
from icefloe.spark_errors import translated

_QUANTILES = 63
_GROUPS = 4096
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
        return str(self.type) != "boolean"


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The smallest and the largest value of a key, and a sample of what lies between."""

    key: SourceKey
    values: Interval | None  # None: every value is NULL, so that nothing matches
    quantiles: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """How large the source is, and the ranges of its keys."""

    rows: int
    key_bytes: int  # of the columns that a probe of the table needs, about
    ranges: tuple[KeyRange, ...]


def comparable_keys(
    keys: Sequence[MergeKey], schema: Schema, sides: Sides
) -> tuple[SourceKey, ...]:
    """The keys whose equality in Spark is equality of the values in the table's own type."""
    found = []
    for key in keys:
        field = next(field for field in schema.fields if field.name == key.target)
        if isinstance(field.field_type, PrimitiveType) and is_identical(key, sides):
            found.append(SourceKey(key.target, key.source, field.field_id, field.field_type))
    return tuple(found)


def measure(source: DataFrame, keys: Sequence[SourceKey], needed: Sequence[str]) -> SourceFacts:
    """Count the source and find the ranges of its keys; one job.

    `needed` are the source columns that a probe of the table uses, for their size.
    """
    wanted = [F.count(F.lit(1)).alias("rows"), _size(source, needed).alias("bytes")]
    for i, key in enumerate(keys):
        wanted += [F.min(key.value).alias(f"min{i}"), F.max(key.value).alias(f"max{i}")]
        sample = F.lit(None).cast("array<double>")
        if _is_numeric(key.type):
            parts = [(n + 1) / (_QUANTILES + 1) for n in range(_QUANTILES)]
            sample = F.percentile_approx(_ordinal(key), parts, F.lit(1000))
        wanted.append(sample.alias(f"sample{i}"))
    with translated():
        told = source.agg(*wanted).toArrow()
    ranges = [
        KeyRange(
            key,
            _interval(told[f"min{i}"], told[f"max{i}"]),
            tuple(told[f"sample{i}"][0].as_py() or ()),
        )
        for i, key in enumerate(keys)
    ]
    return SourceFacts(told["rows"][0].as_py(), told["bytes"][0].as_py() or 0, tuple(ranges))


def range_expression(ranges: Sequence[KeyRange]) -> BooleanExpression:
    """What the ranges demand of a matching row's columns."""
    demanded: BooleanExpression = AlwaysTrue()
    for found in ranges:
        if found.values is None:
            return AlwaysFalse()
        if found.key.has_order:
            low, high = (_literal(found.key.type, value) for value in found.values)
            name = found.key.name
            within = And(
                GreaterThanOrEqual(term=name, value=low), LessThanOrEqual(term=name, value=high)
            )
            demanded = And(demanded, within)
    return demanded


def group_values(source: DataFrame, found: KeyRange) -> KeyValues:
    """Intervals that hold every value of a key, cut where there are gaps; one job.

    Values are grouped by a number that grows with them; how they are grouped decides how fine
    the intervals are, never whether they hold all values.
    """
    key = found.key
    with translated():
        told = (
            source.select(key.value.alias("v"), _group(found).alias("g"))
            .filter(F.col("v").isNotNull())
            .groupBy("g")
            .agg(F.min("v").alias("low"), F.max("v").alias("high"))
            .toArrow()
        )
    pairs = zip(_internal(told["low"]), _internal(told["high"]), strict=True)
    return KeyValues(key.field_id, key.type, _disjoint(sorted(pairs)))


def partition_values(
    source: DataFrame, keys: Sequence[SourceKey], spec: PartitionSpec, schema: Schema, limit: int
) -> tuple[PartitionValues | None, int]:
    """The partitions of `spec` that source rows are of, as far as the keys tell; and how many.

    None where the keys tell nothing of the spec, or where there are more than `limit`.
    """
    by_id = {key.field_id: key for key in keys}
    places = tuple(
        i
        for i, field in enumerate(spec.fields)
        if field.source_id in by_id
        and not isinstance(field.transform, VoidTransform | UnknownTransform)
    )
    if not places:
        return None, 0
    told_of = PartitionSpec(*(spec.fields[i] for i in places))
    used = [by_id[field.source_id] for field in told_of.fields]
    with translated():
        known = source.select(*(key.value.alias(key.name) for key in dict.fromkeys(used))).dropna()
        values = partition_columns(told_of, schema)
        distinct = known.select(*(v.alias(f"p{i}") for i, v in enumerate(values))).distinct()
        table = distinct.limit(limit + 1).toArrow()
        if table.num_rows > limit:
            return None, distinct.count()
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    records = (to_record(row, told_of, schema) for row in rows)
    found = frozenset(tuple(record[i] for i in range(len(places))) for record in records)
    return PartitionValues(places, len(spec.fields), found), len(found)


def _size(source: DataFrame, needed: Sequence[str]) -> Column:
    """About how many bytes the needed columns have, as a broadcast would hold them."""
    types = {field.name: field.dataType for field in source.schema.fields}
    total = F.lit(16)
    for name in needed:
        if isinstance(types[name], T.StringType | T.BinaryType):
            total = total + 8 + F.coalesce(F.octet_length(quoted(name)), F.lit(0))
        else:
            total = total + types_size(types[name])
    return F.sum(total.cast("long"))


def types_size(kind: T.DataType) -> int:
    """Bytes of a value whose size does not depend on it; a guess for nested ones."""
    return 8 if isinstance(kind, T.AtomicType) else 64


def _is_numeric(kind: PrimitiveType) -> bool:
    return not isinstance(kind, StringType) and str(kind) != "boolean"


def _ordinal(key: SourceKey) -> Column:
    """A number that grows with the key's value; for grouping and sampling only."""
    match key.type:
        case DateType():
            return F.unix_date(key.value).cast("double")
        case TimestampType() | TimestamptzType():
            return F.unix_micros(key.value.cast("timestamp")).cast("double")
        case _:
            return key.value.cast("double")


def ordinal_of(value: Any) -> float:
    """The same number of a value as Iceberg keeps it."""
    return float(value) if isinstance(value, int | float | Decimal) else 0.0


def _group(found: KeyRange) -> Column:
    if found.values is None:
        return F.lit(0)
    if not found.key.has_order:
        return found.key.value.cast("int")
    low, high = found.values
    if isinstance(found.key.type, StringType):
        start = _common_bytes(low, high)
        return _cell(
            _text_ordinal(found.key.value, start),
            _number_of(low.encode()[start:]),
            _number_of(high.encode()[start:]),
        )
    return _cell(_ordinal(found.key), ordinal_of(low), ordinal_of(high))


def _cell(value: Column, low: float, high: float) -> Column:
    width = max((high - low) / _GROUPS, 1e-9)
    return F.floor((value - F.lit(low)) / F.lit(width)).cast("int")


def _text_ordinal(value: Column, start: int) -> Column:
    """The bytes after the prefix that all texts share, as a number."""
    piece = F.hex(F.substring(F.encode(value, "UTF-8"), start + 1, _PREFIX_BYTES))
    return F.conv(F.rpad(piece, 2 * _PREFIX_BYTES, "0"), 16, 10).cast("double")


def _number_of(piece: bytes) -> float:
    return float(int.from_bytes(piece[:_PREFIX_BYTES].ljust(_PREFIX_BYTES, b"\0"), "big"))


def _common_bytes(low: str, high: str) -> int:
    pairs = zip(low.encode(), high.encode(), strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(low), len(high)))


def _disjoint(pairs: list[Interval]) -> tuple[Interval, ...]:
    merged: list[Interval] = []
    for low, high in pairs:
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _interval(low: pa.ChunkedArray, high: pa.ChunkedArray) -> Interval | None:
    (least,), (most,) = _internal(low), _internal(high)
    return None if least is None or most is None else (least, most)


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
