"""Predicates in SQL over encoded rows, compared with a model of Spark's rules."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.expressions.literals import DateLiteral, DoubleLiteral, TimestampLiteral
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    UnknownType,
)

from icefloe.inline.encode import encode_rows
from icefloe.inline.layout import inline_columns, rows_table
from icefloe.inline.where import MAX_IN_VALUES, is_exact, row_filter
from support.inline_schemas import rows_of

Row = dict[str, Any]

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "d", DoubleType()),
    NestedField(3, "f", FloatType()),
    NestedField(4, "n", DecimalType(20, 2)),
    NestedField(5, "s", StringType()),
    NestedField(6, "day", DateType()),
    NestedField(7, "ts", TimestampType()),
    NestedField(8, "b", BinaryType()),
    NestedField(9, "i", IntegerType()),
    NestedField(10, "l", ListType(11, LongType(), element_required=False)),
    NestedField(12, "u", UnknownType()),
    NestedField(13, "a.b", LongType()),
    NestedField(14, "st", StructType(NestedField(15, "x", LongType()))),
)
NAN, INF = float("nan"), float("inf")
VALUES: dict[str, list[Any]] = {
    "d": [NAN, INF, -INF, 0.0, -0.0, 5e-324, -5e-324, 1.5, -1.5, 1e308, 2.0**53, None],
    "f": [NAN, INF, -INF, 0.0, -0.0, 1.5, -1.5, 0.25, None],
    "n": [Decimal(x) for x in ("0.00", "-0.01", "9.00", "10.50", "-123456789012345678.12")]
    + [Decimal("999999999999999999.99"), None],
    "s": ["", "a", "A", "ab", "aB", "a\0", "a%", "a_b", "é", "\U0001f600", "\uffff", "'; --", None],
    "day": [-719162, 0, 1, 19000, 2932896, None],
    "ts": [-62135596800000000, -1, 0, 1, 253402300799999999, None],
    "b": [b"", b"\0", b"\xff", b"\xff\xff", b"a", None],
    "i": [-(2**31), -1, 0, 1, 2**31 - 1, None],
}
LITERALS: dict[str, Callable[[Any], Any]] = {
    "day": DateLiteral,
    "ts": TimestampLiteral,
    "d": DoubleLiteral,
    "f": DoubleLiteral,
}
COMPARISONS = {
    EqualTo: (0,),
    LessThan: (-1,),
    LessThanOrEqual: (-1, 0),
    GreaterThan: (1,),
    GreaterThanOrEqual: (0, 1),
}


def random_rows(random_: random.Random, size: int) -> list[Row]:
    return [
        {"id": n} | {name: random_.choice(values) for name, values in VALUES.items()}
        for n in range(size)
    ]


ROWS = random_rows(random.Random(7), 150)


@pytest.fixture(scope="module")
def rows_database() -> Iterator[sa.Connection]:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        fill(connection, ROWS)
        yield connection
    engine.dispose()


def fill(connection: sa.Connection, rows: list[Row]) -> None:
    table = the_table()
    table.create(connection)
    encoded = encode_rows(
        rows_of(SCHEMA, *([row.get(f.name) for row in rows] for f in SCHEMA.fields)), SCHEMA
    )
    names = [column.name for column in inline_columns(SCHEMA)]
    connection.execute(
        table.insert(),
        [
            dict(zip(names, values, strict=True)) | {"seq": 1, "at": 1}
            for values in zip(*encoded, strict=True)
        ],
    )


def the_table() -> sa.Table:
    return rows_table(1, inline_columns(SCHEMA))


def ids(connection: sa.Connection, expression: BooleanExpression) -> set[int]:
    table = the_table()
    where = row_filter(expression, SCHEMA, table)
    return set(connection.scalars(sa.select(table.c.c1_i).where(where)))


# -------------------------------------------------------------------------------------------------
# The model: what Spark says of a comparison that is TRUE


def order(one: Any, two: Any) -> int:
    """-1, 0 or 1; NaN is the largest and equal to itself, zeros are equal, text is by its bytes."""
    one, two = key(one), key(two)
    return (one > two) - (one < two)


def key(value: Any) -> Any:
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


def is_true(expression: BooleanExpression, row: Row) -> bool:
    match expression:
        case AlwaysTrue() | AlwaysFalse():
            return isinstance(expression, AlwaysTrue)
        case And():
            return is_true(expression.left, row) and is_true(expression.right, row)
        case Or():
            return is_true(expression.left, row) or is_true(expression.right, row)
    value = row.get(expression.term.name)
    match expression:
        case IsNull():
            return value is None
        case NotNull():
            return value is not None
        case IsNaN():
            return value is not None and math.isnan(value)
        case NotNaN():
            return value is None or not math.isnan(value)
        case In():
            listed = [each.value for each in expression.literals]
            return value is not None and any(order(value, each) == 0 for each in listed)
        case NotIn():
            listed = [each.value for each in expression.literals]
            return value is None or all(order(value, each) != 0 for each in listed)
        case NotEqualTo():
            return value is None or order(value, expression.literal.value) != 0
        case StartsWith():
            return value is not None and value.startswith(expression.literal.value)
        case NotStartsWith():
            return value is None or not value.startswith(expression.literal.value)
    return (
        value is not None
        and order(value, expression.literal.value) in COMPARISONS[type(expression)]
    )


def random_leaf(random_: random.Random) -> BooleanExpression:
    name = random_.choice(list(VALUES))
    # PyIceberg has no NaN literal.
    known = [value for value in VALUES[name] if value is not None and value == value]
    wrap = LITERALS.get(name, lambda value: value)
    shape = random_.random()
    if shape < 0.5:
        return random_.choice([*COMPARISONS, NotEqualTo])(name, wrap(random_.choice(known)))
    if shape < 0.7:
        some = {wrap(each) for each in random_.sample(known, random_.randint(2, len(known)))}
        return random_.choice([In, NotIn])(name, some)
    if shape < 0.8 and name == "s":
        return random_.choice([StartsWith, NotStartsWith])("s", random_.choice(known))
    if shape < 0.9 and name in ("d", "f"):
        return random_.choice([IsNaN, NotNaN])(name)
    return random_.choice([IsNull, NotNull])(name)


def random_expression(random_: random.Random, depth: int) -> BooleanExpression:
    if depth == 0 or random_.random() < 0.3:
        return random_leaf(random_)
    join = random_.choice([And, Or])
    return join(random_expression(random_, depth - 1), random_expression(random_, depth - 1))


@pytest.mark.requirement("L14")
def test_random_predicates_select_the_rows_that_spark_selects(rows_database):
    random_ = random.Random(11)
    wrong = []
    for number in range(2500):
        expression = random_expression(random_, number % 4)
        assert is_exact(expression, SCHEMA, the_table()), expression
        if ids(rows_database, expression) != {r["id"] for r in ROWS if is_true(expression, r)}:
            wrong.append(expression)
    assert wrong == []


def test_predicates_on_postgresql(postgresql_database):
    engine = sa.create_engine(postgresql_database)
    random_ = random.Random(13)
    with engine.connect() as connection:
        fill(connection, ROWS)
        for number in range(300):
            expression = random_expression(random_, number % 4)
            expected = {r["id"] for r in ROWS if is_true(expression, r)}
            assert ids(connection, expression) == expected, expression
        connection.rollback()
    engine.dispose()


# -------------------------------------------------------------------------------------------------
# What is not translated

UNTRANSLATED = [
    EqualTo("l", 1),
    EqualTo("st.x", 1),
    EqualTo("nobody", 1),
    EqualTo("i", 2**40),  # not a value of the type
    EqualTo("n", Decimal("1.234")),
    EqualTo("s", 5),
    EqualTo("i", 1.5),
    IsNaN("s"),
    StartsWith("b", "x"),
    NotIn("id", set(range(MAX_IN_VALUES + 1))),
    Not(EqualTo("id", 1)),
]


@pytest.mark.parametrize("unknown", UNTRANSLATED, ids=str)
def test_the_untranslated_is_left_out_of_and_and_makes_or_true(rows_database, unknown):
    known = LessThan("id", 10)
    everything = set(range(len(ROWS)))
    assert ids(rows_database, unknown) == everything
    assert ids(rows_database, And(unknown, known)) == set(range(10))
    assert ids(rows_database, Or(known, unknown)) == everything
    assert ids(rows_database, Or(And(unknown, known), EqualTo("id", 20))) == {*range(10), 20}
    for each in (unknown, And(unknown, known), Or(known, unknown)):
        assert not is_exact(each, SCHEMA, the_table())


def test_long_lists_become_ranges(rows_database):
    spread = In("id", {*range(-1000, 3), 7})
    assert ids(rows_database, spread) == set(range(8))
    assert not is_exact(spread, SCHEMA, the_table())


@pytest.mark.parametrize("join", [And, Or])
def test_expressions_beyond_the_limits_of_databases_select_all_rows(rows_database, join):
    tests = [NotEqualTo("id", number) for number in range(2000)]
    while len(tests) > 1:
        tests = [join(*pair) for pair in zip(tests[::2], tests[1::2], strict=False)]
    assert ids(rows_database, tests[0]) == set(range(len(ROWS)))
    assert not is_exact(tests[0], SCHEMA, the_table())


def test_a_field_without_a_column_is_null():
    schema = Schema(NestedField(1, "x", LongType()), NestedField(2, "new", StringType()))
    table = rows_table(1, inline_columns(Schema(schema.fields[0])))
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        table.create(connection)
        connection.execute(table.insert(), {"seq": 1, "at": 1, "c1_i": 5})

        def found(expression: BooleanExpression) -> int:
            where = row_filter(expression, schema, table)
            return len(connection.execute(sa.select(table.c.row_id).where(where)).all())

        assert found(IsNull("new")) == 1
        assert found(NotNull("new")) == 0
        assert found(EqualTo("new", "a")) == 0
        assert found(NotEqualTo("new", "a")) == 1
        assert is_exact(EqualTo("new", "a"), schema, table)
    engine.dispose()


def test_unknown_type_is_null(rows_database):
    assert ids(rows_database, IsNull("u")) == set(range(len(ROWS)))
    assert ids(rows_database, NotNull("u")) == set()


def test_values_of_an_earlier_kind_are_not_judged():
    before, after = (
        Schema(NestedField(1, "x", DateType())),
        Schema(NestedField(1, "x", TimestampType())),
    )
    both = rows_table(1, (*inline_columns(before), *inline_columns(after)))
    assert not is_exact(EqualTo("x", TimestampLiteral(5)), after, both)


def test_rounded_literals_are_not_used(rows_database):
    """0.1 is no float, and 2^53 + 1 no double."""
    assert ids(rows_database, EqualTo("f", DoubleLiteral(0.1))) == set()
    assert not is_exact(EqualTo("d", 2**53 + 1), SCHEMA, the_table())
    assert is_exact(EqualTo("d", 2**53), SCHEMA, the_table())


@pytest.mark.parametrize("text", ["'; DROP TABLE x; --", '"', "%s", ":x", "\\"])
def test_values_and_names_are_in_no_sql(text):
    schema = Schema(NestedField(1, text, StringType()))
    where = row_filter(
        Or(EqualTo(text, text), In(text, {text, "y"})),
        schema,
        rows_table(1, inline_columns(schema)),
    )
    compiled = str(where.compile(dialect=sa.create_engine("sqlite://").dialect))
    assert compiled == (
        "icefloe_inline_1.c1_s = ? OR icefloe_inline_1.c1_s IN (__[POSTCOMPILE_c1_s_2])"
    )
