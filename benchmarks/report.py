"""All results as Markdown with plots: `benchmarks/report.md` and `benchmarks/plots`.

python -m benchmarks.report
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.goals import findings
from benchmarks.peers import OURS
from benchmarks.plots import plots_of
from benchmarks.summary import RESULTS

_MODES = ("-cow", "-mor")
_LARGE_MERGE = "large-merge"
_PLOTS = "plots"  # folder beside the report
_INTRODUCTION = """# Benchmarks

Made by `python -m benchmarks.report` from the files in `benchmarks/results/`; see
`benchmarks/README.md` for what is measured and how to run it again. Seconds are the best of the
repetitions, in a warm session. In brackets: that peer's seconds divided by icefloe's; above 1,
icefloe is faster. A peer that works in one mode (`-cow`, `-mor`) is compared with icefloe in the
same mode, others with both: copy-on-write first, then merge-on-read. A dash: see what is missing,
below the tables. Plots have a logarithmic scale. Goals are ratios of the same kind."""

Cell = Callable[[dict[str, Any], dict[str, Any]], str]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.report", description=__doc__)
    parser.add_argument(
        "results", nargs="*", type=Path, default=sorted(RESULTS.glob("*.json")), help="(all)"
    )
    parser.add_argument("--into", type=Path, default=RESULTS.parent, help="folder (benchmarks)")
    args = parser.parse_args(arguments)
    documents = [json.loads(path.read_text()) for path in args.results]
    runs = [document for document in documents if document.get("kind") != _LARGE_MERGE]
    large_merges = [document for document in documents if document not in runs]
    sections = [section(document) for document in runs]
    if large_merges:
        sections.append(large_section(large_merges))
    (args.into / _PLOTS).mkdir(parents=True, exist_ok=True)
    (args.into / "report.md").write_text("\n\n".join([_INTRODUCTION, *sections]) + "\n")
    for document in runs:
        for kind, svg in plots_of(document).items():
            (args.into / _plot_path(document, kind)).write_text(svg)
    return 0


def section(document: dict[str, Any]) -> str:
    """One run: what it ran on, its tables, and what is missing from them."""
    peers = [peer for peer in document["peers"] if peer["status"] == "ok"]
    parts = [
        f"## {document['name']}",
        _facts(document),
        *_goals_table(document),
        "### Seconds",
        *_plots(document),
        _table(document, peers, _seconds_cell(peers)),
        *_written_table(document, peers),
        *_read_table(document, peers),
        "### Peak resident memory, MiB: total (driver + JVM + Python workers)",
        _table(document, peers, _memory_cell),
        "### Tables and versions",
        _peer_table(peers),
        *_missing(document),
    ]
    return "\n\n".join(parts)


def _goals_table(document: dict[str, Any]) -> list[str]:
    """Goals that this run's statements and size are about: reached or not."""
    titles = {statement["name"]: statement["title"] for statement in document["statements"]}
    rows = [
        [
            found.goal.title,
            titles[found.statement],
            found.peer,
            f"{found.at_least:g}×",
            "–" if found.measured is None else f"{found.measured:.2f}×",
            found.verdict,
        ]
        for found in findings(document)
    ]
    if not rows:
        return []
    counts = Counter(row[-1].strip("*") for row in rows)
    told = ", ".join(
        f"{counts[verdict]} {verdict}" for verdict in ("met", "missed", "not measured")
    )
    head = ["goal", "statement", "against", "at least", "measured", ""]
    return ["### Goals", f"{told}.", _markdown(head, rows)]


def _plots(document: dict[str, Any]) -> list[str]:
    return [
        f"![{document['name']}: seconds of {kind} statements]({_plot_path(document, kind)})"
        for kind in plots_of(document)
    ]


def _plot_path(document: dict[str, Any], kind: str) -> str:
    return f"{_PLOTS}/{document['name']}-{kind}.svg"


def _facts(document: dict[str, Any]) -> str:
    size, machine = document["size"], document["machine"]
    memory_gib = machine["memory_bytes"] / 2**30
    return (
        f"{size['rows']:,} rows, {size['columns']} columns, {size['files']} files; "
        f"best of {_repetitions(document)} after {_warm_ups(document)}. {document['date'][:10]}, "
        f"commit {document['commit'] or 'unknown'}. {machine['cores']} cores ({machine['cpu']}), "
        f"{memory_gib:.0f} GiB, {machine['system']}, Python {machine['python']}."
    )


def _repetitions(document: dict[str, Any]) -> str:
    return f"{document['repetitions']}{_limit(document.get('repetition_seconds'))}"


def _warm_ups(document: dict[str, Any]) -> str:
    count = document["warm_ups"]
    told = f"{count} untimed run{'' if count == 1 else 's'} of each kind"
    return told + _limit(document.get("warm_up_seconds"))


def _limit(most_s: float | None) -> str:
    return "" if most_s is None else f" (no further one after {most_s:g} s of them)"


def _table(document: dict[str, Any], peers: Sequence[dict[str, Any]], cell: Cell) -> str:
    rows = []
    for statement in document["statements"]:
        found = [_result(peer, statement["name"]) for peer in peers]
        cells = [
            cell(peer, result) if result.get("status") == "ok" else "–"
            for peer, result in zip(peers, found, strict=True)
        ]
        rows.append([statement["title"], *cells])
    return _markdown(["statement", *(peer["name"] for peer in peers)], rows)


def _seconds_cell(peers: Sequence[dict[str, Any]]) -> Cell:
    found = [peer for peer in peers if peer["name"].startswith(OURS)]
    ours = sorted(found, key=lambda peer: peer["name"])  # copy-on-write first

    def cell(peer: dict[str, Any], result: dict[str, Any]) -> str:
        seconds = result["best_seconds"]
        shown = f"{seconds:.2f}"
        against = [mine for mine in ours if _comparable(peer["name"], mine["name"])]
        if peer in ours or not against:
            return shown
        results = [_result(mine, result["statement"]) for mine in against]
        ratios = [
            f"{seconds / mine['best_seconds']:.2f}×" if mine.get("status") == "ok" else "–"
            for mine in results
        ]
        return f"{shown} ({', '.join(ratios)})"

    return cell


def _comparable(peer: str, mine: str) -> bool:
    """Whether a peer is compared with one of icefloe's modes."""
    return not peer.endswith(_MODES) or peer[-4:] == mine[-4:]


def _written_cell(_peer: dict[str, Any], result: dict[str, Any]) -> str:
    return f"{result['bytes_written'] / 2**20:.1f}"


def _written_table(document: dict[str, Any], peers: Sequence[dict[str, Any]]) -> list[str]:
    """A scan writes nothing."""
    changes = [statement for statement in document["statements"] if statement["kind"] != "scan"]
    if not changes:
        return []
    heading = "### Written by one statement, MiB (data and delete files)"
    return [heading, _table({**document, "statements": changes}, peers, _written_cell)]


def _read_table(document: dict[str, Any], peers: Sequence[dict[str, Any]]) -> list[str]:
    """Nothing where the system does not count the bytes."""
    if not any(result.get("bytes_read") for peer in peers for result in peer["results"]):
        return []
    heading = "### Read by one statement, MiB (system calls of the whole process tree)"
    return [heading, _table(document, peers, _read_cell)]


def _read_cell(_peer: dict[str, Any], result: dict[str, Any]) -> str:
    bytes_read = result["bytes_read"]
    return "–" if bytes_read is None else f"{bytes_read / 2**20:.1f}"


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


def large_section(documents: Sequence[dict[str, Any]]) -> str:
    """Upserts of a large source with little memory: one row for each run."""
    head = ["run", "rows", "source", "mode", "where", "seconds", "right", "MiB written", "peak MiB"]
    rows = [
        [
            document["name"],
            f"{document['target_rows']:,}",
            f"{document['source_rows']:,}",
            document["mode"],
            f"{document['where']}, {document['memory']}",
            f"{document['seconds']:.1f}" if document["status"] == "ok" else document["status"],
            "yes" if document["status"] == "ok" else document["reason"],
            f"{document['bytes_written'] / 2**20:.0f}" if document["status"] == "ok" else "–",
            ", ".join(f"{part} {round(n / 2**20)}" for part, n in document["memory_peak"].items()),
        ]
        for document in documents
    ]
    about = (
        "Upsert of a source as large as the table, half of its rows new, made by "
        "`python -m benchmarks.large_merge`; the memory given is that of the driver "
        "(local: of the one JVM), on a cluster also that of the executor. Peaks are resident "
        "memory by kind of process: driver is the Python process, jvm the driver's JVM, workers "
        "are the Python workers."
    )
    return "\n\n".join(["## Large upserts", about, _markdown(head, rows)])


def _missing(document: dict[str, Any]) -> list[str]:
    lines = [
        f"* {peer['name']} {peer['status']}: {peer['reason']}"
        for peer in document["peers"]
        if peer["status"] != "ok"
    ]
    lines += [
        f"* {peer['name']}, {result['statement']} {result['status']}: {result['reason']}"
        for peer in document["peers"]
        for result in peer.get("results", [])
        if result["status"] != "ok"
    ]
    return ["### Missing", "\n".join(lines)] if lines else []


def _result(peer: dict[str, Any], name: str) -> dict[str, Any]:
    return next((found for found in peer["results"] if found["statement"] == name), {})


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
