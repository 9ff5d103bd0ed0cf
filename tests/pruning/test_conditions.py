"""Conditions as PyIceberg expressions: what is said, and above all what is left unsaid."""

from __future__ import annotations

import pytest
from pyiceberg.expressions import BooleanExpression, Or
from pyiceberg.schema import Schema
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
    UUIDType,
)

from icefloe.pruning.comparisons import FilePredicate
from icefloe.pruning.conditions import lower

SCHEMA = Schema(
    NestedField(1, "a", IntegerType()),
    NestedField(2, "l", LongType()),
    NestedField(3, "s", StringType()),
    NestedField(4, "d", DoubleType()),
    NestedField(5, "f", FloatType()),
    NestedField(6, "day", DateType()),
    NestedField(7, "ts", TimestamptzType()),
    NestedField(8, "ntz", TimestampType()),
    NestedField(9, "dec", DecimalType(9, 2)),
    NestedField(10, "b", BooleanType()),
    NestedField(11, "bin", BinaryType()),
    NestedField(12, "id", UUIDType()),
    NestedField(13, "st", StructType(NestedField(14, "a", IntegerType(), required=False))),
    NestedField(15, "wide", DecimalType(38, 30)),
    NestedField(16, "two words", IntegerType()),
)


def lowered(condition: str | None, time_zone: str = "Europe/Berlin") -> FilePredicate:
    return lower(condition, SCHEMA, time_zone=time_zone, qualifiers=frozenset({"T"}))


def show(expression: BooleanExpression) -> str:
    """A short form: And(left=NotNull(…)) as (a is set & a != 5)."""
    kind = type(expression).__name__
    match kind:
        case "AlwaysTrue" | "AlwaysFalse":
            return kind.removeprefix("Always").lower()
        case "And" | "Or":
            sign = "&" if kind == "And" else "|"
            return f"({show(expression.left)} {sign} {show(expression.right)})"
        case "In" | "NotIn":
            values = ",".join(sorted(str(literal.value) for literal in expression.literals))
            return f"{expression.term.name} {kind} {values}"
        case "IsNull" | "NotNull" | "IsNaN":
            return f"{expression.term.name} {kind}"
        case _:
            return f"{expression.term.name} {kind} {expression.literal.value}"


NOT_5 = "(a NotNull & a NotEqualTo 5)"
EXACT = [
    (None, "true"),
    ("TRUE", "true"),
    ("NOT TRUE", "false"),
    ("NULL", "false"),
    ("NOT NULL", "false"),
    ("a = 5", "a EqualTo 5"),
    ("a == 5", "a EqualTo 5"),
    ("5 = A", "a EqualTo 5"),
    ("t.a = 5", "a EqualTo 5"),
    ("`a` = -5", "a EqualTo -5"),
    ("`two words` = 1", "two words EqualTo 1"),
    ("a <> 5", NOT_5),
    ("a != 5", NOT_5),
    ("NOT a = 5", NOT_5),
    ("!a = 5", NOT_5),
    ("NOT (NOT a = 5)", "a EqualTo 5"),
    ("5 < a", "a GreaterThan 5"),
    ("NOT a < 5", "a GreaterThanOrEqual 5"),
    ("NOT 5 <= a", "a LessThan 5"),
    ("a = 5L", "a EqualTo 5"),
    ("a = 5.0", "a EqualTo 5"),
    ("a = '5'", "a EqualTo 5"),
    ("l = 3000000000", "l EqualTo 3000000000"),
    ("a = NULL", "false"),
    ("NOT a = NULL", "false"),
    ("a <=> NULL", "a IsNull"),
    ("NOT a <=> NULL", "a NotNull"),
    ("a <=> 5", "a EqualTo 5"),
    ("NOT (a <=> 5)", "(a IsNull | a NotEqualTo 5)"),
    ("a IN (1, 2)", "a In 1,2"),
    ("a IN (1, NULL)", "a EqualTo 1"),
    ("a IN (NULL)", "false"),
    ("a NOT IN (1, 2)", "(a NotNull & a NotIn 1,2)"),
    ("a NOT IN (1, NULL)", "false"),
    ("a BETWEEN 1 AND 3", "(a GreaterThanOrEqual 1 & a LessThanOrEqual 3)"),
    ("a NOT BETWEEN 1 AND 3", "(a LessThan 1 | a GreaterThan 3)"),
    ("a BETWEEN 1 AND NULL", "false"),
    ("a NOT BETWEEN 1 AND NULL", "a LessThan 1"),
    ("a IS NULL", "a IsNull"),
    ("d IS NOT NULL", "d NotNull"),
    ("bin IS NULL", "bin IsNull"),
    ("s LIKE 'ab%'", "s StartsWith ab"),
    ("s NOT LIKE 'ab%'", "(s NotNull & s NotStartsWith ab)"),
    ("NOT s NOT LIKE 'ab%'", "s StartsWith ab"),
    ("s LIKE 'ab'", "s EqualTo ab"),
    ("s LIKE '%'", "s NotNull"),
    ("s NOT LIKE '%'", "false"),
    ("b", "b EqualTo True"),
    ("NOT b", "b EqualTo False"),
    ("b = FALSE", "b EqualTo False"),
    ("b <> TRUE", "b EqualTo False"),
    ("b NOT IN (TRUE)", "(b NotNull & b NotEqualTo True)"),
    ("(a = 5) IS TRUE", "a EqualTo 5"),
    ("(a = 5) IS FALSE", NOT_5),
    ("a = 5 AND s = 'x'", "(a EqualTo 5 & s EqualTo x)"),
    ("NOT (a = 5 AND b)", f"({NOT_5} | b EqualTo False)"),
    ("NOT a = 5 OR b", f"({NOT_5} | b EqualTo True)"),
    ("lower(s) = 'x' OR TRUE", "true"),
    ("lower(s) = 'x' AND FALSE", "false"),
    ("dec = 1.5", "dec EqualTo 1.50"),
    ("dec IN (1, 2.500)", "dec In 1.00,2.50"),
    ("day = '2024-01-01'", "day EqualTo 19723"),
    ("day = DATE '2024-01-01'", "day EqualTo 19723"),
    ("day IN (CAST('2024-01-01' AS DATE))", "day EqualTo 19723"),
    ("ts = '2024-01-01 00:00:00'", "ts EqualTo 1704063600000000"),
    ("ts = TIMESTAMP '2024-01-01T00:00:00.5'", "ts EqualTo 1704063600500000"),
    ("ts = '2024-01-01 00:00:00Z'", "ts EqualTo 1704067200000000"),
    ("ts = '2024-01-01 00:00:00-01:30'", "ts EqualTo 1704072600000000"),
    ("ts = TIMESTAMP_NTZ '2024-01-01 00:00:00'", "ts EqualTo 1704063600000000"),
    ("ts = DATE '2024-01-01'", "ts EqualTo 1704063600000000"),
    ("ts = '2024-01-01'", "ts EqualTo 1704063600000000"),
    ("ntz = '2024-01-01 00:00:00'", "ntz EqualTo 1704067200000000"),
    ("ntz = DATE '2024-01-01'", "ntz EqualTo 1704067200000000"),
    ("ntz > TIMESTAMP_NTZ '2024-01-01'", "ntz GreaterThan 1704067200000000"),
]


@pytest.mark.parametrize(("condition", "expected"), EXACT)
def test_known_conditions_are_exact(condition: str | None, expected: str) -> None:
    result = lowered(condition)
    assert show(result.inclusive) == expected
    assert result.exact is not None
    assert show(result.exact) == expected


INCLUSIVE = [
    ("d = 1.5", "d EqualTo 1.5"),
    ("d < 1e3", "d LessThan 1000.0"),
    ("d > 5", "(d GreaterThan 5.0 | d IsNaN)"),
    ("NOT d < 5", "(d GreaterThanOrEqual 5.0 | d IsNaN)"),
    ("NOT d > 5", "d LessThanOrEqual 5.0"),
    ("d <> 5", "((d NotNull & d NotEqualTo 5.0) | d IsNaN)"),
    ("d NOT IN (1, 2)", "((d NotNull & d NotIn 1.0,2.0) | d IsNaN)"),
    ("d NOT BETWEEN 1 AND 2", "(d LessThan 1.0 | (d GreaterThan 2.0 | d IsNaN))"),
    ("NOT d <=> 1", "((d IsNull | d NotEqualTo 1.0) | d IsNaN)"),
    ("f = 0.5", "f EqualTo 0.5"),
    ("a = 1 AND lower(s) = 'x'", "a EqualTo 1"),
    ("NOT (a = 1 OR lower(s) = 'x')", "(a NotNull & a NotEqualTo 1)"),
    ("a BETWEEN 1 AND 1 + 1", "a GreaterThanOrEqual 1"),
]


@pytest.mark.parametrize(("condition", "expected"), INCLUSIVE)
def test_half_known_conditions_are_only_inclusive(condition: str, expected: str) -> None:
    result = lowered(condition)
    assert show(result.inclusive) == expected
    assert result.exact is None


UNKNOWNS = [
    "this is not sql (",
    "",
    "a = 1; b",
    "a = 1 OR lower(s) = 'x'",
    "NOT (a = 1 AND lower(s) = 'x')",
    "NOT lower(s)",
    "1 = 1",
    "a = l",
    "a + 1 = 2",
    "a = 1 + 1",
    "CAST(a AS STRING) = '1'",
    "wide = CAST(2.0 AS BIGINT)",  # as DECIMAL(38, 18)
    "st.a = 1",
    "u.a = 1",
    "db.t.a = 1",
    "st IS NULL",
    "missing = 1",
    "a",
    "a IN (SELECT 1)",
    "a IN (1, l)",
    "(a, l) IN ((1, 2))",
    "EXISTS (SELECT 1)",
    "(a = 5) IS NOT TRUE",
    "(a = 5) IS NULL",
    "a = 1.5",
    "a = 1e3",
    "a = 3000000000",
    "l = 9223372036854775808",
    "a = '05'",
    "a = ' 5'",
    "a = '5.0'",
    "a IN (1, '2')",
    "a = TRUE",
    "s = 5",
    "s = DATE '2024-01-01'",
    's = "x"',
    "s = 'a\\tb'",
    "s = r'x'",
    "s = 'it''s'",
    "s = '${x}'",
    "s LIKE '%a'",
    "s LIKE 'a_%'",
    "s LIKE 'a%b%'",
    "s LIKE 'a%' ESCAPE '!'",
    "s LIKE ANY ('a%', 'b%')",
    "s ILIKE 'a%'",
    "s RLIKE 'a'",
    "a LIKE '5%'",
    "d = '1.5'",
    "d = 0.1234567890123456789",
    "d = 1e99",
    "f = 0.1",
    "f = 16777217",
    "dec = 1.555",
    "dec = 12345678.00",
    "dec = '1.5'",
    "wide = 1",
    "day = '2024-1-1'",
    "day = '2024-02-30'",
    "day = '2024-01-01 00:00:00'",
    "day = TIMESTAMP '2024-01-01 00:00:00'",
    "ts = '2024-03-31 02:30:00'",
    "ts = '2024-10-27 02:30:00'",
    "ts = '1900-01-01 00:00:00'",
    "ts = '2024-01-01 00:00:00 UTC'",
    "ts = '2024-01-01 00:00:00.1234567'",
    "ts IN ('2024-01-01')",
    "ts NOT IN ('2024-01-01')",
    "ts = TIMESTAMP_NTZ '2024-01-01 00:00:00Z'",
    "ntz = TIMESTAMP '2024-01-01 00:00:00'",
    "ntz = '2024-01-01 00:00:00Z'",
    "bin = 'x'",
    "id = 'f79c3e09-677c-4bbd-a479-3f349cb785e7'",
    "b = 'true'",
    "b = 1",
]


@pytest.mark.parametrize("condition", UNKNOWNS)
def test_doubtful_conditions_say_nothing(condition: str) -> None:
    assert lowered(condition) == FilePredicate(lowered("TRUE").inclusive, None)


def test_a_name_that_fits_two_columns_is_unknown() -> None:
    schema = Schema(NestedField(1, "a", IntegerType()), NestedField(2, "A", IntegerType()))
    assert lower("a = 1", schema, time_zone="UTC").exact is None


def test_an_unknown_time_zone_leaves_only_timestamps_with_an_offset() -> None:
    assert lowered("ts = '2024-01-01 00:00:00'", "Mars/Olympus").exact is None
    assert lowered("ts = '2024-01-01 00:00:00Z'", "Mars/Olympus").exact is not None


def depth(expression: BooleanExpression) -> int:
    if not isinstance(expression, Or):
        return 1
    return 1 + max(depth(expression.left), depth(expression.right))


def test_a_long_chain_gives_a_shallow_tree() -> None:
    chain = " OR ".join("a = " + str(number) for number in range(5000))
    assert depth(lowered(chain).inclusive) < 20
