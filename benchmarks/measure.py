"""Run one peer's process and watch it: what it tells, and the memory of its process tree."""

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

Memory = dict[str, int]  # resident bytes of driver, jvm, workers and total


class PeerFailedError(Exception):
    """The peer's process ended, or was ended, before it was done."""


@dataclass(slots=True)
class MemoryOfStatements:
    """Resident memory when a statement began (the first time), and the most while it ran."""

    start: dict[str, Memory] = field(default_factory=dict)
    peak: dict[str, Memory] = field(default_factory=dict)

    def add(self, statement: str, sample: Memory) -> None:
        """Take one sample into account."""
        self.start.setdefault(statement, sample)
        known = self.peak.setdefault(statement, sample)
        self.peak[statement] = {part: max(known[part], sample[part]) for part in sample}


@dataclass(frozen=True, slots=True)
class Watched:
    """Everything that came out of a peer's process."""

    events: tuple[dict[str, Any], ...]
    memory: MemoryOfStatements
    load_average: float


def sample_tree(process: psutil.Process) -> Memory:
    """Resident bytes of a process and its descendants, by what they are."""
    parts = {"driver": _resident(process), "jvm": 0, "workers": 0}
    for child in process.children(recursive=True):
        try:
            part = "jvm" if child.name() == "java" else "workers"
        except psutil.Error:
            continue
        parts[part] += _resident(child)
    return {**parts, "total": sum(parts.values())}


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
    memory = MemoryOfStatements()
    events = []
    with _process(command, folder, environment) as worker:
        tree = psutil.Process(worker.pid)
        phase: str | None = None
        for event in _events(worker, silence_s):
            if event is None:  # time for a sample
                if phase is not None:
                    memory.add(phase, sample_tree(tree))
                continue
            if event["event"] != "phase":
                events.append(event)
                show(event)
                continue
            memory.add(event["name"] or phase or "idle", sample_tree(tree))
            phase = event["name"]
            worker.stdin.write(b"\n")
            worker.stdin.flush()
    return Watched(tuple(events), memory, load)


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
            raise PeerFailedError(f"{failed}\n{tail}") from failed
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
                    raise PeerFailedError(f"nothing heard for {silence_s:.0f} s")
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
