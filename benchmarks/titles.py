"""What statements are called in tables and plots."""

from __future__ import annotations

from typing import Any

KINDS = ("delete", "update", "merge", "scan")  # the order of plots


def title(statement: dict[str, Any]) -> str:
    """A statement of a result in a few words."""
    if statement.get("merge"):
        return str(statement["merge"]["title"])
    if statement.get("statements_before"):
        return _scan_title(statement)
    place = "in one file" if statement["placement"] == "clustered" else statement["placement"]
    kind = "update of all columns," if statement.get("all_columns") else statement["kind"]
    return f"{kind} {statement['fraction']:.0%}, {place}".replace("%", " %")


def _scan_title(statement: dict[str, Any]) -> str:
    count = statement["statements_before"]
    rows = "all rows" if statement["fraction"] == 1 else "1 % of the rows, in one file"
    return f"scan of {rows}, after {count} statement{'s' if count > 1 else ''}"


def kinds_of(document: dict[str, Any]) -> tuple[str, ...]:
    """The kinds of statements that a result has."""
    found = {bound["statement"]["kind"] for bound in document["statements"]}
    return tuple(kind for kind in KINDS if kind in found)


def plot_name(document: dict[str, Any], kind: str) -> str:
    """The file of the plot of one kind of statement."""
    return f"benchmark-{document['name']}-{kind}.svg"
