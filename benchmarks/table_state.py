"""A peer's table between statements: warmed up, brought to a state, brought back."""

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
    """Who hears how far it is."""

    def tell(self, event: str, **facts: Any) -> None: ...


@dataclass(slots=True)
class WarmUps:
    """Untimed runs: so many of each kind of statement, fewer of those that take long."""

    most: int
    most_s: float
    _counts: Counter[Hashable] = field(default_factory=Counter)
    _seconds: defaultdict[Hashable, float] = field(default_factory=lambda: defaultdict(float))

    def due(self, statement: Statement) -> bool:
        """Whether one more is to come."""
        key = _kind_of(statement)
        return self._counts[key] < self.most and self._seconds[key] < self.most_s

    def run(self, peer: Peer, bound: BoundStatement) -> None:
        """One more; a failed one counts too."""
        key = _kind_of(bound.statement)
        started = time.perf_counter()
        try:
            peer.run(bound)
        finally:
            self._counts[key] += 1
            self._seconds[key] += time.perf_counter() - started

    def done(self, statement: Statement) -> int:
        """How many there were."""
        return self._counts[_kind_of(statement)]


@dataclass(frozen=True, slots=True)
class Repetitions:
    """Timed runs of a statement: so many, fewer of one that takes long."""

    most: int
    most_s: float | None = None  # None: no limit

    def due(self, runs: Sequence[Mapping[str, Any]]) -> bool:
        """Whether one more is to come after these."""
        spent = sum(run["seconds"] for run in runs)
        in_time = not runs or self.most_s is None or spent < self.most_s
        return in_time and len(runs) < self.most


def _kind_of(statement: Statement) -> Hashable:
    """A scan is warmed up on the table that it reads, other statements by those of their shape."""
    return statement.name if statement.kind is Kind.SCAN else statement.shape


class TableState:
    """The table, and how many statements of the history it has been through."""

    def __init__(self, peer: Peer, history: Sequence[BoundStatement], listener: Listener) -> None:
        self.peer = peer
        self._history = history
        self._listener = listener
        self._originals = frozenset(sizes(peer.table_folder))
        self._done = 0

    def bring_to(self, statement: Statement) -> None:
        """The state that a statement is timed on, from the one that the table is in if possible."""
        wanted = statement.statements_before
        if wanted < self._done:
            self.restore()
        for bound in self._history[self._done : wanted]:
            text = f"statement {self._done + 1} of {wanted} before {statement.name}"
            self._listener.tell("progress", text=text, statement=statement.name)
            self.peer.run(bound)
            self._done += 1
            live = self.peer.live_files()
            if live is not None:
                self._remove_all_but(live)

    def restore(self) -> None:
        """Back to the first table; data files that nothing refers to now make room."""
        self.peer.restore()
        self._done = 0
        self._remove_all_but(frozenset())

    def _remove_all_but(self, live: frozenset[str]) -> None:
        """Fifty statements that rewrite a table of 1 GiB would leave 50 GiB behind."""
        for path in sizes(self.peer.table_folder):
            if path not in self._originals and path.name not in live and not is_metadata(path):
                path.unlink()


def sizes(folder: Path) -> dict[Path, int]:
    """The table's files; a catalog database and checksum files are none."""
    return {
        path: path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith((_CATALOG, "."))
    }


def is_metadata(path: Path) -> bool:
    return not _METADATA_FOLDERS.isdisjoint(path.parts)
