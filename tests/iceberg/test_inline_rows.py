"""Inline rows beside Iceberg's own runtime, which uses the same database and sees files alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest

from icefloe.commands.flush import FLUSH
from icefloe.metadata.table_state import ancestors
from icefloe.results import SUMMARY_PREFIX
from support.two_engines import Both

pytestmark = pytest.mark.iceberg

MakeBoth = Callable[..., Both]

NUMBERS = "id BIGINT, region STRING, n INT"
INLINE = {"icefloe.inline.enabled": "true"}


def ids(both: Both) -> list[int]:
    return sorted(row["id"] for row in both.sql("SELECT id FROM {t}").collect())


@pytest.mark.requirement("D19", "X06")
@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_both_write_in_turn_and_the_reference_sees_flushed_rows(both: MakeBoth, mode: str) -> None:
    t = both(NUMBERS).made_by_us(("region",), **INLINE)
    t.reference_mode(mode)
    t.ours.insert([{"id": i, "region": "eu", "n": 0} for i in (1, 2, 3)])
    assert ids(t) == []
    t.sql("INSERT INTO {t} VALUES (10, 'eu', 0), (11, 'us', 0)")
    t.ours.update().set("n", "n + 1").where("id IN (1, 10)").execute()
    assert t.ours.delete().where("id = 3").execute().mode == "inline"
    assert ids(t) == [10, 11]
    t.ours.flush()
    t.sql("DELETE FROM {t} WHERE id = 2")
    t.ours.insert([{"id": 4, "region": None, "n": 4}])
    t.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    t.ours.flush()
    t.expected = [
        {"id": 1, "region": "eu", "n": 1},
        {"id": 4, "region": None, "n": 4},
        {"id": 10, "region": "eu", "n": 1},
        {"id": 11, "region": "us", "n": 0},
    ]
    t.check()


@pytest.mark.requirement("L27")
def test_inserts_and_flushes_while_the_reference_appends_and_compacts(both: MakeBoth) -> None:
    retries = {"commit.retry.num-retries": "30", "commit.retry.min-wait-ms": "10"}
    t = both(NUMBERS).made_by_us((), **INLINE, **retries)
    failures: list[BaseException] = []

    def ours() -> None:
        try:
            for i in range(60):
                t.ours.insert([{"id": i, "region": "ours", "n": 0}])
                if i % 20 == 19:
                    t.ours.flush()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    writer = threading.Thread(target=ours)
    writer.start()
    for i in range(100, 104):
        t.sql(f"INSERT INTO {{t}} VALUES ({i}, 'theirs', 0)")
        t.call("rewrite_data_files")
    writer.join()
    assert failures == []
    t.ours.flush()
    assert ids(t) == [*range(60), *range(100, 104)]


@pytest.mark.requirement("L20", "X05", "X06")
@pytest.mark.parametrize("partition_by", [(), ("region",)], ids=["unpartitioned", "partitioned"])
def test_rows_deleted_inline_stay_deleted_whatever_the_reference_rewrites(
    both: MakeBoth, partition_by: tuple[str, ...]
) -> None:
    t = both(NUMBERS).made_by_us(partition_by, **INLINE)
    t.reference_mode("copy-on-write")
    t.sql("INSERT INTO {t} VALUES (1, 'eu', 1), (2, 'us', 2), (2, 'us', 2), (3, NULL, NULL)")
    t.sql("INSERT INTO {t} VALUES (4, 'eu', 4), (5, 'us', 5), (6, 'us', 6), (7, NULL, 7)")
    assert t.ours.delete().where("id IN (2, 3) OR n = 1").execute().rows_deleted == 4
    t.ours.update().set("n", "n + 40").where("id = 4").execute()
    assert t.ours.inline is not None
    left = {4: 44, 5: 5, 6: 6, 7: 7}
    deletes = t.ours.inline.deletes
    assert ours(t) == left
    t.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    assert (ours(t), t.ours.inline.deletes) == (left, deletes)
    t.sql("UPDATE {t} SET n = 50 WHERE id = 5")
    t.sql("DELETE FROM {t} WHERE id = 7")
    left = {4: 44, 5: 50, 6: 6}
    assert ours(t) == left
    t.ours.flush()
    assert (ours(t), ids(t)) == (left, [4, 5, 6])


def ours(both: Both) -> dict[int, int]:
    return {row.id: row.n for row in both.ours.scan().collect()}


# -------------------------------------------------------------------------------------------------
# The reference rolls the table back


def numbers(*places: tuple[int, str | None]) -> list[dict[str, Any]]:
    return [{"id": id, "region": region, "n": id} for id, region in places]


def roll_back(both: Both, snapshot_id: int | None) -> None:
    both.call("rollback_to_snapshot", f"snapshot_id => {snapshot_id}")


@pytest.mark.requirement("L20", "X05", "X06")
@pytest.mark.parametrize("partition_by", [(), ("region",)], ids=["unpartitioned", "partitioned"])
def test_a_rollback_by_the_reference_takes_back_files_and_leaves_inline_rows(
    both: MakeBoth, partition_by: tuple[str, ...]
) -> None:
    t = both(NUMBERS).made_by_us(partition_by, **INLINE)
    t.insert(numbers((1, "eu"), (2, "us"), (3, "us"), (10, "eu")))
    first = t.ours.snapshot_id
    t.ours.insert([{"id": 4, "region": "eu", "n": 4}])
    t.ours.flush()
    t.insert(numbers((5, "us"), (9, "us")))
    last = t.ours.snapshot_id
    t.ours.insert([{"id": 6, "region": "eu", "n": 6}])
    t.ours.update().set("n", "n + 20").where("id = 2").execute()
    assert t.ours.delete().where("id IN (1, 5)").execute().mode == "inline"
    assert ours(t) == {2: 22, 3: 3, 4: 4, 6: 6, 9: 9, 10: 10}
    roll_back(t, first)
    assert ours(t) == {2: 22, 3: 3, 6: 6, 10: 10}
    assert t.ours.inline is not None
    assert (t.ours.inline.rows, t.ours.inline.deletes) == (2, 2)
    t.ours.insert([{"id": 7, "region": None, "n": 7}])
    t.ours.flush()
    assert ours(t) == {2: 22, 3: 3, 6: 6, 7: 7, 10: 10}
    assert ids(t) == [2, 3, 6, 7, 10]
    t.call("set_current_snapshot", f"snapshot_id => {last}")
    assert ours(t) == {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 9: 9, 10: 10}
    t.ours.insert([{"id": 8, "region": "eu", "n": 8}])
    t.ours.flush()
    assert ids(t) == sorted(ours(t)) == [1, 2, 3, 4, 5, 8, 9, 10]


@pytest.mark.requirement("L20", "X05", "X06")
@pytest.mark.parametrize("changed_first", [False, True])
def test_the_reference_rolls_its_compaction_back(both: MakeBoth, changed_first: bool) -> None:
    t = both(NUMBERS).made_by_us((), **INLINE)
    t.insert(numbers((1, "eu"), (2, "us"), (3, None)))
    t.insert(numbers((4, "eu"), (5, "us"), (6, None)))
    before = t.ours.snapshot_id

    def change() -> None:
        t.ours.update().set("n", "n + 20").where("id IN (1, 4)").execute()
        assert t.ours.delete().where("id IN (2, 5)").execute().mode == "inline"

    if changed_first:
        change()
    t.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    assert t.ours.snapshot_id != before
    if not changed_first:
        change()
    left = {1: 21, 3: 3, 4: 24, 6: 6}
    assert ours(t) == left
    roll_back(t, before)
    assert ours(t) == left
    t.ours.flush()
    assert (ours(t), ids(t)) == (left, sorted(left))


@pytest.mark.requirement("L27", "X06")
def test_inserts_deletes_and_flushes_while_the_reference_rolls_back(both: MakeBoth) -> None:
    retries = {"commit.retry.num-retries": "30", "commit.retry.min-wait-ms": "10"}
    t = both(NUMBERS).made_by_us((), **INLINE, **retries)
    t.sql("INSERT INTO {t} VALUES (-1, 'theirs', 0)")
    failures: list[BaseException] = []
    deleted: set[int] = set()
    done = threading.Event()

    def write() -> None:
        try:
            for i in range(0, 400, 10):
                t.ours.insert([{"id": n, "region": "ours", "n": 0} for n in range(i, i + 10)])
                # A statement whose base was rolled back is refused, and run again if so asked.
                delete = t.ours.delete().where(f"id = {i - 15}").with_options(retries=30)
                if delete.execute().rows_deleted:
                    deleted.add(i - 15)
                if i % 40 == 0:
                    t.ours.flush()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    for flushes in cycle([True, False]):
        before = t.ours.snapshot_id
        t.sql("INSERT INTO {t} VALUES (1000, 'theirs', 0)")
        if flushes:
            t.ours.flush()
        roll_back(t, before)
        if done.is_set():
            break
    writer.join()
    assert failures == []
    t.ours.flush()
    found = ids(t)
    assert found == sorted(ours(t))
    check_flushes(t, set(range(400)), deleted)


def check_flushes(both: Both, inserted: set[int], deleted: set[int]) -> None:
    """Each row was flushed once, and only deleted rows were removed, whatever was rolled back."""
    metadata = both.ours.iceberg.metadata
    current = {
        snapshot.snapshot_id for snapshot in ancestors(metadata, both.ours._state().snapshot)
    }

    def ids_in(snapshot_id: int | None) -> set[int]:
        if snapshot_id is None:
            return set()
        rows = both.ours.iceberg.scan(snapshot_id=snapshot_id).to_arrow()
        return set(rows["id"].to_pylist())

    added: list[int] = []
    expected: set[int] = {-1}
    for snapshot in metadata.snapshots:
        if snapshot.summary is None or snapshot.summary.get(f"{SUMMARY_PREFIX}operation") != FLUSH:
            continue
        before, after = ids_in(snapshot.parent_snapshot_id), ids_in(snapshot.snapshot_id)
        added += after - before
        assert before - after <= deleted
        if snapshot.snapshot_id in current:
            expected = (expected | (after - before)) - (before - after)
    assert len(added) == len(set(added))
    assert inserted - deleted <= set(added) <= inserted
    assert set(ids(both)) - {1000} == expected
    assert set(added) - expected, "no flush was rolled back"
