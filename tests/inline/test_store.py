"""Transactions, locks, threads, processes and errors of the store."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog

from icefloe.errors import (
    CommitOutcomeUnknown,
    CommitStateUnknownError,
    StorageError,
    StoreBusyError,
    UnsupportedTableError,
)
from icefloe.inline import database as databases
from icefloe.inline.bookkeeping import next_stamp
from icefloe.inline.layout import STORE, inline_columns
from icefloe.inline.rows import count_rows, select_versions
from icefloe.inline.store import InlineStore, read_store_id
from icefloe.inline.tables import find_table, register_table
from support.inline_store import NAME, SCHEMA, insert, insert_in, stored_ids


@pytest.mark.requirement("L03")
def test_an_error_leaves_nothing(store, table):
    class Interrupted(Exception):
        pass

    with pytest.raises(Interrupted), store.writing() as connection:
        insert_in(connection, table, 1, 2)
        assert count_rows(connection, table) == 2
        raise Interrupted
    assert stored_ids(store, table) == []


@pytest.mark.requirement("L07")
def test_readers_see_all_rows_of_an_insert_or_none(store, open_store, table):
    seen: set[int] = set()
    done = threading.Event()

    def watch() -> None:
        other = open_store()
        while not done.is_set():
            with other.reading() as connection:
                seen.add(count_rows(connection, table))

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        for start in range(0, 5000, 1000):
            insert(store, table, *range(start, start + 1000))
        done.set()
        watching.result()
    assert seen <= {0, 1000, 2000, 3000, 4000, 5000}


def test_a_reader_sees_one_state(store, open_store, table):
    insert(store, table, 1)
    with open_store().reading() as connection:
        before = select_versions(connection, table)
        insert(store, table, 2)
        assert select_versions(connection, table) == before
    assert stored_ids(store, table) == [1, 2]


def test_readers_do_not_wait_for_a_writer(store, open_store, table):
    insert(store, table, 1)
    with store.writing(lock=table) as connection:
        insert_in(connection, table, 2)
        assert stored_ids(open_store(), table) == [1]


def test_the_store_has_one_id(store, open_store):
    with store.reading() as connection:
        assert read_store_id(connection) is None
        assert find_table(connection, "lake", "uuid") is None
    store.create()
    ids = set()
    for each in (store, open_store()):
        with each.reading() as connection:
            ids.add(read_store_id(connection))
    assert len(ids) == 1


def test_numbers_of_changes_are_unique(open_store, table):
    def numbers(_: int) -> list[int]:
        store, found = open_store(), []
        for _ in range(20):
            with store.writing() as connection:
                found.append(next_stamp(connection).seq)
        return found

    with ThreadPoolExecutor(4) as pool:
        found = [seq for seqs in pool.map(numbers, range(4)) for seq in seqs]
    assert len(set(found)) == 80


def test_threads_insert_together(open_store, table):
    def work(thread: int) -> None:
        store = open_store()
        for number in range(25):
            insert(store, table, thread * 100 + number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    ids = stored_ids(open_store(), table)
    assert sorted(ids) == sorted(t * 100 + n for t in range(8) for n in range(25))


def test_locked_tables_are_changed_one_after_the_other(store, open_store, table):
    """Inserts need no lock: on PostgreSQL they go on."""
    events = []
    with ThreadPoolExecutor(1) as pool:
        with store.writing(lock=table) as connection:

            def change() -> None:
                with open_store().writing(lock=table):
                    events.append("other")

            changing = pool.submit(change)
            time.sleep(0.3)
            if connection.is_postgresql:
                insert(open_store(), table, 1)
                events.append("insert")
            events.append("first")
        changing.result()
    assert events[-2:] == ["first", "other"]
    assert ("insert" in events) is connection.is_postgresql


def _first_use(uri: str, number: int) -> None:
    store = InlineStore.of_uri(uri)
    with store.writing() as connection:
        table = register_table(connection, NAME, "shared", inline_columns(SCHEMA))
    for count in range(5):
        insert(store, table, number * 10 + count)
    store.close()


def test_first_use_by_eight_processes(database, store):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_first_use, args=(database, n)) for n in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 8
    with store.reading() as connection:
        table = find_table(connection, "lake", "shared")
        assert connection.execute(sa.select(sa.func.count()).select_from(STORE)).scalar() == 1
    assert sorted(stored_ids(store, table)) == sorted(
        n * 10 + c for n in range(8) for c in range(5)
    )


def test_a_fork_opens_its_own_connections(store, table):
    insert(store, table, 1)
    with store.reading():  # a connection is in use, and one in the pool
        pid = os.fork()
        if pid == 0:
            try:
                insert(store, table, 2)
                os._exit(0)
            except BaseException:  # noqa: BLE001 - the child must not run the rest of the tests
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    insert(store, table, 3)
    assert stored_ids(store, table) == [1, 2, 3]


# -------------------------------------------------------------------------------------------------
# Errors


def test_errors_before_commit_say_that_nothing_was_changed(store, table):
    with (
        pytest.raises(StorageError, match=r"nobody.*Nothing was changed") as caught,
        store.writing() as connection,
    ):
        insert_in(connection, table, 1)
        connection.connection.exec_driver_sql("SELECT * FROM nobody")
    assert not isinstance(caught.value, StoreBusyError)
    assert stored_ids(store, table) == []


def test_passwords_are_not_shown(tmp_path):
    store = InlineStore.of_uri("postgresql+psycopg://me:Passw0rd!x@127.0.0.1:1/lake")
    with pytest.raises(StorageError) as caught, store.reading():
        pass
    shown = f"{caught.value} {caught.value.__cause__} {store.database}"
    assert "Passw0rd" not in shown
    assert "postgresql+psycopg://me:***@127.0.0.1:1/lake" in shown


def test_a_lost_connection_during_commit_is_an_unknown_outcome(postgresql_store):
    store, table, server = postgresql_store

    def cut(connection: sa.Connection) -> None:
        with server.connect() as other:
            other.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})

    with (
        pytest.raises(CommitOutcomeUnknown, match="lost during COMMIT") as caught,
        store.writing() as connection,
    ):
        pid = connection.connection.scalar(sa.text("SELECT pg_backend_pid()"))
        insert_in(connection, table, 1)
        sa.event.listen(connection.connection, "commit", cut)
    assert isinstance(caught.value, CommitStateUnknownError)
    assert not isinstance(caught.value, StorageError)
    insert(store, table, 2)  # by a new connection
    assert 2 in stored_ids(store, table)


@pytest.mark.parametrize("idle", [True, False])
def test_a_connection_that_was_lost_between_transactions(postgresql_store, monkeypatch, idle):
    """It is replaced if it was idle; right after its use, one statement fails and changes nothing."""
    store, table, server = postgresql_store
    monkeypatch.setattr(databases, "_IDLE_SECONDS", 0 if idle else 60)
    with store.writing() as connection:
        pid = connection.connection.scalar(sa.text("SELECT pg_backend_pid()"))
    with server.connect() as other:
        other.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
    if not idle:
        with pytest.raises(StorageError, match="Nothing was changed"):
            insert(store, table, 1)
    insert(store, table, 2)
    assert stored_ids(store, table) == [2]


@pytest.fixture
def postgresql_store(postgresql_database):
    store = InlineStore.of_uri(postgresql_database)
    with store.writing() as connection:
        table = register_table(connection, NAME, "a table", inline_columns(SCHEMA))
    engine = sa.create_engine(postgresql_database, isolation_level="AUTOCOMMIT")
    yield store, table, engine
    engine.dispose()
    store.close()


def test_a_refused_commit_is_no_unknown_outcome(postgresql_store):
    """A constraint that PostgreSQL checks at COMMIT."""
    store, _, _ = postgresql_store
    with (
        pytest.raises(StorageError, match=r"duplicate key.*Nothing was changed"),
        store.writing() as connection,
    ):
        for statement in (
            "CREATE TEMP TABLE late (x INT UNIQUE DEFERRABLE INITIALLY DEFERRED)",
            "INSERT INTO late VALUES (1), (1)",
        ):
            connection.connection.exec_driver_sql(statement)


def test_a_database_that_stays_locked(store, open_store, table, monkeypatch):
    monkeypatch.setattr(databases, "BUSY_SECONDS", 0.2)
    other = open_store()
    with store.writing(lock=table), ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(lambda: insert_locked(other, table))
        with pytest.raises(StoreBusyError, match=r"locked.*Nothing was changed"):
            blocked.result()
    insert_locked(other, table)
    assert stored_ids(store, table) == [1]


def test_many_threads_wait_as_long_as_their_line_moves(tmp_path, monkeypatch):
    """The last of them longer than for one transaction that keeps the database locked."""
    monkeypatch.setattr(databases, "BUSY_SECONDS", 1.5)
    store = InlineStore.of_uri(f"sqlite:///{tmp_path / 'catalog.db'}")
    store.create()

    def write(_: int) -> float:
        started = time.monotonic()
        with store.writing():
            waited = time.monotonic() - started
            time.sleep(0.5)
        return waited

    with ThreadPoolExecutor(6) as pool:
        waits = list(pool.map(write, range(6)))
    assert max(waits) > 1.5
    store.close()


def insert_locked(store, table):
    with store.writing(lock=table) as connection:
        insert_in(connection, table, 1)


def test_a_process_that_keeps_the_database_locked(tmp_path, monkeypatch):
    """Another process is not in line with our threads: SQLite itself waits."""
    monkeypatch.setattr(databases, "BUSY_SECONDS", 0.2)
    uri = f"sqlite:///{tmp_path / 'catalog.db'}"
    store = InlineStore.of_uri(uri)
    store.create()
    engine = sa.create_engine(uri)
    with engine.connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        with (
            pytest.raises(StoreBusyError, match="for many writers use PostgreSQL"),
            store.writing(),
        ):
            pass
        other.rollback()
    with store.writing() as connection:
        assert read_store_id(connection)
    engine.dispose()
    store.close()


def test_a_full_database(tmp_path):
    store = InlineStore.of_uri(f"sqlite:///{tmp_path / 'catalog.db'}")
    with store.writing() as connection:
        table = register_table(connection, NAME, "t", inline_columns(SCHEMA))
    with (
        pytest.raises(StorageError, match=r"full.*Nothing was changed\. Make room.*flush\(\)"),
        store.writing() as connection,
    ):
        pages = connection.connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 1}")
        insert_in(connection, table, *range(10_000))
    store.close()
    assert stored_ids(store, table) == []
    store.close()


def test_threads_are_served_in_their_order(tmp_path):
    store = InlineStore.of_uri(f"sqlite:///{tmp_path / 'catalog.db'}")
    store.create()
    order = []

    def write(number: int) -> None:
        with store.writing():
            order.append(number)

    with ThreadPoolExecutor(8) as pool, store.writing():
        for number in range(8):
            pool.submit(write, number)
            time.sleep(0.03)
    assert order == list(range(8))
    store.close()


# -------------------------------------------------------------------------------------------------
# Databases


def test_sqlite_gets_wal_when_the_tier_is_first_used(tmp_path):
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path / 'catalog.db'}", warehouse="file:///x")
    store = InlineStore.of_catalog(catalog)
    with store.reading():
        assert journal_mode(catalog) == "delete"
    with store.writing():
        assert journal_mode(catalog) == "wal"
    catalog.create_namespace("shop")
    assert catalog.list_namespaces() == [("shop",)]
    store.close()
    catalog.close()


def journal_mode(catalog: SqlCatalog) -> str:
    with catalog.engine.connect() as connection:
        connection.exec_driver_sql(
            "SELECT 1 FROM iceberg_tables"
        )  # a connection looks when it reads
        return connection.exec_driver_sql("PRAGMA journal_mode").scalar()


def test_without_wal_the_store_works_and_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(InlineStore, "_journal_mode", lambda _: "delete")
    store = InlineStore.of_uri(f"sqlite:///{tmp_path / 'catalog.db'}")
    with store.writing() as connection:
        table = register_table(connection, NAME, "t", inline_columns(SCHEMA))
    insert(store, table, 1)
    assert stored_ids(store, table) == [1]
    assert "stays in journal mode delete" in caplog.text
    store.close()


@pytest.mark.parametrize(
    "uri",
    ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&cache=shared&uri=true"],
)
def test_databases_in_memory_are_refused(uri):
    with pytest.raises(UnsupportedTableError, match="in memory"):
        InlineStore.of_uri(uri)


def test_other_databases_are_refused():
    with pytest.raises(UnsupportedTableError, match=r"needs SQLite or PostgreSQL.*is mysql"):
        InlineStore.of_uri("mysql://me:Passw0rd!x@host/lake")


def test_postgresql_is_used_through_psycopg():
    store = InlineStore.of_uri("postgresql://me@host/lake")
    assert store.database == "postgresql+psycopg://me@host/lake"


def test_a_store_of_a_later_format_is_refused(store, open_store):
    with store.writing() as connection:
        connection.execute(STORE.update().values(format=4))
    for use in (open_store().reading, open_store().writing):
        with pytest.raises(UnsupportedTableError, match=r"format 4.*supports 3"), use():
            pass


def test_a_column_named_like_memory_is_no_memory(tmp_path):
    path = tmp_path / "memory.db"
    store = InlineStore.of_uri(f"sqlite:///{path}")
    store.create()
    assert path.exists()
    store.close()
