"""What the command line prints: tables and text for people, JSON lines and CSV for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from io import StringIO
from itertools import islice
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from icefloe.cli.records import Records, cell_text, csv_field, json_text, of_dicts
from icefloe.results import DmlResult, ExpireResult, OrphansResult

_TABLE_ROWS = 100
_NO_WRAP = 1_000_000  # console width for files and pipes: no cell is folded


class Format(StrEnum):
    """The format of results."""

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
        """The most rows that a table shows: unlike other formats it is held in memory."""
        return self.limit or _TABLE_ROWS

    def records(self, records: Records) -> None:
        """Write rows as they arrive; a table is written when all its rows are there."""
        match self.format:
            case Format.JSON:
                names = _unique_names(records.names)
                _write_lines(
                    json_text(dict(zip(names, row, strict=True))) + "\n"
                    for row in self._limited(records)
                )
            case Format.CSV:
                _write_lines(_csv(records.names, self._limited(records)))
            case Format.TABLE:
                self._table(records)

    def result(self, result: DmlResult) -> None:
        """Write the result of a statement."""
        if self.format is Format.TABLE:
            stdout().print(Text(result_line(result)))
            return
        self.fields(result.as_dict())

    def fields(self, fields: Mapping[str, object]) -> None:
        """Write one record for programs."""
        self.records(Records(tuple(fields), (False,) * len(fields), [tuple(fields.values())]))

    def note(self, text: str) -> None:
        """Write a line for people; nothing in the formats for programs."""
        if self.format is Format.TABLE:
            stdout().print(Text(text, style="dim"))

    def _limited(self, records: Records) -> Iterable[Sequence[object]]:
        return records.rows if self.limit is None else islice(records.rows, self.limit)

    def _table(self, records: Records) -> None:
        rows = iter(records.rows)
        shown = list(islice(rows, self.table_rows))
        has_more = next(rows, None) is not None
        if len(records.names) == 1 and len(shown) == 1 and "\n" in str(shown[0][0]):
            stdout().print(Text(cell_text(shown[0][0])))  # a plan: text of several lines
            return
        style = box.ROUNDED if sys.stdout.isatty() else box.ASCII
        stdout().print(_table_of(records, shown, style))
        if has_more:
            self.note(f"{count(len(shown), 'row')} shown, there are more: use --limit N")
        else:
            self.note(count(len(shown), "row"))


def stdout() -> Console:
    """A console on the current stdout; without colours and folding unless it is a terminal."""
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
    """A console on the current stderr."""
    return Console(file=sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def plain_table(records: Records) -> str:
    """A table as text without colours."""
    text = StringIO()
    console = Console(file=text, color_system=None, width=_NO_WRAP, force_jupyter=False)
    console.print(_table_of(records, list(records.rows), box.ASCII))
    return text.getvalue().rstrip("\n")


def _table_of(records: Records, rows: Sequence[Sequence[object]], style: box.Box) -> Table:
    table = Table(box=style, header_style="bold")
    for name, numeric in zip(records.names, records.numeric, strict=True):
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


def _unique_names(names: Sequence[str]) -> list[str]:
    """Names that can be keys of one JSON object: `id`, `id_2`."""
    unique: list[str] = []
    for name in names:
        candidate, number = name, 2
        while candidate in unique:
            candidate, number = f"{name}_{number}", number + 1
        unique.append(candidate)
    return unique


def _write_lines(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line)
    sys.stdout.flush()


# -------------------------------------------------------------------------------------------------
# The result of a statement as one line


def result_line(result: DmlResult) -> str:
    """`merge: 3 inserted, 2 updated in 0.9 s; 2 of 8 files read; 1 data file added; …`."""
    parts = [f"{result.operation}: {changed_rows(result)} in {result.duration_s:.1f} s"]
    files = result.files_scanned + result.files_skipped
    if files:
        parts.append(f"{result.files_scanned:,} of {count(files, 'file')} read")
    parts += [text for text in (changed_files(result),) if text]
    if result.bytes_written:
        parts.append(f"{size(result.bytes_written)} written")
    if result.snapshot_id is not None:
        parts.append(f"snapshot {result.snapshot_id}")
    return "; ".join(parts)


def changed_rows(result: DmlResult) -> str:
    """The number of rows inserted, updated and deleted."""
    counts = {
        "inserted": result.rows_inserted,
        "updated": result.rows_updated,
        "deleted": result.rows_deleted,
    }
    parts = [f"{number:,} {action}" for action, number in counts.items() if number]
    if result.operation == "compact" and result.snapshot_id is not None:
        parts = [f"{count(result.rows_copied, 'row')} rewritten"]
    if result.operation == "flush" and result.snapshot_id is not None:
        parts = [f"{count(result.rows_copied, 'row')} moved to data files"]
    return ", ".join(parts) or "nothing to change"


def changed_files(result: DmlResult) -> str:
    """The number of files added and removed; empty if there are none."""
    added = _files_text(result.data_files_added, result.delete_files_added)
    removed = _files_text(result.data_files_removed, result.delete_files_removed)
    return ", ".join(
        f"{files} {action}" for files, action in ((added, "added"), (removed, "removed")) if files
    )


def _files_text(data: int, deletes: int) -> str:
    kinds = ((data, "data file"), (deletes, "delete file"))
    return " and ".join(count(number, noun) for number, noun in kinds if number)


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 file`, `2 files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(number: float) -> str:
    """A number of bytes with its unit: `1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


# -------------------------------------------------------------------------------------------------
# Results of `icefloe expire` and `icefloe orphans`


def write_expire_result(result: ExpireResult, output: Output) -> None:
    """`expire: 2 snapshots expired, 1 kept in 0.1 s; 1 data file, 2 manifests deleted, 9.1 kB`."""
    if output.format is not Format.TABLE:
        output.fields(asdict(result))
        return
    expired = count(len(result.snapshots_expired), "snapshot")
    parts = [
        f"expire: {expired} expired, {result.snapshots_kept} kept in {result.duration_s:.1f} s"
    ]
    if result.refs_removed:
        parts.append(f"branches and tags removed: {', '.join(result.refs_removed)}")
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
        locations = ", ".join(result.files_kept)
        parts.append(f"{kept} kept that may not belong to the table: {locations}")
    stdout().print(Text("; ".join(parts)))


def write_orphans_result(result: OrphansResult, location: str, output: Output) -> None:
    """Write a table of the orphans and one line that sums them up."""
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
    stdout().print(Text(f"orphans: {'; '.join(_orphans_summary(result))}"))


def _orphans_summary(result: OrphansResult) -> Iterator[str]:
    if not result.files and not result.inline_tables and not result.uploads:
        yield "nothing to delete"
    elif result.dry_run:
        files = f"{count(len(result.files), 'file')}, {size(result.bytes)}"
        yield f"{files} found, none deleted: use --delete to delete them"
    else:
        yield f"{count(result.files_deleted, 'file')}, {size(result.bytes_deleted)} deleted"
        if result.files_failed:
            yield f"{count(len(result.files_failed), 'file')} could not be deleted"
    if result.inline_tables:
        tables = count(len(result.inline_tables), "dropped table")
        yield f"inline rows of {tables} {'found' if result.dry_run else 'deleted'}"
    if result.uploads is None:
        yield "incomplete uploads were not looked for: install icefloe[s3]"
    elif result.uploads:
        uploads = count(len(result.uploads), "incomplete upload")
        yield f"{uploads} {'found' if result.dry_run else 'aborted'}"
    if result.files_too_young:
        yield f"{count(result.files_too_young, 'file')} kept that may still be committed"
    if result.files_unrecognised:
        files = count(result.files_unrecognised, "file")
        yield (
            f"{files} kept outside the table's location whose names are not those of an Iceberg "
            "writer: use --folder to include them"
        )


# -------------------------------------------------------------------------------------------------
# `icefloe show TABLE`

_LABEL_WIDTH = 13


def write_table_facts(facts: dict[str, Any], output: Output) -> None:
    """Write the facts of one table: one JSON object, one CSV row, or a page for people."""
    if output.format is not Format.TABLE:
        output.records(of_dicts([facts]))
        return
    stdout().print(Text(facts["table"], style="bold"))
    output.records(of_dicts(_columns(facts)))
    for label, text in _labelled_facts(facts):
        stdout().print(Text.assemble((label.ljust(_LABEL_WIDTH), "cyan"), text))
    for key, value in facts["properties"].items():
        indented = f"{'':{_LABEL_WIDTH}}{key}"
        stdout().print(Text.assemble((indented, "dim"), f" = {cell_text(value)}"))


def _columns(facts: dict[str, Any]) -> list[dict[str, object]]:
    """The columns; the comments are left out if no column has one."""
    has_comments = any(column["comment"] for column in facts["columns"])
    shown = ("name", "type", "required", *(["comment"] if has_comments else []))
    return [{key: column[key] for key in shown} for column in facts["columns"]]


def _labelled_facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("partitioned", ", ".join(facts["partition_by"]) or "no"),
        ("sorted", ", ".join(facts["sort_by"]) or "no"),
        ("rows", _rows_text(facts)),
        *([("inline", _inline_text(facts["inline"]))] if facts["inline"] else []),
        ("snapshot", f"{_snapshot_text(facts)} ({count(facts['snapshots'], 'snapshot')} in all)"),
        ("location", facts["location"]),
        ("format", f"Iceberg v{facts['format_version']}"),
        ("properties", "" if facts["properties"] else "none"),
    ]


def _snapshot_text(facts: dict[str, Any]) -> str:
    snapshot = facts["snapshot"]
    if not snapshot:
        return "none yet"
    statement = snapshot["statement"] or snapshot["operation"] or "?"
    made_at = cell_text(snapshot["made_at"].replace(microsecond=0))
    return f"{snapshot['id']}, {statement} at {made_at}"


def _inline_text(inline: dict[str, Any]) -> str:
    text = f"{count(inline['rows'], 'row')} more, about {inline['bytes']:,} bytes"
    if inline["deletes"]:
        text += f", {count(inline['deletes'], 'row')} of files deleted"
    oldest = inline["oldest"]
    return text if oldest is None else f"{text}, since {cell_text(oldest.replace(microsecond=0))}"


def _rows_text(facts: dict[str, Any]) -> str:
    rows = facts["rows"]
    number = f"{rows:,}" if rows is not None else "unknown number (there are equality deletes)"
    files = count(facts["data_files"] or 0, "data file")
    deletes = count(facts["delete_files"] or 0, "delete file")
    return f"{number} in {files} and {deletes}, {size(facts['bytes'] or 0)}"
