"""`%load_ext icefloe`: SQL in cells of IPython and Jupyter, as `%%lake` and `%lake`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import no_var_expand
from pyspark.sql import DataFrame

from icefloe.cli.output import count, plain_table
from icefloe.cli.records import Records, cell_text
from icefloe.cli.shell import of_frame
from icefloe.cli.worker import CancelledError, Worker
from icefloe.display import HtmlRows, block_html, table_html
from icefloe.errors import IcefloeError, StatementError
from icefloe.lake import Lake, last_opened
from icefloe.results import DmlResult
from icefloe.spark import progress
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.sql_text import SqlText
from icefloe.sql.parse import parse_statements
from icefloe.sql.run import SqlResult, is_source
from icefloe.sql.syntax import CreateTable, Explain, Insert, MergeInto, Parsed, Query, WithDml

MAGIC = "lake"
_USAGE = "%%lake [-l LAKE] [-o NAME] [-n ROWS], then SQL in the lines below; %lake takes one line"
_ROWS = 100


def load(shell: InteractiveShell) -> None:
    """Register the magic, and show progress if this is a notebook."""

    @no_var_expand  # SQL has its own braces and dollars
    def lake(line: str, cell: str | None = None) -> object:
        """Run SQL on a lake: %%lake [-l LAKE] [-o NAME] [-n ROWS].

        The lake is the one that was opened last, or the variable LAKE. The result of the last
        statement is shown, at most ROWS rows of it (100), and assigned to NAME. Variables with
        rows (DataFrames, Arrow tables, pandas frames, lists of dicts) are tables in the SQL.
        """
        return _run(shell, line, cell)

    shell.magics_manager.register_function(lake, magic_kind="line_cell", magic_name=MAGIC)
    progress.switch(on=True)
    progress.show_in_notebook()


def unload(shell: InteractiveShell) -> None:
    """Remove the magic, and show no more progress."""
    for magics in shell.magics_manager.magics.values():
        magics.pop(MAGIC, None)
    progress.switch(on=False)


# -------------------------------------------------------------------------------------------------
# One cell


@dataclass(frozen=True, slots=True)
class _Cell:
    """The options of a cell, and its SQL."""

    sql: str
    lake: str | None = None
    output: str | None = None
    rows: int = _ROWS


@dataclass(frozen=True, slots=True, repr=False)
class ShownRows:
    """The first rows of a query; `frame` has all of them."""

    frame: DataFrame
    records: Records
    has_more: bool

    def __repr__(self) -> str:
        if not self.records.names:
            return "done"
        if (text := self._plan()) is not None:
            return text
        return f"{plain_table(self.records)}\n{self._summary()}"

    def _repr_html_(self) -> str:
        if not self.records.names:
            return "done"
        if (text := self._plan()) is not None:
            return block_html(text)
        rows = [
            [None if value is None else cell_text(value) for value in row]
            for row in self.records.rows
        ]
        cells = HtmlRows(self.records.names, rows, self.records.numeric)
        return f"{table_html(cells)}{self._summary()}"

    def _summary(self) -> str:
        rows = list(self.records.rows)
        return count(len(rows), "row") + (" shown, there are more" if self.has_more else "")

    def _plan(self) -> str | None:
        """The text of an EXPLAIN."""
        rows = list(self.records.rows)
        one = rows[0][0] if len(rows) == 1 and len(rows[0]) == 1 else None
        return one if isinstance(one, str) and "\n" in one else None


def _run(shell: InteractiveShell, line: str, cell: str | None) -> object:
    try:
        parsed = _parse_line(line) if cell is None else replace(_parse_options(line), sql=cell)
        lake = _lake_of(parsed, shell.user_ns)
        if not parsed.sql.strip():
            return lake
        return _run_sql(shell, lake, parsed)
    except (IcefloeError, CancelledError) as error:
        lines = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
        vars(error)["_render_traceback_"] = lambda: lines  # IPython then shows no stack
        raise


def _run_sql(shell: InteractiveShell, lake: Lake, cell: _Cell) -> object:
    sources = dict(_sources(cell.sql, shell.user_ns))

    def work(_progress: object) -> tuple[SqlResult, DmlResult | ShownRows]:
        result = lake.sql(cell.sql, **sources)
        return result, result if isinstance(result, DmlResult) else _first_rows(result, cell.rows)

    worker = Worker(lake)
    try:
        result, shown = worker.run(work)
    finally:
        worker.close()
    if cell.output is not None:
        shell.push({cell.output: result})  # type: ignore[no-untyped-call]
    return shown


def _first_rows(frame: DataFrame, most: int) -> ShownRows:
    with translate_spark_errors():
        if not frame.columns:
            return ShownRows(frame, Records((), (), []), has_more=False)
        records = of_frame(frame, frame.take(most + 1))
        rows = list(records.rows)
    return ShownRows(frame, replace(records, rows=rows[:most]), len(rows) > most)


def _lake_of(cell: _Cell, names: Mapping[str, Any]) -> Lake:
    if cell.lake is not None:
        named = names.get(cell.lake)
        if not isinstance(named, Lake):
            kind = f"a {type(named).__name__}" if cell.lake in names else "not defined"
            raise StatementError(
                f"-l takes a variable that has a lake, and {cell.lake!r} is {kind}. "
                f"Open one first: {cell.lake} = icefloe.connect(…)."
            )
        return named
    try:
        return last_opened()
    except StatementError as none:
        raise StatementError(
            "No lake is open. Open one first: lake = icefloe.connect(…); -l names a variable that "
            "has one."
        ) from none


# -------------------------------------------------------------------------------------------------
# Options


def _parse_line(line: str) -> _Cell:
    """The options of `%lake`, and the SQL after them as it was written."""
    rest = line.strip()
    options: list[str] = []
    while rest.startswith("-") and not rest.startswith("--"):  # two begin a comment
        option, _, rest = rest.partition(" ")
        value, _, rest = rest.strip().partition(" ")
        options += [option, value]
        rest = rest.strip()
    return replace(_parse_options(shlex.join(options)), sql=rest)


def _parse_options(line: str) -> _Cell:
    """The options of `%%lake`."""
    cell = _Cell("")
    words = iter(shlex.split(line))
    for option in words:
        value = next(words, "")
        match option:
            case "-l" if value:
                cell = replace(cell, lake=value)
            case "-o" if value.isidentifier():
                cell = replace(cell, output=value)
            case "-n" if value.isdecimal() and int(value) > 0:
                cell = replace(cell, rows=int(value))
            case _:
                given = f"{option} {value}".strip()
                raise StatementError(f"{given!r} is not an option of %%lake. Usage: {_USAGE}.")
    return cell


# -------------------------------------------------------------------------------------------------
# Variables as tables


def _sources(text: str, names: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The variables that the SQL names as tables and that have rows."""
    mentioned = {
        name for statement in parse_statements(text) for name in _tables_of(statement.parsed)
    }
    for name in sorted(mentioned):
        if name in names and is_source(names[name]):
            yield name, names[name]


def _tables_of(parsed: Parsed) -> Iterator[str]:
    """Names without a namespace that a statement reads."""
    for text in _queries_of(parsed):
        for table in text.query_tables:
            if len(table.parts) == 1:
                yield table.parts[0]


def _queries_of(parsed: Parsed) -> Iterator[SqlText]:
    match parsed:
        case Query(query):
            yield query.text
        case Explain(statement):
            yield from _queries_of(statement)
        case CreateTable(query=query) if query is not None:
            yield query.text
        case WithDml(statement, ctes):
            if ctes is not None:
                yield SqlText(f"{ctes.text} SELECT 1")
            if isinstance(statement, Insert):
                yield statement.query.text
            if isinstance(statement, MergeInto):
                yield SqlText(f"TABLE {statement.source}")
            for one in statement.expressions():
                yield SqlText(f"SELECT {one}")
