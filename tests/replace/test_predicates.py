"""Predicates over partitions: parsing, validation and matching as three functions."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal

import pytest
from pyiceberg.expressions import And as And2
from pyiceberg.expressions import EqualTo, NotEqualTo, NotNull
from pyiceberg.expressions import Or as Or2
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from icefloe.commands.replace.partition_match import Match, match_partition, refuse_between_borders
from icefloe.commands.replace.predicate import bind_predicate, parse_predicate
from icefloe.commands.replace.translate import as_lowered
from icefloe.errors import (
    InvalidPredicateError,
    NonPartitionedTableError,
    PartitionColumnNotFoundError,
    ReplaceWhereError,
    StatementError,
    TypeMismatchError,
    UnsupportedOperatorError,
)
from icefloe.pruning.literals import LiteralKind, SqlLiteral
from icefloe.pruning.predicate import And, Compare, Comparison, Constant, In, IsNull, Not, Or

pytestmark = pytest.mark.requirement("R05", "R22")

SCHEMA = Schema(
    NestedField(1, "year", IntegerType()),
    NestedField(2, "month", IntegerType()),
    NestedField(3, "region", StringType()),
    NestedField(4, "day", DateType()),
    NestedField(5, "at", TimestamptzType()),
    NestedField(6, "local", TimestampType()),
    NestedField(7, "price", DecimalType(9, 2)),
    NestedField(8, "big", LongType()),
    NestedField(9, "ok", BooleanType()),
    NestedField(10, "x", DoubleType()),
    NestedField(11, "f", FloatType()),
    NestedField(12, "raw", BinaryType()),
    NestedField(13, "place", StructType(NestedField(14, "city", StringType()))),
    NestedField(15, "plain", StringType()),
)


def spec(*fields):
    """A spec of fields like "year" and "day(at)"."""
    made = []
    for i, text in enumerate(fields):
        transform, _, source = text.rpartition("(")
        source = source.rstrip(")")
        made.append(
            PartitionField(
                SCHEMA.find_field(source).field_id,
                1000 + i,
                parse_transform(transform or "identity"),
                f"f{i}",
            )
        )
    return PartitionSpec(*made)


def bound(text, partition_spec, zone="UTC"):
    return bind_predicate(
        text, parse_predicate(text), SCHEMA, partition_spec, table="ns.sales", time_zone=zone
    )


def matched(text, field, values):
    """The partition values of one field for all of whose rows the predicate is true."""
    by = spec(field)
    predicate = bound(text, by)
    found = {value: match_partition(predicate, by, Record(value)) for value in values}
    assert Match.SOME not in found.values(), found
    return [value for value, match in found.items() if match is Match.ALL]


def number(text):
    return SqlLiteral(LiteralKind.NUMBER, text)


def string(text):
    return SqlLiteral(LiteralKind.STRING, text)


TREES = {
    "year = 2023": Compare(("year",), Comparison.EQUAL, number("2023")),
    "year == 2023": Compare(("year",), Comparison.EQUAL, number("2023")),
    "2023 < year": Compare(("year",), Comparison.GREATER, number("2023")),
    "year != -5": Compare(("year",), Comparison.NOT_EQUAL, number("-5")),
    "year = 2023 AND month IN ('11', 12)": And(
        (
            Compare(("year",), Comparison.EQUAL, number("2023")),
            In(("month",), (string("11"), number("12"))),
        )
    ),
    "a = 1 OR b = 2 AND c = 3": Or(
        (
            Compare(("a",), Comparison.EQUAL, number("1")),
            And(
                (
                    Compare(("b",), Comparison.EQUAL, number("2")),
                    Compare(("c",), Comparison.EQUAL, number("3")),
                )
            ),
        )
    ),
    "month BETWEEN 2 AND 11": And(
        (
            Compare(("month",), Comparison.GREATER_OR_EQUAL, number("2")),
            Compare(("month",), Comparison.LESS_OR_EQUAL, number("11")),
        )
    ),
    "month NOT IN (1)": Not(In(("month",), (number("1"),))),
    "region IS NULL": IsNull(("region",)),
    "region IS NOT NULL": Not(IsNull(("region",))),
    "NOT (ok)": Not(Compare(("ok",), Comparison.EQUAL, SqlLiteral(LiteralKind.BOOLEAN, "TRUE"))),
    "TRUE": Constant(True),
    "NULL": Constant(None),
    "region = 'it''s -- \"so\"'": Compare(("region",), Comparison.EQUAL, string('it\'s -- "so"')),
    "sales.region = 'eu' -- a comment": Compare(
        ("sales", "region"), Comparison.EQUAL, string("eu")
    ),
    "`region` = 'eu'": Compare(("region",), Comparison.EQUAL, string("eu")),
    "day = DATE '2024-01-31'": Compare(
        ("day",), Comparison.EQUAL, SqlLiteral(LiteralKind.DATE, "2024-01-31")
    ),
}


@pytest.mark.requirement("R06")
@pytest.mark.parametrize("text", TREES)
def test_a_predicate_parses_to_exactly_this_tree(text):
    assert parse_predicate(text) == TREES[text]


UNSUPPORTED = {
    "region LIKE 'e%'": "LIKE",
    "region ILIKE 'e%'": "ILIKE",
    "region RLIKE 'e'": "RLIKE",
    "upper(region) = 'EU'": "upper",
    "my_function(region) = 'EU'": "my_function",
    "year + 1 = 2024": "+",
    "year - 1 = 2024": "-",
    "-year = 1": "-",
    "year % 2 = 0": "%",
    "region || 'x' = 'y'": "||",
    "year <=> 2023": "<=>",
    "year IN (SELECT 1)": "subquery",
    "EXISTS (SELECT 1)": "subquery",
    "year = (SELECT 1)": "subquery",
    "CAST(year AS STRING) = '1'": "CAST",
    "ok IS TRUE": "IS",
    "year = month": "= between two columns",
    "day = current_date()": "current_date",
    "CASE WHEN ok THEN TRUE END": "CASE",
    "coalesce(year, 1) = 1": "coalesce",
    "year BETWEEN SYMMETRIC 1 AND 2": "BETWEEN",
    "year & 1 = 1": "&",
}


@pytest.mark.requirement("R16", "R31")
@pytest.mark.parametrize("text", UNSUPPORTED)
def test_operators_that_partitions_cannot_answer_are_refused_by_name(text):
    with pytest.raises(UnsupportedOperatorError, match="scope='rows'") as caught:
        parse_predicate(text)
    assert caught.value.operator == UNSUPPORTED[text]
    assert repr(text) in str(caught.value)


INVALID = [
    "year=",
    "year = 1 year = 2",
    "= 1",
    "year = 1 AND",
    "year IN ()",
    "1 = 1",
    "'a' 'b' = region",
    'region = "eu"',
    "region = 'e\\'u'",
    "region = 'eu",
    "SELECT 1",
    "((year = 1)",
]


@pytest.mark.requirement("R19")
@pytest.mark.parametrize("text", INVALID)
def test_an_invalid_predicate_is_reported_with_its_text(text):
    with pytest.raises(InvalidPredicateError) as caught:
        parse_predicate(text)
    assert caught.value.predicate == text
    assert caught.value.reason
    assert repr(text) in str(caught.value)


@pytest.mark.requirement("R15", "R17")
def test_names_and_types_are_checked_against_the_partition_columns():
    by = spec("year", "day(at)", "region")
    with pytest.raises(PartitionColumnNotFoundError, match="scope='rows'") as caught:
        bound("plain = 'x'", by)
    assert (caught.value.column, caught.value.available) == ("plain", ("at", "region", "year"))
    with pytest.raises(PartitionColumnNotFoundError):
        bound("nowhere = 1", by)
    with pytest.raises(TypeMismatchError) as wrong:
        bound("year = 'abc'", by)
    assert (wrong.value.column, wrong.value.expected) == ("year", "int")
    assert "'abc'" in wrong.value.actual
    with pytest.raises(NonPartitionedTableError, match="requires a partitioned table"):
        bound("year = 1", PartitionSpec())
    with pytest.raises(NonPartitionedTableError):
        bound("year = 1", spec("void(year)"))


@pytest.mark.requirement("R20")
def test_every_error_of_a_replace_where_has_one_base():
    by = spec("year")
    wrong = ["year=", "upper(year) = 1", "plain = 1", "year = 'abc'"]
    for text in wrong:
        with pytest.raises(ReplaceWhereError) as caught:
            bound(text, by)
        assert isinstance(caught.value, StatementError)
    with pytest.raises(ReplaceWhereError):
        bound("year = 1", PartitionSpec())


def test_columns_are_named_in_any_case_and_after_the_tables_name():
    by = spec("year")
    assert bound("YEAR = 1", by).tree == bound("sales.Year = 1", by).tree
    with pytest.raises(PartitionColumnNotFoundError):
        bound("other.year = 1", by)


COERCED = [
    ("year", "'9'", 9),
    ("year", "'09'", 9),
    ("year", "9.0", 9),
    ("year", "9.5", None),
    ("year", "'9.0'", None),
    ("year", "3000000000", None),
    ("big", "3000000000", 3_000_000_000),
    ("year", "TRUE", None),
    ("year", "DATE '2024-01-01'", None),
    ("region", "'eu'", "eu"),
    ("region", "1", "1"),
    ("region", "1.5", None),
    ("region", "TRUE", None),
    ("day", "'2024-01-02'", (date(2024, 1, 2) - date(1970, 1, 1)).days),
    ("day", "DATE '2024-01-02'", (date(2024, 1, 2) - date(1970, 1, 1)).days),
    ("day", "'2024-1-2'", None),
    ("day", "20240102", None),
    ("local", "'2024-01-02 03:04:05'", 1_704_164_645_000_000),
    ("at", "TIMESTAMP '2024-01-02 03:04:05+01:00'", 1_704_161_045_000_000),
    ("at", "'yesterday'", None),
    ("price", "1.5", Decimal("1.50")),
    ("price", "'1.50'", Decimal("1.50")),
    ("price", "1.505", None),
    ("price", "12345678.00", None),
    ("ok", "'true'", True),
    ("ok", "1", None),
    ("x", "'1.5'", 1.5),
    ("x", "'one'", None),
    ("f", "0.1", None),
    ("f", "0.5", 0.5),
    ("raw", "'x'", None),
]


@pytest.mark.requirement("D9")
@pytest.mark.parametrize(("column", "literal", "value"), COERCED)
def test_a_literal_is_a_value_of_the_columns_type_or_refused(column, literal, value):
    by = spec(column)
    text = f"{column} = {literal}"
    if value is None:
        with pytest.raises(TypeMismatchError):
            bound(text, by)
    else:
        tree = bound(text, by).tree
        assert (tree.column.name, tree.comparison) == (column, Comparison.EQUAL)
        assert tree.value == value
        assert type(tree.value) is type(value)


def test_a_number_is_no_text_where_order_matters():
    """'10' < 9 would compare letters, which nobody means."""
    for text in ("region < 9", "region BETWEEN 1 AND 9", "9 >= region"):
        with pytest.raises(TypeMismatchError, match="single quotes"):
            bound(text, spec("region"))


def test_timestamps_without_an_offset_are_read_in_the_sessions_zone():
    by = spec("at")
    here = bound("at = '2024-01-02 00:00:00'", by, "Europe/Berlin").tree
    assert here == bound("at = '2024-01-02 00:00:00+01:00'", by).tree
    with pytest.raises(TypeMismatchError, match="offset"):  # the clock shows it twice that night
        bound("at = '2024-10-27 02:30:00'", by, "Europe/Berlin")


MONTHS = list(range(1, 13))


@pytest.mark.requirement("R32", "R33")
@pytest.mark.parametrize(
    ("text", "hit"),
    [
        ("month BETWEEN 2 AND 11", list(range(2, 12))),
        ("month < 9", list(range(1, 9))),
        ("month < '9'", list(range(1, 9))),
        ("month >= 10", [10, 11, 12]),
        ("month = 1 OR month = 12", [1, 12]),
        ("month NOT BETWEEN 2 AND 11", [1, 12]),
        ("month NOT IN (1, 2, 3)", list(range(4, 13))),
        ("month IN (1, NULL)", [1]),
        ("month NOT IN (1, NULL)", []),
        ("month <> 5", [m for m in MONTHS if m != 5]),
        ("month IS NULL", [None]),
        ("month IS NOT NULL", MONTHS),
        ("month = NULL", []),
        ("NOT (month > 2)", [1, 2]),
        ("month > 11 OR month IS NULL", [12, None]),
        ("TRUE", [*MONTHS, None]),
        ("FALSE OR NULL", []),
    ],
)
def test_comparisons_are_typed_and_null_is_not_true(text, hit):
    assert matched(text, "month", [*MONTHS, None]) == hit


def days(text):
    return (date.fromisoformat(text) - date(1970, 1, 1)).days


def test_matching_over_every_type():
    assert matched("region < 'b'", "region", ["a", "b", "B", "ä", "", None]) == ["a", "B", ""]
    assert matched("day >= '2024-01-02'", "day", [days("2024-01-01"), days("2024-01-02")]) == [
        days("2024-01-02")
    ]
    prices = [Decimal("9.50"), Decimal("10.00"), Decimal("9.99")]
    assert matched("price < 10", "price", prices) == [Decimal("9.50"), Decimal("9.99")]
    assert matched("ok", "ok", [True, False, None]) == [True]
    assert matched("NOT ok", "ok", [True, False, None]) == [False]
    assert matched("x > 1e3", "x", [1.0, 2000.0, math.inf]) == [2000.0, math.inf]
    assert matched("x = 0.0", "x", [-0.0, 0.5]) == [-0.0]
    (nan,) = matched("x > 5", "x", [1.0, math.nan])
    assert math.isnan(nan)
    timestamps = [0, 1_704_067_200_000_000]
    assert matched("local >= '2024-01-01'", "local", timestamps) == [1_704_067_200_000_000]


@pytest.mark.requirement("D20")
def test_a_transformed_partition_is_a_range_of_values():
    day = days("2024-01-02")
    assert matched(
        "at >= '2024-01-02' AND at < '2024-01-03'", "day(at)", [day - 1, day, day + 1]
    ) == [day]
    hours = [day * 24 + h for h in range(24)]
    assert matched("local < '2024-01-02 05:00:00'", "hour(local)", hours) == hours[:5]
    years = [53, 54, 55, None]
    assert matched("day BETWEEN '2024-01-01' AND '2024-12-31'", "year(day)", years) == [54]
    months = [54 * 12 + m for m in range(12)]
    assert matched("day < '2024-03-01'", "month(day)", months) == months[:2]
    assert matched("month >= 6 AND month < 9", "truncate[3](month)", [0, 3, 6, 9]) == [6]
    assert matched(
        "region >= 'ab' AND region < 'ac'", "truncate[2](region)", ["aa", "ab", "b"]
    ) == ["ab"]
    assert matched("price >= 1 AND price < 1.5", "truncate[50](price)", [Decimal("1.00")]) == [
        Decimal("1.00")
    ]
    assert matched("at IS NULL", "bucket[4](at)", [None, 0, 3]) == [None]


def test_years_far_from_now_have_borders_too():
    assert matched("day >= '9999-01-01'", "year(day)", [8028, 8029, 9000]) == [8029, 9000]
    assert matched("day < '0001-01-01'", "year(day)", [-1970, -1969]) == [-1970]
    for year in (1600, 1899, 1900, 1970, 2000, 2023, 2024, 2100):
        text = f"day >= '{year}-03-01' AND day < '{year}-04-01'"
        march = (year - 1970) * 12 + 2
        assert matched(text, "month(day)", [march - 1, march, march + 1]) == [march]


BETWEEN_BORDERS = [
    ("day(at)", "at >= '2024-01-02 12:00:00'"),
    ("day(at)", "at > '2024-01-02'"),
    ("day(at)", "at <= '2024-01-02'"),
    ("day(at)", "at = '2024-01-02'"),
    ("day(at)", "at IN ('2024-01-02', '2024-01-03')"),
    ("hour(local)", "local < '2024-01-02 05:30:00'"),
    ("month(day)", "day >= '2024-01-02'"),
    ("year(day)", "day < '2024-02-01'"),
    ("bucket[4](big)", "big = 7"),
    ("bucket[4](big)", "big > 7"),
    ("truncate[3](month)", "month >= 7"),
    ("truncate[3](month)", "month = 6"),
    ("truncate[2](region)", "region >= 'abc'"),
    ("truncate[2](region)", "region <= 'ab'"),
    ("truncate[2](region)", "region = 'ab'"),
]


@pytest.mark.requirement("D20")
@pytest.mark.parametrize(("field", "text"), BETWEEN_BORDERS)
def test_a_predicate_between_borders_is_refused_whatever_the_table_holds(field, text):
    by = spec(field)
    with pytest.raises(InvalidPredicateError, match="both sides") as caught:
        refuse_between_borders(bound(text, by), by)
    assert "scope='rows'" in str(caught.value)


ON_BORDERS = [
    ("day(at)", "at >= '2024-01-02' AND at < '2024-01-03'"),
    ("day(at)", "at > '2024-01-02 23:59:59.999999'"),
    ("day(at)", "NOT at < '2024-01-02'"),
    ("day(day)", "day IN ('2024-01-02', NULL)"),
    ("day(day)", "day = '2024-01-02'"),
    ("day(at)", "at IS NULL"),
    ("day(at)", "at = NULL"),
    ("bucket[4](big)", "big IS NOT NULL"),
    ("truncate[2](region)", "region = 'a'"),
    ("truncate[2](region)", "region >= 'ab'"),
    ("truncate[1](month)", "month = 6"),
]


@pytest.mark.requirement("D20")
@pytest.mark.parametrize(("field", "text"), ON_BORDERS)
def test_a_predicate_on_borders_is_taken(field, text):
    by = spec(field)
    refuse_between_borders(bound(text, by), by)


def test_one_of_several_fields_of_a_column_is_enough_for_a_border():
    by = spec("bucket[4](at)", "day(at)")
    refuse_between_borders(bound("at >= '2024-01-02'", by), by)
    with pytest.raises(InvalidPredicateError, match=r"bucket\[4\] and day"):
        refuse_between_borders(bound("at >= '2024-01-02 01:00:00'", by), by)


def test_a_tuple_of_another_spec_may_not_decide():
    by = spec("region", "day(at)")
    old = spec("region")
    predicate = bound("region = 'eu' AND at >= '2024-01-02'", by)
    assert match_partition(predicate, old, Record("us")) is Match.NONE
    assert match_partition(predicate, old, Record("eu")) is Match.SOME
    assert match_partition(predicate, PartitionSpec(), Record()) is Match.SOME
    either = bound("region = 'eu' OR at >= '2024-01-02'", by)
    assert match_partition(either, old, Record("eu")) is Match.ALL


def test_values_given_as_dates_are_days():
    by = spec("day", "local")
    predicate = bound("day = '2024-01-02' AND local < '2024-01-02'", by)
    assert (
        match_partition(predicate, by, Record(date(2024, 1, 2), datetime(2024, 1, 1))) is Match.ALL
    )


@pytest.mark.requirement("R34")
def test_what_is_lowered_for_choosing_files_holds_the_coerced_value():
    lowered = as_lowered(bound("month IN ('09') OR NOT (region = '1')", spec("month", "region")))
    named = And2(NotNull("region"), NotEqualTo("region", "1"))
    assert lowered.inclusive == Or2(EqualTo("month", 9), named)
    assert lowered.exact == lowered.inclusive
