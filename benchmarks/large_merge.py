"""Upsert a source as large as the table with little memory, and measure the memory.

python -m benchmarks.large_merge                           20,000,000 rows, merge-on-read, local
python -m benchmarks.large_merge --mode copy-on-write --cluster
python -m benchmarks.large_merge --rows 200000             a smoke test
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import command_of, commit_of, machine
from benchmarks.measure import MeasuredProcess, measure, mebibytes
from benchmarks.peer_runs import ROOT, say, without_paths
from benchmarks.summary import RESULTS, first_line, save

ROWS = 20_000_000
UPSERT = "upsert"
_MODES = {"merge-on-read": "mor", "copy-on-write": "cow"}


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parse(arguments)
    with ExitStack() as cleanup:
        work = args.work
        if work is None:
            temporary = tempfile.TemporaryDirectory(prefix="icefloe-bench-")
            work = Path(cleanup.enter_context(temporary))
        folder = work.resolve() / "large_merge"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as run:
            process = _measure(args, Path(run))
            document = _document(args, process, Path(run))
    output = args.output or RESULTS / f"{document['name']}.json"
    save(output, _summary(document), document)
    say(f"wrote {output}")
    return 0 if document["status"] == "ok" else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.large_merge",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of table and source, each")
    parser.add_argument("--files", type=int, default=20, help="files of table and source, each")
    parser.add_argument("--mode", choices=_MODES, default="merge-on-read")
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="a master and a worker instead of local[*] in one JVM",
    )
    parser.add_argument(
        "--memory", default="2g", help="heap of the driver, and of the executor (2g)"
    )
    parser.add_argument("--worker-memory", default="4g", help="memory of the cluster's worker (4g)")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="cores of the worker")
    parser.add_argument("--work", type=Path, help="folder for the tables (a temporary one)")
    parser.add_argument(
        "--output", type=Path, help="file of the summary (benchmarks/results/NAME.json)"
    )
    args = parser.parse_args(arguments)
    if args.rows < 2 or args.rows % 2:
        parser.error("--rows must be even: half of the source's rows are new")
    args.command = command_of(parser, args)
    return args


def _measure(args: argparse.Namespace, folder: Path) -> MeasuredProcess:
    job = folder / "job.json"
    names = ("rows", "files", "mode", "cluster", "memory", "worker_memory", "cores")
    options = {name: getattr(args, name) for name in names}
    job.write_text(json.dumps({**options, "folder": str(folder)}))
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    # The only way to size the JVM of a session that icefloe starts itself.
    environment["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {args.memory} pyspark-shell"
    return measure(
        [sys.executable, "-m", "benchmarks.large_merge_worker", str(job)],
        folder=folder,
        environment=environment,
        silence_s=7200,
        show=_show,
    )


def _document(args: argparse.Namespace, process: MeasuredProcess, folder: Path) -> dict[str, Any]:
    where = "cluster" if args.cluster else "local"
    name = f"large_merge-{_MODES[args.mode]}-{where}"
    facts = {
        key: value
        for event in process.events
        if event["event"] in ("tables", "result")
        for key, value in event.items()
        if key != "event"
    }
    if process.failure:
        facts |= {"status": "failed", "reason": without_paths(process.failure, folder)}
        say(f"FAILED: {process.failure}")
    return {
        "kind": "large-merge",
        "name": name if args.rows == ROWS else f"{name}-{args.rows}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit_of(ROOT),
        "command": args.command,
        "machine": machine(),
        "load_average_before": process.load_average,
        "mode": args.mode,
        "where": where,
        "memory": args.memory,
        "target_rows": args.rows,
        "source_rows": args.rows,
        **facts,
        "memory_at_start": process.usage.start.get(UPSERT, {}),
        "memory_peak": process.usage.peak.get(UPSERT, {}),
        "memory_peak_of_steps": process.usage.peak,
        "io": process.usage.io.get(UPSERT, []),
    }


def _summary(document: dict[str, Any]) -> dict[str, Any]:
    summary = {key: value for key, value in document.items() if key != "reported"}
    if "reason" in summary:
        summary["reason"] = first_line(summary["reason"])
    return summary


def _show(event: dict[str, Any]) -> None:
    match event:
        case {"event": "progress", "text": text}:
            say(text)
        case {"event": "tables", "target_bytes": target, "source_bytes": source}:
            say(f"table {mebibytes(target)} MiB, source {mebibytes(source)} MiB")
        case {"event": "result", "status": "ok", "seconds": seconds}:
            say(f"upsert: {seconds:.1f} s, all rows are correct")
        case {"event": "result", "status": status, "reason": reason}:
            say(f"upsert {status}: {reason}")


if __name__ == "__main__":
    sys.exit(main())
