"""One peer in its own process: runs the statements and sends events to the parent as JSON lines.

    python -m benchmarks.worker JOB.json      (started by benchmarks.run)

The parent replies to every `phase` event after it has sampled the memory; no clock runs until
then.
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
    """The rows are not those that the statement must produce."""


@dataclass(frozen=True, slots=True)
class Parent:
    """The process that started this one."""

    events: TextIO
    replies: TextIO

    def send(self, event: str, **facts: Any) -> None:
        """Send an event without waiting for a reply."""
        self.events.write(json.dumps({"event": event, **facts}, default=str) + "\n")
        self.events.flush()

    def enter(self, phase: str | None) -> None:
        """Send which statement is about to run (None: none) and wait for the reply."""
        self.send("phase", name=phase)
        if not self.replies.readline():
            raise SystemExit("the parent process has exited")


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    parent = Parent(take_stdout(), sys.stdin)
    peer = PEERS[job["peer"]].make(Path(job["folder"]))
    files = [Path(file) for file in job["files"]]
    statements, history = (
        [_bound(fields, files[0].parent) for fields in job[part]]
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
    parent.send("end")


def _bound(fields: dict[str, Any], folder: Path) -> BoundStatement:
    bound = BoundStatement.from_json(fields)
    return replace(bound, source=str(folder / bound.source)) if bound.source else bound


def take_stdout() -> TextIO:
    """The pipe to the parent; from now on, libraries that print write to stderr."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return pipe


def _set_up(peer: Peer, files: Sequence[Path], parent: Parent) -> None:
    parent.send("progress", text="creating the table")
    started = time.perf_counter()
    peer.setup(files)
    seconds = time.perf_counter() - started
    data_files = {
        path: size for path, size in sizes(peer.table_folder).items() if not is_metadata(path)
    }
    if len(data_files) != len(files):
        raise WrongResultError(f"the table has {len(data_files)} data files, expected {len(files)}")
    parent.send(
        "table",
        setup_seconds=seconds,
        data_files=len(data_files),
        data_bytes=sum(data_files.values()),
        versions=dict(peer.versions()),
    )


def _warm_up_once(
    state: TableState, statements: Sequence[BoundStatement], warm_ups: WarmUps, parent: Parent
) -> None:
    """Run one untimed statement of each kind, of MERGE one for each set of clauses."""
    seen = set()
    for bound in statements:
        statement = bound.statement
        if statement.kind is Kind.SCAN or state.peer.reason_to_leave_out(bound):
            continue
        if statement.shape in seen or not warm_ups.due(statement):
            continue
        seen.add(statement.shape)
        parent.send("progress", text=f"warming up: {statement.name}", statement=statement.name)
        try:
            warm_ups.run(state.peer, bound)
        except ConnectionError:  # the JVM exited: every other statement would fail
            raise
        except Exception:  # the timed run fails too, and is reported
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
        parent.send("result", statement=name, status="left out", reason=reason)
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
    except Exception as failed:  # if restoring fails too, the parent starts a new process
        traceback.print_exc()
        reason = f"{type(failed).__name__}: {failed}"
        parent.enter(None)
        parent.send("result", statement=name, status="failed", reason=reason, runs=runs)
        state.restore()
        return
    done = warm_ups.done(bound.statement)
    facts = {"runs": runs, "warm_ups": done, "digest": asdict(bound.after)}
    parent.send("result", statement=name, status="ok", **facts)


def _repeat_change(
    state: TableState,
    bound: BoundStatement,
    repetitions: Repetitions,
    runs: list[dict[str, Any]],
    parent: Parent,
) -> None:
    """Run each repetition on the initial table, and check the rows after the last."""
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
    """Warm up on the table in its present state; the answer of every repetition is checked."""
    while warm_ups.due(bound.statement):
        warm_ups.run(state.peer, bound)
    while repetitions.due(runs):
        runs.append(_run_once(state.peer, bound, parent))


def _run_once(peer: Peer, bound: BoundStatement, parent: Parent) -> dict[str, Any]:
    gc.collect()
    pa.default_memory_pool().release_unused()
    os.sync()  # earlier writes must not slow down this statement
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
        "reported": plain(facts.reported),
    }


def _check_count(bound: BoundStatement, facts: Facts) -> None:
    if facts.rows_changed not in (bound.rows_changed, None):
        raise WrongResultError(
            f"{bound.statement.name} changed {facts.rows_changed} rows, expected "
            f"{bound.rows_changed}"
        )


def _check_rows(digest: Digest, bound: BoundStatement) -> None:
    if digest != bound.after:
        raise WrongResultError(f"after {bound.statement.name}: {digest}, expected {bound.after}")


def plain(reported: Mapping[str, object]) -> dict[str, object]:
    """The numbers and texts of what a peer reports."""
    return {key: value for key, value in reported.items() if isinstance(value, (int, float, str))}


if __name__ == "__main__":
    main()
