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
    "id = (SELECT max(id) FROM t0)",
    "n > (SELECT avg(n) FROM t0 WHERE id < {k})",
]
VALUES = [
    "n + 1",
    "NULL",
    "{k}",
    "CASE WHEN region = 'eu' THEN n ELSE id END",
    "(SELECT min(id) FROM t0 WHERE n IS NOT NULL)",
]


class Program:
    """One table of icefloe and the same in DuckDB; every step changes both."""

    def __init__(self, table: Table, seed: int) -> None:
        self.table = table
        self.random = random.Random(seed)
        self.model = duckdb.connect()
        self.model.execute("CREATE TABLE t (id BIGINT, region VARCHAR, n INT)")
        self.model.execute("CREATE VIEW t0 AS SELECT * FROM t")  # its name in subqueries
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

    def merge(self) -> None:
        """Every kind of clause; keys of the source are unique, one of them is NULL."""
        k = self.random.randrange(20)
        keys = [*self.random.sample(range(20), 4), None]
        source = [{"id": key, "region": "eu", "n": self.random.randrange(9)} for key in keys]
        self.model.execute("CREATE OR REPLACE TABLE s (id BIGINT, region VARCHAR, n INT)")
        for row in source:
            self.model.execute("INSERT INTO s VALUES ($id, $region, $n)", row)
        matches = "FROM s WHERE s.id = t.id"
        for statement in (
            "CREATE OR REPLACE TABLE fresh AS SELECT * FROM s WHERE NOT EXISTS "
            "(SELECT 1 FROM t WHERE s.id = t.id)",
            f"UPDATE t SET n = -1 WHERE id < {k} AND NOT EXISTS (SELECT 1 {matches})",
            f"DELETE FROM t WHERE EXISTS (SELECT 1 {matches} AND s.n % 2 = 0)",
            "UPDATE t SET n = s.n + coalesce(t.n, 0) FROM s WHERE s.id = t.id",
            "INSERT INTO t SELECT * FROM fresh",
        ):
            self.model.execute(statement)
        merge = (
            self.table.merge(source, on="target.id = source.id")
            .when_matched("source.n % 2 = 0").delete()
            .when_matched().update({"n": "source.n + coalesce(target.n, 0)"})
            .when_not_matched().insert_all()
            .when_not_matched_by_source(f"target.id < {k}").update({"n": "-1"})
        )  # fmt: skip
        merge.execute()

    def replace(self) -> None:
        condition, new = self.condition(), self.new_rows(2)
        options = {"scope": "rows", "check": False}
        self.table.replace_where(condition, new).with_options(**options).execute()
        self.model.execute(f"DELETE FROM t WHERE {condition}")
        self.store(new)

    def replace_keys(self) -> None:
        new = self.new_rows(2)
        self.table.replace_using("id", new).execute()
        for row in new:
            self.model.execute("DELETE FROM t WHERE id IS NOT DISTINCT FROM $1", [row["id"]])
        self.store(new)

    def overwrite_partitions(self) -> None:
        new = self.new_rows(2)
        self.table.overwrite_partitions(new)
        partitioned = self.table.iceberg.spec().fields
        for row in new:
            same = "region IS NOT DISTINCT FROM $1" if partitioned else "$1 IS NULL OR TRUE"
            self.model.execute(f"DELETE FROM t WHERE {same}", [row["region"]])
        self.store(new)

    def run(self, steps: int) -> None:
        kinds = [self.insert, self.insert, self.update, self.delete, self.flush, self.append]
        both = [self.upsert, self.merge, self.replace, self.replace_keys, self.overwrite_partitions]
        for number in range(steps):
            step = self.random.choice(kinds if number % 3 == 0 else [*kinds, *both])
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
