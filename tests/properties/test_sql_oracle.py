"""Random programs in SQL: the same texts give what DuckDB gives.

Sources have one row for a key, since DuckDB takes any of several. To run one program again:
    ICEFLOE_SEED=17 make test-seed
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from support.merge_clauses import Clause, reachable
from support.random_programs import ARROW, LAYOUTS, SCHEMA, Maker, comparable, oracle_of, seeds

NAMES = ARROW.names
SIDES = {
    "matched": ("target.", "source."),
    "not matched": ("source.",),
    "not matched by source": ("target.",),
}
ON = [
    "target.k = source.k",
    "source.k = target.k AND target.region = source.region",
    "target.k = source.k AND source.n > 0",
    "CASE WHEN target.k = source.k THEN true ELSE false END",
]


class Program:
    """Texts of statements, by luck, over a table `t` and a source `src`."""

    def __init__(self, seed: int) -> None:
        self.maker = Maker(random.Random(f"sql {seed}"))
        self.luck = self.maker.random

    def source(self) -> Any:
        rows = self.maker.rows(self.luck.choice([1, 3, 8])).to_pylist()
        kept = [r for i, r in enumerate(rows) if r["k"] not in [o["k"] for o in rows[:i]]]
        return ARROW.empty_table().from_pylist(kept, schema=ARROW)

    def statement(self) -> tuple[str, str]:
        """A text for icefloe, and the one for DuckDB where it lacks a word."""
        kind = self.luck.choice(["update", "delete", "insert", "merge", "merge", "merge"])
        text = getattr(self, kind)()
        return text if isinstance(text, tuple) else (text, text)

    def condition(self) -> str:
        return self.luck.choice(
            [
                self.maker.condition(),
                self.maker.condition(),
                "t.k IN (SELECT k FROM src)",
                "k NOT IN (SELECT k FROM src WHERE k IS NOT NULL)",
                "EXISTS (SELECT 1 FROM src WHERE src.k = t.k + 1)",
                "n >= (SELECT max(n) FROM t)",
                "k IN (WITH small AS (SELECT k FROM t WHERE k < 5) SELECT k FROM small)",
            ]
        )

    def update(self) -> str:
        values = ", ".join(f"{name} = {v}" for name, v in self.maker.assignments().items())
        return f"UPDATE t SET {values} WHERE {self.condition()}"

    def delete(self) -> str:
        return f"DELETE FROM t WHERE {self.condition()}"

    def insert(self) -> str:
        names = self.luck.sample(NAMES, 3)
        listed = ", ".join(names)
        return self.luck.choice(
            [
                f"INSERT INTO t SELECT * FROM src WHERE {self.maker.condition(1)}",
                f"INSERT INTO t ({listed}) SELECT {listed} FROM t WHERE {self.maker.condition(1)}",
                "INSERT INTO t (k, s) VALUES (3, 'it''s; a `quote`'), (NULL, 'b')",
            ]
        )

    def merge(self) -> tuple[str, str]:
        clauses = reachable(self.clause() for _ in range(self.luck.randint(1, 4)))
        using = self.luck.choice(["src", "(SELECT * FROM src WHERE k > 2)"])
        head = f"MERGE INTO t AS target USING {using} AS source ON ({self.luck.choice(ON)})"
        ours = " ".join([head, *(clause.sql() for clause in clauses)])
        theirs = " ".join([head, *(clause.sql(NAMES, "true") for clause in clauses)])
        return ours, theirs

    def clause(self) -> Clause:
        when = self.luck.choice(["matched", "matched", "not matched", "not matched by source"])
        seeing = self.maker.seeing(*SIDES[when])
        condition = seeing.condition(1) if self.luck.random() < 0.6 else None
        if when == "not matched":
            star = self.luck.random() < 0.5
            values = None if star else {"k": "source.k", **seeing.assignments()}
            return Clause(when, condition, "insert", values)
        if self.luck.random() < 0.35:
            return Clause(when, condition, "delete", {})
        star = when == "matched" and self.luck.random() < 0.5
        return Clause(when, condition, "update", None if star else seeing.assignments())


@pytest.mark.parametrize("seed", seeds(3, 150))
def test_a_random_sql_program_equals_duckdb(lake, seed):
    program, oracle = Program(seed), oracle_of(SCHEMA)
    mode = program.luck.choice(["copy-on-write", "merge-on-read"])
    layout = program.luck.choice(LAYOUTS)
    modes = {f"write.{kind}.mode": mode for kind in ("delete", "update", "merge")}
    table = lake.create_table("t", SCHEMA, partition_by=layout, properties=modes)
    batch = program.maker.rows(program.luck.randint(5, 30))
    table.append(batch)
    oracle.register("batch", batch)
    oracle.execute("INSERT INTO t SELECT * FROM batch")
    steps = [f"{mode}, partition by {layout}"]
    for _ in range(5):
        source = program.source()
        oracle.register("src", source)
        ours, theirs = program.statement()
        steps.append(f"{ours}\n    src {source.to_pylist()}")
        say = "\n  ".join((f"ICEFLOE_SEED={seed} make test-seed", *steps))
        changed = lake.sql(ours, src=source).total_affected
        (expected,) = oracle.execute(theirs).fetchone()
        assert changed == expected, say
        found = [tuple(row) for row in lake.sql("SELECT * FROM t").collect()]
        assert comparable(found) == comparable(oracle.execute("FROM t").fetchall()), say
