"""Random SQL conditions that say in Python, too, for which rows they are TRUE.

Another implementation than the library's: three-valued, on Python values, with Spark's order (NaN
is the largest number and equal to itself, the zeros are equal, strings are ordered by their bytes).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Truth = bool | None
Literal = tuple[str, Any]  # as in SQL, and its value; None is NULL


@dataclass(frozen=True)
class Judged:
    """A condition as text and as a function."""

    sql: str
    of: Callable[[Row], Truth]

    def rows(self, rows: Sequence[Row]) -> list[int]:
        """The places of the rows for which it is TRUE."""
        return [place for place, row in enumerate(rows) if self.of(row) is True]


@dataclass(frozen=True)
class Conditions:
    """Makes conditions on columns; `nulls_alone` are those that have no literals."""

    chosen: random.Random
    literals: Mapping[str, Sequence[Literal]]
    nulls_alone: Sequence[str] = ()

    def condition(self, depth: int) -> Judged:
        if depth == 0:
            return self.test()
        roll = self.chosen.random()
        if roll < 0.15:
            return _not(self.condition(depth - 1))
        parts = [self.condition(depth - 1) for _ in range(self.chosen.choice([2, 2, 3]))]
        return _all(parts) if roll < 0.6 else _any(parts)

    def test(self) -> Judged:
        if self.nulls_alone and self.chosen.random() < 0.05:
            return self._null(self.chosen.choice(self.nulls_alone))
        column = self.chosen.choice(list(self.literals))
        roll = self.chosen.random()
        if roll < 0.1:
            return self._null(column)
        if roll < 0.3:
            return self._among(column)
        if roll < 0.45:
            low, high = self._literal(column), self._literal(column)
            both = [_compare(column, ">=", low), _compare(column, "<=", high)]
            between = Judged(f"{column} BETWEEN {low[0]} AND {high[0]}", _all(both).of)
            return self._maybe_not(between, "NOT BETWEEN", "BETWEEN")
        if roll < 0.6 and isinstance(self.literals[column][0][1], str):
            return self._like(column)
        sign = self.chosen.choice(["=", "=", "=", "<>", "<", "<=", ">", ">=", "<=>"])
        return _compare(column, sign, self._literal(column))

    def _literal(self, column: str) -> Literal:
        return ("NULL", None) if self.chosen.random() < 0.05 else self._value(column)

    def _value(self, column: str) -> Literal:
        return self.chosen.choice(self.literals[column])

    def _null(self, column: str) -> Judged:
        is_null = Judged(f"{column} IS NULL", lambda row: row[column] is None)
        return self._maybe_not(is_null, "IS NOT NULL", "IS NULL")

    def _among(self, column: str) -> Judged:
        listed = [self._literal(column) for _ in range(self.chosen.randint(1, 6))]
        text = ", ".join(sql for sql, _ in listed)
        any_of = _any([_compare(column, "=", literal) for literal in listed])
        return self._maybe_not(Judged(f"{column} IN ({text})", any_of.of), "NOT IN", "IN")

    def _like(self, column: str) -> Judged:
        prefix = self._value(column)[1]
        prefix = prefix[: self.chosen.randint(0, len(prefix) + 1)]
        if not prefix.replace(" ", "").isalnum():
            prefix = "a"

        def is_like(row: Row) -> Truth:
            return None if row[column] is None else row[column].startswith(prefix)

        return self._maybe_not(Judged(f"{column} LIKE '{prefix}%'", is_like), "NOT LIKE", "LIKE")

    def _maybe_not(self, test: Judged, negated: str, plain: str) -> Judged:
        if self.chosen.random() < 0.75:
            return test
        return Judged(test.sql.replace(f" {plain}", f" {negated}", 1), _not(test).of)


def _not(part: Judged) -> Judged:
    def opposite(row: Row) -> Truth:
        truth = part.of(row)
        return None if truth is None else not truth

    return Judged(f"NOT ({part.sql})", opposite)


def _all(parts: Sequence[Judged]) -> Judged:
    def every(row: Row) -> Truth:
        truths = [part.of(row) for part in parts]
        return False if False in truths else None if None in truths else True

    return Judged(" AND ".join(f"({part.sql})" for part in parts), every)


def _any(parts: Sequence[Judged]) -> Judged:
    def some(row: Row) -> Truth:
        truths = [part.of(row) for part in parts]
        return True if True in truths else None if None in truths else False

    return Judged(" OR ".join(f"({part.sql})" for part in parts), some)


_SIGNS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _compare(column: str, sign: str, literal: Literal) -> Judged:
    text, value = literal
    if sign == "<=>":
        return Judged(f"{column} <=> {text}", lambda row: _key(row[column]) == _key(value))

    def compared(row: Row) -> Truth:
        if row[column] is None or value is None:
            return None
        return _SIGNS[sign](_key(row[column]), _key(value))

    return Judged(f"{column} {sign} {text}", compared)


def _key(value: Any) -> Any:
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value
