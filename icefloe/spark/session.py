"""Spark sessions: found or started, prepared for the engine, and stopped by their last user."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Lock, RLock
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icefloe.errors import SetupError
from icefloe.spark.class_archive import class_archive, update_at_exit
from icefloe.spark.connectors import remember_download, session_settings
from icefloe.spark.environment import check_java, check_versions, heap_bytes, memory_bytes
from icefloe.storage.spark_files import Connector

log = logging.getLogger("icefloe")

READS_BY_ID = "spark.sql.parquet.fieldId.read.enabled"
LOST_SETTING = (
    f"The session setting {READS_BY_ID} was changed or reset. Without it Spark finds the columns "
    "of data files by name, and reads NULL where a column was renamed. Set it to true again, or "
    "create the scan again, and do not reset the session while a statement or a scan runs."
)
# Set on every session at run time: reading Iceberg files by field id needs them.
_NEEDED = {
    READS_BY_ID: "true",
    # The default is one listing task per path, which is very slow for thousands of files.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
# Set on sessions that icefloe starts.
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark listens without a password, by default on the address that the host's name has.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.shuffle.partitions": "16",
    "spark.sql.session.timeZone": "UTC",
    # By default small files count as 4 MB larger when they are grouped into tasks, which spreads
    # large files unevenly. A file on a local disk opens much faster.
    "spark.sql.files.openCostInBytes": "524288",
    # With few cores Spark's default is 64 MB, which each sort, aggregate and join of each task
    # allocates and clears, however few its rows are.
    "spark.buffer.pageSize": "2m",
    # Java's serialization, which spills persisted rows, holds a hundred batches of up to 4 MB.
    "spark.serializer.objectStreamReset": "10",
    # Otherwise PySpark inspects the stack for every column, and asks the JVM for settings.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}


def session_of(
    spark: SparkSession | None, lake: object = None, connectors: Iterable[Connector] = ()
) -> SparkSession:
    """The caller's session, or one that the lake uses from now on, prepared for the engine.

    A session that is started gets these connectors.
    """
    check_versions()
    if spark is None:
        session = started.used_by(lake, lambda: _find(connectors))
    else:
        session = spark
        started.hand_over(session)
    prepare(session)
    return session


def time_zone(session: SparkSession) -> str:
    """The time zone that the session reads timestamps without one in."""
    return str(session.conf.get("spark.sql.session.timeZone"))


def prepare(session: SparkSession) -> None:
    """Set what the engine needs on a session."""
    for key, value in _NEEDED.items():
        session.conf.set(key, value)


@contextmanager
def reading_by_id(session: SparkSession) -> Iterator[None]:
    """Run jobs that read data files; SetupError if the session stopped reading by field id.

    Another thread may reset the session at any time; what was read then must not be published.
    """
    prepare(session)
    yield
    if session.conf.get(READS_BY_ID, None) != _NEEDED[READS_BY_ID]:
        raise SetupError(f"{LOST_SETTING} Nothing was published.")


def _find(connectors: Iterable[Connector]) -> SparkSession:
    return SparkSession.getActiveSession() or _running() or _start(connectors)


def _running() -> SparkSession | None:
    """The session of this process; PySpark does not report it as active in other threads."""
    if SparkContext._active_spark_context is None:
        with suppress(PySparkException):  # there is none
            return SparkSession.active()  # of Spark Connect
        return None
    session: SparkSession = SparkSession.builder.getOrCreate()
    return session


def _start(connectors: Iterable[Connector]) -> SparkSession:
    """A local session, or the Spark Connect session that the environment asks for."""
    remote, jars = os.environ.get("SPARK_REMOTE", ""), {}
    launched = None  # the Java of a JVM that this process launches and uses itself
    if not remote.startswith("sc:"):
        jars = session_settings(connectors)
        java = check_java().path
        launched = java if not remote and SparkContext._gateway is None else None
        # Spark's default is 1 GB. Every other place for this setting overrides this one.
        os.environ.setdefault("SPARK_DRIVER_MEMORY", f"{heap_bytes(memory_bytes()) >> 20}m")
    builder: Any = SparkSession.builder.appName("icefloe")
    if not remote:
        builder = builder.master("local[*]")
    # Workers run `python3` from the PATH by default, which may lack PyArrow. PySpark reads this
    # variable, not the equivalent setting.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in {**_LOCAL, **jars}.items():
        builder = builder.config(key, value)
    with class_archive(launched, memory_bytes()) as archive, warnings.catch_warnings():
        # Some settings of a running Spark Connect server cannot be changed.
        warnings.filterwarnings("ignore", "Failed to set spark")
        session: SparkSession = builder.getOrCreate()
    with suppress(PySparkException):  # Spark Connect has no context
        session.sparkContext.setLogLevel("FATAL")  # errors are raised as our own
        remember_download(session, jars)
        update_at_exit(archive, session.sparkContext)
    started.add(session)
    return session


# -------------------------------------------------------------------------------------------------
# Sessions that icefloe started, which the last lake that uses them stops


class StartedSessions:
    """Sessions that icefloe started and may stop; lakes are referenced weakly."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._users: list[tuple[SparkSession, WeakSet[object]]] = []

    def add(self, session: SparkSession) -> None:
        """Register a session that was just started, and drop those that have ended."""
        with self._lock:
            self._users = [(one, users) for one, users in self._users if _is_running(one)]
            if self._users_of(session) is None:
                self._users.append((session, WeakSet()))

    def hand_over(self, session: SparkSession) -> None:
        """Leave a session to the caller, who passed it in: icefloe no longer stops it."""
        with self._lock:
            self._users = [pair for pair in self._users if not _same(pair[0], session)]

    def used_by(self, user: object, find: Callable[[], SparkSession]) -> SparkSession:
        """The session that `find` returns, which `user` uses until it is released."""
        with self._lock:
            session = find()
            users = self._users_of(session)
            if users is not None and user is not None:
                users.add(user)
            return session

    def release(self, user: object) -> None:
        """End a lake's use of its session; the last user stops a session that icefloe started."""
        with self._lock:
            for session, users in list(self._users):
                if user not in users:
                    continue
                users.discard(user)
                if not users:
                    self.hand_over(session)
                    _stop(session)

    def _users_of(self, session: SparkSession) -> WeakSet[object] | None:
        return next((users for one, users in self._users if _same(one, session)), None)


def _same(one: SparkSession, other: SparkSession) -> bool:
    """Whether stopping one stops the other: classic sessions share their application."""
    return one is other or _application(one) == _application(other)


def _application(session: Any) -> object:
    context = getattr(session, "sparkContext", None)  # Spark Connect refuses it as an attribute
    return session.session_id if context is None else context


def _is_running(session: Any) -> bool:
    context = getattr(session, "sparkContext", None)
    if context is None:
        return not session.is_stopped
    return SparkContext._active_spark_context is context


def _stop(session: SparkSession) -> None:
    """Stop a session, unless it has ended: that would stop its successor."""
    try:
        if _is_running(session):
            session.stop()
    except Exception as error:  # noqa: BLE001 - its JVM has ended, and the lake is closed anyway
        log.debug("could not stop the Spark session: %r", error)


started = StartedSessions()


# -------------------------------------------------------------------------------------------------
# Temporary changes, shared by threads

K = TypeVar("K")
V = TypeVar("V")


class Holds(Generic[K, V]):
    """Counts the holders of each key: the first changes something, the last restores it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._holders: dict[K, tuple[int, V]] = {}  # how many, and what to restore

    @contextmanager
    def hold(self, key: K, change: Callable[[], V], restore: Callable[[V], None]) -> Iterator[None]:
        """Run the block with the change in force.

        `change` returns what `restore` gets. Restoring must not hide the outcome of the block, so
        its failure, usually because the session has ended, is only logged.
        """
        with self._lock:
            count, before = self._holders[key] if key in self._holders else (0, change())
            self._holders[key] = (count + 1, before)
        try:
            yield
        finally:
            with self._lock:
                count, before = self._holders.pop(key)
                if count > 1:
                    self._holders[key] = (count - 1, before)
                else:
                    _attempt(restore, before)


def _attempt(restore: Callable[[V], None], before: V) -> None:
    try:
        restore(before)
    except Exception as error:  # noqa: BLE001 - see `hold`
        log.debug("could not restore %r: %r", before, error)


# -------------------------------------------------------------------------------------------------
# Temporary settings of a Spark session

_held: Holds[tuple[str, str], str | None] = Holds()


def spark_conf(spark: SparkSession, key: str, value: str) -> AbstractContextManager[None]:
    """Set a session's setting while the block runs, which several threads may do at once.

    The first holder saves the value, the last one restores it; a default is none of the session's.
    """

    def change() -> str | None:
        before = spark.conf.get(key, None)
        spark.conf.set(key, value)
        return before

    def restore(before: str | None) -> None:
        if before is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, before)

    return _held.hold((_identity(spark), key), change, restore)


def _identity(spark: Any) -> str:
    """An id that all Python objects of one session share."""
    java = getattr(spark, "_jsparkSession", None)  # Spark Connect refuses it as an attribute
    return str(spark.session_id if java is None else java.sessionUUID())
