"""Random replacements give what DuckDB's DELETE and INSERT give, in every scope, mode and layout.

A program is made of its seed alone. To run one again:
    ICEFLOE_SEED=17 python -m pytest tests/properties/test_replace_oracle.py
"""

from __future__ import annotations

import math
import random
from datetime import date, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from icefloe import DmlResult
from icefloe.errors import (
    ConstraintError,
    InvalidPredicateError,
    PartitionColumnNotFoundError,
)
from support.random_programs import comparable, seeds

QUICK, ALL = 1, 120
SCHEMA = "k INT, region STRING, day DATE, ts TIMESTAMP_NTZ, p DECIMAL(6,1), v DOUBLE"
ARROW = pa.schema(
    [
        ("k", pa.int32()),
        ("region", pa.string()),
        ("day", pa.date32()),
        ("ts", pa.timestamp("us")),
        ("p", pa.decimal128(6, 1)),
        ("v", pa.float64()),
    ]
)
LAYOUTS = [
    ("region",),
    ("k",),
    ("day", "region"),
    ("days(ts)",),
    ("months(day)", "truncate(3, k)"),
    ("truncate(1, region)",),
    ("p",),
    ("v",),
]
MODES = ["copy-on-write", "merge-on-read", "auto"]
FIRST = date(2023, 12, 30)


class Maker:
    """Random rows and predicates that mean the same to Spark, to partitions and to DuckDB."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def row(self) -> dict[str, Any]:
        pick = self.random.choice
        moment = datetime(2023, 12, 30) + timedelta(hours=self.random.randrange(120))
        return {
            "k": pick([None, *range(-2, 12)]),
            "region": pick([None, "us", "eu", "asia", "", "ß"]),
            "day": pick([None, *(FIRST + timedelta(days=d) for d in range(5))]),
            "ts": pick([None, moment, moment, moment]),
            "p": pick([None, 0, 9, 10, 11]),
            "v": pick([None, -1.5, 0.0, 2.5, math.nan]),
        }

    def rows(self, count: int) -> pa.Table:
        return pa.Table.from_pylist([self.row() for _ in range(count)], schema=ARROW)

    def predicate(self, names: list[str], depth: int = 2) -> str:
        if depth and self.random.random() < 0.5:
            left, right = self.predicate(names, depth - 1), self.predicate(names, depth - 1)
            return self.random.choice(
                [f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})"]
            )
        name = self.random.choice(names)
        compare = self.random.choice(["=", "<>", "<", "<=", ">", ">="])
        one, other = self.literal(name), self.literal(name)
        return self.random.choice(
            [
                f"{name} {compare} {one}",
                f"{one} {compare} {name}",
                f"{name} IN ({one}, {other})",
                f"{name} NOT IN ({one}, {other})",
                f"{name} BETWEEN {one} AND {other}",
                f"{name} IS NULL",
                f"{name} IS NOT NULL",
            ]
        )

    def literal(self, name: str) -> str:
        pick, day = self.random.choice, FIRST + timedelta(days=self.random.randrange(5))
        return {
            "k": str(self.random.randrange(-2, 12)),
            "region": f"'{pick(['us', 'eu', 'a', 'z', ''])}'",
            "day": f"DATE '{day}'",
            "ts": f"TIMESTAMP_NTZ '{day} {pick(['00:00:00', '00:00:00', '07:30:00'])}'",
            "p": pick(["9", "10.0", "9.5"]),
            "v": pick(["0.0", "2.5", "-3.0"]),
        }[name]


def for_duckdb(predicate: str) -> str:
    return predicate.replace("TIMESTAMP_NTZ '", "TIMESTAMP '")


class Program:
    """A table of ours and one of DuckDB's that the same replacements are run on."""

    def __init__(self, lake: Any, seed: int, layouts: list[tuple[str, ...]]) -> None:
        self.seed = seed
        self.maker = Maker(seed)
        self.layout = self.maker.random.choice(layouts)
        self.table = lake.create_table("t", SCHEMA, partition_by=self.layout)
        self.oracle = duckdb.connect()
        self.oracle.execute(
            "CREATE TABLE t (k INT, region VARCHAR, day DATE, ts TIMESTAMP, p DECIMAL(6,1), v DOUBLE)"
        )
        self.steps = [f"partition by {self.layout}"]
        first = self.maker.rows(30)
        self.table.append(first)
        self.insert(first)

    def insert(self, batch: pa.Table) -> None:
        self.oracle.register("batch", batch)
        self.oracle.execute("INSERT INTO t SELECT * FROM batch")

    def evolve(self, chance: float) -> None:
        if self.maker.random.random() < chance:
            self.table.evolve_partitions(self.maker.random.choice(LAYOUTS))
            self.steps.append(f"evolve to {self.table.iceberg.spec()}")

    def deleted(self, condition: str) -> int:
        (count,) = self.oracle.execute(f"DELETE FROM t WHERE {condition}").fetchone()
        return int(count)

    def check(self, result: DmlResult, deleted: int, new: pa.Table) -> None:
        self.insert(new)
        assert (result.rows_deleted, result.rows_inserted) == (deleted, new.num_rows), self
        found = [tuple(row) for row in self.table.scan().collect()]
        wanted = self.oracle.execute("SELECT * FROM t").fetchall()
        assert comparable(found) == comparable(wanted), self

    def __repr__(self) -> str:
        again = f"ICEFLOE_SEED={self.seed} python -m pytest tests/properties/test_replace_oracle.py"
        return "\n  ".join([again, *self.steps])


@pytest.mark.requirement("R22")
@pytest.mark.parametrize("seed", seeds(QUICK, ALL))
def test_a_random_replacement_equals_delete_and_insert(lake, seed):
    """Partitions when the predicate falls on their borders, rows otherwise."""
    program = Program(lake, seed, LAYOUTS)
    maker, oracle = program.maker, program.oracle
    sources = [name for name in ARROW.names if any(name in field for field in program.layout)]
    for _ in range(4):
        program.evolve(0.15)
        scope = maker.random.choice(["partitions", "partitions", "rows"])
        predicate = maker.predicate(sources if scope == "partitions" else ARROW.names)
        mode = maker.random.choice(MODES)
        new = maker.rows(6)
        oracle.register("new", new)
        chosen = oracle.execute(f"SELECT * FROM new WHERE {for_duckdb(predicate)}")
        inside = chosen.to_arrow_table().cast(ARROW)
        program.steps.append(f"{scope}, {mode}: {predicate} ({inside.num_rows} of 6 rows)")
        statement = program.table.replace_where(predicate, inside).with_options(mode=mode)
        if inside.num_rows < new.num_rows:
            outside = program.table.replace_where(predicate, new).with_options(scope="rows")
            with pytest.raises(ConstraintError):
                outside.execute()
        try:
            result = statement.with_options(scope=scope).execute()
        except (InvalidPredicateError, PartitionColumnNotFoundError):
            assert scope == "partitions", program
            program.steps.append("  refused; as rows")
            result = statement.with_options(scope="rows").execute()
        program.check(result, program.deleted(for_duckdb(predicate)), inside)


@pytest.mark.parametrize("seed", seeds(0, ALL))
def test_random_keys_and_partitions_equal_delete_and_insert(lake, seed):
    """REPLACE USING by random columns, and partitions overwritten over random specs."""
    program = Program(lake, seed, [*LAYOUTS, (), ("bucket(3, k)",), ("bucket(2, region)", "p")])
    maker, table = program.maker, program.table
    for _ in range(3):
        program.evolve(0.4)
        new = maker.rows(maker.random.randint(1, 4))
        program.oracle.register("new", new)
        fields = table.iceberg.spec().fields
        hashed = any(str(field.transform).startswith("bucket") for field in fields)
        if hashed or maker.random.random() < 0.5:  # DuckDB has no bucket()
            names = maker.random.sample(ARROW.names, maker.random.randint(1, 2))
            mode = maker.random.choice(MODES)
            program.steps.append(f"{mode}: replace using {names}")
            result = table.replace_using(names, new).with_options(mode=mode).execute()
            same = [f"t.{n} IS NOT DISTINCT FROM new.{n}" for n in names]
        else:
            program.steps.append(f"overwrite partitions by {table.iceberg.spec()}")
            result = table.overwrite_partitions(new)
            same = [
                f"{placed(field, 't', table)} IS NOT DISTINCT FROM {placed(field, 'new', table)}"
                for field in fields
            ]
        keys = " AND ".join(same) or "TRUE"
        deleted = program.deleted(f"EXISTS (SELECT 1 FROM new WHERE {keys})")
        program.check(result, deleted, new)


def placed(field: Any, side: str, table: Any) -> str:
    """A partition field of a row, in DuckDB's words."""
    source = f"{side}.{table.iceberg.schema().find_column_name(field.source_id)}"
    match str(field.transform).partition("["):
        case ("identity", _, _):
            return source
        case ("truncate", _, _) if source.endswith(".k"):
            return f"floor({source} / 3.0)"
        case ("truncate", _, _):
            return f"left({source}, 1)"
        case (period, _, _):
            return f"date_trunc('{period}', {source})"
