"""The result of a statement in one line, for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import islice
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from icefloe.cli.records import Records, cell_text, csv_field, json_text, of_dicts
from icefloe.results import DmlResult, ExpireResult, OrphansResult


def told(result: DmlResult) -> str:
    """`merge: 3 inserted, 2 updated in 0.9 s; 2 of 8 files read; 1 data file added; …`."""
    parts = [f"{result.operation}: {rows_told(result)} in {result.duration_s:.1f} s"]
    known = result.files_scanned + result.files_skipped
    if known:
        parts.append(f"{result.files_scanned:,} of {count(known, 'file')} read")
    parts += [text for text in (files_told(result),) if text]
    if result.bytes_written:
        parts.append(f"{size(result.bytes_written)} written")
    if result.snapshot_id is not None:
        parts.append(f"snapshot {result.snapshot_id}")
    return "; ".join(parts)


def rows_told(result: DmlResult) -> str:
    """How many rows were inserted, updated and deleted."""
    counts = {
        "inserted": result.rows_inserted,
        "updated": result.rows_updated,
        "deleted": result.rows_deleted,
    }
    found = [f"{number:,} {what}" for what, number in counts.items() if number]
    if result.operation == "compact" and result.snapshot_id is not None:
        found = [f"{count(result.rows_copied, 'row')} rewritten"]
    return ", ".join(found) or "nothing to change"


def files_told(result: DmlResult) -> str:
    """How many files were added and removed; empty when none."""
    added = _files(result.data_files_added, result.delete_files_added)
    removed = _files(result.data_files_removed, result.delete_files_removed)
    return ", ".join(
        f"{files} {what}" for files, what in ((added, "added"), (removed, "removed")) if files
    )


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 file`, `2 files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(number: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def _files(data: int, deletes: int) -> str:
    kinds = ((data, "data file"), (deletes, "delete file"))
    return " and ".join(count(number, noun) for number, noun in kinds if number)


# -------------------------------------------------------------------------------------------------
# What goes to stdout: tables for people, JSON lines and CSV for programs.

_TABLE_ROWS = 100
_NO_WRAP = 1_000_000  # columns of a file or pipe: nothing is cut


class Format(StrEnum):
    """How results are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class Output:
    """Writes results in one format, at most `limit` rows of each."""

    format: Format
    limit: int | None = None

    @property
    def table_rows(self) -> int:
        """How many rows a table shows: it is held in memory, unlike the other formats."""
        return self.limit or _TABLE_ROWS

    def records(self, found: Records) -> None:
        """Write rows as they come; a table waits for all of its own."""
        match self.format:
            case Format.JSON:
                names = _distinct(found.names)
                _write_lines(
                    json_text(dict(zip(names, row, strict=True))) + "\n" for row in self._cut(found)
                )
            case Format.CSV:
                _write_lines(_csv(found.names, self._cut(found)))
            case Format.TABLE:
                self._table(found)

    def result(self, result: DmlResult) -> None:
        """Write what a statement did."""
        if self.format is Format.TABLE:
            stdout().print(Text(told(result)))
            return
        self.fields(asdict(result))

    def fields(self, fields: Mapping[str, object]) -> None:
        """Write one record for programs."""
        self.records(Records(tuple(fields), (False,) * len(fields), [tuple(fields.values())]))

    def note(self, text: str) -> None:
        """Write a line for people; programs are not told."""
        if self.format is Format.TABLE:
            stdout().print(Text(text, style="dim"))

    def _cut(self, found: Records) -> Iterable[Sequence[object]]:
        return found.rows if self.limit is None else islice(found.rows, self.limit)

    def _table(self, found: Records) -> None:
        rows = iter(found.rows)
        shown = list(islice(rows, self.table_rows))
        rest = next(rows, None) is not None
        if len(found.names) == 1 and len(shown) == 1 and "\n" in str(shown[0][0]):
            stdout().print(Text(cell_text(shown[0][0])))  # a plan, not a value
            return
        stdout().print(_drawn(found, shown))
        if rest:
            self.note(f"{count(len(shown), 'row')}, and there are more: --limit N shows N of them")
        else:
            self.note(count(len(shown), "row"))


def stdout() -> Console:
    """The console of stdout as it is now; no colours and no folding into a file or pipe."""
    if sys.stdout.isatty():
        return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    return Console(
        file=sys.stdout,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None,
        width=_NO_WRAP,
    )


def stderr() -> Console:
    """The console of stderr as it is now."""
    return Console(file=sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def _drawn(found: Records, rows: Sequence[Sequence[object]]) -> Table:
    terminal = sys.stdout.isatty()
    table = Table(box=box.ROUNDED if terminal else box.ASCII, header_style="bold")
    for name, numeric in zip(found.names, found.numeric, strict=True):
        table.add_column(
            Text(cell_text(name)), justify="right" if numeric else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*map(_cell, row))
    return table


def _cell(value: object) -> Text:
    return Text("NULL", style="dim") if value is None else Text(cell_text(value))


def _csv(names: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    if names:
        yield ",".join(map(csv_field, names)) + "\r\n"
    for row in rows:
        yield ",".join(map(csv_field, row)) + "\r\n"


def _distinct(names: Sequence[str]) -> list[str]:
    """Names that can be keys of one object: `id`, `id_2`."""
    found: list[str] = []
    for name in names:
        chosen, number = name, 2
        while chosen in found:
            chosen, number = f"{name}_{number}", number + 1
        found.append(chosen)
    return found


def _write_lines(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line)
    sys.stdout.flush()


# -------------------------------------------------------------------------------------------------
# What expiring and looking for orphans did, for people or programs.


def write_expired(result: ExpireResult, output: Output) -> None:
    """`expire: 2 snapshots gone, 1 kept in 0.1 s; 1 data file and 2 manifests deleted, 9.1 kB`."""
    if output.format is not Format.TABLE:
        output.fields(asdict(result))
        return
    snapshots = count(len(result.snapshots_expired), "snapshot")
    parts = [f"expire: {snapshots} gone, {result.snapshots_kept} kept in {result.duration_s:.1f} s"]
    if result.refs_removed:
        parts.append(f"no longer there: {', '.join(result.refs_removed)}")
    kinds = {
        "data file": result.data_files_deleted,
        "delete file": result.delete_files_deleted,
        "manifest": result.manifests_deleted,
        "manifest list": result.manifest_lists_deleted,
        "statistics file": result.statistics_files_deleted,
    }
    files = [count(number, noun) for noun, number in kinds.items() if number]
    if files:
        parts.append(f"{', '.join(files)} deleted, {size(result.bytes_deleted)}")
    if result.files_failed:
        failed = count(len(result.files_failed), "file")
        parts.append(f"{failed} could not be deleted: {', '.join(result.files_failed)}")
    if result.files_kept:
        kept = count(len(result.files_kept), "file")
        parts.append(f"{kept} left, which may not be the table's: {', '.join(result.files_kept)}")
    stdout().print(Text("; ".join(parts)))


def write_orphans(result: OrphansResult, location: str, output: Output) -> None:
    """A table of the files, and whether they are gone."""
    if output.format is not Format.TABLE:
        output.fields(asdict(result))
        return
    failed = set(result.files_failed)
    if result.files:
        output.records(
            of_dicts(
                [
                    {
                        "file": file.removeprefix(f"{location}/"),
                        "deleted": not result.dry_run and file not in failed,
                    }
                    for file in result.files
                ]
            )
        )
    files = f"{count(len(result.files), 'file')}, {size(result.bytes)}"
    if not result.files:
        told = "nothing to remove"
    elif result.dry_run:
        told = f"{files}: listed only, --delete removes them"
    else:
        deleted = f"{count(result.files_deleted, 'file')}, {size(result.bytes_deleted)}"
        told = f"{deleted} deleted"
        told += f"; {count(len(failed), 'file')} could not be" if failed else ""
    if result.files_too_young:
        told += f"; {count(result.files_too_young, 'file')} too young to tell"
    if result.files_unrecognised:
        told += f"; {count(result.files_unrecognised, 'file')} outside the table's location left, "
        told += "which Iceberg writers do not name so: --folder takes them too"
    stdout().print(Text(f"orphans: {told}"))


# -------------------------------------------------------------------------------------------------
# `icefloe show TABLE` for people.


def describe(found: dict[str, Any], output: Output) -> None:
    """Write the facts of one table: one JSON object, one CSV row, or something to read."""
    if output.format is not Format.TABLE:
        output.records(of_dicts([found]))
        return
    stdout().print(Text(found["table"], style="bold"))
    output.records(of_dicts(_columns(found)))
    for name, text in _description(found):
        stdout().print(Text.assemble((f"{name:13}", "cyan"), text))
    for key, value in found["properties"].items():
        stdout().print(Text.assemble((f"{'':13}{key}", "dim"), f" = {cell_text(value)}"))


def _columns(found: dict[str, Any]) -> list[dict[str, object]]:
    """The columns; without comments where no column has one."""
    commented = any(column["comment"] for column in found["columns"])
    shown = ("name", "type", "required", *(["comment"] if commented else []))
    return [{key: column[key] for key in shown} for column in found["columns"]]


def _description(found: dict[str, Any]) -> list[tuple[str, str]]:
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
