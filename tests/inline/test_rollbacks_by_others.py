"""Another engine rolls a table back, and forward again, while rows of its files are deleted inline.

It sees files alone. Inline rows stay; what was deleted in a file since the last flush is deleted
there whenever the file is part of the table, and in the copies that other engines make of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from icefloe import Lake, Table
from icefloe.commands.run import flush
from support.foreign_files import rewrite
from support.tables import data_files

SCHEMA = "id BIGINT, region STRING, n INT"
INLINE = {"icefloe.inline.enabled": "true"}

NewTable = Callable[..., Table]


@pytest.fixture
def new(table_of) -> NewTable:
    """Makes a table with a file of rows 1 to 4, and one of rows 5 to 8."""

    def make(**options: Any) -> Table:
        rows = [{"id": n, "region": "eu", "n": n} for n in range(1, 9)]
        return table_of(SCHEMA, rows[:4], rows[4:], properties=INLINE, **options)

    return make


def numbers(table: Table) -> list[int]:
    return sorted(table.to_arrow(["n"])["n"].to_pylist())


def move_to(table: Table, snapshot_id: int | None) -> None:
    """As another engine does it."""
    assert snapshot_id is not None
    with table.iceberg.manage_snapshots() as manage:
        manage.set_current_snapshot(snapshot_id)


def change(table: Table) -> list[int]:
    """Change rows of files in the database; returns what the table then has."""
    assert table.delete().where("id IN (1, 6)").execute().mode == "inline"
    assert table.update().set("n", 20).where("id = 2").execute().mode == "inline"
    return [3, 4, 5, 7, 8, 20]


@pytest.mark.requirement("L20", "X05")
@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("changed_first", [False, True])
def test_a_compaction_is_rolled_back(lake, new, changed_first, looks):
    table = new()
    before = table.snapshot_id
    left = change(table) if changed_first else []
    rewrite(lake, table)
    compacted = table.snapshot_id
    left = left or change(table)
    for snapshot_id in (before, compacted, before):
        if looks:
            assert numbers(table) == left
        move_to(table, snapshot_id)
    assert numbers(table) == left
    rewrite(lake, table)
    assert numbers(table) == left
    table.flush()
    assert numbers(table) == sorted(table.iceberg.scan().to_arrow()["n"].to_pylist()) == left
    move_to(table, before)  # the flush is undone: a snapshot of before is shown as it is
    assert numbers(table) == [*range(1, 9)]


@pytest.mark.requirement("L20", "X05")
def test_an_append_is_rolled_back_and_comes_back(new):
    table = new()
    before = table.iceberg.metadata.snapshots[0].snapshot_id
    last = table.snapshot_id
    left = change(table)
    move_to(table, before)
    assert numbers(table) == [3, 4, 20]
    assert (table.inline.rows, table.inline.deletes) == (1, 2)
    move_to(table, last)
    assert numbers(table) == left
    assert (table.inline.rows, table.inline.deletes) == (1, 3)


@pytest.mark.requirement("L20", "X05")
@pytest.mark.parametrize("how", ["compact", "copy-on-write"])
def test_a_rewrite_of_icefloe_that_took_the_deletes_along_is_rolled_back(new, how):
    table = new()
    before = table.snapshot_id
    left = change(table)
    if how == "compact":
        table.compact()
        expected = left
    else:
        update = table.update().set("n", "n + 100").where("id IN (2, 3, 5)")
        assert update.with_options(mode=how).execute().mode == how
        assert numbers(table) == [4, 7, 8, 103, 105, 120]
        expected = [3, 4, 5, 7, 8, 120]  # inline rows have no history
    assert table.inline.deletes == 0
    move_to(table, before)
    assert numbers(table) == expected
    assert table.inline.deletes == 3


@pytest.mark.requirement("L20", "X05")
@pytest.mark.parametrize("how", ["flush", "truncate", "overwrite", "roll back", "switch off"])
def test_what_leaves_nothing_inline_leaves_no_deletes_of_former_files(lake, new, how):
    table = new()
    before = table.snapshot_id
    left = change(table)
    rewrite(lake, table)
    assert numbers(table) == left
    match how:
        case "flush":
            table.flush()
        case "truncate":
            table.truncate()
        case "overwrite":
            table.overwrite([{"id": 9, "region": "eu", "n": 9}])
        case "roll back":
            table.compact()
            table.rollback(before)
        case _:
            table.set_properties({"icefloe.inline.enabled": "false"})
    move_to(table, before)
    assert numbers(table) == [*range(1, 9)]
    assert table.inline.deletes == 0


def test_a_flush_of_some_rows_takes_all_where_rows_of_files_were_deleted(new):
    table = new(mode="merge-on-read")
    before = table.snapshot_id
    table.update().set("n", 20).where("id = 2").execute()
    table.compact()
    table.insert([{"id": 9, "region": "eu", "n": 9}])
    assert (table.inline.rows, table.inline.deletes) == (2, 0)
    assert flush(table._context(), 1).rows_copied == 2
    move_to(table, before)
    assert numbers(table) == [*range(1, 9)]


class Program:
    """A table, and what another engine and icefloe are to see of it. Values are unique."""

    def __init__(self, lake: Lake, table: Table, seed: int) -> None:
        self.lake, self.table, self.random = lake, table, random.Random(seed)
        self.filed = {table.snapshot_id: [*range(1, 9)]}  # by snapshot, as other engines see it
        self.inline: list[int] = []
        self.deleted: set[int] = set()  # in files, since the last flush
        self.steps: list[str] = []
        self.last = 8

    @property
    def visible(self) -> list[int]:
        filed = self.filed[self.table.snapshot_id]
        return sorted([*(n for n in filed if n not in self.deleted), *self.inline])

    def number(self) -> int:
        self.last += 1
        return self.last

    def row(self) -> dict[str, Any]:
        n = self.number()
        return {"id": n, "region": "eu", "n": n}

    def insert(self) -> None:
        new = self.row()
        self.table.insert([new])
        self.inline.append(new["n"])

    def append(self) -> None:
        new = [self.row(), self.row()]
        filed = self.filed[self.table.snapshot_id]
        self.table.append(new)
        self.filed[self.table.snapshot_id] = [*filed, *(each["n"] for each in new)]

    def update(self) -> None:
        self.remove(self.number())

    def delete(self) -> None:
        self.remove(None)

    def remove(self, becomes: int | None) -> None:
        if not self.visible:
            return
        old, is_file = self.random.choice(self.visible), False
        is_file = old not in self.inline
        builder = self.table.update().set("n", becomes) if becomes else self.table.delete()
        before = self.table.snapshot_id
        assert builder.where(f"n = {old}").execute().total_affected == 1
        if is_file and self.table.snapshot_id != before:  # a file of one row
            self.filed[self.table.snapshot_id] = [n for n in self.filed[before] if n != old]
        elif is_file:
            self.deleted.add(old)
        else:
            self.inline.remove(old)
        if becomes:
            self.inline.append(becomes)

    def flush(self) -> None:
        rows = self.visible
        self.table.flush()
        self.filed[self.table.snapshot_id] = rows
        self.inline, self.deleted = [], set()

    def compact(self) -> None:
        visible = self.visible
        self.table.compact()
        found = self.table.iceberg.scan().to_arrow()["n"].to_pylist()
        self.filed[self.table.snapshot_id] = found
        assert self.visible == visible

    def rewrite(self) -> None:
        filed = self.filed[self.table.snapshot_id]
        if data_files(self.table) and filed:
            rewrite(self.lake, self.table)
            self.filed[self.table.snapshot_id] = filed

    def move(self) -> None:
        move_to(self.table, self.random.choice(list(self.filed)))

    def check(self) -> None:
        assert numbers(self.table) == self.visible, self.steps

    def run(self, count: int) -> None:
        steps = [self.insert, self.append, self.flush, self.compact]
        steps += [self.update, self.delete, self.rewrite, self.move] * 2
        for _ in range(count):
            step = self.random.choice(steps)
            self.steps.append(step.__name__)
            step()
            if self.random.random() < 0.6:
                self.check()
        self.check()
        self.flush()
        self.check()


@pytest.mark.every_variant
@pytest.mark.requirement("L20", "X02", "X05")
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 40))]
)
def test_random_programs_with_rollbacks_by_others(lake, new, seed):
    Program(lake, new(mode="merge-on-read"), seed).run(14)
