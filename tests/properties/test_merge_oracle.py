"""Random MERGE programs give what DuckDB gives: every clause, NULLs, duplicates, modes, layouts.

DuckDB takes any of several source rows that match one row where we refuse: that a MERGE must be
refused is asked of DuckDB by a query. To run one program again:
    ICEFLOE_SEED=17 make test-seed
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from icefloe.errors import CardinalityError
from support.indexed_statements import use_indexes_always
from support.merge_clauses import Clause, reachable, with_clauses
from support.random_programs import (
    ARROW,
    INDEXES,
    LAYOUTS,
    MODES,
    SCHEMA,
    Maker,
    comparable,
    oracle_of,
    seeds,
)

BOTH = ("target.", "source.")
NAMES = ARROW.names
BROADCAST = "spark.sql.autoBroadcastJoinThreshold"
CONDITIONS = [
    *["target.k = source.k"] * 4,
    "source.k = target.k AND target.region = source.region",
    "target.k = source.k AND target.day = source.day",
    "target.s = source.s AND target.flag = source.flag AND target.k = source.k",
    "target.k = source.k AND source.n > 0",
    "target.k = source.k AND target.region <> 'us'",
    "target.k IS NOT DISTINCT FROM source.k",
    "target.k = source.k OR target.n = source.n",
    "target.k < source.k AND target.day = source.day",
    "target.n = source.n AND target.v = source.v",
    "target.k + 1 = source.k",
]


def random_clause(maker: Maker) -> Clause:
    luck = maker.random
    when = luck.choice(["matched", "matched", "not matched", "not matched by source"])
    sides = {"matched": BOTH, "not matched": ("source.",), "not matched by source": ("target.",)}
    seeing = maker.seeing(*sides[when])
    condition = seeing.condition(1) if luck.random() < 0.6 else None
    if when == "not matched":
        values = None if luck.random() < 0.6 else {"k": "source.k", **seeing.assignments()}
        return Clause(when, condition, "insert", values)
    if luck.random() < 0.35:
        return Clause(when, condition, "delete", {})
    star = when == "matched" and luck.random() < 0.5
    return Clause(when, condition, "update", None if star else seeing.assignments())


def random_source(maker: Maker) -> pa.Table:
    """Mostly one row for a key, since most programs would be refused otherwise."""
    found = [maker.row() for _ in range(maker.random.choice([0, 1, 3, 6, 12]))]
    if maker.random.random() < 0.75:
        found = [r for i, r in enumerate(found) if r["k"] not in [o["k"] for o in found[:i]]]
    return pa.Table.from_pylist(found, schema=ARROW)


class Program:
    """The same statements for icefloe's table and for DuckDB's `t`."""

    def __init__(self, lake: Any, seed: int, indexes: Sequence[Sequence[str]] = ()) -> None:
        self.seed = seed
        self.maker = Maker(random.Random(f"merge {seed}"))
        self.luck = self.maker.random
        layout = self.luck.choice(LAYOUTS)
        self.table = lake.create_table("t", SCHEMA, partition_by=layout)
        for columns in indexes:
            self.table.create_index(f"by_{'_'.join(columns)}", "btree", columns)
        self.oracle = oracle_of(SCHEMA)
        self.steps = [f"partition by {layout}"]

    def say(self) -> str:
        return "\n  ".join((f"ICEFLOE_SEED={self.seed} make test-seed", *self.steps))

    def append(self, count: int) -> None:
        batch = self.maker.rows(count)
        self.table.append(batch)
        self.oracle.register("batch", batch)
        self.oracle.execute("INSERT INTO t SELECT * FROM batch")
        self.steps.append(f"append {batch.to_pylist()}")

    def delete(self) -> None:
        condition, mode = self.maker.condition(), self.luck.choice(MODES)
        self.steps.append(f"{mode}: DELETE FROM t WHERE {condition}")
        self.table.delete().where(condition).with_options(mode=mode).execute()
        self.oracle.execute(f"DELETE FROM t WHERE {condition}")

    def evolve(self) -> None:
        layout = self.luck.choice(LAYOUTS)
        self.table.evolve_partitions(layout)
        self.steps.append(f"evolve to {layout}")

    def merge(self, spark: Any) -> None:
        source, on = random_source(self.maker), self.luck.choice(CONDITIONS)
        clauses = reachable(random_clause(self.maker) for _ in range(self.luck.randint(1, 4)))
        options = {"mode": self.luck.choice(MODES)}
        options |= {"duplicates": "first"} if self.luck.random() < 0.25 else {}
        options |= self.luck.choice([{}, {}, {}, {"enable_dpp": False}, {"dpp_max_partitions": 1}])
        shuffle = self.luck.random() < 0.2
        self.steps.append(
            "\n    ".join(
                (
                    f"MERGE {options} shuffle {shuffle} ON {on}",
                    *(clause.sql(NAMES, "true") for clause in clauses),
                    f"source {source.to_pylist()}",
                )
            )
        )
        merge = with_clauses(self.table.merge(source, on).with_options(**options), clauses)
        self.oracle.register("arrow", source)
        self.oracle.execute(
            "CREATE OR REPLACE TABLE src AS SELECT *, row_number() OVER () AS place FROM arrow"
        )
        before = spark.conf.get(BROADCAST)
        try:
            if shuffle:
                spark.conf.set(BROADCAST, "-1")
            self._compare(merge, on, clauses, "duplicates" in options)
        finally:
            spark.conf.set(BROADCAST, before)

    def _compare(self, merge: Any, on: str, clauses: list[Clause], first: bool) -> None:
        before = self.table.snapshot_id
        if not first and self._must_be_refused(on, clauses):
            self.steps.append("  (several source rows for one row)")
            try:
                merge.execute()
            except CardinalityError as refused:
                assert refused.keys, self.say()
            else:
                pytest.fail(f"not refused: {self.say()}")
            assert self.table.snapshot_id == before, self.say()
            return
        try:
            result = merge.execute()
        except CardinalityError as refused:
            raise AssertionError(self.say()) from refused
        wanted = self._merge_in_duckdb(on, clauses, first)
        assert result.clauses == wanted, self.say()
        for then, count in (
            ("insert", result.rows_inserted),
            ("update", result.rows_updated),
            ("delete", result.rows_deleted),
        ):
            told = sum(n for n, clause in zip(wanted, clauses, strict=True) if clause.then == then)
            assert count == told, self.say()
        assert (result.snapshot_id is None) == (not result.total_affected), self.say()

    def _must_be_refused(self, on: str, clauses: list[Clause]) -> bool:
        matched = [c.condition or "true" for c in clauses if c.when == "matched"]
        changed = " OR ".join(f"coalesce({condition}, false)" for condition in matched) or "false"
        query = (
            f"SELECT target.rowid FROM t AS target JOIN src AS source ON {on} "
            f"GROUP BY target.rowid HAVING count(*) > 1 AND bool_or({changed})"
        )
        return bool(self.oracle.execute(query).fetchall())

    def _merge_in_duckdb(self, on: str, clauses: list[Clause], first: bool) -> tuple[int, ...]:
        """Rows per clause, asked by queries before DuckDB's own MERGE is run.

        It takes one clause of a kind without condition; its RETURNING, which tells the actions, ends the process in DuckDB 1.5.5. Where the first
        match decides, the pairs that decide are what it joins by.
        """
        pairs = f"FROM t AS target JOIN src AS source ON {on}"
        self.oracle.execute(
            f"CREATE OR REPLACE TABLE pairs AS SELECT target.rowid AS r, source.place AS p {pairs}"
        )
        using = "src"
        if first:
            only = "row_number() OVER (PARTITION BY r ORDER BY p) = 1"
            self.oracle.execute("CREATE OR REPLACE TABLE matching AS SELECT DISTINCT p FROM pairs")
            self.oracle.execute(f"CREATE OR REPLACE TABLE pairs AS FROM pairs QUALIFY {only}")
            using = (
                "(SELECT src.*, pairs.r FROM src LEFT JOIN pairs ON src.place = pairs.p "
                "WHERE pairs.p IS NOT NULL OR src.place NOT IN (FROM matching))"
            )
            on = "target.rowid = source.r"
        unmatched = "matching" if first else "pairs"
        counts = [0] * len(clauses)
        for when, rows in {
            "matched": "t AS target, src AS source, pairs WHERE target.rowid = r AND place = p",
            "not matched": f"src AS source WHERE place NOT IN (SELECT p FROM {unmatched})",
            "not matched by source": "t AS target WHERE target.rowid NOT IN (SELECT r FROM pairs)",
        }.items():
            tried = [
                f"WHEN coalesce({clause.condition or 'true'}, false) THEN {number}"
                for number, clause in enumerate(clauses)
                if clause.when == when
            ]
            if tried:
                query = f"SELECT CASE {' '.join(tried)} END AS c, count(*) FROM {rows} GROUP BY c"
                for number, count in self.oracle.execute(query).fetchall():
                    if number is not None:
                        counts[number] = count
        merge = [f"MERGE INTO t AS target USING {using} AS source ON ({on})"]
        (changed,) = self.oracle.execute(
            " ".join((*merge, *(clause.sql(NAMES, "true") for clause in clauses)))
        ).fetchone()
        assert changed == sum(counts), f"DuckDB is of two minds: {self.say()}"
        return tuple(counts)

    def check(self) -> None:
        found = [tuple(row) for row in self.table.scan().collect()]
        wanted = self.oracle.execute("SELECT * FROM t").fetchall()
        assert comparable(found) == comparable(wanted), self.say()


def run_program(program: Program, spark: Any) -> None:
    """Two to four MERGEs over a table with a past."""
    program.append(program.luck.randint(5, 30))
    if program.luck.random() < 0.7:
        program.append(program.luck.randint(1, 15))
    for _ in range(program.luck.randint(2, 4)):
        if program.luck.random() < 0.3:
            program.delete()
        if program.luck.random() < 0.15:
            program.evolve()
        program.merge(spark)
    program.check()


@pytest.mark.requirement(
    "M01", "M02", "M03", "M04", "M05", "M06", "M07", "M08", "M32", "M33", "M37"
)
@pytest.mark.parametrize("seed", seeds(4, 300))
def test_a_random_merge_program_equals_duckdb(lake, spark, seed):
    run_program(Program(lake, seed), spark)


@pytest.mark.parametrize("seed", seeds(0, 100))
def test_a_random_merge_program_with_indexes_equals_duckdb(lake, spark, seed, monkeypatch):
    """Indexes are used, also where that does not pay."""
    use_indexes_always(monkeypatch)
    run_program(Program(lake, seed, INDEXES), spark)
