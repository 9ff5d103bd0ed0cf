"""Random rows, conditions and assignments that mean the same in Spark and in DuckDB."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest

SCHEMA = "k INT, region STRING, n BIGINT, v DOUBLE, day DATE, s STRING, flag BOOLEAN"
ARROW = pa.schema(
    [
        ("k", pa.int32()),
        ("region", pa.string()),
        ("n", pa.int64()),
        ("v", pa.float64()),
        ("day", pa.date32()),
        ("s", pa.string()),
        ("flag", pa.bool_()),
    ]
)
LAYOUTS = [(), ("region",), ("bucket(3, k)",), ("days(day)",), ("truncate(1, s)", "flag")]
# The columns of indexes, for programs that have some.
INDEXES = [["k"], ["n"], ["v"], ["day"], ["s"], ["k", "region"], ["day", "k"]]
MODES = ["copy-on-write", "merge-on-read", "auto"]


def seeds(quick: int, all_of_them: int) -> list[Any]:
    """Some for every run, the others slow; one alone where ICEFLOE_SEED is set."""
    if chosen := os.environ.get("ICEFLOE_SEED"):
        return [int(chosen)]
    slow = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(quick, all_of_them)]
    return [*range(quick), *slow]


def oracle_of(schema: str) -> duckdb.DuckDBPyConnection:
    """A DuckDB of its own with an empty table `t`."""
    oracle = duckdb.connect()
    oracle.execute(schema.join(("CREATE TABLE t (", ")")).replace("STRING", "VARCHAR"))
    return oracle


@dataclass
class Maker:
    """Rows and texts by luck alone."""

    random: random.Random
    sides: tuple[str, ...] = ("",)  # what may stand before a column: "source.", "target."

    def seeing(self, *sides: str) -> Maker:
        """The same luck, for expressions over rows of these sides."""
        return replace(self, sides=sides)

    def column(self, name: str) -> str:
        side = self.sides[0] if len(self.sides) == 1 else self.random.choice(self.sides)
        return f"{side}{name}"

    def rows(self, count: int) -> pa.Table:
        return pa.Table.from_pylist([self.row() for _ in range(count)], schema=ARROW)

    def row(self) -> dict[str, Any]:
        pick = self.random.choice
        return {
            "k": pick([None, *range(12)]),
            "region": pick([None, "us", "eu", "asia", ""]),
            "n": pick([None, -5, 0, 1, 2, 3, 10, 2**40]),
            "v": pick([None, -1.5, 0.0, 2.5, 7.0, math.nan]),
            "day": pick([None, *(date(2023, 12, 30) + timedelta(days=d) for d in range(6))]),
            "s": pick([None, "", "a", "ab", "abc", "b", "ß", "z%"]),
            "flag": pick([None, True, False]),
        }

    def condition(self, depth: int = 2) -> str:
        if depth and self.random.random() < 0.5:
            left, right = self.condition(depth - 1), self.condition(depth - 1)
            return self.random.choice(
                [f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})"]
            )
        pick, compare = self.random.choice, self.random.choice(["=", "<>", "<", "<=", ">", ">="])
        of = self.column
        return pick(
            [
                f"{of('k')} {compare} {self.random.randrange(12)}",
                f"{of('n')} {compare} {pick([-5, 0, 2, 11])}",
                f"{of('v')} {compare} {pick(['-1.5', '0.0', '3.0', '100.0'])}",
                f"{of('region')} {compare} '{pick(['us', 'eu', 'b'])}'",
                f"{of('day')} {compare} DATE '2024-01-0{self.random.randrange(1, 5)}'",
                f"{of('s')} {compare} '{pick(['a', 'ab', 'b'])}'",
                f"{of('k')} IN ({self.random.randrange(12)}, {self.random.randrange(12)})",
                f"{of('region')} IN ('us', NULL)",
                f"{of('k')} NOT IN (1, 2, 3)",
                f"{of('k')} BETWEEN 2 AND {self.random.randrange(12)}",
                f"{of(pick(['k', 'region', 'n', 'v', 'day', 's', 'flag']))} IS NULL",
                f"{of(pick(['k', 'region', 'n', 'v', 'day', 's', 'flag']))} IS NOT NULL",
                f"{of('s')} LIKE 'a%'",
                f"{of('s')} LIKE '%b'",
                of("flag"),
                f"{of('k')} + {of('n')} > 5",
                f"{of('k')} % 3 = 1",
                f"length({of('s')}) = 2",
                f"{of('n')} < {of('k')}",
            ]
        )

    def assignments(self) -> dict[str, str]:
        of = self.column
        choices = {
            "k": [f"{of('k')} + 1", "NULL", "5", f"coalesce({of('k')}, 0)"],
            "region": [
                "'us'",
                "NULL",
                of("s"),
                f"upper({of('region')})",
                f"coalesce({of('region')}, 'none')",
            ],
            "n": [f"{of('n')} + {of('k')}", f"{of('n')} * 2", "NULL", "-1", of("k")],
            "v": [f"{of('v')} + 1", "NULL", of("n"), "0.5"],
            "day": ["DATE '2024-02-29'", "NULL", of("day")],
            "s": [of("region"), "NULL", f"{of('s')} || 'x'", f"lower({of('s')})"],
            "flag": [f"NOT {of('flag')}", f"{of('k')} > 3", "NULL", "true"],
        }
        chosen = self.random.sample(sorted(choices), self.random.randint(1, 3))
        return {name: self.random.choice(choices[name]) for name in chosen}


def comparable(found: list[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    return Counter(
        tuple("NaN" if isinstance(v, float) and math.isnan(v) else v for v in row) for row in found
    )
