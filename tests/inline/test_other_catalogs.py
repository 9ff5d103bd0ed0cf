"""Inline rows of tables whose catalog is not in their database: a REST catalog with `inline_uri`."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import LongType
from pyiceberg.utils.config import Config
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import icefloe
from icefloe import Lake, Table
from icefloe.cli.app import app
from icefloe.commands import flush as flush_command
from icefloe.commands import inline_rows
from icefloe.commands.run import flush
from icefloe.commit import catalog as commit_catalog
from icefloe.commit import handover
from icefloe.commit.snapshot import SnapshotDraft
from icefloe.errors import (
    CommitStateUnknownError,
    ConflictError,
    StatementError,
    StorageError,
    UnsupportedTableError,
)
from icefloe.inline.cut import PointerMovedError
from icefloe.inline.layout import INTENT
from icefloe.inline.rows import insert_rows
from icefloe.inline.tier import InlineTier
from icefloe.metadata.table_state import TableState
from support.races import once_before_publish
from support.rest_catalog import Land, Reply, RestCatalogServer, failure, running_catalog

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("n", pa.int32())])
INLINE = {"icefloe.inline.enabled": "true"}
FLUSHED = "icefloe.inline.flushed-through"
KILLED_WRITER = Path(__file__).parent / "killed_writer.py"
OpenLake = Callable[..., Lake]


def row(number: int, n: int = 0) -> dict[str, Any]:
    return {"id": number, "region": "eu" if number % 2 else None, "n": n}


# Most of it is the same on both databases: what differs is in `inline/store.py` and `inline/rows.py`.
on_both_databases = pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of an empty database for inline rows."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path / 'inline.db'}"
    return str(request.getfixturevalue("postgresql_database"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestCatalogServer]:
    with running_catalog(tmp_path / "lake") as running:
        yield running


@pytest.fixture
def open_lake(server: RestCatalogServer, database: str) -> Iterator[OpenLake]:
    """Opens lakes over one catalog and one database of inline rows; most need no Spark."""
    opened: list[Lake] = []

    def make(
        uri: str | None = database, name: str = "prod", spark: SparkSession | None = None
    ) -> Lake:
        catalog = icefloe.lake.open_catalog(None, name, dict(server.properties))
        opened.append(Lake(catalog, spark, uri))
        return opened[-1]

    yield make
    for lake in opened:
        lake.stop()


@pytest.fixture
def lake(open_lake: OpenLake) -> Lake:
    return open_lake()


@pytest.fixture
def table(lake: Lake) -> Table:
    """Row 1 in a file, rows 2 and 3 inline."""
    return new_table(lake)


def new_table(lake: Lake, **properties: str) -> Table:
    table = lake.create_table("shop.t", SCHEMA, properties={**INLINE, **properties})
    table.insert([row(1)])
    table.flush()
    table.insert([row(2)])
    table.insert([row(3)])
    return table


@pytest.fixture
def spark_table(open_lake: OpenLake, spark: SparkSession) -> Table:
    """The same, for statements that need Spark."""
    return new_table(open_lake(spark=spark))


def everything(table: Table) -> list[tuple[int, int]]:
    """The rows of both tiers, each read by itself: a row in both would be here twice."""
    while True:
        state = table._state()
        try:
            cut = table._lake.tier.cut(state)
        except PointerMovedError:
            continue
        filed = []
        if state.snapshot_id is not None:  # without an id, scan() reads what is current by then
            filed = table.iceberg.scan(snapshot_id=state.snapshot_id).to_arrow().to_pylist()
        inline = [] if cut is None else cut.arrow().to_pylist()
        return sorted((found["id"], found["n"]) for found in (*filed, *inline))


def ids(table: Table) -> list[int]:
    return [number for number, _ in everything(table)]


def stored(table: Table) -> int:
    """Rows in the database, flushed or not."""
    with table._lake.tier.store.reading() as connection:
        found = table._lake.tier.find(connection, table._state())
        assert found is not None
        return int(connection.execute(sa.select(sa.func.count()).select_from(found.rows)).scalar())


def intents(table: Table) -> int:
    with table._lake.tier.store.reading() as connection:
        return len(connection.execute(sa.select(INTENT)).all())


def abandon_intents(table: Table) -> None:
    """Six minutes pass."""
    with table._lake.tier.store.writing() as connection:
        connection.execute(INTENT.update().values(started=INTENT.c.started - 6 * 60_000))


def lost_answer(land: Land) -> Reply:
    assert land()[0] == 200
    return failure(500, "the answer is lost")


def never_lands(_land: Land) -> Reply:
    return failure(500, "the request is lost")


# -------------------------------------------------------------------------------------------------
# Which database


def test_the_tier_is_refused_without_a_database(open_lake, table):
    without = open_lake(uri=None)
    plain = without.create_table("shop.plain", SCHEMA)
    opened = without.table("shop.t")
    for use in (
        lambda: without.create_table("shop.u", SCHEMA, properties=INLINE),
        lambda: plain.set_properties(INLINE),
        lambda: opened.inline,
        lambda: opened.flush(),
        lambda: opened.insert([row(9)]),
        lambda: opened.truncate(),
    ):
        with pytest.raises(UnsupportedTableError, match="inline_uri='postgresql://"):
            use()
    assert without.tables("shop") == ["shop.plain", "shop.t"]
    assert ids(table) == [1, 2, 3]


def test_another_database_is_refused(open_lake, table, tmp_path):
    elsewhere = open_lake(uri=f"sqlite:///{tmp_path / 'other.db'}")
    elsewhere.create_table("shop.u", SCHEMA, properties=INLINE).insert([row(1)])
    opened = elsewhere.table("shop.t")
    for use in (opened.flush, lambda: opened.insert([row(9)]), lambda: opened.inline):
        with pytest.raises(UnsupportedTableError, match="inline_uri= of their database"):
            use()
    with pytest.raises(UnsupportedTableError, match="inline_uri="):
        opened.set_properties(INLINE)


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        ("sqlite://", UnsupportedTableError),
        ("sqlite:///:memory:", UnsupportedTableError),
        ("mysql://me:Passw0rd!x@host/lake", UnsupportedTableError),
        ("me:Passw0rd!x@host", StatementError),
    ],
)
def test_databases_that_cannot_have_inline_rows(server, uri, error):
    catalog = icefloe.lake.open_catalog(None, "prod", dict(server.properties))
    with pytest.raises(error, match="inline_uri='sqlite:///") as raised:
        Lake(catalog, None, uri)
    assert "Passw0rd" not in str(raised.value)


def test_a_catalog_in_memory_can_have_a_database_beside_it(tmp_path, database):
    catalog = SqlCatalog("memory", uri="sqlite:///:memory:", warehouse=tmp_path.as_uri())
    with Lake(catalog, None, database) as lake:
        table = lake.create_table("shop.t", SCHEMA, properties=INLINE)
        table.insert([row(1), row(2)])
        table.flush()
        table.insert([row(3)])
        assert (ids(table), table.inline.rows) == ([1, 2, 3], 1)


def test_properties_of_the_tier_are_set_by_icefloe_alone(table):
    with pytest.raises(StatementError, match=FLUSHED):
        table.set_properties({FLUSHED: "7"})


def test_clients_may_name_the_catalog_as_they_like(open_lake, table):
    named = open_lake(name="staging").table("shop.t")
    named.insert([row(4)])
    assert ids(named) == ids(table) == [1, 2, 3, 4]


def test_the_command_line_takes_the_database_from_the_configuration(
    table, server, database, monkeypatch
):
    def run_flush(**configuration: str) -> str:
        for name, value in configuration.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{name}", value)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # read once by a process
        output = CliRunner().invoke(app, ["--catalog", "prod", "flush"]).output
        return " ".join(output.split())

    assert "inline-uri in PyIceberg's configuration" in run_flush(TYPE="rest", URI=server.uri)
    assert "2 rows moved to data files" in run_flush(INLINE_URI=database)
    assert (ids(table), table.inline.rows) == ([1, 2, 3], 0)


# -------------------------------------------------------------------------------------------------
# Insert and flush


@pytest.mark.requirement("L01", "X04", "X06")
@on_both_databases
def test_rows_are_inserted_and_flushed(lake):
    table = lake.create_table("shop.t", SCHEMA, properties=INLINE)
    result = table.insert([row(1), row(2)])
    assert (result.mode, result.snapshot_id, result.rows_inserted) == ("inline", None, 2)
    assert (table.inline.rows, table.snapshot_id, ids(table)) == (2, None, [1, 2])
    flushed = table.flush()
    assert (flushed.rows_copied, flushed.data_files_added) == (2, 1)
    assert table.iceberg.scan().to_arrow().num_rows == 2
    assert (table.inline.rows, stored(table), intents(table)) == (0, 0, 0)
    assert table.flush().snapshot_id is None
    assert len(table.iceberg.metadata.snapshots) == 1


@on_both_databases
def test_a_flush_of_some_rows_takes_whole_changes(lake):
    table = lake.create_table("shop.t", SCHEMA, properties=INLINE)
    for numbers in ([1, 2], [3, 4, 5], [6]):
        table.insert([row(number) for number in numbers])
    assert flush(table._context(), 3).rows_copied == 5
    assert (table.inline.rows, ids(table)) == (1, [1, 2, 3, 4, 5, 6])


@pytest.mark.requirement("L08")
def test_the_background_flush_leaves_the_rest_inline(lake):
    limit = {"icefloe.inline.row-limit": "3"}
    table = lake.create_table("shop.t", SCHEMA, properties={**INLINE, **limit})
    for number in range(4):
        table.insert([row(number)])
    deadline = time.monotonic() + 60
    while table.inline.rows > 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (ids(table), table.inline.rows) == ([0, 1, 2, 3], 1)


def test_an_idempotency_key_counts_before_and_after_a_flush(table, open_lake):
    for other in (table, open_lake().table("shop.t")):
        assert other.insert([row(4)], idempotency_key="k").rows_inserted == 1
        table.flush()
    assert ids(table) == [1, 2, 3, 4]


def test_columns_added_while_rows_are_inline(table, open_lake):
    other = open_lake().table("shop.t")
    with table.iceberg.update_schema() as update:
        update.add_column("extra", LongType())
    other.insert([{**row(4), "extra": 7}])
    assert ids(table) == [1, 2, 3, 4]
    table.flush()
    assert table.iceberg.scan().to_arrow()["extra"].drop_null().to_pylist() == [7]


@pytest.mark.requirement("L27")
@on_both_databases
def test_many_threads_insert_while_rows_are_flushed(open_lake):
    limit = {"icefloe.inline.row-limit": "15"}
    open_lake().create_table("shop.t", SCHEMA, properties={**INLINE, **limit})
    errors: list[BaseException] = []

    def write(part: int) -> None:
        try:
            table = open_lake().table("shop.t")
            for number in range(10):
                table.insert([row(10 * part + number)])
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            errors.append(error)

    writers = [threading.Thread(target=write, args=(part,)) for part in range(6)]
    for writer in writers:
        writer.start()
    table = open_lake().table("shop.t")
    seen = 0
    while any(writer.is_alive() for writer in writers):
        now = ids(table)
        assert len(set(now)) == len(now) >= seen
        seen = len(now)
    assert errors == []
    table.flush()
    assert (ids(table), stored(table)) == (list(range(60)), 0)


@on_both_databases
def test_a_flush_waits_for_inserts_that_have_their_number(table, open_lake, monkeypatch):
    """Their rows would be taken for flushed ones if the numbers of later inserts were flushed."""
    numbered, go_on = threading.Event(), threading.Event()

    def insert_late(*arguments: Any) -> Any:
        if not numbered.is_set():
            numbered.set()
            assert go_on.wait(60)
        return insert_rows(*arguments)

    monkeypatch.setattr(inline_rows, "insert_rows", insert_late)
    inserting = threading.Thread(target=lambda: table.insert([row(4)]))
    inserting.start()
    assert numbered.wait(60)
    other = open_lake().table("shop.t")
    is_postgresql = "postgresql" in other._lake.tier.store.database
    if is_postgresql:  # SQLite has one writer at a time
        other.insert([row(5)])
    flushing = threading.Thread(target=other.flush)
    flushing.start()
    flushing.join(0.5)
    assert flushing.is_alive()
    go_on.set()
    for thread in (inserting, flushing):
        thread.join(60)
    assert ids(table) == [1, 2, 3, 4, *([5] if is_postgresql else [])]


# -------------------------------------------------------------------------------------------------
# Readers


def test_a_flush_between_the_metadata_and_the_rows(table, open_lake):
    state = table._state()
    open_lake().table("shop.t").flush()
    with pytest.raises(PointerMovedError):
        table._lake.tier.cut(state)
    assert ids(table) == [1, 2, 3]


def test_a_flush_between_the_rows_and_the_second_look(table, open_lake, server):
    other, state = open_lake().table("shop.t"), table._state()
    server.before_load.append(other.flush)
    with pytest.raises(PointerMovedError):
        table._lake.tier.cut(state)
    assert ids(table) == [1, 2, 3]


@pytest.mark.requirement("X02", "L07")
@on_both_databases
def test_readers_at_every_step_of_a_flush(table, open_lake, server, monkeypatch):
    """Also between the commit and the removal of the rows, which both are there."""
    reader, seen = open_lake().table("shop.t"), []

    def looking(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def look(*arguments: Any) -> Any:
            seen.append(ids(reader))
            result = function(*arguments)
            seen.append(ids(reader))
            return result

        monkeypatch.setattr(owner, name, look)

    for name in ("announce", "conclude"):
        looking(handover.InlineHandover, name)
    looking(commit_catalog, "_swap")
    table.flush()
    assert seen == [[1, 2, 3]] * 6


# -------------------------------------------------------------------------------------------------
# Failures


class KilledError(BaseException):
    """What ends a flush in the middle."""


STEPS: dict[str, tuple[Any, str]] = {
    "write files": (flush_command, "write_local_rows"),
    "lay out manifests": (SnapshotDraft, "finish"),
    "announce": (handover, "write_intent"),
    "commit": (commit_catalog, "_publish"),
    "conclude": (handover.InlineHandover, "conclude"),
}


@pytest.mark.requirement("X02", "X10")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_flush_that_dies_at_any_step(table, open_lake, monkeypatch, step, when):
    owner, name = STEPS[step]
    function = getattr(owner, name)

    def die(*arguments: Any) -> Any:
        if when == "after":
            function(*arguments)
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, die)
        with pytest.raises((KilledError, CommitStateUnknownError)):
            table.flush()
    landed = (step, when) in {("commit", "after"), ("conclude", "before"), ("conclude", "after")}
    fresh = open_lake().table("shop.t")
    assert len(fresh.iceberg.metadata.snapshots) == 1 + landed
    assert (ids(fresh), fresh.inline.rows) == ([1, 2, 3], 0 if landed else 2)
    fresh.insert([row(4)])
    assert ids(fresh) == [1, 2, 3, 4]
    abandon_intents(fresh)
    fresh.flush()
    assert (ids(fresh), stored(fresh), intents(fresh)) == ([1, 2, 3, 4], 0, 0)


@pytest.mark.requirement("X02")
@pytest.mark.parametrize(
    ("when", "step", "rows_inline"),
    [
        ("after", "announce", 2),
        pytest.param("before", "ask the catalog", 2, marks=pytest.mark.slow),
        ("after", "ask the catalog", 0),
        pytest.param("after", "conclude", 0, marks=pytest.mark.slow),
    ],
)
def test_a_killed_flush(lake, server, database, when, step, rows_inline):
    table = lake.create_table("t", SCHEMA, properties=INLINE)
    table.insert([row(1), row(2)])
    arguments = [f"{server.uri} {database}", "flush", when, step]
    done = subprocess.run(
        [sys.executable, KILLED_WRITER, *arguments],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL
    assert (ids(table), table.inline.rows) == ([1, 2], rows_inline)
    table.insert([row(3)])
    assert ids(table) == [1, 2, 3]
    abandon_intents(table)
    table.flush()
    assert (ids(table), stored(table), intents(table)) == ([1, 2, 3], 0, 0)


@pytest.mark.requirement("X10")
def test_a_commit_whose_answer_is_lost_is_found(table, server):
    server.faults.append(lost_answer)
    assert table.flush().rows_copied == 2
    assert (ids(table), stored(table), intents(table)) == ([1, 2, 3], 0, 0)


def test_a_commit_that_is_refused_is_repeated(table, server):
    server.faults.append(lambda _land: failure(409, "another writer was faster"))
    assert table.flush().attempts == 2
    assert (ids(table), stored(table), intents(table)) == ([1, 2, 3], 0, 0)


def test_a_commit_that_never_lands_is_withdrawn(table, server, open_lake):
    server.faults.append(never_lands)
    with pytest.raises(CommitStateUnknownError):
        table.flush()
    assert (ids(table), table.inline.rows, intents(table)) == ([1, 2, 3], 2, 1)
    abandon_intents(table)
    assert open_lake().table("shop.t").flush().rows_copied == 2
    assert (ids(table), stored(table), intents(table)) == ([1, 2, 3], 0, 0)


@on_both_databases
def test_a_commit_that_lands_late(table, server, open_lake):
    late: list[Land] = []

    def lands_late(land: Land) -> Reply:
        late.append(land)
        return failure(504, "no answer in time")

    server.faults.append(lands_late)
    with pytest.raises(CommitStateUnknownError):
        table.flush()
    assert (ids(table), table.inline.rows) == ([1, 2, 3], 2)
    assert late[0]()[0] == 200
    assert (ids(table), table.inline.rows, stored(table)) == ([1, 2, 3], 0, 2)
    abandon_intents(table)
    other = open_lake().table("shop.t")
    assert other.flush().snapshot_id is None
    assert (ids(other), stored(other), intents(other)) == ([1, 2, 3], 0, 0)


def test_a_database_that_fails_after_the_commit(table, monkeypatch, caplog):
    """The statement has succeeded; the next flush removes the rows."""

    def fail(*_arguments: Any) -> None:
        raise StorageError("the database is gone")

    with monkeypatch.context() as patched:
        patched.setattr(handover, "conclude", fail)
        assert table.flush().rows_copied == 2
    assert "not removed from the database yet" in caplog.text
    assert (ids(table), table.inline.rows, stored(table)) == ([1, 2, 3], 0, 2)
    abandon_intents(table)
    table.flush()
    assert (ids(table), stored(table)) == ([1, 2, 3], 0)


def test_inserts_do_not_wait_for_a_flush(table, server, open_lake):
    other = open_lake().table("shop.t")

    def insert_meanwhile(land: Land) -> Reply:
        other.insert([row(4)])
        return land()

    server.faults.append(insert_meanwhile)
    assert table.flush().rows_copied == 2
    assert (ids(table), table.inline.rows) == ([1, 2, 3, 4], 1)


@on_both_databases
def test_a_second_flush_waits_for_the_first(table, server, open_lake):
    asked, answer = threading.Event(), threading.Event()

    def slow(land: Land) -> Reply:
        asked.set()
        assert answer.wait(30)
        return land()

    server.faults.append(slow)
    results = []
    flushes = [
        threading.Thread(target=lambda t=t: results.append(t.flush().rows_copied))
        for t in (table, open_lake().table("shop.t"))
    ]
    flushes[0].start()
    assert asked.wait(30)
    flushes[1].start()
    flushes[1].join(0.5)
    assert flushes[1].is_alive()
    answer.set()
    for thread in flushes:
        thread.join(30)
    assert sorted(results) == [0, 2]
    assert (ids(table), stored(table)) == ([1, 2, 3], 0)


def test_another_flush_before_the_commit_is_seen(table, open_lake):
    other = open_lake().table("shop.t")
    once_before_publish(table._lake, other.flush)
    assert table.flush().snapshot_id is None
    assert (ids(table), len(table.iceberg.metadata.snapshots)) == ([1, 2, 3], 2)


def test_an_append_before_the_commit_is_no_conflict(table):
    new = pa.Table.from_pylist([row(4)], SCHEMA)
    once_before_publish(table._lake, lambda: table.iceberg.append(new))
    assert table.flush().rows_copied == 2
    assert (ids(table), stored(table)) == ([1, 2, 3, 4], 0)


@on_both_databases
def test_the_property_may_be_removed(table):
    table.flush()
    table.insert([row(4)])
    with table.iceberg.transaction() as transaction:
        transaction.remove_properties(FLUSHED)
    assert ids(table) == [1, 2, 3, 4]
    table.insert([row(5)])
    table.flush()
    assert (ids(table), stored(table)) == ([1, 2, 3, 4, 5], 0)


# -------------------------------------------------------------------------------------------------
# Backups


def copy_database(source: str, target: str) -> None:
    """Copy a database that nobody uses."""
    old, new = sa.make_url(source), sa.make_url(target)
    if old.get_backend_name() == "sqlite":
        shutil.copy(str(old.database), str(new.database))
        return
    engine = sa.create_engine(old.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {new.database} WITH (FORCE)")
        connection.exec_driver_sql(f"CREATE DATABASE {new.database} TEMPLATE {old.database}")
    engine.dispose()


@on_both_databases
def test_rows_inserted_after_an_older_backup_was_restored_are_seen(table, open_lake, database):
    lake, backup = table._lake, f"{database}_backup"
    lake.stop()
    copy_database(database, backup)
    table.insert([row(4)])
    table.flush()
    table.insert([row(5)])
    lake.stop()
    copy_database(backup, database)
    restored = open_lake().table("shop.t")
    assert (ids(restored), stored(restored)) == ([1, 2, 3, 4], 2)  # 5 was in the database alone
    restored.insert([row(6)])
    assert (ids(restored), restored.inline.rows) == ([1, 2, 3, 4, 6], 1)
    restored.flush()
    assert (ids(restored), stored(restored)) == ([1, 2, 3, 4, 6], 0)


# -------------------------------------------------------------------------------------------------
# Everything else a table does


def test_truncate_removes_inline_rows(spark_table, server, open_lake):
    table = spark_table
    other = open_lake().table("shop.t")

    def insert_meanwhile(land: Land) -> Reply:
        other.insert([row(9)])
        return land()

    server.faults.append(insert_meanwhile)
    assert table.truncate().rows_deleted == 3
    assert (ids(table), stored(table), intents(table)) == ([9], 1, 0)
    before = table.snapshot_id
    assert (table.truncate().rows_deleted, table.snapshot_id) == (1, before)
    assert ids(table) == []


def test_truncate_that_never_lands(spark_table, server):
    table = spark_table
    server.faults.append(never_lands)
    with pytest.raises(CommitStateUnknownError):
        table.truncate()
    assert ids(table) == [1, 2, 3]
    abandon_intents(table)
    table.truncate()
    assert (ids(table), stored(table), intents(table)) == ([], 0, 0)


def test_switching_the_tier_off_flushes_in_the_same_commit(table, server):
    before = len(server.log)
    table.set_properties({"icefloe.inline.enabled": False})
    commits = [entry for entry in server.log[before:] if entry.startswith("POST")]
    assert len(commits) == 1
    assert (table.properties["icefloe.inline.enabled"], stored(table)) == ("false", 0)
    assert table.iceberg.scan().to_arrow().num_rows == 3
    table.set_properties(INLINE)
    table.insert([row(4)])
    assert (ids(table), table.inline.rows) == ([1, 2, 3, 4], 1)


def test_rollback_flushes_first(table):
    first = table.snapshot_id
    table.rollback(first)
    assert (ids(table), table.inline.rows) == ([1], 0)
    newest = table.iceberg.metadata.snapshots[-1].snapshot_id
    table.insert([row(4)])
    table.rollback(newest)
    assert ids(table) == [1, 2, 3]


@on_both_databases
def test_rename_and_drop(table, lake, open_lake):
    lake.rename_table("shop.t", "shop.u")
    renamed = open_lake().table("shop.u")
    renamed.insert([row(4)])
    assert ids(renamed) == [1, 2, 3, 4]
    lake.drop_table("shop.u")
    again = lake.create_table("shop.u", SCHEMA, properties=INLINE)
    assert ids(again) == []
    with lake.tier.store.reading() as connection:
        tables = sa.inspect(connection.connection).get_table_names()
    assert not [name for name in tables if name.removeprefix("icefloe_inline_").isdigit()]


@pytest.mark.requirement("L16")
@on_both_databases
@pytest.mark.parametrize("seed", range(2))
def test_random_programs_with_faults(open_lake, server, seed):
    """Inserts, appends and flushes by two clients of a catalog that fails in every way."""
    choose = random.Random(seed)
    open_lake().create_table("shop.t", SCHEMA, properties=INLINE)
    tables = [open_lake().table("shop.t") for _ in range(2)]
    model: list[int] = []
    for step in range(25):
        table = choose.choice(tables)
        match choose.choice(["insert", "insert", "flush", "flush some", "append"]):
            case "insert":
                numbers = [10 * step + n for n in range(choose.randint(1, 3))]
                table.insert([row(number) for number in numbers])
                model += numbers
            case "append":
                table.iceberg.append(pa.Table.from_pylist([row(10 * step)], SCHEMA))
                model.append(10 * step)
            case operation:
                flush_with_faults(table, server, choose, 2 if operation == "flush some" else None)
        assert ids(choose.choice(tables)) == sorted(model), step
    abandon_intents(tables[0])
    tables[0].flush()
    assert (ids(tables[1]), stored(tables[1])) == (sorted(model), 0)


def flush_with_faults(
    table: Table, server: RestCatalogServer, choose: random.Random, rows: int | None = None
) -> None:
    """Flush, perhaps with a lost request or answer; an intent of before has been abandoned."""
    abandon_intents(table)
    if choose.random() < 0.6:
        server.faults.append(choose.choice([lost_answer, never_lands]))
    try:
        flush(table._context(), rows)
    except CommitStateUnknownError:
        assert intents(table) == 1
    server.faults.clear()


# -------------------------------------------------------------------------------------------------
# Statements


@pytest.mark.requirement("L18", "L21", "L24", "L25")
def test_statements_over_both_tiers(spark_table, mode):
    table = spark_table
    table.set_properties({f"write.{kind}.mode": mode for kind in ("update", "delete", "merge")})
    first = table.snapshot_id
    inline = table.update().set("n", "n + 1").where("id = 2").execute()
    assert (inline.mode, inline.rows_updated, inline.snapshot_id) == ("inline", 1, None)
    assert table.delete().where("id = 3").execute().mode == "inline"
    assert (table.snapshot_id, everything(table)) == (first, [(1, 0), (2, 1)])

    both = table.update().set("n", "n + 10").where("id < 3").execute()
    assert (both.mode, both.rows_updated) == (mode, 2)
    assert (everything(table), table.inline.rows) == ([(1, 10), (2, 11)], 0)

    table.insert([row(4), row(5)])
    assert table.delete().where("id IN (1, 4)").execute().rows_deleted == 2
    table.insert([row(6)])
    merged = table.upsert([row(5, 7), row(6, 7), row(8, 7)], ["id"]).execute()
    assert (merged.rows_updated, merged.rows_inserted) == (2, 1)
    assert everything(table) == [(2, 11), (5, 7), (6, 7), (8, 7)]

    table.insert([row(9), row(10)])
    table.replace_where("id >= 9", [row(11)]).with_options(scope="rows").execute()
    table.insert([row(12)])
    table.update().set("n", "(SELECT max(id) FROM shop.t)").where("id = 2").execute()
    assert everything(table) == [(2, 12), (5, 7), (6, 7), (8, 7), (11, 0), (12, 0)]
    assert sorted(table.to_arrow(["id"])["id"].to_pylist()) == ids(table)

    table.insert([row(13)])
    assert table.overwrite([row(1)]).rows_deleted == 7
    assert (everything(table), stored(table), intents(table)) == ([(1, 0)], 0, 0)


def test_connect_and_sql(spark, server, database):
    with icefloe.connect(spark=spark, inline_uri=database, **server.properties) as lake:
        lake.sql(
            "CREATE TABLE shop.t (id BIGINT, region STRING, n INT) "
            "TBLPROPERTIES ('icefloe.inline.enabled' = 'true')"
        )
        assert lake.sql("INSERT INTO shop.t VALUES (1, 'a', 1), (2, 'b', 2)").mode == "inline"
        assert lake.sql("UPDATE shop.t SET n = n + 1 WHERE id = 2").mode == "inline"
        lake.sql("MERGE INTO shop.t t USING shop.t s ON t.id = s.id WHEN MATCHED THEN DELETE")
        lake.sql("INSERT INTO shop.t VALUES (3, 'c', 3)")
        [found] = lake.sql("SELECT id, n FROM shop.t").collect()
        assert tuple(found) == (3, 3)


@pytest.mark.requirement("X02")
def test_a_delete_waits_for_a_flush_that_is_announced(spark_table, server, open_lake):
    """Between the announcement and the answer, the row is in both places, or will be."""
    other = open_lake().table("shop.t")
    asked, answer = threading.Event(), threading.Event()

    def slow(land: Land) -> Reply:
        asked.set()
        assert answer.wait(60)
        return land()

    server.faults.append(slow)
    flushing = threading.Thread(target=other.flush)
    flushing.start()
    assert asked.wait(30)
    deleted: list[int] = []
    publishing = threading.Event()
    once_before_publish(spark_table._lake, publishing.set)
    delete = threading.Thread(
        target=lambda: deleted.append(spark_table.delete().where("id = 2").execute().rows_deleted)
    )
    delete.start()
    assert publishing.wait(60)
    delete.join(2)
    assert delete.is_alive()
    answer.set()
    for thread in (flushing, delete):
        thread.join(60)
    assert (deleted, ids(other), stored(other)) == ([1], [1, 3], 0)


@pytest.mark.every_variant
@pytest.mark.parametrize("fault", [lost_answer, never_lands])
def test_statements_settle_the_intent_of_a_dead_flush(
    spark_table, open_lake, server, fault, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(handover.InlineHandover, "conclude", lambda *_arguments: None)
        server.faults.append(fault)
        try:
            open_lake().table("shop.t").flush()
        except CommitStateUnknownError:
            assert fault is never_lands
    assert (ids(spark_table), intents(spark_table)) == ([1, 2, 3], 1)
    abandon_intents(spark_table)
    spark_table.update().set("n", "5").where("id = 2").execute()
    spark_table.delete().where("id = 3").execute()
    assert (everything(spark_table), intents(spark_table)) == ([(1, 0), (2, 5)], 0)


@pytest.mark.every_variant
@on_both_databases
def test_inline_rows_that_another_writer_changed_are_a_conflict(spark_table, open_lake, spark):
    other = open_lake(spark=spark).table("shop.t")
    change = spark_table.update().set("n", "n + 1").where("id = 2")
    for number, is_conflict in ((2, True), (3, False)):
        theirs = other.update().set("n", "n + 10").where(f"id = {number}")
        once_before_publish(spark_table._lake, theirs.execute)
        if is_conflict:
            with pytest.raises(ConflictError, match="changed 1 inline rows"):
                change.execute()
        else:
            change.execute()
    assert everything(spark_table) == [(1, 0), (2, 11), (3, 10)]


def test_a_flush_before_a_statement_begins_again(spark_table, open_lake, spark):
    """The statement changes rows in both tiers, so it flushes; that meets the other's change."""
    other = open_lake(spark=spark).table("shop.t")
    theirs = other.update().set("n", "n + 10").where("id = 2")
    once_before_publish(spark_table._lake, theirs.execute)
    result = spark_table.update().set("n", "n + 1").where("id < 3").execute()
    assert (result.rows_updated, everything(spark_table)) == (2, [(1, 1), (2, 11), (3, 0)])


@pytest.mark.every_variant
@on_both_databases
def test_rows_inserted_while_files_are_changed(spark_table, open_lake):
    """They conflict if the statement would have changed them: it is serializable."""
    other = open_lake().table("shop.t")
    change = spark_table.update().set("n", "n + 1").where("id IN (1, 7)")
    once_before_publish(spark_table._lake, lambda: other.insert([row(7)]))
    with pytest.raises(ConflictError, match="inserted 1 inline rows"):
        change.execute()
    once_before_publish(spark_table._lake, lambda: other.insert([row(8)]))
    change.execute()
    assert everything(spark_table) == [(1, 1), (2, 0), (3, 0), (7, 1), (8, 0)]


def test_inline_rows_are_changed_on_top_of_other_commits(spark_table):
    new = pa.Table.from_pylist([row(9)], SCHEMA)
    once_before_publish(spark_table._lake, lambda: spark_table.iceberg.append(new))
    assert spark_table.delete().where("id = 2").execute().mode == "inline"
    assert ids(spark_table) == [1, 3, 9]


def test_a_commit_after_the_last_look_at_the_catalog(spark_table, open_lake, spark, monkeypatch):
    """The transaction asks no catalog, and finds that a commit was announced since."""
    other, look = open_lake(spark=spark).table("shop.t"), InlineTier._is_current_in_catalog
    theirs = [other.update().set("n", "5").where("id = 1")]

    def commit_after_look(tier: InlineTier, state: TableState) -> bool:
        is_current = look(tier, state)
        if tier is spark_table._lake.tier and theirs and is_publishing:
            theirs.pop().execute()
        return is_current

    is_publishing: list[bool] = []
    monkeypatch.setattr(InlineTier, "_is_current_in_catalog", commit_after_look)
    once_before_publish(spark_table._lake, lambda: is_publishing.append(True))
    with pytest.raises(ConflictError, match="added rows"):
        spark_table.update().set("n", "n + 1").where("n = 5 OR id = 2").execute()
    assert (theirs, everything(spark_table)) == ([], [(1, 5), (2, 0), (3, 0)])


def test_random_statements_with_faults(open_lake, server, spark):
    choose = random.Random(7)
    tables = [new_table(open_lake(spark=spark))]
    tables.append(open_lake(spark=spark).table("shop.t"))
    model = {1: 0, 2: 0, 3: 0}
    for step in range(12):
        table, edge = choose.choice(tables), choose.randint(1, 30)
        match step % 4:
            case 0:
                table.insert([row(10 + step), row(20 + step)])
                model |= {10 + step: 0, 20 + step: 0}
            case 1:
                flush_with_faults(table, server, choose)
                abandon_intents(table)
            case 2:
                table.update().set("n", f"n + {step}").where(f"id < {edge}").execute()
                model = {i: n + step * (i < edge) for i, n in model.items()}
            case 3:
                table.delete().where(f"id % 7 = {edge % 7}").execute()
                model = {i: n for i, n in model.items() if i % 7 != edge % 7}
        assert everything(choose.choice(tables)) == sorted(model.items()), step
