"""Random conditions mean the same through indexes as without: in reads, UPDATE and DELETE.

The rows that a condition is TRUE for are found by one query that evaluates it for every row.
"""

from __future__ import annotations

import random

import pytest

from icefloe import Table
from icefloe.commands.bind import lower_condition
from icefloe.commands.scan import _count_by_metadata
from icefloe.pruning.candidates import plan_files
from icefloe.spark.column_trees import ColumnReader
from support.indexed_statements import NEW_VALUES, JudgedRows, fill, make_indexed, texts
from support.random_conditions import random_conditions
from support.random_programs import seeds


def length_of(seed: int) -> int:
    """How many conditions a test has: each takes seconds, and `make test` runs the first seed."""
    return 8 if seed else 2


@pytest.fixture(params=[False, True], ids=["as it pays", "by position"])
def by_position(request: pytest.FixtureRequest) -> None:
    if request.param:
        request.getfixturevalue("always_by_position")


@pytest.fixture(scope="module")
def few_files(shared_lake) -> Table:
    """Small files of icefloe alone, which the driver reads itself."""
    table = make_indexed(shared_lake, "few.t")
    fill(table, shared_lake, of_others=False)
    return table


@pytest.fixture(scope="module")
def many_files(shared_lake) -> Table:
    """Files of other writers too, half of them without sidecars, with every kind of deletes."""
    table = make_indexed(shared_lake, "many.t", partition_by=("b",))
    fill(table, shared_lake)
    return table


@pytest.mark.parametrize("seed", seeds(1, 6))
def test_reads_by_the_driver(few_files, seed, jobs):
    conditions = random_conditions(seed, 250 if seed else 60)
    judged = JudgedRows.of(few_files, conditions)
    state, before = few_files._state(), jobs()
    counted = 0
    for number, condition in enumerate(conditions):
        expected = sorted(row["id"] for row in judged.true_for(number))
        lowered = lower_condition(condition, state, ColumnReader(lambda: few_files._lake.spark))
        if lowered.exact_for_rows:
            found = few_files.to_arrow(["id"], condition).column("id").to_pylist()
            assert sorted(found) == expected, condition
        known = _count_by_metadata(few_files._context(), state, condition)
        if known is not None:
            counted += not known.uncounted
            assert few_files.count(condition) == len(expected), condition
    assert counted > len(conditions) // 4
    assert jobs() - before < 10


@pytest.mark.parametrize("seed", seeds(1, 10))
def test_reads_by_spark(many_files, seed, always_by_position):
    candidates = random_conditions(seed, 400 if seed else 60)
    state = many_files._state()
    conditions = [text for text in candidates if uses_index(many_files, text)][: length_of(seed)]
    assert len(conditions) == length_of(seed)
    judged = JudgedRows.of(many_files, conditions)
    for number, condition in enumerate(conditions):
        expected = texts(judged.true_for(number))
        assert texts(many_files.scan(where=condition).toArrow().to_pylist()) == expected, condition
        assert many_files.count(condition) == len(expected), condition
        ids = sorted(row["id"] for row in judged.true_for(number))
        named = many_files.to_arrow(["id", "s"], condition)
        assert sorted(named.column("id").to_pylist()) == ids, condition
    assert state.snapshot_id == many_files.snapshot_id


def uses_index(table: Table, condition: str) -> bool:
    state = table._state()
    lowered = lower_condition(condition, state, ColumnReader(lambda: table._lake.spark))
    return any(candidate.answer for candidate in plan_files(state, lowered).candidates)


@pytest.mark.requirement("X03", "X05", "L11")
@pytest.mark.parametrize("seed", seeds(1, 8))
def test_updates_and_deletes(lake, mode, partition_by, by_position, seed):
    """In the order of the program, on tables with deletes of every kind and two specs."""
    table = make_indexed(lake, "t", mode, partition_by)
    fill(table, lake)
    chosen = random.Random(seed)
    pool = random_conditions(seed + 1000, 400 if seed else 60)
    program = [text for text in pool if uses_index(table, text)][: length_of(seed)]
    assert len(program) == length_of(seed)
    judged = JudgedRows.of(table, program)
    for number, condition in enumerate(program):
        hits, others = judged.true_for(number), judged.others(number)
        if chosen.random() < 0.5:
            result = table.delete().where(condition).execute()
            assert result.rows_deleted == len(hits), condition
            expected = others
        else:
            name, sql, value = chosen.choice(NEW_VALUES)
            result = table.update().set(name, sql).where(condition).execute()
            assert result.rows_updated == len(hits), condition
            expected = [*others, *({**row, name: value} for row in hits)]
        judged = JudgedRows.of(table, program)
        assert texts(judged.rows) == texts(expected), condition
