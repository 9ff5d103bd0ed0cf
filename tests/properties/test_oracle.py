"""Random programs of UPDATE and DELETE give what DuckDB gives, in every mode and layout.

A program is made of its seed alone. To run one again:
    ICEFLOE_SEED=17 make test-seed
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest

QUICK, ALL = 12, 200
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
MODES = ["copy-on-write", "merge-on-read", "auto"]


def seeds():
    if chosen := os.environ.get("ICEFLOE_SEED"):
        return [int(chosen)]
    slow = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(QUICK, ALL)]
    return [*range(QUICK), *slow]


@dataclass
class Maker:
    """Random rows, conditions and assignments that mean the same in Spark and in DuckDB."""

    random: random.Random

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
        return pick(
            [
                f"k {compare} {self.random.randrange(12)}",
                f"n {compare} {pick([-5, 0, 2, 11])}",
                f"v {compare} {pick(['-1.5', '0.0', '3.0', '100.0'])}",
                f"region {compare} '{pick(['us', 'eu', 'b'])}'",
                f"day {compare} DATE '2024-01-0{self.random.randrange(1, 5)}'",
                f"s {compare} '{pick(['a', 'ab', 'b'])}'",
                f"k IN ({self.random.randrange(12)}, {self.random.randrange(12)})",
                "region IN ('us', NULL)",
                "k NOT IN (1, 2, 3)",
                f"k BETWEEN 2 AND {self.random.randrange(12)}",
                f"{pick(['k', 'region', 'n', 'v', 'day', 's', 'flag'])} IS NULL",
                f"{pick(['k', 'region', 'n', 'v', 'day', 's', 'flag'])} IS NOT NULL",
                "s LIKE 'a%'",
                "s LIKE '%b'",
                "flag",
                "k + n > 5",
                "k % 3 = 1",
                "length(s) = 2",
                "n < k",
            ]
        )

    def assignments(self) -> dict[str, str]:
        choices = {
            "k": ["k + 1", "NULL", "5", "coalesce(k, 0)"],
            "region": ["'us'", "NULL", "s", "upper(region)", "coalesce(region, 'none')"],
            "n": ["n + k", "n * 2", "NULL", "-1", "k"],
            "v": ["v + 1", "NULL", "n", "0.5"],
            "day": ["DATE '2024-02-29'", "NULL", "day"],
            "s": ["region", "NULL", "s || 'x'", "lower(s)"],
            "flag": ["NOT flag", "k > 3", "NULL", "true"],
        }
        chosen = self.random.sample(sorted(choices), self.random.randint(1, 3))
        return {name: self.random.choice(choices[name]) for name in chosen}


def comparable(found: list[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    return Counter(
        tuple("NaN" if isinstance(v, float) and math.isnan(v) else v for v in row) for row in found
    )


@pytest.mark.parametrize("seed", seeds())
def test_a_random_program_equals_duckdb(lake, seed):
    maker = Maker(random.Random(seed))
    layout = maker.random.choice(LAYOUTS)
    table = lake.create_table("t", SCHEMA, partition_by=layout)
    oracle = duckdb.connect()
    oracle.execute(SCHEMA.join(("CREATE TABLE t (", ")")).replace("STRING", "VARCHAR"))
    program: list[str] = [f"partition by {layout}"]

    def add(count: int) -> None:
        batch = maker.rows(count)
        table.append(batch)
        oracle.register("batch", batch)
        oracle.execute("INSERT INTO t SELECT * FROM batch")

    def say() -> str:
        steps = "\n  ".join(program)
        return f"ICEFLOE_SEED={seed} make test-seed\n  {steps}"

    add(maker.random.randint(5, 40))
    add(maker.random.randint(1, 20))
    for _ in range(4):
        mode = maker.random.choice(MODES)
        condition = maker.condition()
        if maker.random.random() < 0.15:
            table.evolve_partitions(maker.random.choice(LAYOUTS))
            program.append(f"evolve to {table.iceberg.spec()}")
        if maker.random.random() < 0.2:
            add(5)
            program.append("append 5 rows")
        if maker.random.random() < 0.5:
            program.append(f"{mode}: DELETE FROM t WHERE {condition}")
            result = table.delete().where(condition).with_options(mode=mode).execute()
            (expected,) = oracle.execute(f"DELETE FROM t WHERE {condition}").fetchone()
            assert result.rows_deleted == expected, say()
        else:
            changes = maker.assignments()
            text = ", ".join(f"{name} = {value}" for name, value in changes.items())
            program.append(f"{mode}: UPDATE t SET {text} WHERE {condition}")
            builder = table.update().where(condition).with_options(mode=mode)
            for name, value in changes.items():
                builder = builder.set(name, value)
            result = builder.execute()
            update = f"UPDATE t SET {text} WHERE {condition}"
            (expected,) = oracle.execute(update).fetchone()
            assert result.rows_updated == expected, say()
    found = [tuple(row) for row in table.scan().collect()]
    wanted = oracle.execute("SELECT * FROM t").fetchall()
    assert comparable(found) == comparable(wanted), say()
