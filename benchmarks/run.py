"""Time statements on the same rows with several engines, in one run.

python -m benchmarks.run --size narrow
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.data import FILES, SEED, SIZES, Size, bind, input_files
from benchmarks.machine import commit_of, machine
from benchmarks.measure import PeerFailedError, Watched, mebibytes, watch
from benchmarks.peers import DEFAULT_PEERS, PEERS
from benchmarks.statements import STATEMENTS, BoundStatement

_ROOT = Path(__file__).resolve().parent.parent
_RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True)
class Run:
    """What is run, and where."""

    work: Path
    files: tuple[Path, ...]
    statements: tuple[BoundStatement, ...]
    repetitions: int
    silence_s: float
    pythons: dict[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parse(arguments)
    size = SIZES[args.size].with_rows(args.rows)
    with ExitStack() as cleanup:
        work = _work_folder(args.work, cleanup)
        run = _prepare(args, size, work)
        peers = [_run_peer(name, run, keep=args.keep) for name in args.peers]
    output = args.output or _RESULTS / f"{args.name or size.name}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(_document(output.stem, size, run, peers), indent=2) + "\n")
    _say(f"wrote {output}")
    return 1 if _has_failure(peers) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [statement.name for statement in STATEMENTS]
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--rows", type=int, help="another number of rows, in multiples of 800")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=DEFAULT_PEERS)
    parser.add_argument("--statements", nargs="+", choices=names, default=names)
    parser.add_argument("--repetitions", type=int, default=3, help="best of how many (3)")
    parser.add_argument("--name", help="of the result; the size's name unless given")
    parser.add_argument("--output", type=Path, help="another file for the result")
    parser.add_argument("--work", type=Path, help="folder for rows and tables; a temporary one")
    parser.add_argument("--keep", action="store_true", help="leave the tables in --work")
    parser.add_argument(
        "--silence", type=float, default=1800, help="seconds until a silent peer is ended (1800)"
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PEER=PATH",
        help="another interpreter for a peer, of an environment of its own",
    )
    args = parser.parse_args(arguments)
    for given in args.python:
        if given.partition("=")[0] not in PEERS or not given.partition("=")[2]:
            parser.error(f"--python {given!r} must be PEER=PATH, PEER one of {', '.join(PEERS)}")
    if args.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    return args


def _work_folder(given: Path | None, cleanup: ExitStack) -> Path:
    if given is None:
        return Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="icefloe-bench-")))
    given.mkdir(parents=True, exist_ok=True)
    return given.resolve()


def _prepare(args: argparse.Namespace, size: Size, work: Path) -> Run:
    _say(f"input: {size.rows:,} rows, {size.columns} columns, {FILES} files")
    files = input_files(size, work / "input")
    statements = tuple(bind(s, size, files) for s in STATEMENTS if s.name in args.statements)
    pythons = dict(given.split("=", 1) for given in args.python)
    return Run(work, files, statements, args.repetitions, args.silence, pythons)


def _run_peer(name: str, run: Run, *, keep: bool) -> dict[str, Any]:
    _say(f"{name}:")
    folder = run.work / "tables" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    job = folder / "job.json"
    job.write_text(json.dumps(_job(name, folder, run)))
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    try:
        watched = watch(
            [run.pythons.get(name, sys.executable), "-m", "benchmarks.worker", str(job)],
            folder=folder,
            environment={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            silence_s=run.silence_s,
            show=_show,
        )
    except PeerFailedError as failed:
        _say(f"  FAILED: {failed}")
        return {"name": name, "status": "failed", "reason": _without_paths(str(failed), run.work)}
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return _peer_document(name, watched, run.work)


def _job(name: str, folder: Path, run: Run) -> dict[str, Any]:
    return {
        "peer": name,
        "folder": str(folder),
        "files": [str(file) for file in run.files],
        "statements": [bound.to_json() for bound in run.statements],
        "repetitions": run.repetitions,
    }


def _show(event: dict[str, Any]) -> None:
    match event:
        case {"event": "progress", "text": text}:
            _say(f"  {text}")
        case {"event": "table", "data_bytes": data_bytes, "setup_seconds": seconds}:
            _say(f"  table of {mebibytes(data_bytes)} MiB made in {seconds:.1f} s")
        case {"event": "result", "status": "ok", "statement": name, "runs": runs}:
            times = " ".join(f"{run['seconds']:.3f}" for run in runs)
            _say(f"  {name}: {times} s, {runs[0]['bytes_written'] / 2**20:.1f} MiB written")
        case {"event": "result", "status": status, "statement": name, "reason": reason}:
            _say(f"  {name}: {status}: {reason}")


def _peer_document(name: str, watched: Watched, work: Path) -> dict[str, Any]:
    table = next(event for event in watched.events if event["event"] == "table")
    results = [event for event in watched.events if event["event"] == "result"]
    return {
        "name": name,
        "status": "ok",
        "load_average_before": watched.load_average,
        **{key: value for key, value in table.items() if key != "event"},
        "results": [_result_document(event, watched, work) for event in results],
    }


def _result_document(event: dict[str, Any], watched: Watched, work: Path) -> dict[str, Any]:
    found = {key: value for key, value in event.items() if key not in ("event", "runs")}
    name = event["statement"]
    if "reason" in found:
        found["reason"] = _without_paths(found["reason"], work)
    if event.get("runs"):
        found["best_seconds"] = min(run["seconds"] for run in event["runs"])
        found["runs"] = event["runs"]
        found["memory_at_start"] = watched.memory.start.get(name)
        found["memory_peak"] = watched.memory.peak.get(name)
    return found


def _document(name: str, size: Size, run: Run, peers: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit_of(_ROOT),
        "machine": machine(),
        "size": {**asdict(size), "files": FILES, "seed": SEED},
        "repetitions": run.repetitions,
        "statements": [bound.to_json() for bound in run.statements],
        "peers": peers,
    }


def _has_failure(peers: list[dict[str, Any]]) -> bool:
    found = [peer["status"] for peer in peers]
    found += [result["status"] for peer in peers for result in peer.get("results", [])]
    return "failed" in found


def _without_paths(text: str, work: Path) -> str:
    """A peer's message without where it ran, to be kept."""
    return text.replace(str(work), "WORK").replace(str(_ROOT), "ROOT").replace(sys.prefix, "VENV")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
