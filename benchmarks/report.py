"""All results as Markdown with plots: `benchmarks/report.md` and `benchmarks/plots`.

python -m benchmarks.report
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fixed_costs import COLD, SCALE, cold_section, scale_section
from benchmarks.goals import findings
from benchmarks.markdown import markdown
from benchmarks.peers import OURS
from benchmarks.plots import plots_of
from benchmarks.summary import RESULTS

_MODES = ("-cow", "-mor")
_LARGE_MERGE = "large-merge"
_PLOTS = "plots"  # folder beside the report
_INTRODUCTION = """# All benchmark results

`make bench-report` writes this file from the files in `results/`. [README.md](README.md) describes
what is measured and how to repeat it; [docs/benchmarks.md](../docs/benchmarks.md) is the short
page.

Seconds are the best of the repetitions, in a warm session. In brackets: the peer's seconds divided
by icefloe's; above 1, icefloe is faster. A peer with one mode (`-cow`, `-mor`) is compared to
icefloe in the same mode, the others to both modes: copy-on-write first, then merge-on-read. A dash:
there is no result, and the reason is below the tables. Plots have a logarithmic scale. Goals are
ratios of the same kind."""

Cell = Callable[[dict[str, Any], dict[str, Any]], str]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.report", description=__doc__)
    parser.add_argument("results", nargs="*", type=Path, default=_all_results(), help="(all)")
    parser.add_argument("--into", type=Path, default=RESULTS.parent, help="folder (benchmarks)")
    args = parser.parse_args(arguments)
    documents = [json.loads(path.read_text()) for path in args.results]
    runs = [document for document in documents if document.get("kind") not in _SECTIONS]
    sections = [section(document) for document in runs]
    for kind, section_of in _SECTIONS.items():
        of_kind = [document for document in documents if document.get("kind") == kind]
        if of_kind:
            sections.append(section_of(of_kind))
    (args.into / _PLOTS).mkdir(parents=True, exist_ok=True)
    (args.into / "report.md").write_text("\n\n".join([_INTRODUCTION, *sections]) + "\n")
    for document in runs:
        for kind, svg in plots_of(document).items():
            (args.into / _plot_path(document, kind)).write_text(svg)
    return 0


def _all_results() -> list[Path]:
    folders = [RESULTS, RESULTS / SCALE, RESULTS / COLD]
    return [path for folder in folders for path in sorted(folder.glob("*.json"))]


def section(document: dict[str, Any]) -> str:
    """One run: machine and options, the tables, and what has no result."""
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
        *_without_result(document),
    ]
    return "\n\n".join(parts)


def _goals_table(document: dict[str, Any]) -> list[str]:
    """The goals that apply to this run: met, missed or not measured."""
    titles = {statement["name"]: statement["title"] for statement in document["statements"]}
    rows = [
        [
            finding.goal.title,
            titles[finding.statement],
            finding.peer,
            f"{finding.at_least:g}×",
            "–" if finding.measured is None else f"{finding.measured:.2f}×",
            finding.verdict,
        ]
        for finding in findings(document)
    ]
    if not rows:
        return []
    counts = Counter(row[-1].strip("*") for row in rows)
    totals = ", ".join(
        f"{counts[verdict]} {verdict}" for verdict in ("met", "missed", "not measured")
    )
    head = ["goal", "statement", "against", "at least", "measured", ""]
    return ["### Goals", f"{totals}.", markdown(head, rows)]


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
        + (f" `{document['command']}`" if "command" in document else "")
    )


def _repetitions(document: dict[str, Any]) -> str:
    return f"{document['repetitions']}{_limit(document.get('repetition_seconds'))}"


def _warm_ups(document: dict[str, Any]) -> str:
    count = document["warm_ups"]
    warm_ups = f"{count} untimed run{'' if count == 1 else 's'} of each kind"
    return warm_ups + _limit(document.get("warm_up_seconds"))


def _limit(most_s: float | None) -> str:
    return "" if most_s is None else f" (no more after {most_s:g} s)"


def _table(document: dict[str, Any], peers: Sequence[dict[str, Any]], cell: Cell) -> str:
    rows = []
    for statement in document["statements"]:
        results = [_result(peer, statement["name"]) for peer in peers]
        cells = [
            cell(peer, result) if result.get("status") == "ok" else "–"
            for peer, result in zip(peers, results, strict=True)
        ]
        rows.append([statement["title"], *cells])
    return markdown(["statement", *(peer["name"] for peer in peers)], rows)


def _seconds_cell(peers: Sequence[dict[str, Any]]) -> Cell:
    icefloe = [peer for peer in peers if peer["name"].startswith(OURS)]
    ours = sorted(icefloe, key=lambda peer: peer["name"])  # copy-on-write first

    def cell(peer: dict[str, Any], result: dict[str, Any]) -> str:
        seconds = result["best_seconds"]
        text = f"{seconds:.2f}"
        compared = [mode for mode in ours if _comparable(peer["name"], mode["name"])]
        if peer in ours or not compared:
            return text
        our_results = [_result(mode, result["statement"]) for mode in compared]
        ratios = [
            f"{seconds / our['best_seconds']:.2f}×" if our.get("status") == "ok" else "–"
            for our in our_results
        ]
        return f"{text} ({', '.join(ratios)})"

    return cell


def _comparable(peer: str, ours: str) -> bool:
    """Whether a peer is compared to one of icefloe's modes."""
    return not peer.endswith(_MODES) or peer[-4:] == ours[-4:]


def _written_cell(_peer: dict[str, Any], result: dict[str, Any]) -> str:
    return f"{result['bytes_written'] / 2**20:.1f}"


def _written_table(document: dict[str, Any], peers: Sequence[dict[str, Any]]) -> list[str]:
    """The changes alone: a scan writes nothing."""
    changes = [statement for statement in document["statements"] if statement["kind"] != "scan"]
    if not changes:
        return []
    heading = "### Written by one statement, MiB (data and delete files)"
    return [heading, _table({**document, "statements": changes}, peers, _written_cell)]


def _read_table(document: dict[str, Any], peers: Sequence[dict[str, Any]]) -> list[str]:
    """Empty where the system does not count the bytes."""
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
    return markdown(["peer", "data files", "MiB", "load average before", "versions"], rows)


def large_section(documents: Sequence[dict[str, Any]]) -> str:
    """Upserts of a large source with little memory, one row for each run."""
    head = [
        "run",
        "rows",
        "source",
        "mode",
        "where",
        "seconds",
        "correct",
        "MiB written",
        "peak MiB",
    ]
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
        "Upserts of a source as large as the table, half of its rows new, by "
        "`python -m benchmarks.large_merge`. The memory after the place is the heap of the driver "
        "(local: of the only JVM), on a cluster also of the executor. Peaks are resident memory "
        "by kind of process: driver is the Python process, jvm the driver's JVM, workers are the "
        "Python workers."
    )
    return "\n\n".join(["## Large upserts", about, markdown(head, rows)])


def _without_result(document: dict[str, Any]) -> list[str]:
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
    return ["### Without a result", "\n".join(lines)] if lines else []


def _result(peer: dict[str, Any], name: str) -> dict[str, Any]:
    return next((result for result in peer["results"] if result["statement"] == name), {})


_SECTIONS: dict[str, Callable[[Sequence[dict[str, Any]]], str]] = {
    SCALE: scale_section,
    COLD: cold_section,
    _LARGE_MERGE: large_section,
}


if __name__ == "__main__":
    sys.exit(main())
