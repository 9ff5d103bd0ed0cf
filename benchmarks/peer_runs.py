"""One peer's part of a run: its process, started anew when it was lost, and what came out."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Watched, mebibytes, watch
from benchmarks.peers import OURS, PEERS
from benchmarks.statements import BoundStatement, Kind

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Run:
    """What is run, and where."""

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
        """The interpreter of a peer: the one given, its own environment's, or this one."""
        environment = PEERS[peer].environment
        usual = sys.executable if environment is None else f"{ROOT / environment}/bin/python"
        return self.pythons.get(peer, usual)


def run_peer(name: str, run: Run) -> dict[str, Any]:
    """Run all statements with one peer.

    A process that is lost (out of memory, say) costs the statement that it was at, not the rest:
    these get a new process and a new table.
    """
    say(f"{name}:")
    if not Path(run.python_of(name)).exists():
        reason = f"it needs an environment of its own: make {PEERS[name].environment}/.installed"
        say(f"  left out: {reason}")
        return {"name": name, "status": "left out", "reason": reason}
    document: dict[str, Any] = {"name": name, "status": "ok"}
    results: list[dict[str, Any]] = []
    remaining = run.statements
    while remaining:
        watched = _watch(name, run, remaining)
        table = next((event for event in watched.events if event["event"] == "table"), None)
        if table is None and "data_files" not in document:
            reason = without_paths(watched.failure or "it made no table", run.work)
            return {"name": name, "status": "failed", "reason": reason}
        if "data_files" not in document:
            document["load_average_before"] = watched.load_average
            document |= {key: value for key, value in table.items() if key != "event"}
        found = [event for event in watched.events if event["event"] == "result"]
        results += [_result_document(event, watched, run.work) for event in found]
        told = {result["statement"] for result in results}
        remaining = tuple(bound for bound in remaining if bound.statement.name not in told)
        if watched.failure and remaining and not (found and found[-1]["status"] == "failed"):
            lost = _lost_at(watched, remaining)
            results.append(_lost_document(name, lost, watched, run))
            remaining = tuple(bound for bound in remaining if bound is not lost)
            if watched.too_slow:
                hopeless = [bound for bound in remaining if _is_as_slow(bound, lost)]
                results += [_hopeless_document(bound, lost) for bound in hopeless]
                remaining = tuple(bound for bound in remaining if bound not in hopeless)
    return {**document, "results": results}


def say(text: str) -> None:
    print(text, flush=True)


def _watch(name: str, run: Run, statements: tuple[BoundStatement, ...]) -> Watched:
    folder = run.work / "tables" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    job = folder / "job.json"
    job.write_text(json.dumps(_job(name, folder, run, statements)))
    try:
        watched = watch(
            [run.python_of(name), "-m", "benchmarks.worker", str(job)],
            folder=folder,
            environment=_environment(run),
            silence_s=run.silence_s,
            show=_show,
        )
    finally:
        if not run.keep:
            shutil.rmtree(folder, ignore_errors=True)
    if watched.failure:
        say(f"  FAILED: {watched.failure}")
    return watched


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
        "PYSPARK_SUBMIT_ARGS": f"--driver-memory {run.driver_memory} pyspark-shell",
    }


def _show(event: dict[str, Any]) -> None:
    match event:
        case {"event": "progress", "text": text}:
            say(f"  {text}")
        case {"event": "table", "data_bytes": data_bytes, "setup_seconds": seconds}:
            say(f"  table of {mebibytes(data_bytes)} MiB made in {seconds:.1f} s")
        case {"event": "result", "status": "ok", "statement": name, "runs": runs}:
            times = " ".join(f"{run['seconds']:.3f}" for run in runs)
            say(f"  {name}: {times} s, {runs[0]['bytes_written'] / 2**20:.1f} MiB written")
        case {"event": "result", "status": status, "statement": name, "reason": reason}:
            say(f"  {name}: {status}: {reason}")


def _result_document(event: dict[str, Any], watched: Watched, work: Path) -> dict[str, Any]:
    found = {key: value for key, value in event.items() if key not in ("event", "runs")}
    name = event["statement"]
    if "reason" in found:
        found["reason"] = without_paths(found["reason"], work)
    if event.get("runs"):
        inout = watched.seen.inout.get(name, [])
        found["best_seconds"] = min(run["seconds"] for run in event["runs"])
        found["runs"] = [
            {**run, "io": used} for run, used in zip(event["runs"], inout, strict=False)
        ]
        found["memory_at_start"] = watched.seen.start.get(name)
        found["memory_peak"] = watched.seen.peak.get(name)
    return found


def _lost_at(watched: Watched, remaining: tuple[BoundStatement, ...]) -> BoundStatement:
    """The statement at which a process ended: the one it warmed up with, or the next in turn."""
    last = watched.events[-1].get("statement") if watched.events else None
    return next((bound for bound in remaining if bound.statement.name == last), remaining[0])


def _lost_document(name: str, bound: BoundStatement, watched: Watched, run: Run) -> dict[str, Any]:
    """A peer that is slow is left out; that icefloe is, or hangs, is a failure."""
    slow = f"it takes longer than {run.silence_s:.0f} s"
    return {
        "statement": bound.statement.name,
        "status": "left out" if watched.too_slow and not name.startswith(OURS) else "failed",
        "reason": slow if watched.too_slow else without_paths(watched.failure or "", run.work),
        "memory_peak": watched.seen.peak.get(bound.statement.name),
    }


def _is_as_slow(bound: BoundStatement, lost: BoundStatement) -> bool:
    """Whether a statement has as much to do as one that took too long."""
    one, other = bound.statement, lost.statement
    same = (one.shape, one.placement) == (other.shape, other.placement)
    return same and one.kind is not Kind.SCAN and one.fraction >= other.fraction


def _hopeless_document(bound: BoundStatement, lost: BoundStatement) -> dict[str, Any]:
    reason = f"{lost.statement.name}, which has no more to do, took too long"
    return {"statement": bound.statement.name, "status": "left out", "reason": reason}


def without_paths(text: str, work: Path) -> str:
    """A peer's message without where it ran, to be kept."""
    return text.replace(str(work), "WORK").replace(str(ROOT), "ROOT").replace(sys.prefix, "VENV")
