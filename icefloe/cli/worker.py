"""Statements run in a thread of their own, so that Ctrl-C is answered at once."""

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
from typing import TYPE_CHECKING, Any, NoReturn, Self, TextIO, TypeVar

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from icefloe.cli.output import stderr
from icefloe.errors import CommitStateUnknownError
from icefloe.lake import Lake

if TYPE_CHECKING:
    from pyspark import StatusTracker


# -------------------------------------------------------------------------------------------------
# A line on the terminal while Spark works; nothing where stderr is no terminal.

_SHOW_AFTER_S = 0.4  # quick statements show nothing
_REFRESH_S = 0.2


class ProgressLine:
    """Shows the tasks of the running jobs until stopped; a thread of its own asks Spark."""

    def __init__(
        self, session: Callable[[], SparkSession | None], waiting: str = "starting Spark"
    ) -> None:
        self._session = session
        self._waiting = waiting  # what is said while there is no session
        self._stopped = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            # A copy of the descriptor, made now: while Spark starts, stderr itself is its log.
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
        """Wipe the line, before anything else is written."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self, terminal: TextIO) -> None:
        with terminal:
            if self._stopped.wait(_SHOW_AFTER_S):
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
                shown = line.add_task("", total=None, tasks="")
                while not self._stopped.is_set():
                    line.update(shown, **self._state())
                    self._stopped.wait(_REFRESH_S)

    def _state(self) -> dict[str, Any]:
        session = self._session()
        if session is None:
            return {"description": self._waiting}
        done, total = tasks_of(session)
        return {
            "description": "working",
            "completed": done,
            "total": total or None,
            "tasks": f"{done}/{total} tasks" if total else "",
        }


def tasks_of(session: SparkSession) -> tuple[int, int]:
    """Tasks done and tasks in all, of the jobs that run now; (0, 0) where Spark does not tell."""
    context = getattr(session, "_sc", None)  # Spark Connect has none
    if context is None:
        return 0, 0
    with suppress(Py4JError):
        return _counted(context.statusTracker())
    return 0, 0


def _counted(tracker: StatusTracker) -> tuple[int, int]:
    jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
    stages = {stage for job in jobs if job for stage in job.stageIds}
    found = [info for stage in sorted(stages) if (info := tracker.getStageInfo(stage))]
    return sum(s.numCompletedTasks for s in found), sum(s.numTasks for s in found)


# -------------------------------------------------------------------------------------------------
# Where the command line keeps its own files: the prompt's history, what Spark's JVM prints.

_STDERR = 2
_FOLDER, _FILE = 0o700, 0o600  # for the user alone: statements may hold what others must not see


def state_folder() -> Path | None:
    """`$XDG_STATE_HOME/icefloe`, made when missing; None where it cannot be."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        folder = Path(base).expanduser() / "icefloe"
        folder.mkdir(_FOLDER, parents=True, exist_ok=True)
        _restrict(folder, _FOLDER)
    except (OSError, RuntimeError):  # a read-only home, or none
        return None
    return folder if os.access(folder, os.W_OK) else None


def history_file() -> Path | None:
    """The prompt's history, made when missing; None where it cannot be."""
    folder = state_folder()
    if folder is None:
        return None
    path = folder / "history"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _FILE))
    except OSError:
        return None
    _restrict(path, _FILE)
    return path


def spark_log() -> Path:
    """The file that takes what Spark's JVM prints."""
    folder = state_folder()
    if folder is None:
        return Path(os.devnull)
    _restrict(folder / "spark.log", _FILE)
    return folder / "spark.log"


@contextmanager
def stderr_in(path: Path) -> Iterator[None]:
    """Processes started meanwhile write their stderr to a file, for as long as they run."""
    kept = os.dup(_STDERR)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, _FILE)
    os.dup2(log, _STDERR)
    os.close(log)
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)


def _restrict(path: Path, mode: int) -> None:
    """Take others' rights away from what an earlier version made; links are the user's own."""
    with suppress(OSError):  # another user's
        if not path.is_symlink() and path.stat().st_mode & 0o777 & ~mode:
            path.chmod(mode)


_CANCEL_AFTER_S = 5.0  # before a second Ctrl-C leaves the program
_POLL_S = 0.2
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
        until, warned = monotonic() + _CANCEL_AFTER_S, False
        while not future.done():
            try:
                self._interrupt()
                wait([future], timeout=_POLL_S)
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
