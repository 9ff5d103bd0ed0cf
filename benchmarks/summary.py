"""The summary of a run: what the report, the plots and the goals read, and what is committed.

The repetitions themselves are written to a folder that Git ignores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.statements import BoundStatement

RESULTS = Path(__file__).resolve().parent / "results"
_RAW_FOLDER = "raw"  # beside the summaries, ignored by Git
_LINE_LENGTH = 480  # one result of one peer fits on a line
_DIGITS = 6  # of seconds
_PEER_KEYS = ("load_average_before", "setup_seconds", "data_files", "data_bytes", "versions")


def save(path: Path, summary: Mapping[str, Any], raw: Mapping[str, Any]) -> None:
    """Write the summary to `path`, and all repetitions to the folder `raw` beside it."""
    raw_path = path.parent / _RAW_FOLDER / path.name
    raw_path.parent.mkdir(parents=True, exist_ok=True)
    raw_path.write_text(json.dumps(raw, indent=2) + "\n")
    path.write_text(to_text(summary))


def summarize(raw: Mapping[str, Any], statements: Sequence[BoundStatement]) -> dict[str, Any]:
    """The summary of a run of `benchmarks.run`."""
    return {
        **raw,
        "statements": [_summarize_statement(bound) for bound in statements],
        "peers": [_summarize_peer(peer) for peer in raw["peers"]],
    }


def first_line(text: str) -> str:
    """The first line of a message; the rest is in the raw result."""
    return (text.splitlines() or [""])[0]


def _summarize_statement(bound: BoundStatement) -> dict[str, Any]:
    return {
        "name": bound.statement.name,
        "kind": str(bound.statement.kind),
        "title": bound.statement.title,
        "rows_changed": bound.rows_changed,
        "source_rows": bound.source_rows,
    }


def _summarize_peer(peer: Mapping[str, Any]) -> dict[str, Any]:
    if peer["status"] != "ok":
        return {
            "name": peer["name"],
            "status": peer["status"],
            "reason": first_line(peer["reason"]),
        }
    results = [_summarize_result(result) for result in peer["results"]]
    facts = {key: peer[key] for key in _PEER_KEYS}
    facts["setup_seconds"] = round(facts["setup_seconds"], _DIGITS)
    return {"name": peer["name"], "status": "ok", **facts, "results": results}


def _summarize_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Times of all repetitions; bytes of the first, which has the least metadata to read."""
    if result["status"] != "ok":
        return {
            "statement": result["statement"],
            "status": result["status"],
            "reason": first_line(result["reason"]),
        }
    runs = result["runs"]
    first = runs[0]
    return {
        "statement": result["statement"],
        "status": "ok",
        **seconds_of([run["seconds"] for run in runs]),
        "warm_ups": result["warm_ups"],
        "bytes_written": first["bytes_written"],
        "files_written": first["files_written"],
        "metadata_bytes_written": first["metadata_bytes_written"],
        "bytes_read": first.get("io", {}).get("read_chars"),
        "memory_at_start": result["memory_at_start"],
        "memory_peak": result["memory_peak"],
    }


def seconds_of(repetitions: list[float]) -> dict[str, float | int]:
    """Best and median of the seconds of some repetitions, and how many there were."""
    return {
        "best_seconds": round(min(repetitions), _DIGITS),
        "median_seconds": round(median(repetitions), _DIGITS),
        "repetitions": len(repetitions),
    }


def to_text(document: Mapping[str, Any]) -> str:
    """JSON with one line for everything that fits on one."""
    return "".join(_lines(document, "")) + "\n"


def _lines(value: Any, indent: str) -> Iterator[str]:
    compact = json.dumps(value)
    fits = indent and len(compact) <= _LINE_LENGTH
    if fits or not isinstance(value, (dict, list)):
        yield compact
        return
    is_object = isinstance(value, dict)
    yield "{" if is_object else "["
    inner = indent + " "
    entries = value.items() if is_object else ((None, entry) for entry in value)
    for number, (key, entry) in enumerate(entries):
        yield f"{',' if number else ''}\n{inner}"
        if is_object:
            yield f"{json.dumps(key)}: "
        yield from _lines(entry, inner)
    yield f"\n{indent}{'}' if is_object else ']'}"
