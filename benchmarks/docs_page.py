"""The charts and the table of `docs/benchmarks.md`, from the latest runs on tables of 1 GiB.

python -m benchmarks.docs_page
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.plots import LEFT_OUT, Group, bar_of, chart
from benchmarks.statements import Kind
from benchmarks.summary import RESULTS

BEGIN = "<!-- `make bench-report` writes the lines from here -->"
END = "<!-- to here -->"
_DOCS = RESULTS.parent.parent / "docs"
_RUNS = {"narrow": "narrow-gb-goals", "wide": "wide-gb-goals"}
_CHARTED = ("delete-1-spread", "update-1-spread", "merge-upsert-1-spread", "scan-after-10")
_REWRITING = {"icefloe-cow": "icefloe", "iceberg-cow": "Iceberg runtime", "deltars": "delta-rs"}
_MERGE_ON_READ = {"icefloe-mor": "icefloe", "iceberg-mor": "Iceberg runtime"}
_HEADING = "Seconds of one statement on a table of 1 GiB (logarithmic; shorter is better)"
_PEERS = {
    "icefloe-cow": "icefloe, copy-on-write",
    "iceberg-cow": "Iceberg runtime, copy-on-write",
    "deltars": "delta-rs, copy-on-write",
    "icefloe-mor": "icefloe, merge-on-read",
    "iceberg-mor": "Iceberg runtime, merge-on-read",
}

Run = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.docs_page", description=__doc__)
    parser.add_argument("--docs", type=Path, default=_DOCS, help="folder of the page (docs)")
    args = parser.parse_args(arguments)
    runs = {
        table: json.loads((RESULTS / f"{name}.json").read_text()) for table, name in _RUNS.items()
    }
    page = args.docs / "benchmarks.md"
    page.write_text(with_table(page.read_text(), runs))
    images = args.docs / "images"
    images.mkdir(exist_ok=True)
    for name, svg in charts(runs).items():
        (images / name).write_text(svg)
    return 0


def charts(runs: Mapping[str, Run]) -> dict[str, str]:
    """The chart of some statements on all tables, and one of all statements on each table."""
    of_tables = {
        f"benchmarks-{table}.svg": chart(f"{table}: {_HEADING}", _groups({table: run}), _PEERS)
        for table, run in runs.items()
    }
    overview = chart(_HEADING, _groups(runs, _CHARTED), _PEERS)
    return {name: svg or "" for name, svg in {"benchmarks.svg": overview, **of_tables}.items()}


def with_table(page: str, runs: Mapping[str, Run]) -> str:
    """The page with the lines between the markers replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"The page must have the lines {BEGIN!r} and {END!r}")
    return "\n".join([before + BEGIN, "", table(runs), "", _caption(runs), "", END + after])


def table(runs: Mapping[str, Run]) -> str:
    """The seconds of every statement in every run; the fastest of each mode is bold."""
    names = [f"{name}, rewrite" for name in _REWRITING.values()]
    names += [f"{name}, merge-on-read" for name in _MERGE_ON_READ.values()]
    rows = [["table", "statement", *names], ["---", "---", *["---:"] * len(names)]]
    rows += [
        [title, statement["title"], *_cells(run, statement)]
        for title, run in runs.items()
        for statement in run["statements"]
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(run: Run, statement: Mapping[str, Any]) -> list[str]:
    """A scan has one fastest engine: every table has the same rows by then."""
    groups = [[*_REWRITING], [*_MERGE_ON_READ]]
    if statement["kind"] == Kind.SCAN:
        groups = [[*_REWRITING, *_MERGE_ON_READ]]
    cells = []
    for group in groups:
        seconds = [_seconds(run, peer, statement["name"]) for peer in group]
        fastest = min((value for value in seconds if value is not None), default=None)
        cells += [_cell(value, is_fastest=value == fastest) for value in seconds]
    return cells


def _cell(seconds: float | None, *, is_fastest: bool) -> str:
    if seconds is None:
        return "–"
    return f"**{seconds:.2f}**" if is_fastest else f"{seconds:.2f}"


def _seconds(run: Run, peer: str, statement: str) -> float | None:
    return bar_of(_peer(run, peer), statement).seconds


def _peer(run: Run, name: str) -> Mapping[str, Any]:
    return next(peer for peer in run["peers"] if peer["name"] == name)


def _groups(runs: Mapping[str, Run], names: Sequence[str] = ()) -> list[Group]:
    """The statements of these names, or all, with the peers that ran them."""
    groups = []
    for title, run in runs.items():
        for statement in run["statements"]:
            bars = [bar_of(_peer(run, peer), statement["name"]) for peer in _PEERS]
            if not names or statement["name"] in names:
                heading = f"{title}: {statement['title']}" if len(runs) > 1 else statement["title"]
                groups.append(Group(heading, tuple(bar for bar in bars if bar.note != LEFT_OUT)))
    return groups


def _caption(runs: Mapping[str, Run]) -> str:
    sizes = "; ".join(
        f"{title}: {run['size']['rows']:,} rows, {run['size']['columns']} columns, "
        f"{run['date'][:10]}, commit {run['commit']}, `benchmarks/results/{run['name']}.json`"
        for title, run in runs.items()
    )
    run = runs["wide"]
    machine = run["machine"]
    icefloe, iceberg, deltars = (
        _peer(run, peer)["versions"] for peer in ("icefloe-mor", "iceberg-mor", "deltars")
    )
    return (
        f"{sizes}. {machine['cores']} cores ({machine['cpu']}), "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB of memory, {icefloe['spark.driver.memory']} of "
        f"heap for each JVM, local disk. icefloe {icefloe['icefloe']} on Spark "
        f"{icefloe['pyspark']}, Iceberg's runtime {iceberg['iceberg']} on Spark "
        f"{iceberg['pyspark']}, delta-rs {deltars['deltalake']}."
    )


if __name__ == "__main__":
    sys.exit(main())
