"""Inline rows of tables in Iceberg's REST catalog, with `inline_uri`: races, lost answers, dead flushers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

import icefloe
from icefloe import Lake, Table
from icefloe.errors import CommitStateUnknownError, StorageError
from icefloe.inline.layout import INTENT
from support.http_proxy import (
    APPLIED_THEN_ERROR,
    REPLY_LOST,
    RESET,
    SERVER_ERROR,
    UNAVAILABLE,
    Fault,
    slow,
)

pytestmark = pytest.mark.s3

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
INLINE = {"icefloe.inline.enabled": "true"}
COMMIT = r"/tables/[^/]+$"
PROGRAM = Path(__file__).with_name("driver_process.py")
Open = Callable[[], Lake]


@pytest.fixture
def properties(properties_of) -> dict[str, Any]:
    return properties_of("rest")


@pytest.fixture
def connect(properties) -> Iterator[Open]:
    """Opens lakes over one catalog and one database of inline rows, without Spark."""
    opened: list[Lake] = []

    def make() -> Lake:
        others = {k: v for k, v in properties.items() if k != "inline_uri"}
        catalog = icefloe.lake.open_catalog(None, None, others)
        opened.append(Lake(catalog, None, properties["inline_uri"]))
        return opened[-1]

    yield make
    for lake in opened:
        lake.stop()


@pytest.fixture
def table(connect, new_name) -> Table:
    """Rows 0 and 1 in a file, rows 2 and 3 inline."""
    table = connect().create_table(new_name, SCHEMA, properties=INLINE)
    table.insert(rows_of(0, 1))
    table.flush()
    table.insert(rows_of(2, 3))
    return table


def rows_of(*numbers: int) -> list[dict[str, int]]:
    return [{"id": number, "n": 0} for number in numbers]


def ids(table: Table) -> list[int]:
    """The ids of both tiers; a row in both would be here twice."""
    return sorted(table.to_arrow(["id"])["id"].to_pylist())


def ids_in_files(table: Table) -> list[int]:
    return sorted(table.iceberg.scan().to_arrow()["id"].to_pylist())


def abandon_intents(table: Table) -> None:
    """Six minutes pass."""
    with table._lake.tier.store.writing() as connection:
        connection.execute(INTENT.update().values(started=INTENT.c.started - 6 * 60_000))


def intents(table: Table) -> int:
    with table._lake.tier.store.reading() as connection:
        return len(connection.execute(sa.select(INTENT)).all())


@pytest.mark.requirement("L27")
def test_writers_insert_while_rows_are_flushed(connect, new_name):
    """55: exact, whatever the order of inserts and flushes was."""
    properties = {**INLINE, "icefloe.inline.row-limit": "30"}
    connect().create_table(new_name, SCHEMA, properties=properties)
    lakes = [connect() for _ in range(7)]

    def insert(writer: int) -> None:
        table = lakes[writer].table(new_name)
        for number in range(12):
            table.insert(rows_of(100 * writer + number))

    def flush() -> None:
        table = lakes[6].table(new_name)
        for _ in range(6):
            table.flush()
            seen = ids(table)
            assert len(seen) == len(set(seen))

    with ThreadPoolExecutor(7) as pool:
        work = [pool.submit(insert, writer) for writer in range(6)] + [pool.submit(flush)]
        for each in work:
            each.result()
    expected = sorted(100 * writer + number for writer in range(6) for number in range(12))
    table = connect().table(new_name)
    assert ids(table) == expected
    table.flush()
    assert ids_in_files(table) == expected


@pytest.mark.requirement("X02", "X10")
@pytest.mark.parametrize(
    ("fault", "times", "error", "flushed"),
    [
        (slow(3), 1, None, True),
        (REPLY_LOST, 1, None, True),
        (APPLIED_THEN_ERROR, 1, None, True),
        (UNAVAILABLE, 1, CommitStateUnknownError, False),
        (SERVER_ERROR, None, CommitStateUnknownError, False),
        (RESET, None, CommitStateUnknownError, False),
    ],
    ids=lambda value: value.name if isinstance(value, Fault) else None,
)
def test_a_flush_whose_commit_is_answered_late_wrongly_or_never(
    table, connect, rest_proxy, new_name, fault, times, error, flushed
):
    with rest_proxy.failing(fault, "POST", COMMIT, times=times) as rule:
        if error is None:
            table.flush()
        else:
            with pytest.raises(error, match="did not confirm"):
                table.flush()
    assert {request.path.rpartition("/")[2] for request in rule.fired} == {
        new_name.rpartition(".")[2]
    }
    other = connect().table(new_name)
    assert ids(other) == [0, 1, 2, 3]
    assert ids_in_files(other) == ([0, 1, 2, 3] if flushed else [0, 1])
    other.insert(rows_of(4))
    assert ids(other) == [0, 1, 2, 3, 4]
    abandon_intents(other)
    other.flush()
    assert ids(other) == ids_in_files(other) == [0, 1, 2, 3, 4]
    assert intents(other) == 0


@pytest.mark.requirement("X02", "X10")
@pytest.mark.parametrize("lands", [True, False], ids=["lands late", "never lands"])
def test_a_flusher_that_is_killed_while_it_commits(
    table, connect, rest_proxy, properties, new_name, lands
):
    """Its request reaches the catalog when it is dead, or never does."""
    orders = {"properties": properties, "table": new_name, "do": "flush"}
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), json.dumps(orders)],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    fault = slow(1) if lands else RESET
    with rest_proxy.failing(
        fault, "POST", COMMIT, act=lambda: os.killpg(process.pid, signal.SIGKILL)
    ) as rule:
        said, _ = process.communicate(timeout=60)
        assert ids(table) == [0, 1, 2, 3]  # before it lands
        while lands and len(table.iceberg.metadata.snapshots) < 2:
            time.sleep(0.05)
    assert len(rule.fired) == 1
    assert (process.returncode, said.splitlines()) == (-signal.SIGKILL, ["ready"])
    other = connect().table(new_name)
    assert ids(other) == [0, 1, 2, 3]
    assert ids_in_files(other) == ([0, 1, 2, 3] if lands else [0, 1])
    other.insert(rows_of(4))
    assert ids(other) == [0, 1, 2, 3, 4]
    abandon_intents(other)
    other.flush()
    assert ids(other) == ids_in_files(other) == [0, 1, 2, 3, 4]
    assert intents(other) == 0


@pytest.mark.requirement("X02")
def test_a_catalog_that_cannot_be_reached_is_no_partial_answer(table, rest_proxy):
    with (
        rest_proxy.failing(RESET, "GET", r"/tables/", times=None) as rule,
        pytest.raises(StorageError),
    ):
        ids(table)
    assert rule.fired
    assert ids(table) == [0, 1, 2, 3]


@pytest.mark.requirement("X02")
def test_rows_inserted_after_an_older_backup_was_restored_are_seen(
    connect, properties, new_name, tmp_path
):
    first = connect()
    table = first.create_table(new_name, SCHEMA, properties=INLINE)
    table.insert(rows_of(0))
    first.stop()
    database = tmp_path / "inline.db"
    shutil.copy(database, tmp_path / "backup.db")
    second = connect()
    again = second.table(new_name)
    again.insert(rows_of(1, 2))
    again.flush()
    second.stop()
    for file in tmp_path.glob("inline.db*"):
        file.unlink()
    shutil.copy(tmp_path / "backup.db", database)

    third = connect().table(new_name)
    third.insert(rows_of(3))

    assert ids(third) == [0, 1, 2, 3]  # row 0 was flushed, and its copy in the backup is not seen
    third.flush()
    assert ids_in_files(third) == [0, 1, 2, 3]


@pytest.mark.requirement("L24")
def test_statements_over_both_tiers(open_lake, new_name, rest_proxy):
    """With Spark, and with a commit that is answered by an error though it landed."""
    table = open_lake("rest").create_table(new_name, SCHEMA, properties=INLINE)
    table.append(pa.table({"id": range(6), "n": [0] * 6}, schema=SCHEMA))
    table.insert(rows_of(6, 7, 8))
    with rest_proxy.failing(APPLIED_THEN_ERROR, "POST", COMMIT) as rule:
        table.update().set("n", "n + 1").where("id % 2 = 0").execute()
    assert rule.fired
    table.delete().where("id IN (1, 7)").execute()
    source = pa.table({"id": [0, 6, 20], "n": [50, 60, 70]}, schema=SCHEMA)
    table.upsert(source, ["id"]).execute()
    expected = [(0, 50), (2, 1), (3, 0), (4, 1), (5, 0), (6, 60), (8, 1), (20, 70)]
    assert sorted(tuple(row) for row in table.scan().collect()) == expected
    table.flush()
    read = table.iceberg.scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["n"]) for row in read) == expected
