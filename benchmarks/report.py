"""Results as Markdown.

python -m benchmarks.report benchmarks/results/*.json > docs/benchmarks.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

_OURS = "icefloe-"
_INTRODUCTION = """# Benchmarks

Made by `python -m benchmarks.report` from the files in `benchmarks/results/`; see
`benchmarks/README.md` for what is measured and how to run it again. Seconds are the best of the
repetitions, in a warm session. In brackets: that peer's seconds divided by icefloe's, copy-on-write
first, then merge-on-read where both were run; above 1, icefloe is faster."""

Cell = Callable[[dict[str, Any], dict[str, Any]], str]


def main(paths: Sequence[str]) -> int:
    if not paths:
        print(__doc__, file=sys.stderr)
        return 2
    documents = [json.loads(Path(path).read_text()) for path in paths]
    print("\n\n".join([_INTRODUCTION, *map(section, documents)]))
    return 0


def section(document: dict[str, Any]) -> str:
    """One run: what it ran on, its tables, and what is missing from them."""
    peers = [peer for peer in document["peers"] if peer["status"] == "ok"]
    parts = [
        f"## {document['name']}",
        _facts(document),
        "### Seconds",
        _table(document, peers, _seconds_cell(peers)),
        "### Written by one statement, MiB (data and delete files)",
        _table(document, peers, _written_cell),
        "### Peak resident memory, MiB: total (driver + JVM + Python workers)",
        _table(document, peers, _memory_cell),
        "### Tables and versions",
        _peer_table(peers),
        *_missing(document),
    ]
    return "\n\n".join(parts)


def _facts(document: dict[str, Any]) -> str:
    size, machine = document["size"], document["machine"]
    memory_gib = machine["memory_bytes"] / 2**30
    return (
        f"{size['rows']:,} rows, {size['columns']} columns, {size['files']} files; "
        f"best of {document['repetitions']}. {document['date'][:10]}, "
        f"commit {document['commit'] or 'unknown'}. {machine['cores']} cores ({machine['cpu']}), "
        f"{memory_gib:.0f} GiB, {machine['system']}, Python {machine['python']}."
    )


def _table(document: dict[str, Any], peers: Sequence[dict[str, Any]], cell: Cell) -> str:
    rows = []
    for bound in document["statements"]:
        name = bound["statement"]["name"]
        found = [_result(peer, name) for peer in peers]
        cells = [
            cell(peer, result) if result.get("status") == "ok" else "–"
            for peer, result in zip(peers, found, strict=True)
        ]
        rows.append([_title(bound["statement"]), *cells])
    return _markdown(["statement", *(peer["name"] for peer in peers)], rows)


def _title(statement: dict[str, Any]) -> str:
    place = "in one file" if statement["placement"] == "clustered" else statement["placement"]
    return f"{statement['kind']} {statement['fraction']:.0%}, {place}".replace("%", " %")


def _seconds_cell(peers: Sequence[dict[str, Any]]) -> Cell:
    found = [peer for peer in peers if peer["name"].startswith(_OURS)]
    ours = sorted(found, key=lambda peer: peer["name"])  # copy-on-write first

    def cell(peer: dict[str, Any], result: dict[str, Any]) -> str:
        seconds = result["best_seconds"]
        shown = f"{seconds:.2f}"
        if peer in ours or not ours:
            return shown
        results = [_result(mine, result["statement"]) for mine in ours]
        ratios = [
            f"{seconds / mine['best_seconds']:.2f}×" if mine.get("status") == "ok" else "–"
            for mine in results
        ]
        return f"{shown} ({', '.join(ratios)})"

    return cell


def _written_cell(_peer: dict[str, Any], result: dict[str, Any]) -> str:
    return f"{result['runs'][0]['bytes_written'] / 2**20:.1f}"


def _memory_cell(_peer: dict[str, Any], result: dict[str, Any]) -> str:
    peak = {part: round(count / 2**20) for part, count in result["memory_peak"].items()}
    if not peak["jvm"] and not peak["workers"]:
        return f"{peak['total']}"
    return f"{peak['total']} ({peak['driver']} + {peak['jvm']} + {peak['workers']})"


def _peer_table(peers: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            peer["name"],
            f"{peer['data_files']}",
            f"{peer['data_bytes'] / 2**20:.1f}",
            f"{peer['load_average_before']:.1f}",
            ", ".join(f"{name} {value}" for name, value in peer["versions"].items()),
        ]
        for peer in peers
    ]
    return _markdown(["peer", "data files", "MiB", "load average before", "versions"], rows)


def _missing(document: dict[str, Any]) -> list[str]:
    lines = [
        f"* {peer['name']} {peer['status']}: {_first_line(peer['reason'])}"
        for peer in document["peers"]
        if peer["status"] != "ok"
    ]
    lines += [
        f"* {peer['name']}, {result['statement']} {result['status']}: "
        f"{_first_line(result['reason'])}"
        for peer in document["peers"]
        for result in peer.get("results", [])
        if result["status"] != "ok"
    ]
    return ["### Missing", "\n".join(lines)] if lines else []


def _first_line(text: str) -> str:
    return (text.splitlines() or [""])[0]


def _result(peer: dict[str, Any], name: str) -> dict[str, Any]:
    return next((found for found in peer["results"] if found["statement"] == name), {})


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
