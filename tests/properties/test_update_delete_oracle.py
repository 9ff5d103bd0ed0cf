"""Random programs of UPDATE and DELETE give what DuckDB gives, in every mode and layout.

A program is made of its seed alone. To run one again:
    ICEFLOE_SEED=17 make test-seed
"""

from __future__ import annotations

import random

import pytest

from icefloe.commands import row_changes
from icefloe.writing.rewrite import Rewriter
from support.indexed_statements import use_indexes_always
from support.random_programs import (
    INDEXES,
    LAYOUTS,
    MODES,
    SCHEMA,
    Maker,
    comparable,
    oracle_of,
    seeds,
)


@pytest.mark.parametrize("seed", seeds(1, 200))
def test_a_random_program_equals_duckdb(lake, seed):
    run_program(lake, seed, LAYOUTS, MODES, deletes=0.5)


@pytest.mark.parametrize("seed", seeds(1, 60))
def test_a_random_program_whose_updates_tasks_make_equals_duckdb(lake, seed, monkeypatch):
    """As in large tables, of which tasks read the columns without new values themselves."""
    made = []
    make = Rewriter.new_versions
    monkeypatch.setattr(row_changes, "times_read", lambda *_: 2)
    monkeypatch.setattr(Rewriter, "new_versions", lambda *given: made.append(1) or make(*given))
    run_program(lake, seed, [()], ["merge-on-read"], deletes=0)
    assert made


@pytest.mark.parametrize("seed", seeds(0, 60))
def test_a_random_program_with_indexes_equals_duckdb(lake, seed, monkeypatch):
    """Rows are found by position, also where that does not pay."""
    use_indexes_always(monkeypatch)
    run_program(lake, seed, LAYOUTS, MODES, deletes=0.5, indexes=INDEXES)


def run_program(lake, seed, layouts, modes, deletes, indexes=()):
    maker = Maker(random.Random(seed))
    layout = maker.random.choice(layouts)
    table = lake.create_table("t", SCHEMA, partition_by=layout)
    for columns in indexes:
        table.create_index(f"by_{'_'.join(columns)}", "btree", columns)
    oracle = oracle_of(SCHEMA)
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
        mode = maker.random.choice(modes)
        condition = maker.condition()
        if maker.random.random() < 0.15:
            table.evolve_partitions(maker.random.choice(layouts))
            program.append(f"evolve to {table.iceberg.spec()}")
        if maker.random.random() < 0.2:
            add(5)
            program.append("append 5 rows")
        if maker.random.random() < deletes:
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
