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
