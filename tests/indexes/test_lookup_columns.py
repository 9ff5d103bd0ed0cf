"""Indexes of several columns, and of columns that are promoted, renamed or dropped."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
)

from icefloe import Lake
from support.indexed_tables import asked, build_sidecars, define_index, make_table, positions
from support.pyiceberg_tables import open_lake
from support.tables import data_files

NAN = float("nan")
PLAIN = Schema(
    NestedField(1, "a", IntegerType(), required=False),
    NestedField(2, "b", StringType(), required=False),
    NestedField(3, "c", DoubleType(), required=False),
)
PLAIN_ROWS = [{"a": n, "b": f"b{n}", "c": n / 2} for n in range(10)]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return open_lake(tmp_path)


# -------------------------------------------------------------------------------------------------
# Several columns


COMPOSITE_ROWS = [
    {"a": 1, "b": "c", "c": 0.0},
    {"a": 1, "b": None, "c": -0.0},
    {"a": None, "b": "c", "c": 0.0},
    {"a": 2, "b": "c", "c": NAN},
    {"a": 1, "b": "c", "c": 0.5},
]


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("a = 1 AND b = 'c'", [0, 4]),
        ("b = 'c' AND a = 1 AND c >= 0", [0, 4]),
        ("(a = 1 AND b = 'c') OR (a = 2 AND b = 'c')", [0, 3, 4]),
        ("a = 1 AND b = 'd'", []),
        ("a = 1 AND b <=> 'c'", [0, 4]),
        ("a = 1", None),
        ("a = 1 AND b > 'a'", None),
        ("a = 1 AND b IS NULL", None),
        ("a = 1 OR b = 'c'", None),
        ("a IN (1) AND b IN ('c')", [0, 4]),  # one value is an equality
        ("a IN (1, 2) AND b = 'c'", None),
        ("a = 1 AND a = 2 AND b = 'c'", [0, 4]),  # the rows are looked at
    ],
)
def test_an_index_of_two_columns_answers_equality_of_both(lake, condition, rows):
    table = make_table(lake, "t", PLAIN, COMPOSITE_ROWS)
    define_index(table, "pair", "a", "b")
    build_sidecars(table)
    assert positions(table, condition) == [rows]
    _, result = asked(table._state(), data_files(table), condition)
    assert all(not answer.exact for answer in result.answers.values())


def test_equal_concatenations_are_different_keys(lake):
    schema = Schema(
        NestedField(1, "a", StringType(), required=False),
        NestedField(2, "b", StringType(), required=False),
    )
    table = make_table(lake, "t", schema, [{"a": "ab", "b": "c"}, {"a": "a", "b": "bc"}])
    define_index(table, "pair", "a", "b")
    build_sidecars(table)
    assert positions(table, "a = 'ab' AND b = 'c'") == [[0]]
    assert positions(table, "a = 'a' AND b = 'bc'") == [[1]]
    assert positions(table, "a = 'abc' AND b = ''") == [[]]


# -------------------------------------------------------------------------------------------------
# Columns that change


PROMOTED = [
    (IntegerType(), LongType(), [-5, 3, 2**31 - 1], "k = 3", [1], "k > 2147483647"),
    (FloatType(), DoubleType(), [-0.5, 0.0, NAN], "k = 0", [1], "k = 0.1"),
    (
        DecimalType(5, 2),
        DecimalType(18, 2),
        [Decimal("-1.00"), Decimal("2.50")],
        "k = 2.5",
        [1],
        "k = 99999.00",
    ),
    (
        DecimalType(5, 2),
        DecimalType(36, 2),
        [Decimal("-1.00"), Decimal("2.50")],
        "k = 2.5",
        [1],
        "k = 12345678901234567890123.00",
    ),
    (
        DecimalType(19, 2),
        DecimalType(36, 2),
        [Decimal("-1.00"), Decimal("2.50")],
        "k = 2.5",
        [1],
        "k = 12345678901234567890123.00",
    ),
]


@pytest.mark.parametrize(("old", "new", "values", "condition", "rows", "none"), PROMOTED, ids=str)
def test_promoted_columns_keep_their_sidecars(lake, old, new, values, condition, rows, none):
    schema = Schema(NestedField(1, "k", old, required=False))
    table = make_table(lake, "t", schema, [{"k": value} for value in [*values, None]])
    define_index(table, "by_k", "k")
    build_sidecars(table)
    with table.iceberg.update_schema() as update:
        update.update_column("k", new)
    assert positions(table, condition) == [rows]
    assert positions(table, none) == [[]]
    assert positions(table, "k IS NULL") == [[len(values)]]
    # Sidecars that are built from the old file now are the same.
    build_sidecars(table)
    assert positions(table, condition) == [rows]


def test_ranges_beyond_the_digits_of_narrow_files(lake):
    schema = Schema(NestedField(1, "k", DecimalType(5, 2), required=False))
    table = make_table(lake, "t", schema, [{"k": Decimal("-1.00")}, {"k": Decimal("2.50")}])
    define_index(table, "by_k", "k")
    build_sidecars(table)
    with table.iceberg.update_schema() as update:
        update.update_column("k", DecimalType(36, 2))
    large = "123456789012345678901234567890.00"
    assert positions(table, f"k < {large}") == [[0, 1]]
    assert positions(table, f"k > {large}") == [[]]
    assert positions(table, f"k > -{large}") == [[0, 1]]
    assert positions(table, f"k <= -{large}") == [[]]
    assert positions(table, "k BETWEEN -1 AND 2.50") == [[0, 1]]


def test_a_renamed_column_keeps_its_index_and_a_new_one_of_its_name_has_none(lake):
    table = make_table(lake, "t", PLAIN, PLAIN_ROWS)
    define_index(table, "by_a", "a")
    build_sidecars(table)
    with table.iceberg.update_schema() as update:
        update.rename_column("a", "was_a")
    with table.iceberg.update_schema() as update:
        update.add_column("a", IntegerType())
    assert positions(table, "was_a = 3") == [[3]]
    assert positions(table, "a = 3") == [None]


def test_an_index_whose_column_another_engine_dropped_is_not_used(lake):
    table = make_table(lake, "t", PLAIN, PLAIN_ROWS)
    define_index(table, "by_a", "a")
    define_index(table, "pair", "a", "b")
    build_sidecars(table)
    with table.iceberg.update_schema() as update:
        update.delete_column("a")
    assert positions(table, "b = 'b3'") == [None]
    with table.iceberg.update_schema() as update:
        update.add_column("a", IntegerType())
    assert positions(table, "a = 3") == [None]
    assert positions(table, "a = 3 AND b = 'b3'") == [None]
