"""Sections of the report: many files and long histories, and first statements of a process."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.markdown import markdown

SCALE, COLD = "scale", "cold"
ENGINES = {"icefloe": "icefloe", "iceberg": "Iceberg's runtime"}
_ABOUT_SCALE = (
    "`python -m benchmarks.scale`: icefloe and Iceberg's runtime in one session (Spark 4.1) on "
    "twin tables, in turn; merge-on-read. Seconds are the best repetition after the first one, in "
    "parentheses the first one, for which icefloe's caches were cleared; then medians of processor "
    "seconds of the JVM and Python together, and of MiB read through system calls. *Grows*: "
    "seconds, processor seconds and MiB of the largest size divided by those of the smallest. "
    "*Ratio*: seconds of Iceberg's runtime divided by icefloe's, at the largest size."
)
_ABOUT_COLD = (
    "`python -m benchmarks.cold`: from the start of a program to the end of its first statement, "
    "JVM start included; each run is a process of its own, engines in turn. Medians of seconds, "
    "and in parentheses of the processor seconds of the whole process tree."
)

Samples = Mapping[str, Any]  # of one statement on one engine's table
Document = Mapping[str, Any]


def scale_section(documents: Sequence[Document]) -> str:
    """Seconds, processor seconds and bytes at each size, and by how much they grow."""
    merged: dict[str, dict[str, dict[int, Samples]]] = {}
    for document in documents:
        for title, by_engine in document["results"].items():
            for engine, sizes in by_engine.items():
                at = merged.setdefault(title, {}).setdefault(engine, {})
                at.update({int(size): samples for size, samples in sizes.items()})
    parts = ["## Many files and long histories", _ABOUT_SCALE, *map(_facts, documents)]
    for kind in ("files", "rows", "snapshots"):
        of = {title: e for title, e in merged.items() if title.endswith(f", {kind}")}
        if of:
            parts += [f"### {kind.capitalize()}", _scale_table(of, kind)]
    lines = [
        f"* {int(files):,} files, DELETE of one row by id, not the first statement: "
        f"{m['read'] + m['skipped']} manifests, {m['skipped']} skipped by partition, "
        f"{m['read'] - m['cached']} read, {m['cached']} held since an earlier statement"
        for document in documents
        for files, m in document["manifests"].items()
    ]
    return "\n\n".join([*parts, *(["\n".join(lines)] if lines else [])])


def _scale_table(merged: Mapping[str, Mapping[str, Mapping[int, Samples]]], kind: str) -> str:
    sizes = sorted({n for by_engine in merged.values() for of in by_engine.values() for n in of})
    head = ["statement", "engine", *(f"{size:,} {kind}" for size in sizes), "grows", "ratio"]
    rows = []
    for title, by_engine in merged.items():
        for engine, of_size in by_engine.items():
            cells = [_cell(of_size[size]) if size in of_size else "–" for size in sizes]
            ratio = _ratio(by_engine, sizes[-1]) if engine == "icefloe" else ""
            name = title.removesuffix(f", {kind}")
            rows.append([name, ENGINES[engine], *cells, _growth(of_size), ratio])
    return markdown(head, rows)


def best(samples: Samples) -> float:
    """Seconds of the quickest repetition that was not the first."""
    return min(samples["seconds"][1:] or samples["seconds"])


def _cell(samples: Samples) -> str:
    if not samples["seconds"]:
        return f"failed: {samples['failure']}"
    cpu, mib = _cpu(samples), _mib(samples)
    return f"{best(samples):.2f} ({samples['seconds'][0]:.2f}); {cpu:.2f}; {mib:.1f}"


def _cpu(samples: Samples) -> float:
    return statistics.median(samples["cpu_seconds"])


def _mib(samples: Samples) -> float:
    return statistics.median(samples["bytes_read"]) / 2**20


def _growth(of_size: Mapping[int, Samples]) -> str:
    measured = {size: samples for size, samples in of_size.items() if samples["seconds"]}
    if len(measured) < 2:
        return "–"
    first, last = measured[min(measured)], measured[max(measured)]
    growths = (_quotient(of(last), of(first)) for of in (best, _cpu, _mib))
    return "; ".join(growths)


def _quotient(last: float, first: float) -> str:
    return f"{last / first:.1f}×" if first else "–"


def _ratio(by_engine: Mapping[str, Mapping[int, Samples]], size: int) -> str:
    of = [by_engine.get(engine, {}).get(size) for engine in ENGINES]
    if any(samples is None or not samples["seconds"] for samples in of):
        return "–"
    ours, theirs = (best(samples) for samples in of if samples is not None)
    return f"{theirs / ours:.2f}×"


# -------------------------------------------------------------------------------------------------


def cold_section(documents: Sequence[Document]) -> str:
    """One table for each run."""
    parts = ["## Cold starts", _ABOUT_COLD]
    for document in documents:
        parts += [_facts(document), "\n".join(cold_table(document["runs"]))]
    return "\n\n".join(parts)


def cold_table(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Medians of seconds, and of processor seconds in parentheses."""
    engines = list(dict.fromkeys(run["engine"] for run in runs))
    rows = []
    for size, statement in dict.fromkeys((run["size"], run["statement"]) for run in runs):
        cells = []
        for engine in engines:
            of = [run for run in runs if _is(run, size, statement, engine)]
            seconds = statistics.median(run["seconds"] for run in of)
            cpu = statistics.median(run["cpu_seconds"] for run in of)
            cells.append(f"{seconds:.2f} ({cpu:.2f})")
        rows.append([size, statement, *cells])
    yield from markdown(["table", "first statement", *engines], rows).splitlines()


def _is(run: Mapping[str, Any], size: str, statement: str, engine: str) -> bool:
    return (run["size"], run["statement"], run["engine"]) == (size, statement, engine)


def _facts(document: Document) -> str:
    machine = document["machine"]
    return (
        f"{document['date']}, commit {document['commit'] or 'unknown'}. {machine['cores']} cores "
        f"({machine['cpu']}), {machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']}. "
        f"`{document['command']}`"
    )
