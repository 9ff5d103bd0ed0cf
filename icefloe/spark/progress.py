"""Progress of Spark's jobs: their tasks, and a bar below the running cell of a notebook."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark import StatusTracker

SHOW_AFTER_S = 0.4  # quick statements show nothing
REFRESH_S = 0.2


def task_counts(session: SparkSession) -> tuple[int, int]:
    """Completed and total tasks of the running jobs; (0, 0) if Spark does not report them."""
    return _tasks_of(getattr(session, "_sc", None))  # None on Spark Connect


def _tasks_of(context: SparkContext | None) -> tuple[int, int]:
    if context is None:
        return 0, 0
    with suppress(Py4JError, OSError):  # its JVM has ended
        return _count_tasks(context.statusTracker())
    return 0, 0


def _count_tasks(tracker: StatusTracker) -> tuple[int, int]:
    jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
    stage_ids = {stage for job in jobs if job for stage in job.stageIds}
    stages = [info for stage in sorted(stage_ids) if (info := tracker.getStageInfo(stage))]
    return sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages)


# -------------------------------------------------------------------------------------------------
# Cells of a notebook


class CellProgress:
    """A bar below each cell that runs Spark jobs for longer; it disappears with the last job."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._stopped = Event()
        self._thread: Thread | None = None

    def register(self) -> None:
        """Follow every cell from now on, and the one that runs now."""
        self._shell.events.register("pre_run_cell", self.start)
        self._shell.events.register("post_run_cell", self.stop)
        self.start()

    def unregister(self) -> None:
        """Follow no more cells."""
        self.stop()
        self._shell.events.unregister("pre_run_cell", self.start)
        self._shell.events.unregister("post_run_cell", self.stop)

    def start(self, _info: object = None) -> None:
        """Begin with a cell; a thread polls Spark."""
        self.stop()
        self._stopped = Event()
        self._thread = Thread(target=self._follow, args=(self._stopped,), daemon=True)
        self._thread.start()

    def stop(self, _result: object = None) -> None:
        """End with the cell, and remove the bar."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _follow(self, stopped: Event) -> None:
        bar, started = _Bar(self._shell), monotonic()
        wait = SHOW_AFTER_S
        while not stopped.wait(wait):
            bar.show(_current_step(), monotonic() - started)
            wait = REFRESH_S
        bar.show(_Step(), 0)


@dataclass(frozen=True, slots=True)
class _Step:
    """What goes on, and its bar."""

    text: str = ""
    bar: str = "<progress></progress>"  # which has no end yet


_without_spark: list[str] = []  # what runs without Spark jobs, the latest last


@contextmanager
def show_step(text: str) -> Iterator[None]:
    """Have notebooks show what the block does where no Spark job runs."""
    _without_spark.append(text)
    try:
        yield
    finally:
        _without_spark.remove(text)


def _current_step() -> _Step:
    done, total = _tasks_of(SparkContext._active_spark_context)
    if total:
        return _Step(f"{done}/{total} tasks", f'<progress value="{done}" max="{total}"></progress>')
    return _Step(next(reversed(_without_spark), ""))


class _Bar:
    """One output of a cell, which is replaced while the cell runs."""

    def __init__(self, shell: Any) -> None:
        self._publish = shell.display_pub.publish
        self._transient = {"display_id": uuid4().hex}
        self._shown = False  # whether the cell has the output
        self._text = ""

    def show(self, step: _Step, seconds: float) -> None:
        """Show what goes on; without anything, nothing."""
        text = f"{step.text}, {seconds:.0f} s" if step.text else ""
        if text == self._text:
            return
        html = f"{step.bar} {text}" if text else ""
        data = {"text/plain": text, "text/html": html}
        self._publish(data, {}, transient=self._transient, update=self._shown)
        self._text, self._shown = text, True


_lock = Lock()
_cells: CellProgress | None = None
_is_off = False


def show_in_notebook() -> None:
    """Show progress in the notebook that this process is the kernel of; nothing elsewhere."""
    global _cells  # noqa: PLW0603 - there is one shell in a process
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if not hasattr(shell, "kernel"):  # a program, or IPython in a terminal
        return
    with _lock:
        if _cells is None and not _is_off:
            _cells = CellProgress(shell)
            _cells.register()


def switch(*, on: bool) -> None:
    """Allow progress in this process's notebook, or end it until it is allowed again."""
    global _cells, _is_off  # noqa: PLW0603
    with _lock:
        _is_off = not on
        if not on and _cells is not None:
            _cells.unregister()
            _cells = None
