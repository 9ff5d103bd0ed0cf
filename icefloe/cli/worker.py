"""Statements run in a thread of their own, so that Ctrl-C is answered at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from threading import Event, Thread
from time import monotonic
from typing import Any, NoReturn, TypeVar

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icefloe.cli.output import stderr
from icefloe.cli.places import spark_log, stderr_in
from icefloe.cli.progress import ProgressLine
from icefloe.errors import CommitStateUnknownError
from icefloe.lake import Lake

_PATIENCE_S = 5.0  # before a second Ctrl-C leaves the program
_INTERVAL_S = 0.2
INTERRUPTED = 130

T = TypeVar("T")


class CancelledError(Exception):
    """Stopped by Ctrl-C; the statement that ran changed nothing, unless its result was told."""


class Worker:
    """One thread for all work on a lake. The main thread only waits, and never talks to Spark.

    A signal in the middle of a call to Spark's JVM would leave half an answer in its connection.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="icefloe")
        self._session: SparkSession | None = None
        self._cancelled = Event()
        self._latest: Future[Any] | None = None

    def run(self, work: Callable[[ProgressLine], T]) -> T:
        """The outcome of `work`, which stops the progress line before it writes."""
        self._cancelled.clear()
        with ProgressLine(lambda: self._session) as progress:
            future: Future[T] | None = None
            try:
                self._latest = future = self._pool.submit(self._with_session, work, progress)
                return future.result()
            except KeyboardInterrupt:
                if future is None:
                    raise
                progress.stop()
                return self._cancel(future)

    def check(self, told: str = "Cancelled.") -> None:
        """Called between steps: goes no further when Ctrl-C was pressed."""
        if self._cancelled.is_set():
            raise CancelledError(told)

    def stop(self) -> None:
        """Stop what still runs, the session if it was started here, and the thread."""
        if self._latest is not None and not self._latest.done():  # Ctrl-C came at an odd moment
            with suppress(Exception):
                self._cancel(self._latest)
        self._pool.submit(self._lake.stop).result()
        self._pool.shutdown()

    def _with_session(self, work: Callable[[ProgressLine], T], progress: ProgressLine) -> T:
        if self._session is None:
            running = SparkContext._active_spark_context is not None
            with nullcontext() if running else stderr_in(spark_log()):
                self._session = self._lake.spark
        self.check()
        return work(progress)

    def _cancel(self, future: Future[T]) -> T:
        """Stop the statement's jobs until it ends; one that was being published may succeed."""
        self._cancelled.set()
        until, warned = monotonic() + _PATIENCE_S, False
        while not future.done():
            try:
                self._interrupt()
                wait([future], timeout=_INTERVAL_S)
                if monotonic() > until and not warned:
                    warned = True
                    stderr().print("Still cancelling. Ctrl-C again leaves without waiting.")
            except KeyboardInterrupt:
                if warned:
                    _leave()
        error = future.exception()
        if error is None or isinstance(error, CommitStateUnknownError):
            return future.result()
        raise CancelledError("Cancelled.") from error

    def _interrupt(self) -> None:
        """Ends before it returns: a late one would hit the next statement."""
        if self._session is not None:
            asking = Thread(target=_interrupt_all, args=(self._session,), daemon=True)
            asking.start()
            asking.join()


def _interrupt_all(session: SparkSession) -> None:
    with suppress(PySparkException):
        session.interruptAll()


def _leave() -> NoReturn:
    """End the process as a kill would: a statement under way is left to the next reader."""
    sys.stdout.flush()
    os._exit(INTERRUPTED)
