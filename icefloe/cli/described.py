"""`icefloe show TABLE` for people."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from icefloe.cli.output import Format, Output, stdout
from icefloe.cli.records import of_dicts
from icefloe.cli.told import count, size
from icefloe.cli.values import cell_text


def describe(found: dict[str, Any], output: Output) -> None:
    """Write the facts of one table: one JSON object, one CSV row, or something to read."""
    if output.format is not Format.TABLE:
        output.records(of_dicts([found]))
        return
    stdout().print(Text(found["table"], style="bold"))
    output.records(of_dicts(_columns(found)))
    for name, text in _lines(found):
        stdout().print(Text.assemble((f"{name:13}", "cyan"), text))
    for key, value in found["properties"].items():
        stdout().print(Text.assemble((f"{'':13}{key}", "dim"), f" = {cell_text(value)}"))


def _columns(found: dict[str, Any]) -> list[dict[str, object]]:
    """The columns; without comments where no column has one."""
    commented = any(column["comment"] for column in found["columns"])
    shown = ("name", "type", "required", *(["comment"] if commented else []))
    return [{key: column[key] for key in shown} for column in found["columns"]]


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    snapshot = found["snapshot"]
    made = "none yet"
    if snapshot:
        by = snapshot["statement"] or snapshot["operation"] or "?"
        moment = cell_text(snapshot["made_at"].replace(microsecond=0))
        made = f"{snapshot['id']}, {by} at {moment}"
    return [
        ("partitioned", ", ".join(found["partition_by"]) or "no"),
        ("sorted", ", ".join(found["sort_by"]) or "no"),
        ("rows", _rows(found)),
        ("snapshot", f"{made} ({count(found['snapshots'], 'snapshot')} kept)"),
        ("location", found["location"]),
        ("format", f"Iceberg v{found['format_version']}"),
        ("properties", "" if found["properties"] else "none"),
    ]


def _rows(found: dict[str, Any]) -> str:
    rows = found["rows"]
    told = (
        f"{rows:,}" if rows is not None else "known by counting only (there are equality deletes)"
    )
    files = count(found["data_files"] or 0, "data file")
    deletes = count(found["delete_files"] or 0, "delete file")
    return f"{told} in {files} and {deletes}, {size(found['bytes'] or 0)}"
