"""Whether a predicate is TRUE for all, none or some rows of a partition, from its tuple alone.

A partition tuple limits the values of each source column: to one value (identity), to a range
(year to hour, truncate), or not at all (bucket). A predicate is evaluated over all of them. Where
it can be both TRUE and not TRUE, the partition straddles it, and only its rows could decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Context, Decimal, Inexact
from enum import Enum
from itertools import product
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, DecimalType, PrimitiveType
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

from icefloe.commands.replace.predicate import (
    PartitionPredicate,
    PartitionTest,
    SourceColumn,
    partitioning_fields,
)
from icefloe.errors import InvalidPredicateError
from icefloe.pruning.literals import sql_literal, sql_text
from icefloe.pruning.predicate import (
    And,
    Compare,
    Comparison,
    Constant,
    In,
    IsNull,
    Node,
    Not,
    Or,
    leaves_of,
)

Truth = frozenset[bool | None]

_DAY = 86_400_000_000
_HOUR = 3_600_000_000
_EXACT = Context(prec=80, traps=[Inexact])  # Python's own context rounds to 28 digits
_DAYS_TO_1970 = 719_468  # from 0000-03-01
_ONLY_NULL: Truth = frozenset({None})
_TRUE: Truth = frozenset({True})
_FALSE: Truth = frozenset({False})
_LAST_BEFORE_SURROGATES, _FIRST_AFTER, _LAST = 0xD7FF, 0xE000, 0x10FFFF


class Match(Enum):
    """How much of a partition a predicate is TRUE for."""

    ALL = "all"
    NONE = "none"
    SOME = "some"


@dataclass(frozen=True, slots=True)
class Values:
    """The possible values of a column in one partition: from `low` to `high`, and NULL or not."""

    low: Any = None  # None: no limit
    high: Any = None
    below_high: bool = False  # `high` itself is not possible
    may_be_null: bool = True
    may_be_value: bool = True

    @property
    def is_one(self) -> bool:
        """Whether only one value is possible."""
        return self.low is not None and self.low == self.high and not self.below_high


NULL = Values(may_be_value=False)
_PRESENT = Values(may_be_null=False)


def match_partition(predicate: PartitionPredicate, spec: PartitionSpec, partition: Record) -> Match:
    """How much of the partition with this tuple of `spec` the predicate is TRUE for."""
    values = {column.name: values_in(column, spec, partition) for column in predicate.columns}
    return match_values(predicate.tree, values)


def match_values(tree: Node[PartitionTest], values: Mapping[str, Values]) -> Match:
    """How much of all rows with such values the predicate is TRUE for."""
    truth = _truth(tree, values)
    if True not in truth:
        return Match.NONE
    return Match.ALL if len(truth) == 1 else Match.SOME


def values_in(column: SourceColumn, spec: PartitionSpec, partition: Record) -> Values:
    """The possible values of a column; every partition field of the column narrows them."""
    values = Values()
    for position, field in enumerate(spec.fields):
        if field.source_id == column.field_id and position < len(partition):
            values = _narrowed(values, values_of(field, column.type, partition[position]))
    return values


def values_of(field: PartitionField, kind: PrimitiveType, value: Any) -> Values:
    """The values of a column of type `kind` for which a partition field has `value`."""
    value = _internal(value)
    match field.transform:
        case IdentityTransform():
            return NULL if value is None else replace(_PRESENT, low=_key(value), high=_key(value))
        case YearTransform() | MonthTransform() | DayTransform() | HourTransform():
            return NULL if value is None else _period(field, kind, value)
        case TruncateTransform(width=width):
            return NULL if value is None else _truncated(kind, value, width)
        case BucketTransform():
            return NULL if value is None else _PRESENT
        case _:
            return Values()


def _narrowed(one: Values, other: Values) -> Values:
    lows = [v.low for v in (one, other) if v.low is not None]
    highs = [(v.high, not v.below_high) for v in (one, other) if v.high is not None]
    high, included = min(highs) if highs else (None, True)
    return Values(
        max(lows) if lows else None,
        high,
        not included,
        one.may_be_null and other.may_be_null,
        one.may_be_value and other.may_be_value,
    )


def _internal(value: Any) -> Any:
    """A partition value as Iceberg stores it; some readers return dates and times."""
    match value:
        case datetime():
            return datetime_to_micros(value)
        case date():
            return date_to_days(value)
        case _:
            return value


def _key(value: Any) -> Any:
    """A key that sorts values as Spark does: NaN is the largest number, equal to itself."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value


def _period(field: PartitionField, kind: PrimitiveType, value: int) -> Values:
    """A year, month, day or hour, in days for dates and in microseconds for timestamps."""
    start, end = _start_of(field, value), _start_of(field, value + 1)
    unit = _DAY if isinstance(kind, DateType) else 1
    return replace(_PRESENT, low=start // unit, high=end // unit - 1)


def _start_of(field: PartitionField, value: int) -> int:
    """The first microsecond of a period."""
    match field.transform:
        case YearTransform():
            return _first_of_month(value * 12)
        case MonthTransform():
            return _first_of_month(value)
        case DayTransform():
            return value * _DAY
        case _:
            return value * _HOUR


def _first_of_month(months: int) -> int:
    """The first microsecond of a month counted from 1970-01, in any year."""
    # Months from March of year 0: leap days are then at the end of a year.
    years, month = divmod(months + 1970 * 12 - 2, 12)
    leap_days = years // 4 - years // 100 + years // 400
    return (365 * years + leap_days + (153 * month + 2) // 5 - _DAYS_TO_1970) * _DAY


def _truncated(kind: PrimitiveType, value: Any, width: int) -> Values:
    match value:
        case str():
            return _prefixed(value, width)
        case Decimal() if isinstance(kind, DecimalType):
            step = Decimal(width - 1).scaleb(-kind.scale)
            return replace(_PRESENT, low=value, high=_EXACT.add(value, step))
        case int():
            return replace(_PRESENT, low=value, high=value + width - 1)
        case _:
            return _PRESENT


def _prefixed(prefix: str, width: int) -> Values:
    if len(prefix) < width:
        return replace(_PRESENT, low=prefix, high=prefix)
    return replace(_PRESENT, low=prefix, high=_after_prefix(prefix), below_high=True)


def _after_prefix(prefix: str) -> str | None:
    """The first string after all that start with `prefix`; None if no string is."""
    for end in range(len(prefix), 0, -1):
        last = ord(prefix[end - 1])
        if last < _LAST:
            following = _FIRST_AFTER if last == _LAST_BEFORE_SURROGATES else last + 1
            return prefix[: end - 1] + chr(following)
    return None


def _truth(node: Node[PartitionTest], values: Mapping[str, Values]) -> Truth:
    """Every result that the predicate can have for such values."""
    match node:
        case Constant(value):
            return frozenset({value})
        case And(parts):
            return _combined(parts, values, _and, _TRUE, _FALSE)
        case Or(parts):
            return _combined(parts, values, _or, _FALSE, _TRUE)
        case Not(part):
            return frozenset(None if t is None else not t for t in _truth(part, values))
        case IsNull(column):
            return frozenset(_null_truths(values[column.name]))
        case Compare(column, comparison, value):
            return _compared(values[column.name], comparison, value)
        case In(column, listed):
            return _among(values[column.name], listed)


def _combined(
    parts: Iterable[Node[PartitionTest]],
    values: Mapping[str, Values],
    join: Callable[[bool | None, bool | None], bool | None],
    neutral: Truth,
    decisive: Truth,
) -> Truth:
    """The results of all parts joined; most parts of a long list change nothing."""
    joined = neutral
    for part in parts:
        truth = _truth(part, values)
        if truth != neutral:
            joined = frozenset(join(a, b) for a, b in product(joined, truth))
        if joined == decisive:
            break
    return joined


def _and(a: bool | None, b: bool | None) -> bool | None:
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def _or(a: bool | None, b: bool | None) -> bool | None:
    if a is True or b is True:
        return True
    return None if a is None or b is None else False


def _null_truths(values: Values) -> Iterable[bool]:
    if values.may_be_null:
        yield True
    if values.may_be_value:
        yield False


def _compared(values: Values, comparison: Comparison, value: Any) -> Truth:
    if value is None or not values.may_be_value:
        return _ONLY_NULL
    truths: set[bool | None] = {
        order in comparison.orders for order in _orders(values, _key(value))
    }
    return frozenset(truths | {None}) if values.may_be_null else frozenset(truths)


def _orders(values: Values, value: Any) -> Iterable[int]:
    """How the column's values can compare with `value`: smaller (-1), equal (0), larger (1)."""
    low, high = values.low, values.high
    below = high is None or value < high or (value == high and not values.below_high)
    if low is None or low < value:
        yield -1
    if (low is None or low <= value) and below:
        yield 0
    if high is None or value < high:
        yield 1


def _among(values: Values, listed: tuple[Any, ...]) -> Truth:
    if not values.may_be_value:
        return _ONLY_NULL
    keys = [_key(value) for value in listed if value is not None]
    has_null = len(keys) < len(listed)
    truths: set[bool | None] = {None} if values.may_be_null else set()
    if values.is_one:
        is_listed = values.low in keys
        truths.add(True if is_listed else (None if has_null else False))
        return frozenset(truths)
    if any(0 in _orders(values, key) for key in keys):
        truths.add(True)
    truths.add(None if has_null else False)
    return frozenset(truths)


# -------------------------------------------------------------------------------------------------
# Whether a predicate falls on partition borders

_WAY_OUT = "Move it to a border, or use scope='rows' to replace only the rows it is TRUE for"


def refuse_between_borders(predicate: PartitionPredicate, spec: PartitionSpec) -> None:
    """Refuse a predicate that would be TRUE for a part of a partition, whether it has rows or not.

    Partitions are ranges of values, so a test can only divide the partition of its literal.
    """
    for test, value in _tests_with_values(predicate):
        column = test.column
        if value is not None and (fields := _divides(test, spec, value)):
            raise InvalidPredicateError(
                predicate.text,
                f"{column.name} is partitioned by {fields}, so the partition of "
                f"{sql_text(sql_literal(value, column.type))} is on both sides of it. {_WAY_OUT}",
            )


def straddling(
    predicate: str, spec: PartitionSpec, schema: Schema, partition: Record
) -> InvalidPredicateError:
    """The error for a live partition that a predicate is TRUE for a part of."""
    where = spec.partition_to_path(partition, schema) if spec.fields else "of no columns"
    return InvalidPredicateError(
        predicate,
        f"partition {where} (spec {spec.spec_id}) may have rows on both sides of it. {_WAY_OUT}",
    )


def _tests_with_values(predicate: PartitionPredicate) -> Iterator[tuple[PartitionTest, Any]]:
    for leaf in leaves_of(predicate.tree):
        match leaf:
            case In(column, listed):
                yield from ((In(column, (value,)), value) for value in listed)
            case Compare():
                yield leaf, leaf.value


def _divides(test: PartitionTest, spec: PartitionSpec, value: Any) -> str | None:
    """The transforms of the partition that a test divides; None if it divides none."""
    column = test.column
    fields = [f for f in partitioning_fields(spec) if f.source_id == column.field_id]
    for field in fields:
        values = values_of(field, column.type, field.transform.transform(column.type)(value))
        if match_values(test, {column.name: values}) is not Match.SOME:
            return None
    return " and ".join(str(field.transform) for field in fields)
