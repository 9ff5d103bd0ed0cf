"""Run one peer's process and watch it: what it tells, memory and input/output of its tree."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

_SAMPLE_S = 0.05
_MIB = 2**20

Memory = dict[str, int]  # resident bytes of driver, jvm, workers and total; see `_part`
InOut = dict[str, int]  # bytes through system calls (chars) and of the disk (bytes)
_INOUT = ("read_chars", "write_chars", "read_bytes", "write_bytes")


class PeerFailedError(Exception):
    """The peer's process ended, or was ended, before it was done."""

    too_slow = False


class TooSlowError(PeerFailedError):
    """The peer was ended because nothing was heard from it for too long."""

    too_slow = True


@dataclass(slots=True)
class OfStatements:
    """What was seen while statements ran, by their names."""

    start: dict[str, Memory] = field(default_factory=dict)  # when it began the first time
    peak: dict[str, Memory] = field(default_factory=dict)
    inout: dict[str, list[InOut]] = field(default_factory=dict)  # one for each repetition

    def add_memory(self, statement: str, sample: Memory) -> None:
        """Take one sample into account."""
        self.start.setdefault(statement, sample)
        known = self.peak.setdefault(statement, sample)
        parts = known.keys() | sample.keys()
        self.peak[statement] = {
            part: max(known.get(part, 0), sample.get(part, 0)) for part in sorted(parts)
        }

    def add_inout(self, statement: str, before: InOut, after: InOut) -> None:
        """Take one repetition into account."""
        used = {part: after[part] - before[part] for part in after.keys() & before.keys()}
        self.inout.setdefault(statement, []).append(dict(sorted(used.items())))


@dataclass(frozen=True, slots=True)
class Watched:
    """Everything that came out of a peer's process."""

    events: tuple[dict[str, Any], ...]
    seen: OfStatements
    load_average: float
    failure: str | None = None  # why the process ended before it was done
    too_slow: bool = False  # the reason is that it took too long


def sample_tree(process: psutil.Process) -> Memory:
    """Resident bytes of a process and its descendants, by what they are."""
    parts = {"driver": _resident(process), "jvm": 0, "workers": 0}
    for child in process.children(recursive=True):
        try:
            part = _part(child)
        except psutil.Error:
            continue
        if part is not None:
            parts[part] = parts.get(part, 0) + _resident(child)
    return {**parts, "total": sum(parts.values())}


def _part(child: psutil.Process) -> str | None:
    """Python workers, the driver's JVM; on a cluster also executors' JVMs and master's, worker's.

    None for a thread of a JVM that was forked to become another program, a shell say: it still
    has the JVM's memory, which would be counted twice.
    """
    name, command = child.name(), child.cmdline()
    if not command or Path(command[0]).name != "java":
        return "workers" if name.startswith("python") else "others"
    if name != "java":
        return None
    if any("CoarseGrainedExecutorBackend" in word for word in command):
        return "executors"
    services = ("org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker")
    return "services" if any(word in services for word in command) else "jvm"


def inout_of_tree(process: psutil.Process) -> InOut:
    """Bytes that a process tree has read and written so far; empty where the system can't tell.

    What an ended process did is counted in the parent that waited for it.
    """
    found = dict.fromkeys(_INOUT, 0)
    for one in (process, *process.children(recursive=True)):
        try:
            counters = one.io_counters()
            for part in _INOUT:
                found[part] += int(getattr(counters, part))
        except psutil.Error:
            continue
        except AttributeError:  # not on Linux
            return {}
    return found


def watch(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    silence_s: float,
    show: Callable[[dict[str, Any]], None],
) -> Watched:
    """Run a peer's process to its end; `show` is called with everything it tells."""
    load = os.getloadavg()[0]
    seen = OfStatements()
    events: list[dict[str, Any]] = []
    try:
        with _process(command, folder, environment) as worker:
            for event in _events_outside_statements(worker, silence_s, seen):
                events.append(event)
                show(event)
    except PeerFailedError as failed:
        return Watched(tuple(events), seen, load, str(failed), failed.too_slow)
    return Watched(tuple(events), seen, load)


def _events_outside_statements(
    worker: subprocess.Popen[bytes], silence_s: float, seen: OfStatements
) -> Iterator[dict[str, Any]]:
    """What the worker tells; statements are watched while they run."""
    tree = psutil.Process(worker.pid)
    phase: str | None = None
    before: InOut = {}
    for event in _events(worker, silence_s):
        if event is None:  # time for a sample
            if phase is not None:
                seen.add_memory(phase, sample_tree(tree))
            continue
        if event["event"] != "phase":
            yield event
            continue
        if phase is not None:
            seen.add_inout(phase, before, inout_of_tree(tree))
        phase = event["name"] or phase
        if phase is not None:
            seen.add_memory(phase, sample_tree(tree))
        phase = event["name"]
        before = inout_of_tree(tree)
        _answer(worker)


def _answer(worker: subprocess.Popen[bytes]) -> None:
    try:
        worker.stdin.write(b"\n")
        worker.stdin.flush()
    except OSError as gone:
        raise PeerFailedError("the process ended early") from gone


@contextmanager
def _process(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    log = folder / "stderr.log"
    with log.open("wb") as stderr:
        worker = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            bufsize=0,
        )
        try:
            yield worker
        except PeerFailedError as failed:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            if failed.too_slow:
                worker.kill()
            raise type(failed)(f"{failed}\n{tail}") from failed
        finally:
            _end(worker)


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Wait for a process that said it is done; end it and its children otherwise."""
    try:
        children = psutil.Process(worker.pid).children(recursive=True)
    except psutil.Error:
        children = []
    try:
        worker.stdin.close()
        worker.wait(timeout=30)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    for child in alive:
        child.kill()


def _events(worker: subprocess.Popen[bytes], silence_s: float) -> Iterator[dict[str, Any] | None]:
    """What the worker tells, and None whenever a sample is due; until it says `end`."""
    heard = time.monotonic()
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(worker.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(_SAMPLE_S):
                if time.monotonic() - heard > silence_s:
                    raise TooSlowError(f"it took longer than {silence_s:.0f} s")
                yield None
                continue
            heard = time.monotonic()
            told = os.read(worker.stdout.fileno(), 1 << 16)
            if not told:
                raise PeerFailedError("the process ended early")
            *lines, rest = (rest + told).split(b"\n")
            for line in lines:
                event = json.loads(line)
                if event["event"] == "end":
                    return
                yield event


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def mebibytes(count: int) -> int:
    """Bytes as whole MiB."""
    return round(count / _MIB)
