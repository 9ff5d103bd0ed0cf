"""Files chosen by metadata, against an oracle that reads the rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions.visitors import expression_evaluator
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    DoubleType,
    IntegerType,
    NestedField,
    StringType,
    TimestampType,
)

from icefloe.pruning.conditions import lower
from icefloe.pruning.file_matcher import FileMatcher

SCHEMA = Schema(
    NestedField(1, "i", IntegerType(), required=False),
    NestedField(2, "s", StringType(), required=False),
    NestedField(3, "d", DoubleType(), required=False),
    NestedField(4, "day", DateType(), required=False),
    NestedField(5, "ntz", TimestampType(), required=False),
)
NAMES = tuple(field.name for field in SCHEMA.fields)
NAN = math.nan
EPOCH = date(1970, 1, 1)
DAY_MICROS = 86_400_000_000

Row = tuple[Any, ...]  # as Iceberg keeps values: days and microseconds are integers
Truth = bool | None


def spec_of(*fields: tuple[int, Transform[Any, Any]]) -> PartitionSpec:
    parts = [
        PartitionField(source, 1000 + position, transform, f"p{position}")
        for position, (source, transform) in enumerate(fields)
    ]
    return PartitionSpec(*parts, spec_id=1)


SPECS = {
    "none": spec_of(),
    "identity int": spec_of((1, IdentityTransform())),
    "bucket int": spec_of((1, BucketTransform(3))),
    "truncate int": spec_of((1, TruncateTransform(2))),
    "identity string": spec_of((2, IdentityTransform())),
    "bucket string": spec_of((2, BucketTransform(3))),
    "truncate string": spec_of((2, TruncateTransform(1))),
    "identity double": spec_of((3, IdentityTransform())),
    "identity date": spec_of((4, IdentityTransform())),
    "month of date": spec_of((4, MonthTransform())),
    "day of timestamp": spec_of((5, DayTransform())),
    "two fields": spec_of((1, TruncateTransform(3)), (4, MonthTransform())),
    "void": spec_of((1, VoidTransform())),
    "dropped column": spec_of((99, IdentityTransform()), (1, IdentityTransform())),
}


@dataclass(frozen=True)
class Condition:
    """SQL, and what Spark would say of a row; None is NULL."""

    sql: str
    judge: Callable[[Row], Truth]


def sql_of(name: str, value: Any) -> str:
    if value is None:
        return "NULL"
    if name == "s":
        return "'" + value + "'"
    if name == "day":
        return "DATE '" + (EPOCH + timedelta(days=value)).isoformat() + "'"
    if name == "ntz":
        day, micros = divmod(value, DAY_MICROS)
        text = (EPOCH + timedelta(days=day)).isoformat()
        return "TIMESTAMP_NTZ '" + text + " " + str(timedelta(microseconds=micros)).zfill(8) + "'"
    return str(value)


def rank(value: Any) -> tuple[bool, Any]:
    """Spark's order: NaN is the largest, and equal to itself."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return (is_nan, 0 if is_nan else value)


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda x, y: rank(x) == rank(y),
    "<>": lambda x, y: rank(x) != rank(y),
    "<": lambda x, y: rank(x) < rank(y),
    "<=": lambda x, y: rank(x) <= rank(y),
    ">": lambda x, y: rank(x) > rank(y),
    ">=": lambda x, y: rank(x) >= rank(y),
}


def compared(sign: str, left: Any, right: Any) -> Truth:
    return None if left is None or right is None else COMPARE[sign](left, right)


def negation(truth: Truth) -> Truth:
    return None if truth is None else not truth


def conjunction(truths: Iterable[Truth]) -> Truth:
    seen = set(truths)
    return False if False in seen else None if None in seen else True


def disjunction(truths: Iterable[Truth]) -> Truth:
    return negation(conjunction(negation(truth) for truth in truths))


LETTERS = st.text("ab", max_size=3)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-4, 4),
    "s": LETTERS,
    "d": st.sampled_from([-1.5, -0.0, 0.0, 1.0, 2.5]),
    "day": st.integers(-3, 70),
    "ntz": st.integers(-6, 6).map(lambda quarter: quarter * DAY_MICROS // 4),
}
CELLS = {**VALUES, "d": VALUES["d"] | st.just(NAN) | st.just(math.inf)}
ROWS = st.lists(st.tuples(*(st.none() | CELLS[name] for name in NAMES)), min_size=1, max_size=8)


@st.composite
def leaves(draw: st.DrawFn) -> Condition:
    name = draw(st.sampled_from(NAMES))
    at = NAMES.index(name)
    kind = draw(
        st.sampled_from(["compare", "mirror", "in", "between", "null", "safe", "like", "?"])
    )
    literal = st.none() | VALUES[name] | VALUES[name]
    if kind in ("compare", "mirror"):
        sign, value = draw(st.sampled_from(sorted(COMPARE))), draw(literal)
        if kind == "compare":
            text = name + " " + sign + " " + sql_of(name, value)
            return Condition(text, lambda row: compared(sign, row[at], value))
        text = sql_of(name, value) + " " + sign + " " + name
        return Condition(text, lambda row: compared(sign, value, row[at]))
    if kind == "in":
        values = draw(st.lists(literal, min_size=1, max_size=3))
        text = name + " IN (" + ", ".join(sql_of(name, value) for value in values) + ")"
        return Condition(
            text, lambda row: disjunction(compared("=", row[at], value) for value in values)
        )
    if kind == "between":
        low, high = draw(literal), draw(literal)
        text = name + " BETWEEN " + sql_of(name, low) + " AND " + sql_of(name, high)
        return Condition(
            text,
            lambda row: conjunction((compared(">=", row[at], low), compared("<=", row[at], high))),
        )
    if kind == "null":
        return Condition(name + " IS NULL", lambda row: row[at] is None)
    if kind == "safe":
        value = draw(literal)
        return Condition(
            name + " <=> " + sql_of(name, value),
            lambda row: (
                (row[at] is None) == (value is None)
                and (value is None or bool(compared("=", row[at], value)))
            ),
        )
    if kind == "like":
        prefix = draw(LETTERS)
        return Condition(
            "s LIKE '" + prefix + "%'",
            lambda row: None if row[1] is None else row[1].startswith(prefix),
        )
    return Condition("length(s) = 1", lambda row: None if row[1] is None else len(row[1]) == 1)


def combined(parts: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    def joined(word: str, join: Callable[[Iterable[Truth]], Truth]) -> Any:
        return st.lists(parts, min_size=2, max_size=3).map(
            lambda few: Condition(
                word.join("(" + part.sql + ")" for part in few),
                lambda row: join([part.judge(row) for part in few]),
            )
        )

    inverted = parts.map(
        lambda part: Condition("NOT (" + part.sql + ")", lambda row: negation(part.judge(row)))
    )
    return joined(" AND ", conjunction) | joined(" OR ", disjunction) | inverted


CONSTANTS = st.sampled_from(
    [
        Condition("TRUE", lambda _: True),
        Condition("FALSE", lambda _: False),
        Condition("NULL", lambda _: None),
    ]
)
CONDITIONS = st.recursive(leaves() | leaves() | leaves() | CONSTANTS, combined, max_leaves=5)


@dataclass(frozen=True)
class Statistics:
    """Which statistics the writer left."""

    null_counts: bool = True
    nan_counts: bool = True
    bounds: bool = True
    nan_as_upper: bool = False
    truncated: bool = False


STATISTICS = st.builds(
    Statistics, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans()
)


def partition_of(row: Row, spec: PartitionSpec) -> tuple[Any, ...]:
    values: list[Any] = []
    for part in spec.fields:
        field = next((field for field in SCHEMA.fields if field.field_id == part.source_id), None)
        cell = row[NAMES.index(field.name)] if field else "gone"
        values.append(part.transform.transform(field.field_type)(cell) if field else cell)
    return tuple(values)


def file_of(rows: Sequence[Row], partition: Sequence[Any], wrote: Statistics) -> DataFile:
    nulls, nans, lowers, uppers = {}, {}, {}, {}
    for field, cells in zip(SCHEMA.fields, zip(*rows, strict=True), strict=True):
        nulls[field.field_id] = sum(cell is None for cell in cells)
        values = [cell for cell in cells if cell is not None and cell == cell]
        has_nan = len(values) + nulls[field.field_id] < len(cells)
        if field.name == "d":
            nans[field.field_id] = len(cells) - len(values) - nulls[field.field_id]
        if not values:
            continue
        lower_bound, upper_bound = min(values), max(values)
        if wrote.truncated and field.name == "s":
            lower_bound = lower_bound[:1]
            if len(upper_bound) > 1:
                upper_bound = chr(ord(upper_bound[0]) + 1)
        if has_nan and wrote.nan_as_upper:
            upper_bound = NAN
        lowers[field.field_id] = to_bytes(field.field_type, lower_bound)
        uppers[field.field_id] = to_bytes(field.field_type, upper_bound)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="f",
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=len(rows),
        file_size_in_bytes=1,
        value_counts={field.field_id: len(rows) for field in SCHEMA.fields},
        null_value_counts=nulls if wrote.null_counts else None,
        nan_value_counts=nans if wrote.nan_counts else None,
        lower_bounds=lowers if wrote.bounds else None,
        upper_bounds=uppers if wrote.bounds else None,
    )


def manifest_of(partitions: Sequence[tuple[Any, ...]], spec: PartitionSpec) -> ManifestFile:
    types = [field.field_type for field in spec.partition_type(SCHEMA).fields]
    summaries = []
    for kind, values in zip(types, zip(*partitions, strict=True), strict=True):
        known = [value for value in values if value is not None and value == value]
        unreadable = "gone" in known
        summaries.append(
            PartitionFieldSummary.from_args(
                contains_null=None in values,
                contains_nan=len(known) + values.count(None) < len(values),
                lower_bound=b"x" if unreadable else to_bytes(kind, min(known)) if known else None,
                upper_bound=b"x" if unreadable else to_bytes(kind, max(known)) if known else None,
            )
        )
    return ManifestFile.from_args(
        manifest_path="m",
        manifest_length=1,
        partition_spec_id=1,
        content=ManifestContent.DATA,
        partitions=summaries,
    )


def matcher_of(sql: str, spec: PartitionSpec) -> FileMatcher:
    return FileMatcher(lower(sql, SCHEMA, time_zone="UTC"), SCHEMA, {1: spec})


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CONDITIONS, ROWS)
def test_inclusive_misses_no_true_row_and_exact_is_true_for_exactly_those(
    condition: Condition, rows: list[Row]
) -> None:
    result = lower(condition.sql, SCHEMA, time_zone="UTC")
    inclusive = expression_evaluator(SCHEMA, result.inclusive, case_sensitive=True)
    for row in rows:
        is_true = condition.judge(row) is True
        assert inclusive(Record(*row)) or not is_true
        if result.exact is not None:
            exact = expression_evaluator(SCHEMA, result.exact, case_sensitive=True)
            assert exact(Record(*row)) is is_true


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
@given(CONDITIONS, ROWS, STATISTICS)
def test_no_file_with_a_true_row_is_dropped_and_sure_files_hold_only_true_rows(
    spec: PartitionSpec, condition: Condition, rows: list[Row], wrote: Statistics
) -> None:
    matcher = matcher_of(condition.sql, spec)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(repr(partition_of(row, spec)), []).append(row)
    for group in groups.values():
        partition = partition_of(group[0], spec)
        file = file_of(group, partition, wrote)
        truths = [condition.judge(row) for row in group]
        may_match = matcher.may_match(file, 1)
        assert may_match or True not in truths
        assert may_match is (matcher.why_not(file, 1) is None)
        assert not matcher.matches_every_row(file, 1) or set(truths) == {True}
        if spec.fields:
            manifest = manifest_of([partition], spec)
            assert matcher.may_match_manifest(manifest) or True not in truths
    if spec.fields and any(condition.judge(row) is True for row in rows):
        assert matcher.may_match_manifest(manifest_of([partition_of(r, spec) for r in rows], spec))


def one_file(cells: Sequence[Any], partition: Sequence[Any] = (), **wrote: bool) -> DataFile:
    rows = [(cell, None, None, None, None) for cell in cells]
    return file_of(rows, partition, Statistics(**wrote))


def test_what_rules_a_file_out_is_named() -> None:
    matcher = matcher_of("i = 3 AND s IS NULL", SPECS["identity int"])
    assert matcher.why_not(one_file([3], [3]), 1) is None
    assert matcher.why_not(one_file([2], [2]), 1) == "partition"
    assert matcher_of("i = 3", SPECS["none"]).why_not(one_file([1, 2]), 1) == "column bounds"


def test_a_file_is_sure_by_bounds_or_partition() -> None:
    assert matcher_of("i < 5", SPECS["none"]).matches_every_row(one_file([1, 4]), 1)
    assert matcher_of("i = 3", SPECS["identity int"]).matches_every_row(
        one_file([3], [3], bounds=False, null_counts=False), 1
    )
    assert matcher_of("i >= 2 AND i < 9", SPECS["truncate int"]).matches_every_row(
        one_file([2, 3], [2]), 1
    )


def test_sure_by_partition_for_one_part_and_by_bounds_for_the_other() -> None:
    matcher = matcher_of("i = 1 AND s >= 'a'", SPECS["identity int"])
    rows = [(1, "a", None, None, None), (1, "b", None, None, None)]
    assert matcher.matches_every_row(file_of(rows, [1], Statistics()), 1)


@pytest.mark.parametrize("condition", ["i < 5", "i <> 9", "i IN (1)", "i NOT IN (9)", "NOT i > 5"])
def test_no_file_is_sure_with_nulls_or_without_null_counts(condition: str) -> None:
    matcher = matcher_of(condition, SPECS["none"])
    assert matcher.matches_every_row(one_file([1, 1]), 1)
    assert not matcher.matches_every_row(one_file([1, None]), 1)
    assert not matcher.matches_every_row(one_file([1, 1], null_counts=False), 1)


def test_no_file_is_sure_by_a_double_column() -> None:
    rows = [(None, None, 1.0, None, None)]
    assert not matcher_of("d < 5", SPECS["none"]).matches_every_row(
        file_of(rows, [], Statistics()), 1
    )
    assert matcher_of("d IS NOT NULL", SPECS["none"]).matches_every_row(
        file_of(rows, [], Statistics()), 1
    )


@pytest.mark.parametrize("condition", ["i = 3", "i < 3", "i >= 3", "i < 3 OR s = 'x'", "i <> 3"])
def test_a_null_partition_never_matches_a_comparison(condition: str) -> None:
    matcher = matcher_of(condition, SPECS["identity int"])
    file = one_file([None], [None], bounds=False, null_counts=False)
    assert matcher.may_match(file, 1) is ("OR" in condition)
    assert not matcher.matches_every_row(file, 1)


@pytest.mark.parametrize("count", [0, -1])
def test_a_file_of_unknown_size_may_match_and_is_never_sure(count: int) -> None:
    file = DataFile.from_args(record_count=count, partition=Record())
    assert matcher_of("i = 9", SPECS["none"]).may_match(file, 1)
    assert not matcher_of("TRUE", SPECS["none"]).matches_every_row(file, 1)


def test_doubtful_metadata_keeps_the_file() -> None:
    matcher = matcher_of("i = 9", SPECS["identity int"])
    bad_bounds = DataFile.from_args(
        record_count=1, partition=Record(9), lower_bounds={1: b"?"}, upper_bounds={1: b"?"}
    )
    assert matcher.may_match(bad_bounds, 1)
    assert matcher.may_match(one_file([9], [1]), spec_id=7)  # a spec that is not known
    assert matcher.may_match(one_file([9], [1, 2]), 1)  # a tuple that is not the spec's
    assert matcher.may_match(one_file([9], [EPOCH]), 1)  # a value PyIceberg would not compare
    unknown = FileMatcher(
        lower("i = 9", SCHEMA, time_zone="UTC"),
        SCHEMA,
        {1: spec_of((1, UnknownTransform("zorder")))},
    )
    assert unknown.may_match(one_file([9], ["x"]), 1)


def test_a_manifest_without_usable_summaries_is_kept() -> None:
    matcher = matcher_of("i = 9", SPECS["identity int"])
    assert not matcher.may_match_manifest(manifest_of([(1,), (2,)], SPECS["identity int"]))
    assert not matcher.may_match_manifest(manifest_of([(None,)], SPECS["identity int"]))
    no_bounds = PartitionFieldSummary.from_args(contains_null=False)
    for summaries in (None, [], [no_bounds], [no_bounds, no_bounds]):
        manifest = ManifestFile.from_args(
            manifest_path="m", manifest_length=1, partition_spec_id=1, partitions=summaries
        )
        assert matcher.may_match_manifest(manifest)


def test_a_column_that_became_required_may_still_hold_nulls() -> None:
    required = Schema(NestedField(1, "i", IntegerType(), required=True))
    lowered = lower("i IS NULL", required, time_zone="UTC")
    assert FileMatcher(lowered, required, {1: SPECS["none"]}).may_match(one_file([None, 1]), 1)
    lowered = lower("i IS NOT NULL", required, time_zone="UTC")
    matcher = FileMatcher(lowered, required, {1: SPECS["none"]})
    assert not matcher.matches_every_row(one_file([None, 1]), 1)


def test_a_long_in_list_is_compared_by_its_range() -> None:
    listed = ", ".join(str(number) for number in range(100, 1100))
    matcher = matcher_of("i IN (" + listed + ")", SPECS["bucket int"])
    assert matcher.why_not(one_file([1, 2], [1]), 1) == "column bounds"
    assert matcher.may_match(one_file([1, 200], [1]), 1)


def test_ten_thousand_files_are_judged_in_well_under_two_seconds() -> None:
    matcher = matcher_of("i >= 1 AND i < 3 AND s LIKE 'a%' AND d > 1", SPECS["bucket int"])
    file = file_of([(2, "ab", 2.0, 1, 1)], [1], Statistics())
    start = time.perf_counter()
    for _ in range(10_000):
        matcher.may_match(file, 1)
        matcher.matches_every_row(file, 1)
    assert time.perf_counter() - start < 4  # twice the aim: shared machines
