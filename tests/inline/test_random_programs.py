"""Random programs over both tiers, with flushes at random, against DuckDB."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pytest

from icefloe import Table
from support.tables import nulls_first, rows

SCHEMA = "id BIGINT, region STRING, n INT"
CONDITIONS = [
    "id = {k}",
    "id < {k}",
    "id IN ({k}, {j})",
    "region = 'eu'",
    "region IS NULL",
    "n > {k} OR region LIKE 'u%'",
    "n IS NULL AND id > {k}",
    "n % 3 = 1",
    "NOT (region = 'us' AND n = {k})",
]
VALUES = ["n + 1", "NULL", "{k}", "CASE WHEN region = 'eu' THEN n ELSE id END"]


class Program:
    """One table of icefloe and the same in DuckDB; every step changes both."""

    def __init__(self, table: Table, seed: int) -> None:
        self.table = table
        self.random = random.Random(seed)
        self.model = duckdb.connect()
        self.model.execute("CREATE TABLE t (id BIGINT, region VARCHAR, n INT)")
        self.steps: list[str] = []

    def condition(self) -> str:
        k, j = self.random.randrange(20), self.random.randrange(20)
        return self.random.choice(CONDITIONS).format(k=k, j=j)

    def new_rows(self, count: int) -> list[dict[str, Any]]:
        return [
            {
                "id": self.random.choice([*range(20), None]),
                "region": self.random.choice(["us", "eu", None]),
                "n": self.random.choice([*range(10), None]),
            }
            for _ in range(count)
        ]

    def store(self, new: list[dict[str, Any]]) -> None:
        for row in new:
            self.model.execute("INSERT INTO t VALUES ($id, $region, $n)", row)

    def insert(self) -> None:
        new = self.new_rows(self.random.randrange(1, 5))
        assert self.table.insert(new).rows_inserted == len(new)
        self.store(new)

    def append(self) -> None:
        new = self.new_rows(3)
        self.table.append(new)
        self.store(new)

    def update(self) -> None:
        condition = self.condition()
        value = self.random.choice(VALUES).format(k=self.random.randrange(9))
        (changed,) = self.model.execute(
            f"UPDATE t SET n = {value}, region = 'up' WHERE {condition}"
        ).fetchone() or (0,)
        result = self.table.update().set("n", value).set("region", "'up'").where(condition)
        assert result.execute().rows_updated == changed, condition

    def delete(self) -> None:
        condition = self.condition()
        (changed,) = self.model.execute(f"DELETE FROM t WHERE {condition}").fetchone() or (0,)
        assert self.table.delete().where(condition).execute().rows_deleted == changed, condition

    def flush(self) -> None:
        self.table.flush()

    def upsert(self) -> None:
        keys = self.random.sample(range(20), 3)
        new = [{"id": key, "region": "me", "n": key} for key in keys]
        self.table.upsert(new, ["id"]).execute()
        for row in new:
            count = self.model.execute(
                "SELECT count(*) FROM t WHERE id = $1", [row["id"]]
            ).fetchone()
            assert count is not None
            if count[0]:
                self.model.execute("UPDATE t SET region = $region, n = $n WHERE id = $id", row)
            else:
                self.store([row])

    def run(self, steps: int) -> None:
        kinds = [self.insert, self.insert, self.update, self.delete, self.flush, self.append]
        for _ in range(steps):
            step = self.random.choice([*kinds, self.upsert] if len(self.steps) % 4 else kinds)
            self.steps.append(step.__name__)
            step()
            self.compare()

    def compare(self) -> None:
        expected = self.model.execute("SELECT * FROM t").fetchall()
        assert rows(self.table) == sorted(expected, key=nulls_first), self.steps


@pytest.mark.every_variant
@pytest.mark.requirement("X03")
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))]
)
def test_a_random_program_over_both_tiers_equals_duckdb(table_of, seed):
    table = table_of(
        SCHEMA,
        mode=["merge-on-read", "copy-on-write", "auto"][seed % 3],
        partition_by=("region",) if seed % 2 else (),
        properties={"icefloe.inline.enabled": "true"},
    )
    Program(table, seed).run(10)
