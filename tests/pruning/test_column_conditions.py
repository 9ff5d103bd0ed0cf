"""Conditions as Columns say about files what their text says."""

from __future__ import annotations

import functools
import operator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyiceberg.expressions import And, BooleanExpression, Or
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, IntegerType, NestedField
from pyspark.sql.connect import functions as F
from pyspark.sql.types import TimestampType

from icefloe.pruning.comparisons import UNKNOWN, FilePredicate
from icefloe.pruning.conditions import lower, lower_certain
from icefloe.spark.column_trees import ColumnReader, ColumnTree
from support.column_forms import OTHERS, VALUES, Form, random_forms
from support.random_conditions import SCHEMA

READER = ColumnReader(lambda: pytest.fail("Spark Connect's Columns are read without a session"))


def tree(column: Any) -> ColumnTree:
    return READER.tree(column)


def lowered(condition: str | ColumnTree, schema: Schema = SCHEMA) -> FilePredicate:
    return lower(condition, schema, time_zone="Europe/Berlin", qualifiers=frozenset({"t"}))


def plain(predicate: FilePredicate | None) -> Any:
    """A form in which nested ANDs are one, and nested ORs."""
    if predicate is None:
        return None
    exact = None if predicate.exact is None else flat(predicate.exact)
    return flat(predicate.inclusive), exact, predicate.exact_for_rows


def flat(node: BooleanExpression) -> Any:
    if not isinstance(node, And | Or):
        return repr(node)
    return type(node).__name__, tuple(map(repr, map(flat, parts(node, type(node)))))


def parts(node: BooleanExpression, kind: type) -> list[BooleanExpression]:
    if not isinstance(node, kind):
        return [node]
    return [*parts(node.left, kind), *parts(node.right, kind)]


def assert_same(form: Form) -> None:
    assert plain(lowered(tree(form.column(F)))) == plain(lowered(form.text)), form.text


def test_random_conditions_are_lowered_like_their_text():
    forms = random_forms(seed=7, count=600)
    for form in forms:
        assert_same(form)
    known = [form for form in forms if lowered(form.text) != UNKNOWN]
    assert len(known) > 400


@pytest.mark.parametrize("form", OTHERS, ids=lambda form: form.text)
def test_other_conditions_are_lowered_like_their_text(form):
    assert_same(form)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        pytest.param(F.col("s").startswith("a%"), None, id="a wildcard in a prefix"),
        pytest.param(F.col("s").startswith("a_"), None, id="another wildcard in a prefix"),
        pytest.param(F.col("s").startswith(""), "s LIKE '%'", id="an empty prefix"),
        pytest.param(F.col("s").startswith(None), None, id="a NULL prefix"),
        pytest.param(F.col("i").startswith("1"), None, id="a prefix of a number"),
        pytest.param(F.col("i").isin([]), None, id="an empty list"),
        pytest.param(~F.col("i").isin([]), None, id="not in an empty list"),
        pytest.param(F.col("d") == float("nan"), None, id="NaN"),
        pytest.param(F.col("d") < float("inf"), None, id="infinity"),
        pytest.param(F.col("d") == F.lit(1.5).cast("float"), None, id="a FLOAT"),
        pytest.param(F.col("d").isin(1.5, 2), "d IN (1.5, 2)", id="doubles and integers"),
        pytest.param(F.col("f") == 0.1, None, id="a double that no FLOAT equals"),
        pytest.param(F.col("s") == F.lit(b"a"), None, id="binary"),
        pytest.param(F.isnull("i"), "i IS NULL", id="isnull"),
        pytest.param(F.isnotnull("i"), "i IS NOT NULL", id="isnotnull"),
        pytest.param(F.isnan("d"), None, id="isnan"),
        pytest.param(F.when(F.col("b"), F.lit(True)), None, id="when"),
        pytest.param(F.col("ts") == datetime(9999, 12, 31, tzinfo=UTC), "ts = '9999-12-31Z'", id="far"),
        pytest.param(F.col("day") == date(1, 1, 1), "day = DATE '0001-01-01'", id="long ago"),
        pytest.param(F.col("*") == 1, None, id="a star"),
        pytest.param(F.col("i") == F.lit(5).cast("tinyint"), "i = 5", id="TINYINT"),
        pytest.param(F.col("i") == F.lit(500).cast("tinyint"), None, id="too large a TINYINT"),
        pytest.param(F.col("i").cast("string") == "5", None, id="a cast of the column"),
        pytest.param(F.col("i") == F.lit("5").cast("int"), None, id="a string cast to INT"),
        pytest.param(
            F.col("ts") == F.lit("2024-01-01 00:00:00+01:00").cast("timestamp"),
            None,
            id="a type that the server may read as TIMESTAMP_NTZ",
        ),
        pytest.param(
            F.col("ts") == F.lit("2024-01-01 00:00:00").cast(TimestampType()),
            "ts = TIMESTAMP '2024-01-01 00:00:00'",
            id="a cast to TIMESTAMP",
        ),
        pytest.param(-F.col("i") == 5, None, id="negative"),
        pytest.param(F.expr("i = ${x}"), None, id="a variable"),
        pytest.param(F.expr("s = 'a\\'b'"), None, id="an escape"),
        pytest.param(F.expr("i = 5 AND"), None, id="half a text"),
    ],
)  # fmt: skip
def test_special_columns(column, text):
    expected = UNKNOWN if text is None else lowered(text.replace("-31Z", "-31 00:00:00Z"))
    assert plain(lowered(tree(column))) == plain(expected)


def test_a_double_has_all_its_digits():
    third = lowered(tree(F.col("d") == 1 / 3))
    assert third.inclusive.literal.value == 1 / 3
    assert third.exact_for_rows
    assert lowered(tree(F.col("d") < 1e300)).inclusive.literal.value == 1e300


@pytest.mark.parametrize(
    ("value", "column", "is_known"),
    [
        (Decimal("1.5"), DecimalType(9, 2), True),
        (Decimal("1.5"), DecimalType(38, 30), False),  # DECIMAL(10, 1) of Spark Connect: 39 digits
        (Decimal("1.5"), DecimalType(38, 29), True),
        (Decimal("1E+2"), DecimalType(9, 2), True),
        (Decimal("1E-3"), DecimalType(9, 2), False),
        (Decimal("-12345678901234567890123456789012345.5"), DecimalType(38, 2), True),
        (Decimal("12345678901234567890123456789012345678"), DecimalType(38, 0), True),
        (Decimal("12345678901234567890123456789012345678"), DecimalType(38, 1), False),
    ],
)
def test_digits_of_decimals(value, column, is_known):
    schema = Schema(NestedField(1, "n", column, required=False))
    known = lowered(tree(F.col("n") == value), schema)
    assert (known != UNKNOWN) == is_known
    if is_known:
        assert known.inclusive.literal.value == value


def test_a_long_chain_is_read_without_recursion():
    chain = functools.reduce(operator.or_, [F.col("i") == n for n in range(5000)])
    text = " OR ".join(f"i = {n}" for n in range(100))
    assert lowered(tree(chain)).exact is not None
    short = functools.reduce(operator.or_, [F.col("i") == n for n in range(100)])
    assert plain(lowered(tree(short))) == plain(lowered(text))


def test_a_name_with_a_comma_is_not_taken_for_two():
    schema = Schema(
        NestedField(1, "i", IntegerType(), required=False),
        NestedField(2, "t, i", IntegerType(), required=False),
    )
    assert lowered(tree(F.col("t.i") == 5), schema) == UNKNOWN
    assert lowered(tree(F.col("`t, i`") == 5), schema) != UNKNOWN
    assert lowered(tree(F.col("i") == 5), schema) != UNKNOWN


def test_columns_that_are_certain_are_those_whose_text_is():
    """Casts in a text are in doubt, and other spellings of names in both forms."""

    def certain(condition: str | ColumnTree) -> FilePredicate | None:
        return lower_certain(condition, SCHEMA, time_zone="UTC", qualifiers=frozenset({"t"}))

    forms = [form for form in random_forms(seed=8, count=600) if "CAST" not in form.text]
    both = [(plain(certain(tree(form.column(F)))), plain(certain(form.text))) for form in forms]
    differing = [form.text for form, (one, other) in zip(forms, both, strict=True) if one != other]
    assert differing == []
    assert sum(column is not None for column, _ in both) > 300
    doubtful = [
        F.col("I") == 5,
        F.col("u.i") == 5,
        F.col("i") == F.col("l"),
        F.lit(None),
        (F.col("i") == 5) & (F.col("missing") == 1),
        (F.col("i") == 5) & F.lit(None),
        F.expr("i = 5"),
    ]
    assert [certain(tree(column)) for column in doubtful] == [None] * len(doubtful)


def test_every_type_of_the_rows_has_literals():
    assert set(VALUES) == {field.name for field in SCHEMA.fields} - {"id", "st", "li"}
