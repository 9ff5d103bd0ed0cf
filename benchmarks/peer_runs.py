"""The part of a run that one peer does, in a process that is restarted when it exits early."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import MeasuredProcess, measure, mebibytes
from benchmarks.peers import OURS, PEERS
from benchmarks.statements import BoundStatement, Kind

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Run:
    """What to run, and where."""

    work: Path
    files: tuple[Path, ...]
    statements: tuple[BoundStatement, ...]
    history: tuple[BoundStatement, ...]
    repetitions: int
    repetition_s: float | None
    warm_ups: int
    warm_up_s: float
    silence_s: float
    pythons: dict[str, str]
    driver_memory: str
    keep: bool

    def python_of(self, peer: str) -> str:
        """The interpreter of a peer: from `--python`, of its own environment, or this one."""
        environment = PEERS[peer].environment
        default = sys.executable if environment is None else f"{ROOT / environment}/bin/python"
        return self.pythons.get(peer, default)


def run_peer(name: str, run: Run) -> dict[str, Any]:
    """Run all statements with one peer.

    When the process exits early (out of memory, for example), only the statement that it was
    running fails; the others run in a new process on a new table.
    """
    say(f"{name}:")
    if not Path(run.python_of(name)).exists():
        reason = f"it needs its own environment: make {PEERS[name].environment}/.installed"
        say(f"  left out: {reason}")
        return {"name": name, "status": "left out", "reason": reason}
    document: dict[str, Any] = {"name": name, "status": "ok"}
    results: list[dict[str, Any]] = []
    remaining = run.statements
    while remaining:
        process = _measure(name, run, remaining)
        table = next((event for event in process.events if event["event"] == "table"), None)
        if table is None and "data_files" not in document:
            reason = without_paths(process.failure or "it created no table", run.work)
            return {"name": name, "status": "failed", "reason": reason}
        if "data_files" not in document:
            document["load_average_before"] = process.load_average
            document |= {key: value for key, value in table.items() if key != "event"}
        ended = [event for event in process.events if event["event"] == "result"]
        results += [_result_document(event, process, run.work) for event in ended]
        names = {result["statement"] for result in results}
        remaining = tuple(bound for bound in remaining if bound.statement.name not in names)
        if process.failure and remaining and not (ended and ended[-1]["status"] == "failed"):
            interrupted = _interrupted(process, remaining)
            results.append(_interrupted_document(name, interrupted, process, run))
            remaining = tuple(bound for bound in remaining if bound is not interrupted)
            if process.too_slow:
                skipped = [bound for bound in remaining if _is_as_slow(bound, interrupted)]
                results += [_skipped_document(bound, interrupted) for bound in skipped]
                remaining = tuple(bound for bound in remaining if bound not in skipped)
    return {**document, "results": results}


def say(text: str) -> None:
    print(text, flush=True)


def _measure(name: str, run: Run, statements: tuple[BoundStatement, ...]) -> MeasuredProcess:
    folder = run.work / "tables" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    job = folder / "job.json"
    job.write_text(json.dumps(_job(name, folder, run, statements)))
    try:
        process = measure(
            [run.python_of(name), "-m", "benchmarks.worker", str(job)],
            folder=folder,
            environment=_environment(run),
            silence_s=run.silence_s,
            show=_show,
        )
    finally:
        if not run.keep:
            shutil.rmtree(folder, ignore_errors=True)
    if process.failure:
        say(f"  FAILED: {process.failure}")
    return process


def _job(
    name: str, folder: Path, run: Run, statements: tuple[BoundStatement, ...]
) -> dict[str, Any]:
    return {
        "peer": name,
        "folder": str(folder),
        "files": [str(file) for file in run.files],
        "statements": [bound.to_json() for bound in statements],
        "history": [bound.to_json() for bound in run.history],
        "repetitions": run.repetitions,
        "repetition_s": run.repetition_s,
        "warm_ups": PEERS[name].warm_ups(run.warm_ups),
        "warm_up_s": run.warm_up_s,
    }


def _environment(run: Run) -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "ICEFLOE_CLASS_ARCHIVES": "off",  # nothing is made in the background of the next peer
        "PYSPARK_SUBMIT_ARGS": f"--driver-memory {run.driver_memory} pyspark-shell",
    }


def _show(event: dict[str, Any]) -> None:
    match event:
        case {"event": "progress", "text": text}:
            say(f"  {text}")
        case {"event": "table", "data_bytes": data_bytes, "setup_seconds": seconds}:
            say(f"  table of {mebibytes(data_bytes)} MiB created in {seconds:.1f} s")
        case {"event": "result", "status": "ok", "statement": name, "runs": runs}:
            times = " ".join(f"{run['seconds']:.3f}" for run in runs)
            say(f"  {name}: {times} s, {runs[0]['bytes_written'] / 2**20:.1f} MiB written")
        case {"event": "result", "status": status, "statement": name, "reason": reason}:
            say(f"  {name}: {status}: {reason}")


def _result_document(event: dict[str, Any], process: MeasuredProcess, work: Path) -> dict[str, Any]:
    document = {key: value for key, value in event.items() if key not in ("event", "runs")}
    name = event["statement"]
    if "reason" in document:
        document["reason"] = without_paths(document["reason"], work)
    if event.get("runs"):
        io = process.usage.io.get(name, [])
        document["runs"] = [
            {**run, "io": used} for run, used in zip(event["runs"], io, strict=False)
        ]
        document["memory_at_start"] = process.usage.start.get(name)
        document["memory_peak"] = process.usage.peak.get(name)
    return document


def _interrupted(process: MeasuredProcess, remaining: tuple[BoundStatement, ...]) -> BoundStatement:
    """The statement that a process exited in: the one it warmed up with, or the next in turn."""
    last = process.events[-1].get("statement") if process.events else None
    return next((bound for bound in remaining if bound.statement.name == last), remaining[0])


def _interrupted_document(
    name: str, bound: BoundStatement, process: MeasuredProcess, run: Run
) -> dict[str, Any]:
    """A peer that takes too long is left out; icefloe has failed."""
    slow = f"it takes longer than {run.silence_s:.0f} s"
    return {
        "statement": bound.statement.name,
        "status": "left out" if process.too_slow and not name.startswith(OURS) else "failed",
        "reason": slow if process.too_slow else without_paths(process.failure or "", run.work),
        "memory_peak": process.usage.peak.get(bound.statement.name),
    }


def _is_as_slow(bound: BoundStatement, interrupted: BoundStatement) -> bool:
    """Whether a statement has at least as much work as one that took too long."""
    one, other = bound.statement, interrupted.statement
    same = (one.shape, one.placement) == (other.shape, other.placement)
    return same and one.kind is not Kind.SCAN and one.fraction >= other.fraction


def _skipped_document(bound: BoundStatement, interrupted: BoundStatement) -> dict[str, Any]:
    reason = f"{interrupted.statement.name}, which has no more work, took too long"
    return {"statement": bound.statement.name, "status": "left out", "reason": reason}


def without_paths(text: str, work: Path) -> str:
    """A peer's message without the paths of this machine."""
    return text.replace(str(work), "WORK").replace(str(ROOT), "ROOT").replace(sys.prefix, "VENV")
