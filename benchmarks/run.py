"""Time statements on the same rows with several engines.

python -m benchmarks.run --size narrow
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.data import FILES, SEED, SIZES, Size, bind, input_files
from benchmarks.goals import statements_of_goals
from benchmarks.history import bind_scan, history
from benchmarks.machine import command_of, commit_of, machine
from benchmarks.peer_runs import ROOT, Run, run_peer, say
from benchmarks.peers import DEFAULT_PEERS, PEERS
from benchmarks.sources import bind_merge
from benchmarks.statements import STATEMENTS, Kind
from benchmarks.summary import RESULTS, save, summarize

_GOALS = "goals"
_BINDERS = {Kind.MERGE: bind_merge, Kind.SCAN: bind_scan}


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parse(arguments)
    size = SIZES[args.size].with_rows(args.rows)
    with ExitStack() as cleanup:
        work = _work_folder(args.work, cleanup)
        run = _prepare(args, size, work)
        output = args.output or RESULTS / f"{args.name or size.name}.json"
        start = {"name": output.stem, "commit": commit_of(ROOT), "command": args.command}
        peers: list[dict[str, Any]] = []
        for name in args.peers:  # written after each peer: a failure does not lose hours of work
            peers.append(run_peer(name, run))
            raw = {**start, **_document(size, run, peers)}
            save(output, summarize(raw, run.statements), raw)
            say(f"wrote {output}")
    return 1 if _has_failure(peers) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [_GOALS, *Kind, *(statement.name for statement in STATEMENTS)]
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument(
        "--rows", type=int, help="number of rows instead of the size's; a multiple of 800"
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=DEFAULT_PEERS)
    parser.add_argument(
        "--statements",
        nargs="+",
        choices=names,
        default=list(Kind),
        metavar="KIND|NAME",
        help="kinds, names, or the statements that have goals: " + ", ".join(names),
    )
    parser.add_argument(
        "--repetitions", type=int, default=3, help="timed runs of each statement (3)"
    )
    parser.add_argument(
        "--repetition-seconds",
        type=float,
        help="stop repeating a statement after so many seconds of timed runs (no limit)",
    )
    parser.add_argument(
        "--warm-ups",
        type=int,
        default=5,
        help="untimed runs of each kind of statement; one for peers without a JVM (5)",
    )
    parser.add_argument(
        "--warm-up-seconds",
        type=float,
        default=30,
        help="stop warming up a kind after so many seconds of untimed runs (30)",
    )
    parser.add_argument("--driver-memory", default="1g", help="heap of every JVM (1g)")
    parser.add_argument("--name", help="name of the result (the size's name)")
    parser.add_argument(
        "--output", type=Path, help="file of the summary (benchmarks/results/NAME.json)"
    )
    parser.add_argument("--work", type=Path, help="folder for rows and tables (a temporary one)")
    parser.add_argument("--keep", action="store_true", help="keep the tables in --work")
    parser.add_argument(
        "--silence",
        type=float,
        default=1800,
        help="stop a statement that takes longer than so many seconds (1800)",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PEER=PATH",
        help="interpreter of a peer, in its own environment",
    )
    args = parser.parse_args(arguments)
    for option in args.python:
        peer, _, path = option.partition("=")
        if peer not in PEERS or not path:
            parser.error(f"--python {option!r} must be PEER=PATH, PEER one of {', '.join(PEERS)}")
    if args.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    args.command = command_of(parser, args)
    return args


def _work_folder(folder: Path | None, cleanup: ExitStack) -> Path:
    if folder is None:
        return Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="icefloe-bench-")))
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def _prepare(args: argparse.Namespace, size: Size, work: Path) -> Run:
    say(f"input: {size.rows:,} rows, {size.columns} columns, {FILES} files")
    files = input_files(size, work / "input")
    names = {*args.statements, *(statements_of_goals() if _GOALS in args.statements else ())}
    selected = [s for s in STATEMENTS if s.name in names or s.kind in names]
    statements = tuple(_BINDERS.get(s.kind, bind)(s, size, files) for s in selected)
    before = max((s.statements_before for s in selected), default=0)
    return Run(
        work,
        files,
        statements,
        history(files, before) if before else (),
        args.repetitions,
        args.repetition_seconds,
        args.warm_ups,
        args.warm_up_seconds,
        args.silence,
        dict(option.split("=", 1) for option in args.python),
        args.driver_memory,
        args.keep,
    )


def _document(size: Size, run: Run, peers: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "size": {**asdict(size), "files": FILES, "seed": SEED},
        "repetitions": run.repetitions,
        "repetition_seconds": run.repetition_s,
        "warm_ups": run.warm_ups,
        "warm_up_seconds": run.warm_up_s,
        "statements": [bound.to_json() for bound in run.statements],
        "peers": peers,
    }


def _has_failure(peers: list[dict[str, Any]]) -> bool:
    statuses = [peer["status"] for peer in peers]
    statuses += [result["status"] for peer in peers for result in peer.get("results", [])]
    return "failed" in statuses


if __name__ == "__main__":
    sys.exit(main())
