"""Many threads and processes insert while the table is flushed, changed, renamed, dropped."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.types import LongType, StringType

from icefloe import Lake, Table
from icefloe.commands import background_flush, inline_rows
from icefloe.errors import ConflictError, SchemaMismatchError, StatementError, TableNotFoundError
from support.inline_lakes import (
    INLINE,
    SCHEMA,
    everything,
    new_table,
    open_place,
    registered,
    row,
)
from support.races import once_before_publish

PROGRAM = Path(__file__).parent / "inserting_processes.py"


@pytest.fixture
def lake(place: str) -> Iterator[Lake]:
    with open_place(place) as opened:
        yield opened


def ids(table: Table) -> list[int]:
    return [number for number, _ in everything(table)]


class Writers:
    """Threads with lakes of their own that insert rows, each with an id that no other has."""

    def __init__(
        self, place: str, count: int, insert: Callable[[Table, int], object], name: str
    ) -> None:
        self.done: list[int] = []
        self.stopped: list[BaseException] = []
        self._place, self._insert, self._name = place, insert, name
        self._ready, self._over = threading.Barrier(count), threading.Event()
        self._more = threading.Condition()

    def run(self, writer: int) -> None:
        with open_place(self._place) as lake:
            table, number = lake.table(self._name), writer * 10_000
            self._ready.wait(60)
            while not self._over.is_set():
                try:
                    self._insert(table, number)
                except Exception as error:  # noqa: BLE001 - judged by the test
                    with self._more:
                        self.stopped.append(error)
                        self._more.notify_all()
                    break
                with self._more:
                    self.done.append(number)
                    self._more.notify_all()
                number += 1

    def wait_for(self, more: int) -> None:
        """Let so many further inserts finish."""
        with self._more:
            target = len(self.done) + more
            assert self._more.wait_for(lambda: len(self.done) >= target or self.stopped, 120)

    def wait_until_stopped(self, count: int = 4) -> None:
        """Let writers begin another insert, which fails."""
        with self._more:
            assert self._more.wait_for(lambda: len(self.stopped) == count, 120)

    def end(self) -> None:
        self._over.set()


@contextmanager
def writers(
    place: str,
    count: int = 4,
    insert: Callable[[Table, int], object] = lambda table, number: table.insert([row(number)]),
    name: str = "shop.t",
) -> Iterator[Writers]:
    """Writers, which have come to an end after the block."""
    running = Writers(place, count, insert, name)
    threads = [threading.Thread(target=running.run, args=(n,)) for n in range(1, count + 1)]
    for thread in threads:
        thread.start()
    try:
        running.wait_for(count)
        yield running
    finally:
        running.end()
        for thread in threads:
            thread.join(120)


# -------------------------------------------------------------------------------------------------
# Inserts and flushes


@pytest.mark.requirement("L08", "L09", "L27")
@pytest.mark.parametrize(
    ("place", "rows"),
    [
        ("sqlite", 10),
        pytest.param("sqlite", 100, marks=pytest.mark.slow),
        pytest.param("postgresql", 100, marks=pytest.mark.slow),
    ],
    indirect=["place"],
)
def test_ten_threads_insert_while_rows_are_flushed_in_the_background(lake, rows):
    limit = {"icefloe.inline.row-limit": str(rows)}
    table = lake.create_table("shop.t", SCHEMA, properties={**INLINE, **limit})
    errors: list[BaseException] = []

    def write(thread: int) -> None:
        try:
            own = lake.table("shop.t")
            for number in range(rows):
                own.insert([row(thread * rows + number)])
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        found = ids(table)
        assert len(set(found)) == len(found) >= seen
        seen = len(found)
    assert errors == []
    assert ids(table) == list(range(10 * rows))
    table.flush()
    assert (ids(table), table.inline.rows) == (list(range(10 * rows)), 0)
    assert len(table.iceberg.scan().to_arrow()) == 10 * rows


@pytest.mark.requirement("L27", "X06")
@pytest.mark.parametrize("change", ["none", "update", "delete", "update after it"])
def test_rows_that_another_flush_moved_are_once_in_the_files(place, lake, change):
    """Also for other engines, which do not see which rows of files are deleted inline."""
    table = new_table(lake)

    def change_and_flush() -> None:
        with open_place(place) as other:
            same = other.table("shop.t")
            if change == "update":
                same.update().set("s", "'new'").where("id = 2").execute()
            elif change == "delete":
                same.delete().where("id = 2").execute()
            same.flush()
            if change == "update after it":
                same.insert([row(4)])
                same.update().set("s", "'new'").where("id = 4").execute()

    once_before_publish(lake, change_and_flush)
    table.flush()
    expected = {
        "none": [(1, "a"), (2, "b"), (3, None)],
        "update": [(1, "a"), (2, "new"), (3, None)],
        "delete": [(1, "a"), (3, None)],
        "update after it": [(1, "a"), (2, "b"), (3, None), (4, "new")],
    }[change]
    assert everything(table) == expected
    filed = sorted((r["id"], r["s"]) for r in table.iceberg.scan().to_arrow().to_pylist())
    assert filed == expected
    assert (table.inline.rows, table.inline.deletes) == (0, 0)


@pytest.mark.requirement("L08", "L27")
@pytest.mark.parametrize(
    ("place", "enabled", "rows"),
    [
        ("sqlite", False, 4),  # all of them switch the tier on
        *(
            pytest.param(database, enabled, 50, marks=pytest.mark.slow)
            for database in ("sqlite", "postgresql")
            for enabled in (False, True)
        ),
    ],
    indirect=["place"],
)
def test_eight_processes_insert_at_once(place, lake, rows, enabled):
    properties = {"icefloe.inline.row-limit": "20", "commit.retry.num-retries": "20"}
    properties |= INLINE if enabled else {}
    table = lake.create_table("shop.t", SCHEMA, properties=properties)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), place, "shop.t", "8", str(rows)],
        env={"PYTHONPATH": f"{PROGRAM.parents[1]}:{PROGRAM.parents[2]}", "PATH": ""},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert (ids(table), registered(lake)) == (list(range(8 * rows)), 1)
    table.flush()
    assert len(table.iceberg.scan().to_arrow()) == 8 * rows


# -------------------------------------------------------------------------------------------------
# Columns and partitions


def insert_as_it_is(table: Table, number: int) -> None:
    """Insert a row with the columns that the table has; it may have others a moment later."""
    while True:
        names = [field.name for field in table.iceberg.schema().fields]
        try:
            table.insert([{**dict.fromkeys(names), "id": number}])
        except StatementError:
            continue
        return


def evolve(change: Callable[[], object]) -> None:
    """A change of the table, which another one may come before."""
    for _ in range(50):
        try:
            change()
        except ConflictError:
            continue
        return
    raise AssertionError("always another writer was faster")


@pytest.mark.requirement("L27", "U10")
def test_columns_and_partitions_evolve_while_rows_are_inserted_and_flushed(place, lake):
    table = lake.create_table("shop.t", SCHEMA, properties=INLINE)

    def add_column() -> None:
        with table.iceberg.update_schema() as update:
            update.add_column("extra", StringType())

    with writers(place, insert=insert_as_it_is) as running:
        for change in (
            add_column,
            lambda: table.rename_column("s", "text"),
            lambda: table.evolve_partitions("bucket(2, id)"),
            lambda: table.drop_column("text"),
            lambda: table.evolve_partitions("truncate(10, id)"),
            lambda: table.drop_column("extra"),
            add_column,
        ):
            evolve(change)
            running.wait_for(4)
            table.flush()
            running.wait_for(4)
    assert running.stopped == []
    cut = table._lake.tier.cut(table._state())
    inline = cut.arrow().to_pylist()
    filed = table.iceberg.scan().to_arrow().to_pylist()
    assert sorted(each["id"] for each in (*inline, *filed)) == sorted(running.done)
    assert {each["extra"] for each in (*inline, *filed)} == {None}
    table.flush()
    flushed = table.iceberg.scan().to_arrow()
    assert sorted(flushed["id"].to_pylist()) == sorted(running.done)


# -------------------------------------------------------------------------------------------------
# Rename, drop, switch off


@pytest.mark.requirement("L27", "X02")
def test_a_table_is_renamed_while_rows_are_inserted(place, lake):
    new_table(lake)
    with writers(place) as running:
        lake.rename_table("shop.t", "shop.u")
        running.wait_until_stopped()
    assert {type(error) for error in running.stopped} == {TableNotFoundError}
    renamed = lake.table("shop.u")
    assert ids(renamed) == [1, 2, 3, *sorted(running.done)]
    renamed.insert([row(4)])
    renamed.flush()
    assert len(renamed.iceberg.scan().to_arrow()) == 4 + len(running.done)


@pytest.mark.requirement("L27", "X02")
@pytest.mark.parametrize("purge", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_table_is_dropped_while_rows_are_inserted(place, lake, purge):
    new_table(lake)
    with writers(place) as running:
        lake.drop_table("shop.t", purge=purge)
        running.wait_until_stopped()
    assert [type(error) for error in running.stopped] == [TableNotFoundError] * 4
    assert (lake.tables("shop"), registered(lake)) == ([], 0)
    assert ids(new_table(lake)) == [1, 2, 3]


@pytest.mark.requirement("L27", "X02")
def test_a_table_is_dropped_and_created_again_while_rows_are_inserted(place, lake):
    new_table(lake)

    def insert(table: Table, number: int) -> None:
        while True:
            try:
                table.insert([row(number)])
            except TableNotFoundError:
                continue
            return

    with writers(place, insert=insert) as running:
        lake.drop_table("shop.t")
        before = set(running.done)
        again = lake.create_table("shop.t", SCHEMA, properties=INLINE)
        running.wait_for(8)
    assert running.stopped == []
    found = ids(again)
    assert len(set(found)) == len(found)
    # Up to four inserts may have been noted after the drop and done before it.
    assert set(running.done) - before >= set(found) - before
    assert len(set(running.done) - before - set(found)) <= 4
    assert registered(lake) == 1


@pytest.mark.parametrize("step", ["encode_rows", "insert_if_current", "insert_rows"])
def test_a_table_is_dropped_and_created_again_during_one_insert(place, lake, step, monkeypatch):
    """Before the transaction, and on PostgreSQL in it: before and after the pointer is checked."""
    table = new_table(lake)
    if step != "encode_rows" and "postgresql" not in place:
        return  # on SQLite a write transaction is alone
    if step == "insert_rows":
        lake.tier.forget_table(table._state())  # so that the table is looked up
    function, pending = getattr(inline_rows, step), [True]

    def late(*arguments: Any) -> Any:
        if pending:
            pending.clear()
            with open_place(place) as other:
                other.drop_table("shop.t")
                other.create_table("shop.t", SCHEMA, properties=INLINE)
        return function(*arguments)

    monkeypatch.setattr(inline_rows, step, late)
    if step == "insert_rows":
        with pytest.raises(TableNotFoundError, match=r"was dropped\. Nothing was changed"):
            table.insert([row(4)])
    else:
        table.insert([row(4)])  # no part of it was done: it is an insert into the new table
    assert pending == []
    expected = [] if step == "insert_rows" else [4]
    assert ids(table) == expected
    table.insert([row(5)])
    assert ids(table) == [*expected, 5]


@pytest.mark.parametrize("change", ["flush", "properties", "column", "column by another"])
def test_an_insert_that_knows_the_table_sees_what_was_changed_since(place, lake, change):
    table = new_table(lake)
    table.insert([row(4)])
    with open_place(place) as other:
        changed = lake.table("shop.t") if change == "column" else other.table("shop.t")
        if change == "flush":
            changed.flush()
        elif change == "properties":
            changed.set_properties(a="b")
        else:
            with changed.iceberg.update_schema() as update:
                update.add_column("n", LongType())
            changed.insert([{**row(6), "n": 7}])
            with pytest.raises(SchemaMismatchError, match="the rows lack 'n'"):
                table.insert([row(5)])
    new = {"n": 8} if "column" in change else {}
    table.insert([{**row(5, "five"), **new}])
    assert sorted(ids(table)) == [1, 2, 3, 4, 5, *([6] if "column" in change else [])]


@pytest.mark.requirement("L27", "X02")
def test_the_tier_is_switched_off_and_on_while_rows_are_inserted(place, lake):
    table = new_table(lake)

    modes = set()

    def insert(table: Table, number: int) -> None:
        """Append the row, if the tier is off."""
        while True:
            try:
                modes.add(table.insert([row(number)]).mode)
            except ConflictError:
                continue
            return

    with writers(place, insert=insert) as running:
        for _ in range(3):
            evolve(lambda: table.set_properties({"icefloe.inline.enabled": False}))
            filed = table.iceberg.scan().to_arrow()["id"].to_pylist()
            late = set(running.done) - set(filed)
            assert late <= set(ids(table))
            running.wait_for(4)
            while None not in modes:  # those may have begun before it was off
                running.wait_for(1)
            evolve(lambda: table.set_properties(INLINE))
            running.wait_for(8)
    assert (running.stopped, modes) == ([], {"inline", None})
    assert ids(table) == sorted([1, 2, 3, *running.done])
    table.set_properties({"icefloe.inline.enabled": False})
    assert table.inline.rows == 0
    assert len(table.iceberg.scan().to_arrow()) == 3 + len(running.done)


@pytest.mark.slow
@pytest.mark.requirement("L08", "L09")
def test_many_single_inserts_leave_few_files_and_a_small_database(tmp_path):
    """Scenario 80 in small: its speed is measured by `benchmarks.inline --inserts`."""
    count, folder = 20_000, tmp_path / "lake"
    with open_place(str(folder)) as lake:
        limit = {**INLINE, "icefloe.inline.row-limit": str(count // 10)}
        table = lake.create_table("shop.t", SCHEMA, properties=limit)
        for number in range(count):
            table.insert([row(number)])
    with open_place(str(folder)) as lake:
        table = lake.table("shop.t")
        assert ids(table) == [*range(count)]
        assert len(list(table.iceberg.scan().plan_files())) <= 11
        table.flush()
        assert sum(path.stat().st_size for path in folder.glob("catalog.db*")) < 8 * 2**20


@pytest.mark.requirement("L08")
def test_large_rows_are_flushed_before_there_are_many(place, monkeypatch):
    """Scenario 54: rows are due by their bytes, too, and inserts wait where the flush is broken."""
    monkeypatch.setattr(background_flush, "MOST_BYTES", 200_000)
    with open_place(place) as lake:
        table = lake.create_table("shop.t", SCHEMA, properties=INLINE)
        for number in range(60):
            table.insert([row(number, "x" * 10_000)])
    with open_place(place) as lake:
        table = lake.table("shop.t")
        filed = len(table.iceberg.scan().to_arrow())
        assert filed >= 20
        assert [number for number, _ in everything(table)] == [*range(60)]
        monkeypatch.setattr(type(lake._flusher), "_wake", lambda *_: None)
        for number in range(60, 160):
            table.insert([row(number, "x" * 10_000)])
        assert table.inline is not None
        assert table.inline.rows < 100
        assert len(everything(table)) == 160


@pytest.mark.slow
@pytest.mark.requirement("L08")
def test_a_flush_into_a_thousand_partitions(tmp_path):
    """Scenario 53."""
    with open_place(str(tmp_path / "lake")) as lake:
        limit = {**INLINE, "icefloe.inline.row-limit": "1000000"}
        table = lake.create_table("shop.t", SCHEMA, partition_by=["id"], properties=limit)
        for start in range(0, 100_000, 10_000):
            numbers = range(start, start + 10_000)
            table.insert([row(number % 1000, str(number)) for number in numbers])
        done = table.flush()
        assert (done.rows_copied, done.data_files_added) == (100_000, 1000)
        assert len(table.iceberg.scan().to_arrow()) == 100_000
