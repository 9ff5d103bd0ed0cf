"""A line on the terminal while Spark works; nothing where stderr is no terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from py4j.protocol import Py4JError
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

_PATIENCE_S = 0.4  # quick statements show nothing
_INTERVAL_S = 0.2


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
            if self._stopped.wait(_PATIENCE_S):
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
                    self._stopped.wait(_INTERVAL_S)

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
