"""Random conditions in two forms, SQL text and a PySpark Column, on rows of `random_conditions`.

A Column is made of a module of functions, so that the same condition is one of a classic session or
one of Spark Connect.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

Functions = Any  # pyspark.sql.functions, or those of Spark Connect


@dataclass(frozen=True)
class Form:
    """A condition, or a value, as text and as a Column."""

    text: str
    column: Callable[[Functions], Any]


def value(text: str, literal: Any) -> Form:
    return Form(text, lambda F: F.lit(literal))


def cast(text: str, literal: Any, kind: str) -> Form:
    return Form(text, lambda F: F.lit(literal).cast(kind))


NULL = value("NULL", None)
# The same values in both forms, with Python's types. A text that has no such type is read as a
# condition that keeps every row.
VALUES: Mapping[str, Sequence[Form]] = {
    "i": [
        value("-1", -1),
        value("0", 0),
        value("5", 5),
        value("5.0", Decimal("5.0")),
        value("'5'", "5"),
        value("2147483647", 2**31 - 1),
        value("-2147483648", -(2**31)),
        cast("5L", 5, "bigint"),
        NULL,
    ],
    "l": [
        value("-1", -1),
        value("3000000000", 3_000_000_000),
        value("'1'", "1"),
        value("1.00", Decimal("1.00")),
        value("9223372036854775807", 2**63 - 1),
        NULL,
    ],
    "d": [
        value("0", 0),
        value("0e0", 0.0),
        value("1.5e0", 1.5),
        value("-1.5e0", -1.5),
        value("0.1", Decimal("0.1")),
        value("1e20", 1e20),
        value("1", 1),
        NULL,
    ],
    "f": [
        value("0e0", 0.0),
        value("1.5e0", 1.5),
        value("0.25", Decimal("0.25")),
        value("2", 2),
        value("1e-1", 0.1),
        NULL,
    ],
    "n": [
        value("0", 0),
        value("-0.01", Decimal("-0.01")),
        value("9", 9),
        value("10.50", Decimal("10.50")),
        value("10.5", Decimal("10.5")),
        value("-12345678901234567.12", Decimal("-12345678901234567.12")),
        value("9e0", 9.0),
        NULL,
    ],
    "s": [value(f"'{text}'", text) for text in ("", "a", "A", "ab", "aB", "a%", "é", "😀", "5")]
    + [NULL],
    "day": [
        value("DATE '1969-12-31'", date(1969, 12, 31)),
        value("DATE '1970-01-01'", date(1970, 1, 1)),
        value("'2024-02-29'", "2024-02-29"),
        cast("CAST('2024-02-29' AS DATE)", "2024-02-29", "date"),
        NULL,
    ],
    "ts": [
        value("TIMESTAMP '2024-01-01 00:00:00Z'", datetime(2024, 1, 1, tzinfo=UTC)),
        value(
            "TIMESTAMP '1969-12-31 23:59:59.999999+00:00'",
            datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        ),
        value("'2024-01-01 00:00:00Z'", "2024-01-01 00:00:00Z"),
        value("DATE '2024-01-01'", date(2024, 1, 1)),
        NULL,
    ],
    "ntz": [
        cast("TIMESTAMP_NTZ '2024-01-01 00:00:00'", "2024-01-01 00:00:00", "timestamp_ntz"),
        value("'2024-01-01 00:00:00'", "2024-01-01 00:00:00"),
        value("DATE '2024-01-01'", date(2024, 1, 1)),
        NULL,
    ],
    "b": [value("TRUE", True), value("FALSE", False), NULL],
}
COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "<=>": lambda column, other: column.eqNullSafe(other),
}
PREFIXES = ("a", "A", "é", "ab", "5")
# Shapes that the random ones below do not have.
OTHERS = [
    Form("b", lambda F: F.col("b")),
    Form("NOT b", lambda F: ~F.col("B")),
    Form("TRUE", lambda F: F.lit(True)),
    Form("NULL", lambda F: F.lit(None)),
    Form("t.i = 5", lambda F: F.col("t.i") == 5),
    Form("`T`.`I` = 5", lambda F: F.col("`T`.`I`") == 5),
    Form("`t.i` = 5", lambda F: F.col("`t.i`") == 5),
    Form("u.i = 5", lambda F: F.col("u.i") == 5),
    Form("st.x = 1", lambda F: F.col("st.x") == 1),
    Form("st['x'] = 1", lambda F: F.col("st")["x"] == 1),
    Form("missing = 1", lambda F: F.col("missing") == 1),
    Form("i = l", lambda F: F.col("i") == F.col("l")),
    Form("i + 1 = 5", lambda F: F.col("i") + 1 == 5),
    Form("i + 1 = 5 AND l = 1", lambda F: (F.col("i") + 1 == 5) & (F.col("l") == 1)),
    Form("i + 1 = 5 OR l = 1", lambda F: (F.col("i") + 1 == 5) | (F.col("l") == 1)),
    Form("NOT (abs(i) = 5 OR l = 1)", lambda F: ~((F.abs("i") == 5) | (F.col("l") == 1))),
    Form("NOT (abs(i) = 5 AND l = 1)", lambda F: ~((F.abs("i") == 5) & (F.col("l") == 1))),
    Form("s RLIKE 'a' AND i = 5", lambda F: F.col("s").rlike("a") & (F.col("i") == 5)),
    Form("s LIKE '%a'", lambda F: F.col("s").endswith("a")),
    Form("s LIKE 'a_'", lambda F: F.col("s").like("a_")),
    Form("s LIKE 'a\\\\%'", lambda F: F.col("s").like("a\\%")),
    Form("s = 5", lambda F: F.col("s") == 5),
    Form("i = 'x'", lambda F: F.col("i") == "x"),
    Form("i = TRUE", lambda F: F.col("i") == True),  # noqa: E712
    Form("b = 1", lambda F: F.col("b") == 1),
    Form("i = 1e0", lambda F: F.col("i") == 1.0),
    Form("i IN (1, 'a')", lambda F: F.col("i").isin(1, "a")),
    Form("i IN (1, 2.5)", lambda F: F.col("i").isin(1, 2.5)),
    Form("day = 5", lambda F: F.col("day") == 5),
    Form("(i = 5) IS TRUE", lambda F: (F.col("i") == 5).eqNullSafe(True)),
    Form("i IS NULL = TRUE", lambda F: F.col("i").isNull() == True),  # noqa: E712
    Form("i = l AND i = 5", lambda F: F.expr("i = l AND i = 5")),
    Form("i = 5 AND b", lambda F: F.expr("i = 5") & F.expr("b")),
    Form("i = 5", lambda F: F.col("i") == F.expr("5")),
    Form("i = 5", lambda F: F.expr("i") == F.lit(5)),
    Form("s LIKE 'a%'", lambda F: F.expr("s LIKE 'a%'")),
    Form("i IN (SELECT 1)", lambda F: F.expr("i IN (SELECT 1)")),
    Form("i IN (SELECT 1) AND l = 1", lambda F: F.expr("i IN (SELECT 1)") & (F.col("l") == 1)),
]


def random_forms(seed: int, count: int) -> list[Form]:
    chosen = random.Random(seed)
    return [_condition(chosen, number % 3) for number in range(count)]


def _condition(chosen: random.Random, depth: int) -> Form:
    if depth == 0:
        return _test(chosen, chosen.choice(list(VALUES)))
    one, other = _condition(chosen, depth - 1), _condition(chosen, depth - 1)
    if chosen.random() < 0.5:
        joined = Form(f"({one.text}) AND ({other.text})", lambda F: one.column(F) & other.column(F))
    else:
        joined = Form(f"({one.text}) OR ({other.text})", lambda F: one.column(F) | other.column(F))
    return _negated(joined) if chosen.random() < 0.3 else joined


def _negated(form: Form) -> Form:
    return Form(f"NOT ({form.text})", lambda F: ~form.column(F))


def _test(chosen: random.Random, name: str) -> Form:
    values, shape = VALUES[name], chosen.random()
    if shape < 0.45:
        return _comparison(chosen, name, chosen.choice(values))
    if shape < 0.65:
        listed = chosen.sample(values, chosen.randint(1, 3))
        text = f"{name} IN ({', '.join(item.text for item in listed)})"
        among = Form(text, lambda F: F.col(name).isin(*(item.column(F) for item in listed)))
        return _negated(among) if chosen.random() < 0.3 else among
    if shape < 0.8:
        low, high = chosen.choice(values), chosen.choice(values)
        between = Form(
            f"{name} BETWEEN {low.text} AND {high.text}",
            lambda F: F.col(name).between(low.column(F), high.column(F)),
        )
        return _negated(between) if chosen.random() < 0.3 else between
    if shape < 0.9 and name == "s":
        prefix = chosen.choice(PREFIXES)
        if chosen.random() < 0.5:
            return Form(f"s LIKE '{prefix}%'", lambda F: F.col("s").startswith(prefix))
        return Form(f"s LIKE '{prefix}%'", lambda F: F.col("s").like(f"{prefix}%"))
    if chosen.random() < 0.5:
        return Form(f"{name} IS NULL", lambda F: F.col(name).isNull())
    return Form(f"{name} IS NOT NULL", lambda F: F.col(name).isNotNull())


def _comparison(chosen: random.Random, name: str, literal: Form) -> Form:
    sign = chosen.choice(list(COMPARISONS))
    compare = COMPARISONS[sign]
    if chosen.random() < 0.3:
        return Form(
            f"{literal.text} {sign} {name}", lambda F: compare(literal.column(F), F.col(name))
        )
    return Form(f"{name} {sign} {literal.text}", lambda F: compare(F.col(name), literal.column(F)))
