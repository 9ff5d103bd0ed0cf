"""Speed goals: ratios of the seconds of a peer to those of icefloe in the same run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.data import SIZES

_WIDE_FROM = 40  # columns


@dataclass(frozen=True, slots=True)
class Goal:
    """The peer's seconds divided by icefloe's must be at least `ratio`, for each statement."""

    title: str
    ours: str
    statements: tuple[str, ...]
    peers: tuple[tuple[str, float], ...]  # name and ratio
    width: str | None = None  # narrow or wide; both when None

    def applies_to(self, columns: int) -> bool:
        """Whether the goal applies to a table with so many columns."""
        return self.width in (None, "wide" if columns >= _WIDE_FROM else "narrow")


@dataclass(frozen=True, slots=True)
class Finding:
    """One goal, for one statement against one peer."""

    goal: Goal
    statement: str
    peer: str
    at_least: float
    measured: float | None  # None when one of the two has no result

    @property
    def verdict(self) -> str:
        """Met, missed or not measured."""
        if self.measured is None:
            return "not measured"
        return "met" if self.measured >= self.at_least else "**missed**"


_COW, _MOR = "icefloe-cow", "icefloe-mor"

GOALS = (
    Goal(
        "copy-on-write, update of one column, spread, wide",
        _COW,
        ("update-1-spread", "update-10-spread"),
        (("iceberg-cow", 10), ("deltars", 3)),
        "wide",
    ),
    Goal(
        "copy-on-write, delete and upsert of 1 %, spread, wide",
        _COW,
        ("delete-1-spread", "merge-upsert-1-spread"),
        (("iceberg-cow", 3), ("deltars", 1)),
        "wide",
    ),
    Goal(
        "copy-on-write, changes in one file, wide",
        _COW,
        ("delete-1-clustered", "merge-upsert-1-clustered"),
        (("iceberg-cow", 3), ("deltars", 1)),
        "wide",
    ),
    Goal(
        "copy-on-write, spread, narrow",
        _COW,
        ("delete-1-spread", "update-1-spread", "update-10-spread", "merge-upsert-1-spread"),
        (("iceberg-cow", 2.5),),
        "narrow",
    ),
    Goal("merge-on-read, delete", _MOR, ("delete-1-spread",), (("iceberg-mor", 1),)),
    Goal(
        "merge-on-read, update",
        _MOR,
        ("update-1-spread", "update-10-spread"),
        (("iceberg-mor", 1.2),),
    ),
    Goal(
        "merge-on-read, upsert, spread",
        _MOR,
        ("merge-upsert-1-spread",),
        (("iceberg-mor", 1.5),),
    ),
    Goal(
        "merge-on-read, upsert, in one file",
        _MOR,
        ("merge-upsert-1-clustered",),
        (("iceberg-mor", 3),),
    ),
    Goal(
        "scan after 10 merge-on-read statements",
        _MOR,
        ("scan-after-10", "scan-part-after-10"),
        (("iceberg-mor", 1),),
    ),
)


def statements_of_goals() -> frozenset[str]:
    """The statements that have a goal."""
    return frozenset(name for goal in GOALS for name in goal.statements)


def findings(document: dict[str, Any]) -> Iterator[Finding]:
    """The goals that apply to the statements and the size of a run."""
    size = document["size"]
    if size["name"] == "tiny" or size["rows"] < SIZES[size["name"]].rows:
        return  # few rows measure the fixed cost of a job, not the engine
    seconds = _best_seconds(document)
    run = [statement["name"] for statement in document["statements"]]
    for goal in GOALS:
        if not goal.applies_to(size["columns"]):
            continue
        for statement in (name for name in goal.statements if name in run):
            ours = seconds.get((goal.ours, statement))
            for peer, at_least in goal.peers:
                theirs = seconds.get((peer, statement))
                measured = theirs / ours if ours and theirs else None
                yield Finding(goal, statement, peer, at_least, measured)


def _best_seconds(document: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {
        (peer["name"], result["statement"]): result["best_seconds"]
        for peer in document["peers"]
        for result in peer.get("results", [])
        if result["status"] == "ok"
    }
