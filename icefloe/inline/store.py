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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import sqlalchemy as sa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from icefloe.errors import (
    CommitOutcomeUnknown,
    StatementError,
    StorageError,
    StoreBusyError,
    UnsupportedTableError,
)
from icefloe.inline import database as databases
from icefloe.inline.database import (
    BEGIN,
    CLOCKS,
    WriteLines,
    cause_of,
    checked_url,
    is_busy,
    is_full,
    is_rolled_back,
    new_engine,
)
from icefloe.inline.layout import FORMAT, METADATA, STORE, InlineTable
from icefloe.redaction import register, scrub

AnyRows: TypeAlias = sa.CursorResult[*tuple[Any, ...]]

_LOG = logging.getLogger(__name__)

_NO_WAL = "%s stays in journal mode %s: readers and writers wait for each other."
_LOCK_SPACE = 0x1CEF << 32  # of our advisory locks in a PostgreSQL database
_STORE_LOCK = _LOCK_SPACE  # tables have ids from 1
_URLS = "Use inline_uri='sqlite:///folder/inline.db' or 'postgresql://user:password@host/database'."


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
            wait = sa.func.set_config("lock_timeout", f"{databases.BUSY_SECONDS}s", True)
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
        return cls(
            checked_url(catalog.engine.url, "Pass inline_uri= to connect(), or use append().")
        )

    @classmethod
    def of_uri(cls, uri: str) -> InlineStore:
        """The store in another database than the catalog's."""
        register({"uri": uri})
        try:
            url = sa.make_url(uri)
        except ArgumentError:  # its message may have the text, and that a password
            raise StatementError(f"inline_uri= is not the URL of a database. {_URLS}") from None
        return cls(checked_url(url, _URLS))

    @classmethod
    def beside(cls, catalog: Catalog, uri: str) -> InlineStore:
        """The store of a catalog that is not in a database which can have inline rows itself."""
        if isinstance(catalog, SqlCatalog):
            try:
                database = cls.of_catalog(catalog).database
            except UnsupportedTableError:
                return cls.of_uri(uri)
            raise StatementError(
                "inline_uri= is for catalogs such as REST, Glue and Hive. The catalog "
                f"{catalog.name!r} keeps inline rows in its own database, {database}. Connect "
                "without inline_uri=."
            )
        return cls.of_uri(uri)

    @property
    def database(self) -> str:
        """The URL of the database without its password."""
        return self._url.render_as_string(hide_password=True)

    @property
    def missing_file(self) -> str | None:
        """The file of a SQLite database that does not exist; connecting would create it."""
        return None if self._is_postgresql or Path(self._path).exists() else self._path

    @contextmanager
    def reading(self) -> Iterator[StoreConnection]:
        """A transaction whose statements all see the same state of the database."""
        options = (
            {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
            if self._is_postgresql
            else {BEGIN: "BEGIN"}
        )
        if not self._known and self._is_older(options):
            self.create()
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
                older = STORE.c.format < FORMAT
                connection.execute(STORE.update().where(older).values(format=FORMAT))
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
        return engine or self._engines.setdefault(process, new_engine(self._url))

    def _check(self, connection: sa.Connection) -> bool:
        """Whether the tables exist, in a format that this version reads."""
        if not self._known and sa.inspect(connection).has_table(STORE.name):
            self._check_format(connection)
            self._known = True
        return self._known

    def _is_older(self, options: dict[str, Any]) -> bool:
        """Whether the store lacks tables that later formats have."""
        with self._connect(options) as connection, self._translated():
            if not sa.inspect(connection).has_table(STORE.name):
                return False
            return bool(connection.execute(sa.select(STORE.c.format)).scalar_one() < FORMAT)

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
            else {BEGIN: "BEGIN IMMEDIATE"}
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
        line = WriteLines.of(self._path)
        if not line.acquire(databases.BUSY_SECONDS):
            raise self._busy()
        try:
            yield
        finally:
            line.release()

    def _switch_to_wal(self) -> None:
        """Readers and writers do not wait for each other in this mode; the database keeps it."""
        deadline = time.monotonic() + databases.BUSY_SECONDS
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
        if isinstance(error, PoolTimeoutError) or is_busy(error):
            return self._busy()
        return StorageError(
            f"The database {self.database} failed: {cause_of(error)}. Nothing was changed."
            + (" Make room, or write the inline rows to files: flush()." * is_full(error))
        )

    def _busy(self) -> StoreBusyError:
        return StoreBusyError(
            f"The database {self.database} was locked by other transactions for "
            f"{databases.BUSY_SECONDS} s. Nothing was changed. Run the statement again; for many "
            "writers use PostgreSQL."
        )

    def _commit_error(self, error: Exception) -> StorageError | CommitOutcomeUnknown:
        scrub(error)
        if is_rolled_back(error):
            return self._error(error)
        return CommitOutcomeUnknown(
            f"The connection to {self.database} was lost during COMMIT: {cause_of(error)}. "
            "The transaction may have been committed or not."
        )
