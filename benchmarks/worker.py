"""One peer in a process of its own: runs the statements, tells the parent as JSON lines.

    python -m benchmarks.worker JOB.json      (started by benchmarks.run)

The parent answers every `phase` line, after it has sampled the memory; the clock stands still
until then.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from benchmarks.peers import PEERS
from benchmarks.peers.peer import Facts, Peer
from benchmarks.statements import BoundStatement

_METADATA_FOLDERS = {"metadata", "_delta_log"}
_CATALOG = "catalog.db"


class WrongResultError(Exception):
    """The peer did not do what the statement says."""


@dataclass(frozen=True, slots=True)
class Parent:
    """The process that started this one."""

    told: TextIO
    answers: TextIO

    def tell(self, event: str, **facts: Any) -> None:
        """Say one thing; nothing is waited for."""
        self.told.write(json.dumps({"event": event, **facts}, default=str) + "\n")
        self.told.flush()

    def enter(self, phase: str | None) -> None:
        """Say which statement is about to run (None: none is) and wait for the answer."""
        self.tell("phase", name=phase)
        if not self.answers.readline():
            raise SystemExit("the parent is gone")


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    parent = Parent(take_stdout(), sys.stdin)
    peer = PEERS[job["peer"]].make(Path(job["folder"]))
    files = [Path(file) for file in job["files"]]
    statements = [_bound(given, files[0].parent) for given in job["statements"]]
    _set_up(peer, files, parent)
    for _ in range(job["warm_ups"]):
        _warm_up(peer, statements, parent)
    for bound in statements:
        _run_statement(peer, bound, job["repetitions"], parent)
    peer.close()
    parent.tell("end")


def _bound(given: dict[str, Any], folder: Path) -> BoundStatement:
    bound = BoundStatement.from_json(given)
    return replace(bound, source=str(folder / bound.source)) if bound.source else bound


def take_stdout() -> TextIO:
    """The pipe to the parent; what libraries print goes to stderr from now on."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return told


def _set_up(peer: Peer, files: Sequence[Path], parent: Parent) -> None:
    parent.tell("progress", text="making the table")
    started = time.perf_counter()
    peer.setup(files)
    seconds = time.perf_counter() - started
    made = {path: size for path, size in _sizes(peer.table_folder).items() if not _metadata(path)}
    if len(made) != len(files):
        raise WrongResultError(f"the table has {len(made)} data files, not {len(files)}")
    parent.tell(
        "table",
        setup_seconds=seconds,
        data_files=len(made),
        data_bytes=sum(made.values()),
        versions=dict(peer.versions()),
    )


def _warm_up(peer: Peer, statements: Sequence[BoundStatement], parent: Parent) -> None:
    """One untimed statement of each kind; of MERGE, for each set of clauses."""
    seen = set()
    for bound in statements:
        shape = bound.statement.shape
        if shape in seen or peer.reason_to_leave_out(bound):
            continue
        seen.add(shape)
        name = bound.statement.name
        parent.tell("progress", text=f"warming up: {name}", statement=name)
        originals = _sizes(peer.table_folder)
        try:
            peer.run(bound)
        except Exception:  # the timed run will fail too, and be told
            traceback.print_exc()
        _restore(peer, originals)


def _run_statement(peer: Peer, bound: BoundStatement, repetitions: int, parent: Parent) -> None:
    name = bound.statement.name
    if reason := peer.reason_to_leave_out(bound):
        parent.tell("result", statement=name, status="left out", reason=reason)
        return
    runs: list[dict[str, Any]] = []
    originals = _sizes(peer.table_folder)
    try:
        for repetition in range(repetitions):
            runs.append(_run_once(peer, bound, parent))
            if repetition == repetitions - 1:
                _check_rows(peer, bound)
            _restore(peer, originals)
    except Exception as failed:  # when even restoring fails, the parent starts this anew
        traceback.print_exc()
        reason = f"{type(failed).__name__}: {failed}"
        parent.enter(None)
        parent.tell("result", statement=name, status="failed", reason=reason, runs=runs)
        _restore(peer, originals)
        return
    parent.tell("result", statement=name, status="ok", runs=runs, digest=asdict(bound.after))


def _run_once(peer: Peer, bound: BoundStatement, parent: Parent) -> dict[str, Any]:
    gc.collect()
    pa.default_memory_pool().release_unused()
    os.sync()  # what was written before is not charged to this statement
    before = _sizes(peer.table_folder)
    parent.enter(bound.statement.name)
    started = time.perf_counter()
    facts = peer.run(bound)
    seconds = time.perf_counter() - started
    parent.enter(None)
    facts = peer.settle(facts)
    _check_count(bound, facts)
    new = {p: size for p, size in _sizes(peer.table_folder).items() if p not in before}
    data = {path: size for path, size in new.items() if not _metadata(path)}
    return {
        "seconds": seconds,
        "rows_changed": facts.rows_changed,
        "bytes_read": facts.bytes_read,
        "bytes_written": sum(data.values()),
        "files_written": len(data),
        "metadata_bytes_written": sum(new.values()) - sum(data.values()),
        "told": plain(facts.told),
    }


def _check_count(bound: BoundStatement, facts: Facts) -> None:
    if facts.rows_changed not in (bound.rows_changed, None):
        raise WrongResultError(
            f"{bound.statement.name} changed {facts.rows_changed} rows, not {bound.rows_changed}"
        )


def _check_rows(peer: Peer, bound: BoundStatement) -> None:
    found = peer.digest()
    if found != bound.after:
        raise WrongResultError(f"after {bound.statement.name}: {found}, not {bound.after}")


def _restore(peer: Peer, originals: Mapping[Path, int]) -> None:
    """Back to the first table; data files that nothing refers to now make room."""
    peer.restore()
    for path in _sizes(peer.table_folder):
        if path not in originals and not _metadata(path):
            path.unlink()


def _sizes(folder: Path) -> dict[Path, int]:
    """The table's files; a catalog database and checksum files are none."""
    return {
        path: path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith((_CATALOG, "."))
    }


def _metadata(path: Path) -> bool:
    return not _METADATA_FOLDERS.isdisjoint(path.parts)


def plain(told: Mapping[str, object]) -> dict[str, object]:
    """A peer's own figures: numbers and short texts only."""
    return {key: value for key, value in told.items() if isinstance(value, (int, float, str))}


if __name__ == "__main__":
    main()
