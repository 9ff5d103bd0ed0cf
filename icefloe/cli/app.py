"""`icefloe`: the commands and their options. Nothing of Spark is imported before one runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from icefloe.cli.output import Format, Output
from icefloe.version import __version__

if TYPE_CHECKING:
    from icefloe.cli.actions import Place

app = typer.Typer(
    name="icefloe",
    help="Row-level changes on Apache Iceberg tables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

FormatOption = Annotated[
    Format | None,
    typer.Option("--format", help="How results are written; json is one object a line."),
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="At most so many rows; a table has 100, unless told."),
]
OlderOption = Annotated[
    str | None,
    typer.Option(metavar="MOMENT", help="As 2026-01-31 or 2026-01-31T12:00:00Z; else local time."),
]
TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="namespace.table")]


@dataclass(frozen=True, slots=True)
class _Given:
    """The options before the command."""

    warehouse: Path | None
    catalog: str | None
    format: Format | None
    debug: bool

    def place(self) -> Place:
        from icefloe.cli.actions import Place

        return Place(
            self.warehouse if self.catalog else self.warehouse or Path("lake"), self.catalog
        )

    def output(self, format: Format | None, limit: int | None = None) -> Output:
        """How to write; the option after the command wins over the one before it."""
        return Output(format or self.format or Format.TABLE, limit)

    def run(self, work: Callable[[], None]) -> None:
        """Run a command and leave with its exit status."""
        from icefloe.cli.shell import guarded

        raise typer.Exit(guarded(work, debug=self.debug))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    warehouse: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The folder of the lake.  [default: lake]"),
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A catalog of PyIceberg's configuration instead."),
    ] = None,
    format: FormatOption = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where in the code an error came from.")
    ] = False,
    version: Annotated[  # noqa: ARG001  its callback answers
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Take the options that go before the command."""
    if warehouse is not None and catalog is not None:
        raise typer.BadParameter("Give --warehouse or --catalog, not both.")
    context.obj = _Given(warehouse, catalog, format, debug)


@app.command()
def demo(context: typer.Context) -> None:
    """Tell a story on a lake in ./demo-lake."""
    from icefloe.cli.demo import run_demo

    given: _Given = context.obj
    if given.catalog is not None:
        raise typer.BadParameter(
            "The demo makes a folder of its own: give --warehouse, or nothing."
        )
    given.run(lambda: run_demo(given.warehouse or Path("demo-lake")))


@app.command()
def sql(
    context: typer.Context,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="Statements, with ; between them.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("-f", "--file", metavar="FILE", help="A file of them; - is stdin.")
    ] = None,
    format: FormatOption = None,
    limit: LimitOption = None,
) -> None:
    """Run SQL: TEXT, a file, or from a prompt."""
    from icefloe.cli import actions

    given: _Given = context.obj
    if text is not None and file is not None:
        raise typer.BadParameter("Give the statements as TEXT or with -f, not both.")
    place, output = given.place(), given.output(format, limit)
    if text is not None:
        given.run(lambda: actions.run_sql(place, output, text))
    elif file is not None or not sys.stdin.isatty():
        given.run(lambda: actions.run_file(place, output, file or "-"))
    else:
        given.run(lambda: actions.run_prompt(place, output, debug=given.debug))


@app.command()
def tables(context: typer.Context, format: FormatOption = None) -> None:
    """List the tables and their sizes."""
    from icefloe.cli import actions

    given: _Given = context.obj
    given.run(lambda: actions.list_tables(given.place(), given.output(format)))


@app.command()
def show(context: typer.Context, table: TableArgument, format: FormatOption = None) -> None:
    """Show a table's columns, partitions and counts."""
    from icefloe.cli import actions

    given: _Given = context.obj
    given.run(lambda: actions.show_table(given.place(), given.output(format), table))


@app.command()
def history(context: typer.Context, table: TableArgument, format: FormatOption = None) -> None:
    """List a table's snapshots in their order."""
    from icefloe.cli import actions

    given: _Given = context.obj
    given.run(lambda: actions.show_history(given.place(), given.output(format), table))


@app.command()
def files(context: typer.Context, table: TableArgument, format: FormatOption = None) -> None:
    """List a table's data and delete files."""
    from icefloe.cli import actions

    given: _Given = context.obj
    given.run(lambda: actions.show_files(given.place(), given.output(format), table))


@app.command()
def compact(
    context: typer.Context,
    table: TableArgument,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="Only files that may hold such rows."),
    ] = None,
    target_file_bytes: Annotated[
        int | None,
        typer.Option(min=1, metavar="BYTES", help="The size to aim at, for the table's own."),
    ] = None,
    format: FormatOption = None,
) -> None:
    """Join small files, split large ones, apply deletes."""
    from icefloe.cli import actions

    given: _Given = context.obj
    place, output = given.place(), given.output(format)
    given.run(lambda: actions.compact_table(place, output, table, where, target_file_bytes))


@app.command()
def flush(context: typer.Context, table: TableArgument, format: FormatOption = None) -> None:
    """Move inline rows to data files."""
    from icefloe.cli import actions

    given: _Given = context.obj
    given.run(lambda: actions.flush_table(given.place(), given.output(format), table))


@app.command()
def expire(
    context: typer.Context,
    table: TableArgument,
    older_than: OlderOption = None,
    retain_last: Annotated[
        int, typer.Option(min=1, metavar="N", help="Snapshots to keep on each branch.")
    ] = 1,
    format: FormatOption = None,
) -> None:
    """Forget old snapshots and delete the files only they need (5 days old, unless told)."""
    from icefloe.cli import actions

    given: _Given = context.obj
    place, output, moment = given.place(), given.output(format), _moment(older_than)
    given.run(lambda: actions.expire_table(place, output, table, moment, retain_last))


@app.command()
def orphans(
    context: typer.Context,
    table: TableArgument,
    older_than: OlderOption = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete them; without this they are only listed.")
    ] = False,
    allow_recent: Annotated[
        bool,
        typer.Option("--allow-recent", help="Delete files younger than a day; nobody may write."),
    ] = False,
    folder: Annotated[
        list[str] | None,
        typer.Option(
            "--folder",
            metavar="LOCATION",
            help="A folder of the table in which files of any name are taken. Can be repeated.",
        ),
    ] = None,
    format: FormatOption = None,
) -> None:
    """List files that nothing refers to (3 days old, unless told)."""
    from icefloe.cli import actions
    from icefloe.maintenance.orphans import OrphanSearch

    given: _Given = context.obj
    place, output, moment = given.place(), given.output(format), _moment(older_than)
    search = OrphanSearch(moment, not delete, allow_recent, tuple(folder or ()))
    given.run(lambda: actions.orphans_of_table(place, output, table, search))


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no moment: write 2026-01-31 or 2026-01-31T12:00:00Z.",
            param_hint="--older-than",
        ) from None


def main() -> None:
    """Run the command line."""
    app(prog_name="icefloe")
