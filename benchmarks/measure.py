"""Run one peer's process and measure it: its events, and memory and I/O of its process tree."""

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
IoBytes = dict[str, int]  # through system calls (chars) and from or to the disk (bytes)
_IO_COUNTERS = ("read_chars", "write_chars", "read_bytes", "write_bytes")


class PeerFailedError(Exception):
    """The peer's process exited, or was killed, before it was done."""

    too_slow = False


class TooSlowError(PeerFailedError):
    """The peer was killed because it sent no event for too long."""

    too_slow = True


@dataclass(slots=True)
class StatementUsage:
    """Memory and I/O of statements, by their names."""

    start: dict[str, Memory] = field(default_factory=dict)  # at the start of its first run
    peak: dict[str, Memory] = field(default_factory=dict)
    io: dict[str, list[IoBytes]] = field(default_factory=dict)  # one entry for each repetition

    def add_memory(self, statement: str, sample: Memory) -> None:
        """Add one sample."""
        self.start.setdefault(statement, sample)
        peak = self.peak.setdefault(statement, sample)
        parts = peak.keys() | sample.keys()
        self.peak[statement] = {
            part: max(peak.get(part, 0), sample.get(part, 0)) for part in sorted(parts)
        }

    def add_io(self, statement: str, before: IoBytes, after: IoBytes) -> None:
        """Add one repetition."""
        used = {part: after[part] - before[part] for part in after.keys() & before.keys()}
        self.io.setdefault(statement, []).append(dict(sorted(used.items())))


@dataclass(frozen=True, slots=True)
class MeasuredProcess:
    """What a peer's process sent, and what it used."""

    events: tuple[dict[str, Any], ...]
    usage: StatementUsage
    load_average: float
    failure: str | None = None  # why the process exited before it was done
    too_slow: bool = False  # it was killed because it took too long


def memory_of_tree(process: psutil.Process) -> Memory:
    """Resident bytes of a process and its descendants, by kind of process."""
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
    """The kind of a process: the driver's JVM, a Python worker, on a cluster also the other JVMs.

    None for a JVM that was just forked to start another program, such as a shell: it shares the
    JVM's memory, which would count twice.
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


def io_of_tree(process: psutil.Process) -> IoBytes:
    """Bytes that a process tree has read and written so far; empty where they are not counted.

    The bytes of a process that exited are counted in the parent that waited for it.
    """
    totals = dict.fromkeys(_IO_COUNTERS, 0)
    for member in (process, *process.children(recursive=True)):
        try:
            counters = member.io_counters()
            for part in _IO_COUNTERS:
                totals[part] += int(getattr(counters, part))
        except psutil.Error:
            continue
        except AttributeError:  # not on Linux
            return {}
    return totals


def measure(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    silence_s: float,
    show: Callable[[dict[str, Any]], None],
) -> MeasuredProcess:
    """Run a peer's process to its end; `show` is called with every event."""
    load = os.getloadavg()[0]
    usage = StatementUsage()
    events: list[dict[str, Any]] = []
    try:
        with _process(command, folder, environment) as worker:
            for event in _measured_events(worker, silence_s, usage):
                events.append(event)
                show(event)
    except PeerFailedError as failed:
        return MeasuredProcess(tuple(events), usage, load, str(failed), failed.too_slow)
    return MeasuredProcess(tuple(events), usage, load)


def _measured_events(
    worker: subprocess.Popen[bytes], silence_s: float, usage: StatementUsage
) -> Iterator[dict[str, Any]]:
    """The events of the worker; `phase` events start and end the measurement of a statement."""
    tree = psutil.Process(worker.pid)
    phase: str | None = None
    before: IoBytes = {}
    for event in _events(worker, silence_s):
        if event is None:  # a sample is due
            if phase is not None:
                usage.add_memory(phase, memory_of_tree(tree))
            continue
        if event["event"] != "phase":
            yield event
            continue
        if phase is not None:
            usage.add_io(phase, before, io_of_tree(tree))
        phase = event["name"] or phase
        if phase is not None:
            usage.add_memory(phase, memory_of_tree(tree))
        phase = event["name"]
        before = io_of_tree(tree)
        _answer(worker)


def _answer(worker: subprocess.Popen[bytes]) -> None:
    try:
        worker.stdin.write(b"\n")
        worker.stdin.flush()
    except OSError as closed:
        raise PeerFailedError("the process exited early") from closed


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
    """Wait for the process to exit; kill it and its children when they do not."""
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
    """The worker's events up to `end`, and None whenever a sample is due."""
    last_event = time.monotonic()
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(worker.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(_SAMPLE_S):
                if time.monotonic() - last_event > silence_s:
                    raise TooSlowError(f"it took longer than {silence_s:.0f} s")
                yield None
                continue
            last_event = time.monotonic()
            data = os.read(worker.stdout.fileno(), 1 << 16)
            if not data:
                raise PeerFailedError("the process exited early")
            *lines, rest = (rest + data).split(b"\n")
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
