"""Inline rows beside Iceberg's own runtime, which uses the same database and sees files alone."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

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
