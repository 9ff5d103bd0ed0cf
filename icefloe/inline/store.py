"""The database of the inline tier: transactions, locks, clock, and what its errors mean.

A store uses the database of a SQL catalog, or one named by `inline_uri`, through an engine of its
own, because transactions have to begin differently than PyIceberg's do. What differs between SQLite
and PostgreSQL:

|                | SQLite                                  | PostgreSQL                       |
|----------------|-----------------------------------------|----------------------------------|
| read           | `BEGIN`, in WAL mode                    | REPEATABLE READ READ ONLY        |
| write          | `BEGIN IMMEDIATE`: one writer at a time | READ COMMITTED                   |
| lock a table   | nothing to do                           | advisory lock of the transaction |
| number changes | a counter                               | a sequence                       |

Everything else is the same SQL. No session state is used, so connections can be pooled.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Event, Lock
from typing import Any, ClassVar, TypeAlias
from uuid import uuid4

import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from icefloe.errors import (
    CommitOutcomeUnknown,
    SetupError,
    StatementError,
    StorageError,
    StoreBusyError,
    UnsupportedTableError,
)
from icefloe.inline.layout import FORMAT, METADATA, STORE, InlineTable
from icefloe.redaction import register, scrub

AnyRows: TypeAlias = sa.CursorResult[*tuple[Any, ...]]

_LOG = logging.getLogger(__name__)

BUSY_SECONDS = 30  # how long a transaction waits for another one
_NO_WAL = "%s stays in journal mode %s: readers and writers wait for each other."
_BEGIN = "icefloe_begin"  # execution option: how SQLite transactions begin
_LOCK_SPACE = 0x1CEF << 32  # of our advisory locks in a PostgreSQL database
_STORE_LOCK = _LOCK_SPACE  # tables have ids from 1
_URLS = "Use inline_uri='sqlite:///folder/inline.db' or 'postgresql://user:password@host/database'."

# Milliseconds since 1970 by the clock of the database. Clocks of hosts are never compared.
CLOCKS = {
    "sqlite": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
}


@dataclass(frozen=True, slots=True)
class ChangeStamp:
    """The number of a change, which no other change of the store has, and its time."""

    seq: int
    at: int


@dataclass(frozen=True, slots=True)
class StoreConnection:
    """An open transaction of a store."""

    connection: sa.Connection
    installed: bool  # whether the store's tables exist

    @property
    def is_postgresql(self) -> bool:
        """Whether the database is PostgreSQL; otherwise it is SQLite."""
        return self.connection.dialect.name == "postgresql"

    @property
    def clock(self) -> sa.ColumnElement[int]:
        """The time in SQL, in milliseconds since 1970."""
        return sa.literal_column(CLOCKS[self.connection.dialect.name], sa.BigInteger)

    def execute(self, statement: sa.Executable, values: Any = None) -> AnyRows:
        """Run a statement; its result has `rowcount`."""
        return self.connection.execute(statement, values)

    def lock_table(self, table: InlineTable, *, shared: bool = False) -> None:
        """Let no other transaction change rows of the table before this one ends.

        Inserts take the lock `shared`, if at all: they do not wait for each other.
        """
        self._lock(_LOCK_SPACE + table.id, shared=shared)

    def lock_store(self) -> None:
        """Let no other transaction create or alter tables of the store before this one ends."""
        self._lock(_STORE_LOCK)

    def _lock(self, key: int, *, shared: bool = False) -> None:
        if self.is_postgresql:  # on SQLite a write transaction is alone
            wait = sa.func.set_config("lock_timeout", f"{BUSY_SECONDS}s", True)
            take = sa.func.pg_advisory_xact_lock_shared if shared else sa.func.pg_advisory_xact_lock
            lock = take(sa.cast(key, sa.BigInteger))
            self.execute(sa.select(wait, sa.cast(lock, sa.Text)))


_STORE_ID = sa.select(STORE.c.store_id)  # built once


def read_store_id(connection: StoreConnection) -> str | None:
    """The id of the store; None if its tables do not exist."""
    if not connection.installed:
        return None
    return str(connection.execute(_STORE_ID).scalar_one())


class InlineStore:
    """The tables of the inline tier in one database.

    A store can be used by several threads, and by a process and its forks.
    """

    def __init__(self, url: sa.URL) -> None:
        self._url = url
        self._engines: dict[int, sa.Engine] = {}  # by process: a fork must not use its parent's
        self._known = False  # whether the tables exist and have our format

    @classmethod
    def of_catalog(cls, catalog: SqlCatalog) -> InlineStore:
        """The store in the database of a catalog."""
        return cls(_checked(catalog.engine.url, "Pass inline_uri= to connect(), or use append()."))

    @classmethod
    def of_uri(cls, uri: str) -> InlineStore:
        """The store in another database than the catalog's."""
        register({"uri": uri})
        try:
            url = sa.make_url(uri)
        except ArgumentError:  # its message may have the text, and that a password
            raise StatementError(f"inline_uri= is not the URL of a database. {_URLS}") from None
        return cls(_checked(url, _URLS))

    @property
    def database(self) -> str:
        """The URL of the database without its password."""
        return self._url.render_as_string(hide_password=True)

    @contextmanager
    def reading(self) -> Iterator[StoreConnection]:
        """A transaction whose statements all see the same state of the database."""
        options = (
            {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
            if self._is_postgresql
            else {_BEGIN: "BEGIN"}
        )
        with self._connect(options) as connection, self._translated():
            yield StoreConnection(connection, self._check(connection))
            connection.rollback()

    @contextmanager
    def writing(self, lock: InlineTable | None = None) -> Iterator[StoreConnection]:
        """A transaction that is committed at the end of the block, or rolled back on an error.

        The first one of a database creates the store's tables.

        Args:
            lock: The table whose rows the transaction changes or removes. An insert needs no lock.

        Raises:
            StoreBusyError: Others kept the database locked for too long; nothing was changed.
            StorageError: The database failed before COMMIT; nothing was changed.
            CommitOutcomeUnknown: The connection was lost during COMMIT.
        """
        self.create()
        with self._write_transaction() as connection:
            opened = StoreConnection(connection, installed=True)
            if lock is not None:
                opened.lock_table(lock)
            yield opened

    def create(self) -> None:
        """Create the store's tables unless they exist; a SQLite database gets WAL mode."""
        if self._known:
            return
        if not self._is_postgresql:
            self._switch_to_wal()
        try:
            with self._write_transaction() as connection:
                StoreConnection(connection, installed=False).lock_store()
                METADATA.create_all(connection)
                if connection.execute(sa.select(STORE.c.format)).first() is None:
                    row = {"store_id": uuid4().hex, "format": FORMAT, "seq": 0}
                    connection.execute(STORE.insert(), row)
                self._check_format(connection)
        except CommitOutcomeUnknown as unknown:  # empty tables, if anything
            raise StorageError(f"{unknown} Nothing was changed.") from unknown
        self._known = True

    def close(self) -> None:
        """Close the connections that this process has open."""
        if (engine := self._engines.pop(os.getpid(), None)) is not None:
            engine.dispose()

    # ---------------------------------------------------------------------------------------------

    @property
    def _is_postgresql(self) -> bool:
        return self._url.get_backend_name() == "postgresql"

    @cached_property
    def _path(self) -> str:
        """The file of a SQLite database, under one name however it is spelled."""
        return str(Path(str(self._url.database)).resolve())

    def _engine(self) -> sa.Engine:
        engine = self._engines.get(process := os.getpid())
        return engine or self._engines.setdefault(process, _new_engine(self._url))

    def _check(self, connection: sa.Connection) -> bool:
        """Whether the tables exist, in a format that this version reads."""
        if not self._known and sa.inspect(connection).has_table(STORE.name):
            self._check_format(connection)
            self._known = True
        return self._known

    def _check_format(self, connection: sa.Connection) -> None:
        stored = connection.execute(sa.select(STORE.c.format)).scalar_one()
        if stored > FORMAT:
            raise UnsupportedTableError(
                f"The inline tables in {self.database} have the format {stored}; this version of "
                f"icefloe supports {FORMAT}. Install a later version."
            )

    @contextmanager
    def _connect(self, options: dict[str, Any]) -> Iterator[sa.Connection]:
        with self._translated():
            connection = self._engine().connect().execution_options(**options)
        try:
            with self._translated():
                connection.begin()
            yield connection
        finally:
            with suppress(SQLAlchemyError):  # it is broken: see the error raised
                connection.close()

    @contextmanager
    def _write_transaction(self) -> Iterator[sa.Connection]:
        options = (
            {"isolation_level": "READ COMMITTED"}
            if self._is_postgresql
            else {_BEGIN: "BEGIN IMMEDIATE"}
        )
        with self._in_line(), self._connect(options) as connection:
            try:
                with self._translated():
                    yield connection
            except BaseException:
                with suppress(SQLAlchemyError):
                    connection.rollback()
                raise
            try:
                connection.commit()
            except SQLAlchemyError as error:
                with suppress(SQLAlchemyError):
                    connection.rollback()
                raise self._commit_error(error) from error

    @contextmanager
    def _in_line(self) -> Iterator[None]:
        """Wait for the other threads of this process that write to the same SQLite database.

        SQLite lets waiting writers try at random, so that a few of many would wait for seconds.
        """
        if self._is_postgresql:
            yield
            return
        line = _Lines.of(self._path)
        if not line.acquire(BUSY_SECONDS):
            raise self._busy()
        try:
            yield
        finally:
            line.release()

    def _switch_to_wal(self) -> None:
        """Readers and writers do not wait for each other in this mode; the database keeps it."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                with self._translated():
                    mode = self._journal_mode()
                break
            except StoreBusyError:  # other connections are open, and SQLite does not wait for them
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        if mode != "wal":
            _LOG.warning(_NO_WAL, self.database, mode)

    def _journal_mode(self) -> str:
        """Ask for WAL; returns the mode that the database then has."""
        borrowed = self._engine().raw_connection()  # without BEGIN, in which it cannot be changed
        try:
            cursor = borrowed.cursor()
            for statement in ("PRAGMA journal_mode", "PRAGMA journal_mode = WAL"):
                cursor.execute(statement)
                [[mode]] = cursor.fetchall()
                if mode == "wal":
                    break
            return str(mode)
        finally:
            borrowed.close()

    # ---------------------------------------------------------------------------------------------
    # Errors

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Errors of the database before COMMIT, which changed nothing."""
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error) as error:
            scrub(error)
            raise self._error(error) from error

    def _error(self, error: Exception) -> StorageError:
        if isinstance(error, PoolTimeoutError) or _is_busy(error):
            return self._busy()
        return StorageError(
            f"The database {self.database} failed: {cause_of(error)}. Nothing was changed."
            + (" Make room, or write the inline rows to files: flush()." * _is_full(error))
        )

    def _busy(self) -> StoreBusyError:
        return StoreBusyError(
            f"The database {self.database} was locked by other transactions for {BUSY_SECONDS} s. "
            "Nothing was changed. Run the statement again; for many writers use PostgreSQL."
        )

    def _commit_error(self, error: Exception) -> StorageError | CommitOutcomeUnknown:
        scrub(error)
        if _is_rolled_back(error):
            return self._error(error)
        return CommitOutcomeUnknown(
            f"The connection to {self.database} was lost during COMMIT: {cause_of(error)}. "
            "The transaction may have been committed or not."
        )


def _checked(url: sa.URL, advice: str) -> sa.URL:
    shown = url.render_as_string(hide_password=True)
    backend = url.get_backend_name()
    if backend not in CLOCKS:
        raise UnsupportedTableError(
            f"The inline tier needs SQLite or PostgreSQL, and {shown} is {backend}. {advice}"
        )
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")  # the one driver whose values are tested
    path = url.database or ":memory:"
    in_memory = path == ":memory:" or (path.startswith("file:") and "memory" in str(url))
    if in_memory:
        raise UnsupportedTableError(
            f"The inline tier needs a database in a file, and {shown} is in memory. {advice}"
        )
    return url


def _new_engine(url: sa.URL) -> sa.Engine:
    if url.get_backend_name() == "postgresql":
        try:
            return sa.create_engine(url, pool_pre_ping=True, hide_parameters=True)
        except ModuleNotFoundError as error:
            raise SetupError(
                "Inline rows in PostgreSQL need psycopg: pip install 'icefloe[postgresql]'."
            ) from error
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_SECONDS}, hide_parameters=True)
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver begins none, before reads least of all
    connection.execute("PRAGMA synchronous = FULL").close()


def _begin_sqlite(connection: sa.Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))


# -------------------------------------------------------------------------------------------------
# What an error of a driver means


def cause_of(error: Exception) -> str:
    """The first line of a driver's own text: others have statements and values."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = str(cause).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(cause).__name__


def _sqlite_code(error: Exception) -> int | None:
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF  # without the detail of an extended code


def _sql_state(error: Exception) -> str | None:
    return getattr(getattr(error, "orig", None), "sqlstate", None)


# PostgreSQL: a lock was not to be had, a deadlock, a serialization failure.
_RETRIED_STATES = ("55P03", "40P01", "40001")


def _is_busy(error: Exception) -> bool:
    busy = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return _sqlite_code(error) in busy or _sql_state(error) in _RETRIED_STATES


def _is_full(error: Exception) -> bool:
    return _sqlite_code(error) == sqlite3.SQLITE_FULL or _sql_state(error) == "53100"


def _is_rolled_back(error: Exception) -> bool:
    """Whether the database refused a COMMIT; a lost connection says nothing of its outcome."""
    if (state := _sql_state(error)) is not None:
        return not state.startswith(("08", "57P"))
    return _is_busy(error) or _is_full(error)


# -------------------------------------------------------------------------------------------------
# Threads that write to one SQLite database


class _Line:
    """A lock that threads get in the order in which they asked for it."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._held = False
        self._waiting: deque[Event] = deque()

    def acquire(self, seconds: float) -> bool:
        with self._guard:
            if not self._held:
                self._held = True
                return True
            self._waiting.append(turn := Event())
        try:
            turn.wait(seconds)
        except BaseException:
            if self._leave(turn):
                self.release()
            raise
        return self._leave(turn)

    def release(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._held = False

    def _leave(self, turn: Event) -> bool:
        """Whether the lock was handed over; otherwise the thread waits no longer."""
        with self._guard:
            if not turn.is_set():
                self._waiting.remove(turn)
            return turn.is_set()


class _Lines:
    """The lines of this process by database."""

    _guard = Lock()
    _by_database: ClassVar[dict[str, _Line]] = {}

    @classmethod
    def of(cls, database: str) -> _Line:
        with cls._guard:
            return cls._by_database.setdefault(database, _Line())

    @classmethod
    def forget(cls) -> None:
        """A fork has none of the threads that hold locks."""
        cls._guard, cls._by_database = Lock(), {}


os.register_at_fork(after_in_child=_Lines.forget)
