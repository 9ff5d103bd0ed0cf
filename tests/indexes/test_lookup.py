"""What indexes say of a condition: never too few rows, and no others where they say so."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icefloe import Lake, Table
from icefloe.indexes import lookup
from icefloe.metadata.files import LiveFile
from icefloe.metadata.table_state import TableState
from icefloe.tasks import btree
from support.indexed_tables import asked, build_sidecars, define_index, make_table, positions
from support.judged_conditions import Conditions, Literal
from support.pyiceberg_tables import open_lake
from support.tables import data_files

NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True)
class Kind:
    """A type, values that rows have, and literals to compare them with."""

    type: PrimitiveType
    values: Sequence[Any]
    literals: Sequence[Literal] = ()


def texts(values: Sequence[str]) -> list[Literal]:
    return [(f"'{value}'", value) for value in values]


def numbers(*literals: str) -> list[Literal]:
    return [(text, Decimal(text.rstrip("L"))) for text in literals]


def doubles(*literals: str) -> list[Literal]:
    return [(text, float(text)) for text in literals]


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


KINDS = {
    "i": Kind(IntegerType(), [-(2**31), -1, 0, 1, 2, 3, 2**31 - 1], numbers("-1", "0", "2", "3.0")),
    "l": Kind(
        LongType(),
        [-(2**63), -1, 0, 1, 5, 2**40, 2**63 - 1],
        numbers("-9223372036854775808", "0", "5L", "4", "1099511627776", "9223372036854775807"),
    ),
    "f": Kind(
        FloatType(),
        [-INF, -1.5, -0.0, 0.0, 0.25, 1.5, INF, NAN],
        doubles("-1.5", "0", "-0.0", "0.25", "2"),
    ),
    "d": Kind(
        DoubleType(),
        [-INF, -1.5, -5e-324, -0.0, 0.0, 5e-324, 0.1, 1e20, INF, NAN],
        doubles("-1.5", "0.0", "-0.0", "0.1", "1e20", "3"),
    ),
    "n": Kind(
        DecimalType(9, 2),
        [Decimal(x) for x in ("-9999999.99", "-0.01", "0.00", "1.50", "9999999.99")],
        numbers("-0.01", "0", "1.5", "1.50", "2", "9999999.99"),
    ),
    "wide": Kind(
        DecimalType(30, 2),
        [Decimal(x) for x in ("-9999999999999999999999999999.99", "0.00", "1.50", "1.51")],
        numbers("-9999999999999999999999999999.99", "0.00", "1.5", "2.25"),
    ),
    "day": Kind(
        DateType(),
        [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29), date(9999, 1, 1)],
        [
            ("'1969-12-31'", date(1969, 12, 31)),
            ("DATE '1970-01-01'", date(1970, 1, 1)),
            ("DATE '2024-02-29'", date(2024, 2, 29)),
            ("'0001-01-01'", date(1, 1, 1)),
        ],
    ),
    "ts": Kind(
        TimestamptzType(),
        [
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            datetime(2024, 1, 1, tzinfo=UTC),
            datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        ],
        [
            ("TIMESTAMP '2024-01-01 00:00:00Z'", instant("2024-01-01T00:00:00+00:00")),
            ("TIMESTAMP '2024-01-01 01:00:00+01:00'", instant("2024-01-01T00:00:00+00:00")),
            (
                "TIMESTAMP '1969-12-31 23:59:59.999999+00:00'",
                instant("1969-12-31T23:59:59.999999+00:00"),
            ),
        ],
    ),
    "ntz": Kind(
        TimestampType(),
        [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2024, 1, 1)],
        [
            ("TIMESTAMP_NTZ '2024-01-01 00:00:00'", datetime(2024, 1, 1)),
            ("TIMESTAMP_NTZ '1970-01-01 00:00:00'", datetime(1970, 1, 1)),
        ],
    ),
    # Codes: the first 8 bytes, the 8 bytes after a prefix, hashes.
    "s": Kind(
        StringType(),
        ["", "a", "A", "ab", "abc", "b", "é", "ß", "😀", "\uffff", "a b"],
        texts(["", "a", "ab", "abcd", "b", "é", "😀", "\uffff", "A"]),
    ),
    "prefixed": Kind(
        StringType(),
        [f"customer {n:04}" for n in range(60)] + ["customer "],
        texts(["customer 0007", "customer 0059", "customer ", "customer 1", "cust", "d", "", "e"]),
    ),
    "hashed": Kind(
        StringType(),
        [f"{n % 2} the same for a long while {n}" for n in range(60)],
        texts([f"{n % 2} the same for a long while {n}" for n in (0, 7, 59, 60)] + ["0", "1"]),
    ),
    "u": Kind(UUIDType(), [UUID(int=n).bytes for n in (0, 1, 2**127)]),
    "x": Kind(FixedType(3), [b"\0\0\0", b"abc", b"\xff\xff\xff"]),
    "bin": Kind(BinaryType(), [b"", b"\0", b"abc", b"\xff" * 9]),
    "clock": Kind(TimeType(), [1, 0, 86_399_999_999]),
}
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    *(
        NestedField(number, name, kind.type, required=False)
        for number, (name, kind) in enumerate(KINDS.items(), 2)
    ),
)
LITERALS = {name: kind.literals for name, kind in KINDS.items() if kind.literals}
NULLS_ALONE = [name for name, kind in KINDS.items() if not kind.literals]


def random_rows(chosen: random.Random, count: int, *, nulls: float) -> list[dict[str, Any]]:
    return [
        {"id": number}
        | {
            name: None if chosen.random() < nulls else chosen.choice(kind.values)
            for name, kind in KINDS.items()
        }
        for number in range(count)
    ]


@dataclass(frozen=True)
class Indexed:
    """A table with an index on every column, and the rows of each of its files."""

    state: TableState
    files: list[LiveFile]
    rows: list[list[dict[str, Any]]]


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    chosen = random.Random(1)
    lake = open_lake(tmp_path_factory.mktemp("lake"))
    batches = [
        random_rows(chosen, 300, nulls=0.1),
        random_rows(chosen, 40, nulls=0.9),
        random_rows(chosen, 5, nulls=0.0),
        random_rows(chosen, 3, nulls=1.0),
        random_rows(chosen, 1, nulls=0.0),
    ]
    table = make_table(lake, "t", SCHEMA, *batches)
    for name in KINDS:
        define_index(table, f"by_{name}", name)
    define_index(table, "pair", "s", "i")
    define_index(table, "triple", "day", "n", "f")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(btree, "BATCH_ROWS", 16)
        assert build_sidecars(table) == []
    files = data_files(table)
    by_rows = {len(batch): batch for batch in batches}
    return Indexed(table._state(), files, [by_rows[file.rows] for file in files])


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(btree, "BATCH_ROWS", 16)


def expect_rows(indexed: Indexed, conditions: Conditions, depth: int) -> tuple[int, int]:
    """Compare one condition with the rows; returns how many answers there are, and exact ones."""
    judged = conditions.condition(depth)
    lowered, result = asked(indexed.state, indexed.files, judged.sql)
    answers = exact = 0
    for live, rows in zip(indexed.files, indexed.rows, strict=True):
        answer = result.answers.get(live.path)
        if answer is None:
            continue
        answers += 1
        wanted, found = judged.rows(rows), list(answer.positions)
        assert set(wanted) <= set(found), judged.sql
        if answer.exact and lowered.exact_for_rows:
            exact += 1
            assert wanted == found, judged.sql
    return answers, exact


@pytest.mark.parametrize("column", LITERALS)
def test_tests_of_one_column_have_no_row_too_few(indexed, column):
    conditions = Conditions(random.Random(column), {column: LITERALS[column]})
    counts = [expect_rows(indexed, conditions, depth) for depth in [0] * 60 + [1] * 30]
    assert sum(answers for answers, _ in counts) > 100
    is_exact = column not in ("s", "prefixed", "hashed", "wide")
    assert sum(exact for _, exact in counts) > (100 if is_exact else 10)


@pytest.mark.parametrize("seed", range(4))
def test_conditions_on_many_columns_have_no_row_too_few(indexed, seed):
    conditions = Conditions(random.Random(seed), LITERALS, NULLS_ALONE)
    counts = [expect_rows(indexed, conditions, depth) for depth in [1, 2, 3] * 20]
    assert sum(answers for answers, _ in counts) > 20
    assert sum(exact for _, exact in counts) > 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_more_conditions_on_many_columns_have_no_row_too_few(indexed, seed):
    conditions = Conditions(random.Random(seed), LITERALS, NULLS_ALONE)
    counts = [expect_rows(indexed, conditions, depth) for depth in [1, 2, 3] * 40]
    assert sum(answers for answers, _ in counts) > 40


@pytest.mark.parametrize("column", NULLS_ALONE)
def test_columns_that_no_literal_can_be_compared_with_answer_is_null(indexed, column):
    for _, result in [asked(indexed.state, indexed.files, f"{column} IS NULL")]:
        for live, rows in zip(indexed.files, indexed.rows, strict=True):
            answer = result.answers[live.path]
            assert list(answer.positions) == [n for n, r in enumerate(rows) if r[column] is None]
            assert answer.exact


# -------------------------------------------------------------------------------------------------
# What is answered, and what is not


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return open_lake(tmp_path)


PLAIN = Schema(
    NestedField(1, "a", IntegerType(), required=False),
    NestedField(2, "b", StringType(), required=False),
    NestedField(3, "c", DoubleType(), required=False),
)
PLAIN_ROWS = [{"a": n, "b": f"b{n}", "c": n / 2} for n in range(10)]


@pytest.fixture
def plain(lake: Lake) -> Table:
    """An index on `a` alone."""
    table = make_table(lake, "plain", PLAIN, PLAIN_ROWS)
    define_index(table, "by_a", "a")
    build_sidecars(table)
    return table


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("a = 3", [3]),
        ("a = 3 AND c > 100", [3]),  # c has no index: the rows have to be looked at
        ("a = 3 AND lower(b) = 'x'", [3]),
        ("a = 3 OR a > 8", [3, 9]),
        ("a = 3 OR c > 100", None),
        ("a <> 3", None),
        ("a IS NOT NULL", None),
        ("a IS NULL", []),
        ("a IN (1, 2, 77)", [1, 2]),
        ("a = NULL", None),  # FALSE without any column
        ("a BETWEEN 8 AND 1000", [8, 9]),
        ("a < 1 AND a > 5", []),
        ("a = 2147483648", None),  # no int: Spark compares as long
        ("c = 1", None),
        ("A = 3", [3]),
        ("`a` = 3", [3]),
        ("a = '3'", [3]),
        ("a = 3.0", [3]),
        ("a = 3.5", None),
    ],
)
def test_conditions_with_one_index(plain, condition, rows):
    assert positions(plain, condition) == [rows]


@pytest.mark.parametrize(
    ("condition", "exact"),
    [
        ("a = 3", True),
        ("a = 3 AND a > 1", True),
        ("a = 3 OR a > 8", True),
        ("a = 3 AND c = 1.5", False),
        ("a IS NULL", True),
    ],
)
def test_an_answer_is_exact_if_every_part_is(plain, condition, exact):
    _, result = asked(plain._state(), data_files(plain), condition)
    [answer] = result.answers.values()
    assert answer.exact is exact


def test_a_range_with_too_many_rows_is_not_looked_up(plain, monkeypatch):
    monkeypatch.setattr(lookup, "_LEAST_ROWS", 0)
    assert positions(plain, "a >= 0") == [None]
    assert positions(plain, "a < -5") == [[]]  # below the first code: no batch is read
    assert positions(plain, "a = 3") == [[3]]


@pytest.mark.requirement("L11")
def test_every_index_of_a_column_and_of_several_narrows_the_rows(lake):
    rows = [{"a": n % 10, "b": f"b{n % 7}", "c": float(n % 3)} for n in range(210)]
    table = make_table(lake, "t", PLAIN, rows)
    for name in "abc":
        define_index(table, f"by_{name}", name)
    define_index(table, "pair", "a", "b")
    build_sidecars(table)
    _, result = asked(table._state(), data_files(table), "a = 3 AND b = 'b3' AND c = 0.0")
    [answer] = result.answers.values()
    assert list(answer.positions) == [3]
    assert answer.indexes == ("by_a", "by_b", "by_c", "pair")


def test_one_index_without_a_sidecar_leaves_the_others(lake):
    table = make_table(lake, "t", PLAIN, PLAIN_ROWS)
    define_index(table, "by_a", "a")
    build_sidecars(table)
    define_index(table, "by_c", "c")
    assert positions(table, "a = 3 AND c = 1.5") == [[3]]
    assert positions(table, "c = 1.5") == [None]
    _, result = asked(table._state(), data_files(table), "a = 3 AND c = 1.5")
    [answer] = result.answers.values()
    assert (answer.exact, answer.indexes) == (False, ("by_a",))


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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[]",
        "null",
        '{"id": "01234567", "kind": "btree"}',
        '{"id": "01234567", "kind": "btree", "fields": []}',
        '{"id": "01234567", "kind": "btree", "fields": ["x"]}',
        '{"id": "../../x", "kind": "btree", "fields": [1]}',
        '{"id": "01234567", "kind": "of the future", "fields": [1]}',
        '{"id": "01234567", "kind": "btree", "fields": [99]}',
        '{"id": "01234567", "kind": "btree", "fields": [1], "params": 5}',
    ],
)
def test_properties_that_define_no_index_are_left_alone(plain, text):
    with plain.iceberg.transaction() as transaction:
        transaction.set_properties({"icefloe.indexes.strange": text})
    assert positions(plain, "a = 3") == [[3]]
