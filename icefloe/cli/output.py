"""What goes to stdout: tables for people, JSON lines and CSV for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import islice

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from icefloe.cli.records import Records
from icefloe.cli.told import count, told
from icefloe.cli.values import cell_text, csv_field, json_text
from icefloe.results import DmlResult

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
                _lines(
                    json_text(dict(zip(names, row, strict=True))) + "\n" for row in self._cut(found)
                )
            case Format.CSV:
                _lines(_csv(found.names, self._cut(found)))
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


def _lines(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line)
    sys.stdout.flush()
