"""Concurrent inserts, changes, flushes and reads have results that some serial order has too."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from icefloe import Lake, Table
from icefloe.errors import ConflictError
from support.inline_lakes import INLINE, SCHEMA, SparkNeededError, everything, open_place, row
from support.rest_catalog import running_catalog
from support.serial_order import Done, Row, serial_order

THREADS, STEPS = 4, 12


# -------------------------------------------------------------------------------------------------
# The check itself


def done(kind: str, began: int, ended: int, result: Any = None, **named: Any) -> Done:
    return Done(kind, began=began, ended=ended, result=result, **named)


A, B = (1, "a"), (1, "b")
INSERT_A = done("insert", 0, 10, rows=(A,))
INSERT_B = done("insert", 0, 10, rows=(B,))
HISTORIES: dict[str, tuple[bool, list[list[Done]]]] = {
    "nothing": (True, [[], []]),
    "a read that overlaps an insert and misses it": (
        True,
        [[INSERT_A], [done("read", 5, 15, ())]],
    ),
    "a read that begins later and misses it": (False, [[INSERT_A], [done("read", 11, 15, ())]]),
    "a read that finds a row twice": (False, [[INSERT_A], [done("read", 5, 15, (A, A))]]),
    "a row that vanishes and comes back": (
        False,
        [
            [INSERT_A],
            [done("read", 1, 2, (A,)), done("read", 3, 4, ()), done("read", 5, 6, (A,))],
        ],
    ),
    "half an insert": (
        False,
        [[done("insert", 0, 10, rows=(A, (2, "a")))], [done("read", 1, 2, (A,))]],
    ),
    "two readers that see two inserts in different orders": (
        False,
        [
            [INSERT_A],
            [INSERT_B],
            [done("read", 1, 2, (A,)), done("read", 3, 9, (A, B))],
            [done("read", 1, 2, (B,)), done("read", 3, 9, (A, B))],
        ],
    ),
    "an update that is lost": (
        False,
        [
            [INSERT_A, done("update", 11, 20, 1, key=1, value="u")],
            [done("update", 12, 20, 1, key=1, value="v")],
            [done("read", 21, 22, (A,))],
        ],
    ),
    "one of two updates is last": (
        True,
        [
            [INSERT_A, done("update", 11, 20, 1, key=1, value="u")],
            [done("update", 12, 20, 1, key=1, value="v")],
            [done("read", 21, 22, ((1, "u"),))],
        ],
    ),
    "a row that is deleted twice": (
        False,
        [[INSERT_A, done("delete", 11, 20, 1, key=1)], [done("delete", 12, 20, 1, key=1)]],
    ),
    "a deleted row that comes back with a flush": (
        False,
        [[INSERT_A, done("delete", 11, 20, 1, key=1), done("count", 21, 22, 1)]],
    ),
    "an update of rows that were inserted later": (
        False,
        [
            [INSERT_A],
            [done("update", 11, 12, 2, key=1, value="u")],
            [done("insert", 13, 14, rows=(B,))],
        ],
    ),
}


@pytest.mark.parametrize(("is_serial", "threads"), HISTORIES.values(), ids=HISTORIES)
def test_the_check_finds_histories_without_a_serial_order(is_serial, threads):
    order = serial_order(threads)
    assert (order is not None) is is_serial
    if order is not None:
        assert sorted(map(repr, order)) == sorted(repr(each) for part in threads for each in part)


# -------------------------------------------------------------------------------------------------
# Random histories


class Worker:
    """A thread that runs random operations on a few keys, and notes what they did.

    Rows of files are changed by Spark alone, so keys that are in files are left behind.
    """

    def __init__(self, table: Table, number: int, seed: int, window: list[int]) -> None:
        self._table, self._number, self._window = table, number, window
        self._choose = random.Random(f"{seed} {number}")
        self.attempted: set[str] = set()
        self.history: list[Done] = []

    def run(self) -> None:
        for step in range(STEPS):
            self._step(f"{self._number}.{step}")

    def _step(self, value: str) -> None:
        key = self._window[0] + self._choose.randrange(3)
        where, table = f"id = {key}", self._table
        kind = self._choose.choices(
            ["insert", "update", "delete", "flush", "count", "read", "count all", "read all"],
            [6, 5, 3, 2, 2, 2, 2, 2],
        )[0]
        match kind:
            case "insert":
                keys = [key, self._window[0]][: self._choose.randint(1, 2)]
                rows = tuple(sorted((each, f"{value}.{n}") for n, each in enumerate(keys)))
                self._note("insert", lambda: table.insert([row(*each) for each in rows]), rows=rows)
            case "update":
                statement = table.update().set("s", f"'{value}'").where(where)
                self._note("update", lambda: statement.execute().rows_updated, key, value=value)
            case "delete":
                statement = table.delete().where(where)
                self._note("delete", lambda: statement.execute().rows_deleted, key)
            case "flush":
                table.flush()
            case "count":
                self._note("count", lambda: table.count(where), key)
            case "count all":
                self._note("count", table.count)
            case "read":
                self._note("read", lambda: pairs(table.to_arrow(where=where).to_pylist()), key)
            case "read all":
                self._note("read", lambda: tuple(everything(table)))

    def _note(
        self, kind: str, run: Callable[[], Any], key: int | None = None, **named: Any
    ) -> None:
        self.attempted.add(kind)
        began = time.monotonic_ns()
        try:
            result = run()
        except ConflictError:
            return  # nothing was changed: later reads show it
        except SparkNeededError:
            self._window[0] += 1
            return
        ended = time.monotonic_ns()
        self.history.append(Done(kind, key, result=result, began=began, ended=ended, **named))


def pairs(rows: list[dict[str, Any]]) -> tuple[Row, ...]:
    return tuple(sorted((found["id"], found["s"]) for found in rows))


@pytest.fixture
def rest_place(tmp_path: Path) -> Iterator[str]:
    with running_catalog(tmp_path / "lake") as server:
        yield f"{server.uri} sqlite:///{tmp_path / 'inline.db'}"


def seeds() -> list[object]:
    return [pytest.param(seed, marks=[] if seed == 0 else [pytest.mark.slow]) for seed in range(15)]


@pytest.mark.requirement("L03", "L07", "L16", "L25", "L27", "X02")
@pytest.mark.parametrize("seed", seeds())
def test_random_histories_have_a_serial_order(place, seed):
    check_random_history(place, seed)


@pytest.mark.requirement("L27", "X02")
@pytest.mark.parametrize("seed", seeds())
def test_random_histories_with_another_catalog_have_a_serial_order(rest_place, seed):
    check_random_history(rest_place, seed)


def check_random_history(place: str, seed: int) -> None:
    window = [0]
    lakes: list[Lake] = [open_place(place) for _ in range(THREADS - 1)]
    try:
        lakes[0].create_table("shop.t", SCHEMA, partition_by=["id"], properties=INLINE)
        workers = [
            Worker(lakes[min(number, THREADS - 2)].table("shop.t"), number, seed, window)
            for number in range(THREADS)
        ]
        start = threading.Barrier(THREADS)

        def work(worker: Worker) -> None:
            start.wait(60)
            worker.run()

        with ThreadPoolExecutor(THREADS) as pool:
            for running in [pool.submit(work, worker) for worker in workers]:
                running.result()
        last = tuple(everything(lakes[0].table("shop.t")))
    finally:
        for lake in lakes:
            lake.stop()
    now = time.monotonic_ns()
    threads = [
        *(worker.history for worker in workers),
        [Done("read", None, (), "", last, now, now)],
    ]
    kinds = {each.kind for history in threads for each in history}
    every_kind = {"insert", "update", "delete", "read", "count"}
    assert set().union(*(worker.attempted for worker in workers)) == every_kind
    # Conflicts may leave no update, or no delete.
    assert every_kind - kinds in ({"update"}, {"delete"}, set())
    assert serial_order(threads) is not None, [
        (each.began - now, each.ended - now, number, each)
        for number, history in enumerate(threads)
        for each in history
    ]
