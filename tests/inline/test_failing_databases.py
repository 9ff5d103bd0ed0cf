"""Databases that are full, read-only, locked or gone; clocks, catalogs and names that are odd."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog

from icefloe import Lake, Table
from icefloe.errors import CommitStateUnknownError, IcefloeError, StorageError, StoreBusyError
from icefloe.inline.bookkeeping import acquire_lease
from icefloe.inline.layout import LEASE, TABLE
from icefloe.inline.store import InlineStore
from support.inline_lakes import (
    INLINE,
    OPERATIONS,
    ROWS,
    everything,
    new_table,
    open_place,
    registered,
    row,
)
from support.watched_calls import Call, Watch, watching

on_sqlite = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("place", ["postgresql"], indirect=True)


@pytest.fixture
def lake(place: str) -> Iterator[Lake]:
    with open_place(place) as opened:
        yield opened


def found(place: str, name: str = "shop.t") -> list[tuple[int, str | None]]:
    """What another lake reads."""
    with open_place(place) as other:
        return everything(other.table(name))


def statements(table: Table) -> list[Callable[[], object]]:
    return [
        lambda: table.insert([row(4, "x" * 100)]),
        table.update().set("s", "'x'").where("id > 1").execute,
        table.delete().where("id > 1").execute,
        table.flush,
    ]


# -------------------------------------------------------------------------------------------------
# A connection that is lost during COMMIT


def run_with_faults(place: str, name: str, watch: Watch) -> BaseException | None:
    with open_place(place) as lake:
        lake.tier.store.create()  # that is done, and the first COMMIT is the statement's
        return error_of(lake, name, watch)


def error_of(lake: Lake, name: str, watch: Watch) -> BaseException | None:
    with watching(watch):
        try:
            OPERATIONS[name].run(lake, "shop.t")
        except Exception as error:  # noqa: BLE001 - judged by the test
            return error
    return None


@pytest.mark.requirement("X10")
@on_postgresql
@pytest.mark.parametrize("name", ["insert", "update", "flush"])
def test_a_lost_answer_to_commit_is_looked_for_and_found(place, lake, name):
    new_table(lake)
    lost: list[int] = []

    def lose(call: Call) -> None:
        if call.name == "COMMIT" and not lost:
            lost.append(call.number)
            call.fail()

    assert run_with_faults(place, name, Watch(after=lose)) is None
    assert lost
    assert found(place) == OPERATIONS[name].after


@pytest.mark.requirement("X10")
@on_postgresql
@pytest.mark.parametrize("name", ["insert", "delete", "flush"])
def test_a_commit_that_does_not_arrive_is_not_reported_as_done(place, lake, name):
    """The server may still be at work on it: that it is not found proves nothing."""
    new_table(lake)
    lost: list[int] = []

    def lose(call: Call) -> None:
        if call.name == "COMMIT" and not lost:
            lost.append(call.number)
            call.fail()

    error = run_with_faults(place, name, Watch(before=lose))
    assert isinstance(error, CommitStateUnknownError)
    assert found(place) == ROWS
    if name == "flush":
        assert "history has that snapshot" in str(error)
    else:
        assert "may have been committed or not" in str(error)


@pytest.mark.requirement("X10")
@on_postgresql
@pytest.mark.parametrize("name", ["insert with a key", "delete", "flush"])
def test_a_database_that_is_gone_after_commit_is_an_unknown_outcome(place, lake, name):
    new_table(lake)
    lost: list[int] = []

    def lose(call: Call) -> None:
        if call.name == "COMMIT" or lost:
            lost.append(call.number)
            call.fail()

    error = run_with_faults(place, name, Watch(before=lambda call: lost and lose(call), after=lose))
    assert isinstance(error, CommitStateUnknownError)
    assert found(place) == OPERATIONS[name].after
    if name == "insert with a key":  # so it can be run again
        OPERATIONS[name].run(lake, "shop.t")
        assert found(place) == OPERATIONS[name].after


# -------------------------------------------------------------------------------------------------
# Locked, full, read-only


@contextmanager
def locked(place: str, table: Table) -> Iterator[None]:
    """Another process, as far as the database can tell, is in a long transaction."""
    uri = str(table._lake.catalog.properties["uri"])
    engine = sa.create_engine(uri)
    with engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            with InlineStore.of_uri(uri).reading() as reading:
                stored = table._lake.tier.find(reading, table._state())
            rows = stored.rows.name
            connection.exec_driver_sql(f"LOCK TABLE {rows}, {TABLE.name} IN ACCESS EXCLUSIVE MODE")
            connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        yield
        connection.rollback()
    engine.dispose()


@pytest.mark.requirement("X10")
@on_sqlite
def test_a_database_that_stays_locked_is_said_to_be_and_changes_nothing(place, monkeypatch):
    monkeypatch.setattr("icefloe.inline.database.BUSY_SECONDS", 0.1)
    with open_place(place) as lake:
        table = new_table(lake, **{"commit.retry.num-retries": "0"})
        insert, *others = statements(table)
        with locked(place, table):
            with pytest.raises(StoreBusyError, match=r"locked.*Nothing was changed"):
                insert()
            for statement in others:
                with pytest.raises(IcefloeError) as raised:
                    statement()
                assert not isinstance(raised.value, CommitStateUnknownError)
            assert everything(table) == ROWS  # readers do not wait
        assert everything(table) == ROWS
        for statement in statements(table):
            statement()
        assert everything(table) == [(1, "a")]


@pytest.mark.requirement("X10")
@on_postgresql
def test_a_statement_waits_for_a_locked_table(place, lake):
    table = new_table(lake)
    with locked(place, table):
        inserting = threading.Thread(target=lambda: open_and_insert(place))
        inserting.start()
        time.sleep(0.3)
        assert inserting.is_alive()
    inserting.join(60)
    assert found(place) == [*ROWS, (9, None)]


def open_and_insert(place: str) -> None:
    with open_place(place) as other:
        other.table("shop.t").insert([row(9)])


def on_connect(lake: Lake, statement: str) -> Callable[[], None]:
    """Run a statement in each new connection of the inline tier; returns what ends that."""
    store = lake.tier.store
    store.close()
    engine = store._engine()

    def prepare(connection: Any, _: object) -> None:
        connection.execute(statement).close()

    sa.event.listen(engine, "connect", prepare)

    def end() -> None:
        sa.event.remove(engine, "connect", prepare)
        store.close()

    return end


@pytest.mark.requirement("X10")
@on_sqlite
def test_a_full_disk_takes_no_row_and_a_flush_makes_room(place, lake):
    table = new_table(lake)
    with lake.tier.store.reading() as connection:
        pages = connection.connection.exec_driver_sql("PRAGMA page_count").scalar()
    end = on_connect(lake, f"PRAGMA max_page_count = {pages}")
    large = [row(number, "x" * 1000) for number in range(100, 200)]
    with pytest.raises(StorageError, match=r"is full.*Nothing was changed.*flush\(\)"):
        table.insert(large)
    assert found(place) == ROWS
    assert table.flush().rows_copied == 2  # as the error advises
    assert (found(place), table.inline.rows) == (ROWS, 0)
    end()
    table.insert(large)
    assert len(found(place)) == 103


@pytest.mark.requirement("X10")
def test_a_database_that_is_read_only_is_read(place, lake):
    new_table(lake)
    with without_rights(place, lake) as reading:
        table = reading.table("shop.t")
        for statement in statements(table):
            with pytest.raises(
                StorageError, match=r"(readonly|permission denied).*Nothing was changed"
            ):
                statement()
        assert (everything(table), table.count(), table.inline.rows) == (ROWS, 3, 2)
    assert found(place) == ROWS


@contextmanager
def without_rights(place: str, lake: Lake) -> Iterator[Lake]:
    """A lake whose inline rows' database it can read alone."""
    if "postgresql" not in place:
        end = on_connect(lake, "PRAGMA query_only = ON")
        yield lake
        end()
        return
    uri, _, folder = place.partition(" ")
    role = f"reader_{uuid4().hex}"
    engine = sa.create_engine(uri, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN")
        connection.exec_driver_sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    engine.dispose()
    url = sa.make_url(uri).set(username=role)
    with open_place(f"{url.render_as_string(hide_password=False)} {folder}") as reading:
        yield reading


@on_sqlite
def test_the_tier_works_where_the_file_system_refuses_wal(place, monkeypatch):
    monkeypatch.setattr(InlineStore, "_journal_mode", lambda _: "delete")
    with open_place(place) as lake:
        table = new_table(lake)
        assert lake.tier.store._known
        for statement in statements(table):
            statement()
        assert found(place) == [(1, "a")]
    with open_place(place) as lake:
        threads = [
            threading.Thread(target=lambda n=n: lake.table("shop.t").insert([row(n)]))
            for n in range(10, 14)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [number for number, _ in found(place)] == [1, *range(10, 14)]


# -------------------------------------------------------------------------------------------------
# Clocks


def test_a_clock_that_is_set_back_during_a_lease_does_not_prolong_it(place, lake):
    """SQLite's clock is the host's. The lease would seem to last for the hour."""
    limit = {"icefloe.inline.row-limit": "4"}
    table = new_table(lake, **limit)
    with lake.tier.store.writing() as connection:
        stored = lake.tier.find(connection, table._state())
        assert acquire_lease(connection, stored, "a process that died", 60_000)
        connection.execute(LEASE.update().values(until=LEASE.c.until + 3_600_000))
    table.insert([row(4), row(5)])
    deadline = time.monotonic() + 60
    while table.inline.rows and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (table.inline.rows, len(table.iceberg.scan().to_arrow())) == (0, 5)


# -------------------------------------------------------------------------------------------------
# Several catalogs in one database


def catalogs(place: str) -> list[SqlCatalog]:
    uri, _, folder = place.partition(" ")
    folder = folder or uri
    Path(folder).mkdir(exist_ok=True)
    uri = uri if "postgresql" in uri else f"sqlite:///{folder}/catalog.db"
    return [SqlCatalog(name, uri=uri, warehouse=f"file://{folder}/{name}") for name in ("a", "b")]


@pytest.mark.requirement("L01", "L16")
def test_two_lakes_share_a_database(place):
    first, second = (Lake(catalog) for catalog in catalogs(place))
    with first, second:
        tables = [new_table(lake) for lake in (first, second)]
        tables[0].insert([row(4, "of a")])
        tables[1].delete().where("id = 2").execute()
        assert [everything(table) for table in tables] == [
            [*ROWS, (4, "of a")],
            [(1, "a"), (3, None)],
        ]
        assert (
            tables[0].properties["icefloe.inline.store"]
            == tables[1].properties["icefloe.inline.store"]
        )
        second.drop_table("shop.t")
        assert tables[0].remove_orphans(dry_run=False).inline_tables == ()
        tables[0].flush()
        assert (everything(tables[0]), registered(first)) == ([*ROWS, (4, "of a")], 1)


@pytest.mark.requirement("L16")
def test_a_table_in_two_catalogs_has_the_rows_of_each(place):
    """A row belongs to the table as the catalog has it through which it was inserted."""
    first, second = (Lake(catalog) for catalog in catalogs(place))
    with first, second:
        table = new_table(first)
        second.create_namespace("shop")
        second.catalog.register_table("shop.t", table.iceberg.metadata_location)
        other = second.table("shop.t")
        assert everything(other) == [(1, "a")]
        other.insert([row(4, "of b")])
        assert (everything(table), everything(other)) == (ROWS, [(1, "a"), (4, "of b")])
        other.flush()
        table.flush()
        assert (everything(table), everything(other)) == (ROWS, [(1, "a"), (4, "of b")])


# -------------------------------------------------------------------------------------------------
# Names and secrets

INJECTION = "'; DROP TABLE iceberg_tables; --"
ODD = [INJECTION, '"; DROP TABLE icefloe_inline_table; --', "%s %(id)s :id ? $1 {0}", "x'y\"z`"]


@pytest.mark.requirement("L02", "L16")
@pytest.mark.parametrize("odd", ODD)
def test_names_and_values_are_in_no_sql(place, lake, odd):
    columns = pa.schema([("id", pa.int64()), (odd, pa.string())])
    plain = odd.replace("?", "!").replace("`", "")
    name = f"{plain} space.{plain} table"
    table = lake.create_table(
        name, columns, partition_by=[f"`{odd.replace('`', '``')}`"], properties=INLINE
    )
    for _ in range(2):
        table.insert([{"id": 1, odd: odd}, {"id": 2, odd: None}], idempotency_key=odd)
    assert [each[odd] for each in table.to_arrow().to_pylist()] == [odd, None]
    assert table.update().set(odd, "'new'").where("id = 1").execute().rows_updated == 1
    assert table.delete().where("id = 2").execute().rows_deleted == 1
    table.insert([{"id": 3, odd: odd}])
    table.flush()
    rows = table.iceberg.scan().to_arrow().to_pylist()
    assert sorted((each["id"], each[odd]) for each in rows) == [(1, "new"), (3, odd)]
    lake.rename_table(name, f"{name}2")
    lake.drop_table(f"{name}2")
    assert registered(lake) == 0


PASSWORD = "Passw0rd-9x"


@pytest.mark.requirement("X10")
def test_the_password_is_in_no_message_and_no_log(postgresql_database, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    url = sa.make_url(postgresql_database).set(password=PASSWORD)
    place = f"{url.render_as_string(hide_password=False)} {tmp_path / 'lake'}"
    with open_place(place) as lake:
        new_table(lake, "shop.t0")
    shown: list[str] = []
    for number, name in enumerate(["insert", "update", "flush", "drop", "switch on"], 1):
        with open_place(place) as lake:
            table = f"shop.t{number}"
            OPERATIONS[name].make(lake, table)
            shown += [repr(lake), repr(lake.table(table)), lake.tier.store.database]
            broken = [False]

            def fail(call: Call, broken: list[bool] = broken) -> None:
                broken[0] |= call.name == "COMMIT"
                if broken[0]:
                    call.fail()

            with watching(Watch(before=fail)), pytest.raises(IcefloeError) as raised:
                OPERATIONS[name].run(lake, table)
        error: BaseException | None = raised.value
        while error is not None:
            shown += [str(error), repr(error), *getattr(error, "__notes__", [])]
            error = error.__cause__ or error.__context__
    assert any("lost" in text for text in shown)
    assert [text for text in [*shown, caplog.text] if PASSWORD in text] == []
