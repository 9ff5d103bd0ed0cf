"""The state of a peer's table: warm-ups, statements before a scan, restoring the initial table."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.peers.peer import Peer
from benchmarks.statements import BoundStatement, Kind, Statement

_METADATA_FOLDERS = {"metadata", "_delta_log"}
_CATALOG = "catalog.db"


class Listener(Protocol):
    """Receives progress events."""

    def send(self, event: str, **facts: Any) -> None: ...


@dataclass(slots=True)
class WarmUps:
    """Untimed runs of each kind of statement, limited by number and by time."""

    most: int
    most_s: float
    _counts: Counter[Hashable] = field(default_factory=Counter)
    _seconds: defaultdict[Hashable, float] = field(default_factory=lambda: defaultdict(float))

    def due(self, statement: Statement) -> bool:
        """Whether another one is to run."""
        key = _kind_of(statement)
        return self._counts[key] < self.most and self._seconds[key] < self.most_s

    def run(self, peer: Peer, bound: BoundStatement) -> None:
        """Run another one; it counts even if it fails."""
        key = _kind_of(bound.statement)
        started = time.perf_counter()
        try:
            peer.run(bound)
        finally:
            self._counts[key] += 1
            self._seconds[key] += time.perf_counter() - started

    def done(self, statement: Statement) -> int:
        """How many have run."""
        return self._counts[_kind_of(statement)]


@dataclass(frozen=True, slots=True)
class Repetitions:
    """Timed runs of a statement, limited by number and by time."""

    most: int
    most_s: float | None = None  # None: no limit

    def due(self, runs: Sequence[Mapping[str, Any]]) -> bool:
        """Whether another one is to run after these."""
        total_s = sum(run["seconds"] for run in runs)
        in_time = not runs or self.most_s is None or total_s < self.most_s
        return in_time and len(runs) < self.most


def _kind_of(statement: Statement) -> Hashable:
    """A scan is warmed up by itself, other statements by any of the same shape."""
    return statement.name if statement.kind is Kind.SCAN else statement.shape


class TableState:
    """The table, and how many statements of the history have run on it."""

    def __init__(self, peer: Peer, history: Sequence[BoundStatement], listener: Listener) -> None:
        self.peer = peer
        self._history = history
        self._listener = listener
        self._originals = frozenset(sizes(peer.table_folder))
        self._done = 0

    def bring_to(self, statement: Statement) -> None:
        """Run the history that a statement needs, starting from the present state if possible."""
        count = statement.statements_before
        if count < self._done:
            self.restore()
        for bound in self._history[self._done : count]:
            text = f"statement {self._done + 1} of {count} before {statement.name}"
            self._listener.send("progress", text=text, statement=statement.name)
            self.peer.run(bound)
            self._done += 1
            live = self.peer.live_files()
            if live is not None:
                self._remove_all_but(live)

    def restore(self) -> None:
        """Restore the initial table, and delete the data files that it does not refer to."""
        self.peer.restore()
        self._done = 0
        self._remove_all_but(frozenset())

    def _remove_all_but(self, live: frozenset[str]) -> None:
        """Save disk space: fifty statements that rewrite 1 GiB would leave 50 GiB."""
        for path in sizes(self.peer.table_folder):
            if path not in self._originals and path.name not in live and not is_metadata(path):
                path.unlink()


def sizes(folder: Path) -> dict[Path, int]:
    """The table's files and their sizes, without catalog databases and checksum files."""
    return {
        path: path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith((_CATALOG, "."))
    }


def is_metadata(path: Path) -> bool:
    return not _METADATA_FOLDERS.isdisjoint(path.parts)
