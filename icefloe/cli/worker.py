"""Run statements in a thread, so that Ctrl-C is handled at once; show progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import Any, NoReturn, Self, TextIO, TypeVar

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from icefloe.cli.output import stderr
from icefloe.errors import CommitStateUnknownError
from icefloe.lake import Lake
from icefloe.spark.progress import REFRESH_S, SHOW_AFTER_S, task_counts

_CANCEL_AFTER_S = 5.0  # from then on a second Ctrl-C exits the program
_POLL_S = 0.2
INTERRUPTED = 130

T = TypeVar("T")


class CancelledError(Exception):
    """Stopped by Ctrl-C; the statement changed nothing unless its result was printed."""


class Worker:
    """One thread for all work on a lake. The main thread only waits and never calls Spark.

    A signal during a call to Spark's JVM would leave an incomplete answer in the connection.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="icefloe")
        self._session: SparkSession | None = None
        self._cancelled = Event()
        self._latest: Future[Any] | None = None

    def run(self, work: Callable[[ProgressLine], T]) -> T:
        """Return the result of `work`, which stops the progress line before it prints."""
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

    def check(self, message: str = "Cancelled.") -> None:
        """Raise CancelledError if Ctrl-C was pressed; called between steps."""
        if self._cancelled.is_set():
            raise CancelledError(message)

    def stop(self) -> None:
        """Cancel a running statement, stop a session that was started here, and end the thread."""
        if self._latest is not None and not self._latest.done():  # Ctrl-C outside of `run`
            with suppress(Exception):
                self._cancel(self._latest)
        self._pool.submit(self._lake.stop).result()
        self.close()

    def close(self) -> None:
        """End the thread; the lake stays open."""
        self._pool.shutdown()

    def _with_session(self, work: Callable[[ProgressLine], T], progress: ProgressLine) -> T:
        if self._session is None:
            running = SparkContext._active_spark_context is not None
            with nullcontext() if running else redirect_stderr(spark_log()):
                self._session = self._lake.spark
        self.check()
        return work(progress)

    def _cancel(self, future: Future[T]) -> T:
        """Cancel the jobs of a statement until it ends; a commit in progress may succeed."""
        self._cancelled.set()
        deadline, warned = monotonic() + _CANCEL_AFTER_S, False
        while not future.done():
            try:
                self._interrupt()
                wait([future], timeout=_POLL_S)
                if monotonic() > deadline and not warned:
                    warned = True
                    stderr().print("Still cancelling. Press Ctrl-C again to exit without waiting.")
            except KeyboardInterrupt:
                if warned:
                    _exit_now()
        error = future.exception()
        if error is None or isinstance(error, CommitStateUnknownError):
            return future.result()
        raise CancelledError("Cancelled.") from error

    def _interrupt(self) -> None:
        """Cancel the jobs and wait for it: a late cancellation would hit the next statement."""
        if self._session is not None:
            interrupting = Thread(target=_interrupt_all, args=(self._session,), daemon=True)
            interrupting.start()
            interrupting.join()


def _interrupt_all(session: SparkSession) -> None:
    with suppress(PySparkException):
        session.interruptAll()


def _exit_now() -> NoReturn:
    """Exit without cleanup, as a kill would; readers see the statement whole or not at all."""
    sys.stdout.flush()
    os._exit(INTERRUPTED)


# -------------------------------------------------------------------------------------------------
# The progress line, shown only if stderr is a terminal


class ProgressLine:
    """Shows the tasks of running jobs until stopped; a separate thread polls Spark."""

    def __init__(
        self, session: Callable[[], SparkSession | None], waiting: str = "starting Spark"
    ) -> None:
        self._session = session
        self._waiting = waiting  # shown until there is a session
        self._stopped = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            # Copy the descriptor: while Spark starts, stderr is redirected to its log.
            terminal = os.fdopen(os.dup(sys.stderr.fileno()), "w")
            self._thread = Thread(target=self._show, args=(terminal,), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Erase the line; call this before writing anything else."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self, terminal: TextIO) -> None:
        with terminal:
            if self._stopped.wait(SHOW_AFTER_S):
                return
            line = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=30),
                TextColumn("{task.fields[tasks]}"),
                TimeElapsedColumn(),
                console=Console(file=terminal, force_terminal=True),
                transient=True,
            )
            with line:
                task = line.add_task("", total=None, tasks="")
                while not self._stopped.is_set():
                    line.update(task, **self._state())
                    self._stopped.wait(REFRESH_S)

    def _state(self) -> dict[str, Any]:
        session = self._session()
        if session is None:
            return {"description": self._waiting}
        done, total = task_counts(session)
        return {
            "description": "working",
            "completed": done,
            "total": total or None,
            "tasks": f"{done}/{total} tasks" if total else "",
        }


# -------------------------------------------------------------------------------------------------
# Files of the command line: the history of the prompt, the log of Spark's JVM

_STDERR = 2
_FOLDER_MODE, _FILE_MODE = 0o700, 0o600  # statements may contain private data


def state_folder() -> Path | None:
    """`$XDG_STATE_HOME/icefloe`, created if missing; None if that is impossible."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        folder = Path(base).expanduser() / "icefloe"
        folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        _restrict(folder, _FOLDER_MODE)
    except (OSError, RuntimeError):  # no home directory, or a read-only one
        return None
    return folder if os.access(folder, os.W_OK) else None


def history_file() -> Path | None:
    """The history of the prompt, created if missing; None if that is impossible."""
    folder = state_folder()
    if folder is None:
        return None
    path = folder / "history"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _FILE_MODE))
    except OSError:
        return None
    _restrict(path, _FILE_MODE)
    return path


def spark_log() -> Path:
    """The log of Spark's JVM; the null device if there is no state folder."""
    folder = state_folder()
    if folder is None:
        return Path(os.devnull)
    _restrict(folder / "spark.log", _FILE_MODE)
    return folder / "spark.log"


@contextmanager
def redirect_stderr(path: Path) -> Iterator[None]:
    """Processes started inside the block write their stderr to a file as long as they run."""
    original = os.dup(_STDERR)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, _FILE_MODE)
    os.dup2(log, _STDERR)
    os.close(log)
    try:
        yield
    finally:
        os.dup2(original, _STDERR)
        os.close(original)


def _restrict(path: Path, mode: int) -> None:
    """Remove the rights of other users; links are the user's own business and stay."""
    with suppress(OSError):  # owned by another user
        if not path.is_symlink() and path.stat().st_mode & 0o777 & ~mode:
            path.chmod(mode)
