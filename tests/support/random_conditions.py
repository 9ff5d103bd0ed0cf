"""Rows with the values that are easy to compare wrongly, and random SQL conditions on them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

Row = dict[str, Any]

STRUCT = StructType(
    NestedField(20, "x", IntegerType(), required=False),
    NestedField(21, "y", StringType(), required=False),
)
TYPES: dict[str, IcebergType] = {
    "id": LongType(),
    "i": IntegerType(),
    "l": LongType(),
    "d": DoubleType(),
    "f": FloatType(),
    "n": DecimalType(20, 2),
    "s": StringType(),
    "day": DateType(),
    "ts": TimestamptzType(),
    "ntz": TimestampType(),
    "b": BooleanType(),
    "st": STRUCT,
    "li": ListType(22, StringType(), element_required=False),
}
SCHEMA = Schema(
    *(NestedField(n, name, kind, required=False) for n, (name, kind) in enumerate(TYPES.items(), 1))
)
NAN, INF = float("nan"), float("inf")
VALUES: dict[str, list[Any]] = {
    "i": [-(2**31), -1, 0, 1, 5, 2**31 - 1, None],
    "l": [-(2**63), -1, 0, 1, 3_000_000_000, 2**63 - 1, None],
    "d": [NAN, INF, -INF, 0.0, -0.0, 5e-324, 1.5, -1.5, 0.1, 1e20, None],
    "f": [NAN, INF, -INF, 0.0, -0.0, 1.5, -1.5, 0.25, None],
    "n": [Decimal(x) for x in ("0.00", "-0.01", "9.00", "10.50", "-12345678901234567.12")] + [None],
    "s": ["", "a", "A", "ab", "aB", "AB", "a%", "a_b", "é", "😀", "\uffff", "5", "true", None],
    "day": [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29), None],
    "ts": [
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2024, 1, 1, tzinfo=UTC),
        datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        None,
    ],
    "ntz": [
        datetime(1969, 12, 31, 23, 59, 59, 999999),
        datetime(2024, 1, 1),
        None,
    ],
    "b": [True, False, None],
}
LITERALS: dict[str, list[str]] = {
    "i": ["-1", "0", "1", "5", "5.0", "'5'", "2147483647", "-2147483648", "5L", "NULL"],
    "l": ["-1", "0", "3000000000", "'1'", "1.00", "9223372036854775807", "NULL"],
    "d": ["0", "-0.0", "0.0", "1.5", "-1.5", "0.1", "1e20", "1", "-1", "1e0", "NULL"],
    "f": ["0", "-0.0", "1.5", "-1.5", "0.25", "2", "NULL"],
    "n": ["0", "-0.01", "9", "9.0", "10.50", "10.5", "-12345678901234567.12", "NULL"],
    "s": ["''", "'a'", "'A'", "'ab'", "'aB'", "'a%'", "'é'", "'😀'", "'5'", "NULL"],
    "day": ["'1969-12-31'", "DATE '1970-01-01'", "DATE'2024-02-29'", "'0001-01-01'", "NULL"],
    "ts": ["'2024-01-01 00:00:00Z'", "TIMESTAMP '1969-12-31 23:59:59.999999+00:00'", "NULL"],
    "ntz": ["'2024-01-01 00:00:00'", "TIMESTAMP_NTZ '1969-12-31 23:59:59.999999'", "NULL"],
    "b": ["TRUE", "FALSE", "NULL"],
}
# Conditions that sqlglot and Spark may read differently, or only one of them accepts.
ODD = [
    "TRUE", "NOT FALSE", "FALSE", "NULL", "NOT NULL", "b", "NOT b", "NOT NOT b", "(b)", "b = TRUE",
    "b IS TRUE", "b IS NOT TRUE", "b IS NULL = TRUE", "i", "s", "NOT i", "i = TRUE",
    "i = 1 foo", "i = 1)", "(i = 1", "i = 1,", "i IN (1,)", "i IN ()", "i IN (1 2)", "i = = 1",
    "i = 1 AND", "AND i = 1", "i = 1 i = 2", "i BETWEEN 1", "i NOT 1", "i IS 1", "i LIKE 5",
    "s LIKE NULL", "i LIKE NULL", "i LIKE '5'", "s LIKE 'a' 'b'", "s = 'a' 'b'", "s = 'a''b'",
    "s = \"a\"", "s = 'a\\'b'", "s = r'a'", "i = 1 -- x", "i = 1 /* x */", "i = 1;", "i = 1e2000",
    "nosuch = 1", "nosuch = 1 AND FALSE", "nosuch = 1 OR TRUE", "I = 1", "S = 'a'", "t.i = 1",
    "T.i = 1", "st.x = 1", "st = 1", "li = 1", "st IS NULL", "li IS NOT NULL", "`i` = 1",
    "`I` = 1", "t.`i` = 1", "`t`.`i` = 1", "`t.i` = 1", "t.t.i = 1", ".i = 1", "i = .5", "i = 5.",
    "d = .5", "d = 5.", "d = 1e", "d = 1e+2", "d = 1E2", "d = 1e2", "d = -1e2", "d = +1", "d = - 1",
    "d = 1D", "d = 1.5BD", "i = 1L", "i = 1S", "i = 0x1", "i = 01", "i = 1_0", "i = 99999999999",
    "i = 1.5", "i IN (1, 2.5)", "i IN (1, 'a')", "i IN (1, NULL)", "i NOT IN (1, NULL)",
    "i IN (NULL)", "day = 5", "day = '2024-1-1'", "day = 'x'", "day = '2024-02-30'",
    "day = DATE '2024-02-30'", "day = TIMESTAMP '2024-01-01'", "ts = '2024-01-01'", "n = '9.00'",
    "n = 9e0", "n = 0.001", "n > 99999999999999999999", "s = 5", "s = TRUE", "b = 1", "b = 'true'",
    "b IN (TRUE, 1)", "i <=> 1", "NOT i <=> 1", "i <=> NULL", "i = 5 IS NULL", "i = 1 = TRUE",
    "NOT i = 1 = TRUE", "i < 5 < 9", "i BETWEEN 1 AND 5 AND b", "i BETWEEN 1 AND 5 OR NOT b",
    "NOT i BETWEEN 1 AND 5", "i NOT BETWEEN 1 AND 5", "NOT i IN (1)", "NOT s LIKE 'a%'",
    "s LIKE 'a%b'", "s LIKE 'a_'", "s LIKE '%'", "s LIKE ''", "s NOT LIKE 'a%'", "s ILIKE 'a%'",
    "i != 1", "i <> 1", "i == 1", "1 = i", "1 < i", "'a' = s", "TRUE = b", "NULL = i", "1 = 1",
    "(i) = (1)", "((i = 1))", "(i, l) = (1, 1)", "(i) IN (1)", "(i = 1 OR b) AND NOT (s = 'a')",
    "DATE = 1", "date '2024-01-01' = day", "i = 1 AND AND b", "i = 1 OR", "NOT", "()", "", " ",
    "i IN (1) IN (TRUE)", "i IS NULL IS NULL", "NOT i IS NULL", "i ISNULL", "i IS DISTINCT FROM 1",
    "rand() < 1", "i IN (SELECT 1)", "EXISTS (SELECT 1)", "i = (1)", "i = -(1)", "i = --1", "i = - -1",
    "b OR i = 1 AND l = 0", "NOT b AND i = 1 OR l = 0", "NOT i = 1 AND b", "NOT i = 1 OR b",
    "i BETWEEN 5 AND 1", "i BETWEEN NULL AND 1", "s BETWEEN 'A' AND 'a'", "s > ''", "s >= 'a' OR b",
]  # fmt: skip


def random_rows(seed: int, size: int) -> list[Row]:
    chosen = random.Random(seed)
    return [
        {"id": number}
        | {name: chosen.choice(values) for name, values in VALUES.items()}
        | {"st": chosen.choice([None, {"x": 1, "y": "a"}, {"x": None, "y": None}])}
        | {"li": chosen.choice([None, [], ["a", None]])}
        for number in range(size)
    ]


def random_conditions(seed: int, count: int, columns: Sequence[str] = tuple(VALUES)) -> list[str]:
    chosen = random.Random(seed)
    return [_condition(chosen, columns, number % 3) for number in range(count)]


def _condition(chosen: random.Random, columns: Sequence[str], depth: int) -> str:
    if depth == 0:
        return _test(chosen, chosen.choice(columns))
    parts = [_condition(chosen, columns, depth - 1) for _ in range(2)]
    text = f"({parts[0]}) {chosen.choice(['AND', 'OR'])} ({parts[1]})"
    return f"NOT ({text})" if chosen.random() < 0.3 else text


def _test(chosen: random.Random, column: str) -> str:
    literals = LITERALS[column]
    shape = chosen.random()
    if shape < 0.45:
        operator = chosen.choice(["=", "<>", "<", "<=", ">", ">=", "<=>"])
        return f"{column} {operator} {chosen.choice(literals)}"
    if shape < 0.65:
        listed = ", ".join(chosen.sample(literals, chosen.randint(1, 3)))
        return f"{column} {chosen.choice(['', 'NOT '])}IN ({listed})"
    if shape < 0.8:
        low, high = chosen.choice(literals), chosen.choice(literals)
        return f"{column} {chosen.choice(['', 'NOT '])}BETWEEN {low} AND {high}"
    if shape < 0.9 and column == "s":
        pattern = chosen.choice(["a%", "A%", "%", "ab", "é%", ""])
        return f"s {chosen.choice(['', 'NOT '])}LIKE '{pattern}'"
    return f"{column} IS {chosen.choice(['', 'NOT '])}NULL"
