"""What a database of the inline tier is: its engine, what its errors mean, and who writes next."""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections import deque
from functools import partial
from threading import Event, Lock
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from icefloe.errors import SetupError, UnsupportedTableError

BUSY_SECONDS = 30  # how long a transaction waits for another one
_IDLE_SECONDS, _LAST_USED = 1, "icefloe_last_used"
BEGIN = "icefloe_begin"  # execution option: how SQLite transactions begin

# Milliseconds since 1970 by the clock of the database. Clocks of hosts are never compared.
CLOCKS = {
    "sqlite": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
}


def checked_url(url: sa.URL, advice: str) -> sa.URL:
    """The URL with the driver that is tested; refuses databases that cannot have inline rows."""
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


def new_engine(url: sa.URL) -> sa.Engine:
    """An engine whose transactions begin as the store says."""
    if url.get_backend_name() == "postgresql":
        try:
            engine = sa.create_engine(url, hide_parameters=True)
        except ModuleNotFoundError as error:
            raise SetupError(
                "Inline rows in PostgreSQL need psycopg: pip install 'icefloe[postgresql]'."
            ) from error
        sa.event.listen(engine, "checkin", _note_use)
        sa.event.listen(engine, "checkout", partial(_ping_if_idle, engine.dialect))
        return engine
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_SECONDS}, hide_parameters=True)
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _note_use(_: object, record: ConnectionPoolEntry) -> None:
    record.info[_LAST_USED] = time.monotonic()


def _ping_if_idle(
    dialect: sa.Dialect, connection: DBAPIConnection, record: ConnectionPoolEntry, _: object
) -> None:
    """Replace a connection that was lost while it was not used, as after a restart of the server.

    To ask each time, as SQLAlchemy's `pool_pre_ping` does, takes a tenth of the time of an insert.
    """
    if time.monotonic() - record.info.get(_LAST_USED, math.inf) < _IDLE_SECONDS:
        return
    try:
        dialect.do_ping(connection)
    except dialect.loaded_dbapi.Error as error:
        raise DisconnectionError from error


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver begins none, before reads least of all
    connection.execute("PRAGMA synchronous = FULL").close()


def _begin_sqlite(connection: sa.Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(BEGIN, "BEGIN"))


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


def is_busy(error: Exception) -> bool:
    """Whether others kept the database locked for too long."""
    busy = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return _sqlite_code(error) in busy or _sql_state(error) in _RETRIED_STATES


def is_full(error: Exception) -> bool:
    """Whether the disk, or the database, has no room."""
    return _sqlite_code(error) == sqlite3.SQLITE_FULL or _sql_state(error) == "53100"


def is_rolled_back(error: Exception) -> bool:
    """Whether the database refused a COMMIT; a lost connection says nothing of its outcome."""
    if (state := _sql_state(error)) is not None:
        return not state.startswith(("08", "57P"))
    return is_busy(error) or is_full(error)


# -------------------------------------------------------------------------------------------------
# Threads that write to one SQLite database


class _Line:
    """A lock that threads get in the order in which they asked for it."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._held = False
        self._turns = 0  # how often it was handed over
        self._waiting: deque[Event] = deque()

    def acquire(self, seconds: float) -> bool:
        """Whether it was got: nobody waits longer than so many seconds for the line to move."""
        with self._guard:
            if not self._held:
                self._held = True
                return True
            self._waiting.append(turn := Event())
            turns = self._turns
        try:
            while not turn.wait(seconds) and self._turns != turns:
                turns = self._turns
        except BaseException:
            if self._leave(turn):
                self.release()
            raise
        return self._leave(turn)

    def release(self) -> None:
        with self._guard:
            if self._waiting:
                self._turns += 1
                self._waiting.popleft().set()
            else:
                self._held = False

    def _leave(self, turn: Event) -> bool:
        """Whether the lock was handed over; otherwise the thread waits no longer."""
        with self._guard:
            if not turn.is_set():
                self._waiting.remove(turn)
            return turn.is_set()


class WriteLines:
    """The lines of this process by database."""

    _guard = Lock()
    _by_database: ClassVar[dict[str, _Line]] = {}

    @classmethod
    def of(cls, database: str) -> _Line:
        """The line of a database."""
        with cls._guard:
            return cls._by_database.setdefault(database, _Line())

    @classmethod
    def forget(cls) -> None:
        """A fork has none of the threads that hold locks."""
        cls._guard, cls._by_database = Lock(), {}


os.register_at_fork(after_in_child=WriteLines.forget)
