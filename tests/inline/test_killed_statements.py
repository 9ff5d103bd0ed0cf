"""A process that is killed before any call of a statement leaves all or nothing."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from icefloe import Lake
from icefloe.errors import StorageError
from support.attached_session import Gateway, gateway_of
from support.inline_lakes import (
    EVERY_OPERATION,
    OPERATIONS,
    ROWS,
    SPARK_OPERATIONS,
    Operation,
    cases,
    everything,
    new_table,
    present_name,
    registered,
    row,
    rows_of,
)
from support.inline_lakes import open_place as open_lake_at
from support.pyiceberg_tables import path_of

PROGRAM = Path(__file__).parent / "killed_writer.py"
KILLED = -9
SAMPLE = 1  # calls of each statement in the default run


class Run(Protocol):
    """Runs a statement in a process of its own; returns what that said."""

    def __call__(
        self, place: str, name: str, table: str, number: int | None, gateway: Gateway | None = None
    ) -> list[str]: ...


@pytest.fixture(scope="module")
def run_statement() -> Iterator[Run]:
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), "serve"],
        env={"PYTHONPATH": f"{PROGRAM.parents[1]}:{PROGRAM.parents[2]}", "PATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        requests, answers = server.stdin, server.stdout

        def run(
            place: str, name: str, table: str, number: int | None, gateway: Gateway | None = None
        ) -> list[str]:
            requests.write(json.dumps([place, name, table, number, gateway]) + "\n")
            requests.flush()
            said = []
            while not (line := answers.readline().strip()).startswith("ended"):
                assert line, "the server died"
                said.append(line)
            return [*said, line]

        yield run
        requests.close()


@pytest.mark.requirement("L03", "L07", "X02")
@pytest.mark.parametrize(("place", "name", "every"), cases(1), indirect=["place"])
def test_a_killed_statement_leaves_all_or_nothing(place, run_statement, name, every):
    check_kills(place, OPERATIONS[name], run_statement, every)


@pytest.mark.requirement("L03", "L18", "X02")
@pytest.mark.parametrize(("place", "name", "every"), cases(1, SPARK_OPERATIONS), indirect=["place"])
def test_a_killed_statement_over_both_tiers(place, run_statement, spark, name, every):
    """The driver is killed; Spark, which it uses, goes on with its jobs."""
    run = partial(run_statement, gateway=gateway_of(spark))
    check_kills(place, SPARK_OPERATIONS[name], run, every)
    spark.catalog.clearCache()


def check_kills(place: str, operation: Operation, run_statement: Run, every: bool) -> None:
    """Kill a statement before each of its calls, or before a few of them."""
    name = name_of(operation)
    with open_lake_at(place) as lake:
        operation.make(lake, "shop.counted")
    said = run_statement(place, name, "shop.counted", None)
    assert said[-1] == "ended 0"
    assert rows_of(place, operation, "shop.counted") == operation.after
    numbers = list(range(1, int(said[0].removeprefix("calls ")) + 1))
    if not every:
        numbers = random.Random(name).sample(numbers, SAMPLE)
    landed = [check_kill(place, operation, number, run_statement) for number in sorted(numbers)]
    assert landed == sorted(landed)  # nothing before some call, all after it


def check_kill(place: str, operation: Operation, number: int, run_statement: Run) -> bool:
    """Kill a statement before one of its calls; whether it was done."""
    table = f"shop.t{number}"
    with open_lake_at(place) as lake:
        operation.make(lake, table)
        before = registered(lake)
    [ended] = run_statement(place, name_of(operation), table, number)
    found = rows_of(place, operation, table)
    assert found in (operation.before, operation.after), number
    done = ended == "ended 0"  # a statement makes fewer calls where the store exists already
    assert done or ended == f"ended {KILLED}"
    if done:
        assert found == operation.after, number
    with open_lake_at(place) as lake:
        check_table_is_usable(lake, place, operation, table)
        assert registered(lake) <= before + 1
    return found == operation.after != operation.before or done


def name_of(operation: Operation) -> str:
    return next(name for name, each in EVERY_OPERATION.items() if each is operation)


def check_table_is_usable(lake: Lake, place: str, operation: Operation, name: str) -> None:
    """At once, or again under the same name if it was dropped."""
    present = present_name(place, operation, name)
    if present is None:
        new_table(lake, name)
        present = name
    table = lake.table(present)
    before = everything(table)
    if table.properties.get("icefloe.inline.enabled") != "true":
        table.set_properties({"icefloe.inline.enabled": True})
    assert table.insert([row(9, "next")]).mode == "inline"
    assert everything(table) == [*before, (9, "next")]
    assert table.update().set("s", "'newer'").where("id = 9").execute().rows_updated == 1
    table.flush()
    assert everything(table) == [*before, (9, "newer")]
    assert len(table.iceberg.scan().to_arrow()) == len(before) + 1


@pytest.mark.requirement("X02")
def test_inline_rows_of_a_dropped_table_are_found_and_removed(place):
    """A drop that is killed in the middle, or a drop by another engine, leaves them behind."""
    with open_lake_at(place) as lake:
        kept, *_others = (new_table(lake, f"shop.{name}") for name in "abc")
        lake.catalog.drop_table("shop.c")
        lake.catalog.rename_table("shop.b", "shop.moved")
        for use in (kept.count, kept.flush, lambda: kept.insert([row(4)])):
            use()  # no read or statement looks for them
        assert registered(lake) == 3
        assert kept.remove_orphans().inline_tables == ("shop.c",)
        assert registered(lake) == 3
        assert kept.remove_orphans(dry_run=False).inline_tables == ("shop.c",)
        assert registered(lake) == 2
        assert kept.remove_orphans(dry_run=False).inline_tables == ()
        assert everything(lake.table("shop.moved")) == ROWS
        lake.catalog.drop_table("shop.a")
        again = new_table(lake, "shop.a")
        for path in path_of(lake.table("shop.moved").location).rglob("*.metadata.json"):
            path.unlink()
        with pytest.raises(StorageError, match=r"shop\.moved cannot be read"):  # is it shop.a?
            again.remove_orphans(dry_run=False)
        assert registered(lake) == 3
