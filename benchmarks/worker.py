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

from benchmarks.digest import Digest
from benchmarks.peers import PEERS
from benchmarks.peers.peer import Facts, Peer
from benchmarks.statements import BoundStatement, Kind
from benchmarks.table_state import Repetitions, TableState, WarmUps, is_metadata, sizes


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
    statements, history = (
        [_bound(given, files[0].parent) for given in job[part]]
        for part in ("statements", "history")
    )
    _set_up(peer, files, parent)
    state = TableState(peer, history, parent)
    warm_ups = WarmUps(job["warm_ups"], job["warm_up_s"])
    repetitions = Repetitions(job["repetitions"], job["repetition_s"])
    for _ in range(warm_ups.most):
        _warm_up_once(state, statements, warm_ups, parent)
    for bound in statements:
        _run_statement(state, bound, repetitions, warm_ups, parent)
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
    made = {path: size for path, size in sizes(peer.table_folder).items() if not is_metadata(path)}
    if len(made) != len(files):
        raise WrongResultError(f"the table has {len(made)} data files, not {len(files)}")
    parent.tell(
        "table",
        setup_seconds=seconds,
        data_files=len(made),
        data_bytes=sum(made.values()),
        versions=dict(peer.versions()),
    )


def _warm_up_once(
    state: TableState, statements: Sequence[BoundStatement], warm_ups: WarmUps, parent: Parent
) -> None:
    """One untimed statement of each kind; of MERGE, for each set of clauses."""
    seen = set()
    for bound in statements:
        statement = bound.statement
        if statement.kind is Kind.SCAN or state.peer.reason_to_leave_out(bound):
            continue
        if statement.shape in seen or not warm_ups.due(statement):
            continue
        seen.add(statement.shape)
        parent.tell("progress", text=f"warming up: {statement.name}", statement=statement.name)
        try:
            warm_ups.run(state.peer, bound)
        except ConnectionError:  # its JVM is lost, and every other statement would fail
            raise
        except Exception:  # the timed run will fail too, and be told
            traceback.print_exc()
        state.restore()


def _run_statement(
    state: TableState,
    bound: BoundStatement,
    repetitions: Repetitions,
    warm_ups: WarmUps,
    parent: Parent,
) -> None:
    name = bound.statement.name
    if reason := state.peer.reason_to_leave_out(bound):
        parent.tell("result", statement=name, status="left out", reason=reason)
        return
    runs: list[dict[str, Any]] = []
    try:
        state.bring_to(bound.statement)
        if bound.statement.kind is Kind.SCAN:
            _repeat_scan(state, bound, repetitions, warm_ups, runs, parent)
        else:
            _repeat_change(state, bound, repetitions, runs, parent)
    except ConnectionError:
        raise
    except Exception as failed:  # when even restoring fails, the parent starts this anew
        traceback.print_exc()
        reason = f"{type(failed).__name__}: {failed}"
        parent.enter(None)
        parent.tell("result", statement=name, status="failed", reason=reason, runs=runs)
        state.restore()
        return
    done = warm_ups.done(bound.statement)
    told = {"runs": runs, "warm_ups": done, "digest": asdict(bound.after)}
    parent.tell("result", statement=name, status="ok", **told)


def _repeat_change(
    state: TableState,
    bound: BoundStatement,
    repetitions: Repetitions,
    runs: list[dict[str, Any]],
    parent: Parent,
) -> None:
    """Each repetition on the first table; the rows are checked after the last."""
    while repetitions.due(runs):
        runs.append(_run_once(state.peer, bound, parent))
        if not repetitions.due(runs):
            _check_rows(state.peer.digest(), bound)
        state.restore()


def _repeat_scan(
    state: TableState,
    bound: BoundStatement,
    repetitions: Repetitions,
    warm_ups: WarmUps,
    runs: list[dict[str, Any]],
    parent: Parent,
) -> None:
    """Warmed up on the table as it is then, for what is read then; every answer is checked."""
    while warm_ups.due(bound.statement):
        warm_ups.run(state.peer, bound)
    while repetitions.due(runs):
        runs.append(_run_once(state.peer, bound, parent))


def _run_once(peer: Peer, bound: BoundStatement, parent: Parent) -> dict[str, Any]:
    gc.collect()
    pa.default_memory_pool().release_unused()
    os.sync()  # what was written before is not charged to this statement
    before = sizes(peer.table_folder)
    parent.enter(bound.statement.name)
    started = time.perf_counter()
    facts = peer.run(bound)
    seconds = time.perf_counter() - started
    parent.enter(None)
    facts = peer.settle(facts)
    _check_count(bound, facts)
    if facts.answer is not None:
        _check_rows(facts.answer, bound)
    new = {p: size for p, size in sizes(peer.table_folder).items() if p not in before}
    data = {path: size for path, size in new.items() if not is_metadata(path)}
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


def _check_rows(found: Digest, bound: BoundStatement) -> None:
    if found != bound.after:
        raise WrongResultError(f"after {bound.statement.name}: {found}, not {bound.after}")


def plain(told: Mapping[str, object]) -> dict[str, object]:
    """A peer's own figures: numbers and short texts only."""
    return {key: value for key, value in told.items() if isinstance(value, (int, float, str))}


if __name__ == "__main__":
    main()
