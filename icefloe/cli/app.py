"""`icefloe`: the commands and their options. Spark is imported only when a command runs."""

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
    from icefloe.cli.actions import LakeOptions

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
    typer.Option("--format", help="Output format; json prints one object per line."),
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="Most rows to print.  [default: 100 in a table, else all]"),
]
OlderOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIMESTAMP", help="2026-01-31 or 2026-01-31T12:00:00Z; without a zone, local time."
    ),
]
TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="namespace.table")]


@dataclass(frozen=True, slots=True)
class _GlobalOptions:
    """The options before the command."""

    warehouse: Path | None
    catalog: str | None
    format: Format | None
    debug: bool

    def lake(self) -> LakeOptions:
        """The lake to open; the folder `lake` by default."""
        from icefloe.cli.actions import DEFAULT_WAREHOUSE, LakeOptions

        warehouse = self.warehouse if self.catalog else self.warehouse or DEFAULT_WAREHOUSE
        return LakeOptions(warehouse, self.catalog)

    def output(self, format: Format | None, limit: int | None = None) -> Output:
        """The output; a --format after the command overrides one before it."""
        return Output(format or self.format or Format.TABLE, limit)

    def run(self, work: Callable[[], None]) -> None:
        """Run a command and exit with its status."""
        from icefloe.cli.shell import run_reporting_errors

        raise typer.Exit(run_reporting_errors(work, debug=self.debug))


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def global_options(
    context: typer.Context,
    warehouse: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Folder of the lake.  [default: lake]"),
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Catalog in PyIceberg's configuration, instead of a folder."
        ),
    ] = None,
    format: FormatOption = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
    version: Annotated[  # noqa: ARG001  its callback prints it
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Read the options before the command."""
    if warehouse is not None and catalog is not None:
        raise typer.BadParameter("Use either --warehouse or --catalog, not both.")
    context.obj = _GlobalOptions(warehouse, catalog, format, debug)


@app.command()
def demo(context: typer.Context) -> None:
    """Run a guided tour on a new lake in ./demo-lake."""
    from icefloe.cli.demo import run_demo

    options: _GlobalOptions = context.obj
    if options.catalog is not None:
        raise typer.BadParameter(
            "The demo creates a lake in a folder: use --warehouse instead of --catalog."
        )
    options.run(lambda: run_demo(options.warehouse or Path("demo-lake")))


@app.command()
def doctor(
    context: typer.Context,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Start no Spark session.")] = False,
    format: FormatOption = None,
) -> None:
    """Check this machine and the lake: one line each, with the way out.

    The exit status is 1 if a check failed. A probe file in the lake's store is deleted again.
    """
    from icefloe.cli.doctor import Target, run_doctor

    options: _GlobalOptions = context.obj
    is_named = options.warehouse is not None or options.catalog is not None
    warehouse = options.warehouse if is_named else Path("lake")
    target = Target(warehouse, options.catalog, is_named)
    raise typer.Exit(run_doctor(target, options.output(format), start_spark=not no_spark))


@app.command()
def sql(
    context: typer.Context,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="Statements separated by semicolons.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("-f", "--file", metavar="FILE", help="File of statements; - is stdin."),
    ] = None,
    format: FormatOption = None,
    limit: LimitOption = None,
) -> None:
    """Run SQL from TEXT, a file, or a prompt."""
    from icefloe.cli import actions

    options: _GlobalOptions = context.obj
    if text is not None and file is not None:
        raise typer.BadParameter("Use either TEXT or -f, not both.")
    lake, output = options.lake(), options.output(format, limit)
    if text is not None:
        options.run(lambda: actions.run_sql(lake, output, text))
    elif file is not None or not sys.stdin.isatty():
        options.run(lambda: actions.run_file(lake, output, file or "-"))
    else:
        options.run(lambda: actions.run_prompt(lake, output, debug=options.debug))


@app.command()
def tables(context: typer.Context, format: FormatOption = None) -> None:
    """List the tables and their sizes."""
    from icefloe.cli import actions

    options: _GlobalOptions = context.obj
    options.run(lambda: actions.list_tables(options.lake(), options.output(format)))


@app.command()
def show(context: typer.Context, table: TableArgument, format: FormatOption = None) -> None:
    """Show a table's columns, partitions and counts."""
    from icefloe.cli import actions

    options: _GlobalOptions = context.obj
    options.run(lambda: actions.show_table(options.lake(), options.output(format), table))


@app.command()
def history(context: typer.Context, table: TableArgument, format: FormatOption = None) -> None:
    """List the snapshots that were current, in order."""
    from icefloe.cli import actions

    options: _GlobalOptions = context.obj
    options.run(lambda: actions.show_history(options.lake(), options.output(format), table))


@app.command()
def files(context: typer.Context, table: TableArgument, format: FormatOption = None) -> None:
    """List a table's data and delete files."""
    from icefloe.cli import actions

    options: _GlobalOptions = context.obj
    options.run(lambda: actions.show_files(options.lake(), options.output(format), table))


@app.command()
def indexes(context: typer.Context, table: TableArgument, format: FormatOption = None) -> None:
    """List a table's indexes and how much of it they cover."""
    from icefloe.cli import actions

    options: _GlobalOptions = context.obj
    options.run(lambda: actions.show_indexes(options.lake(), options.output(format), table))


@app.command()
def compact(
    context: typer.Context,
    table: TableArgument,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="Rewrite only files that may contain such rows."),
    ] = None,
    target_file_bytes: Annotated[
        int | None,
        typer.Option(min=1, metavar="BYTES", help="Target file size, instead of the table's."),
    ] = None,
    format: FormatOption = None,
) -> None:
    """Merge small files, split large ones, apply deletes."""
    from icefloe.cli import actions

    options: _GlobalOptions = context.obj
    lake, output = options.lake(), options.output(format)
    options.run(lambda: actions.compact_table(lake, output, table, where, target_file_bytes))


@app.command()
def flush(
    context: typer.Context,
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="namespace.table; all tables if not set")
    ] = None,
    due: Annotated[
        bool, typer.Option("--due", help="Only rows that are over the table's limits.")
    ] = False,
    watch: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="Repeat, with this pause, until Ctrl-C."),
    ] = None,
    format: FormatOption = None,
) -> None:
    """Move inline rows to data files."""
    from icefloe.cli import actions

    options: _GlobalOptions = context.obj
    lake, output = options.lake(), options.output(format)
    options.run(lambda: actions.flush_tables(lake, output, table, due=due, watch=watch))


@app.command()
def expire(
    context: typer.Context,
    table: TableArgument,
    older_than: OlderOption = None,
    retain_last: Annotated[
        int, typer.Option(min=1, metavar="N", help="Snapshots that each branch keeps.")
    ] = 1,
    format: FormatOption = None,
) -> None:
    """Expire old snapshots and delete the files that only they need.

    By default snapshots expire after 5 days, or as the table's properties say.
    """
    from icefloe.cli import actions

    options: _GlobalOptions = context.obj
    lake, output, cutoff = options.lake(), options.output(format), _timestamp(older_than)
    options.run(lambda: actions.expire_table(lake, output, table, cutoff, retain_last))


@app.command()
def orphans(
    context: typer.Context,
    table: TableArgument,
    older_than: OlderOption = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the files instead of listing them.")
    ] = False,
    allow_recent: Annotated[
        bool,
        typer.Option(
            "--allow-recent", help="Allow files younger than a day; stop all writers first."
        ),
    ] = False,
    folder: Annotated[
        list[str] | None,
        typer.Option(
            "--folder",
            metavar="LOCATION",
            help="Folder of the table whose files all belong to it. Can be repeated.",
        ),
    ] = None,
    format: FormatOption = None,
) -> None:
    """List or delete files that nothing refers to.

    By default files count from an age of 3 days.
    """
    from icefloe.cli import actions
    from icefloe.maintenance.orphans import OrphanSearch

    options: _GlobalOptions = context.obj
    lake, output, cutoff = options.lake(), options.output(format), _timestamp(older_than)
    search = OrphanSearch(cutoff, not delete, allow_recent, tuple(folder or ()))
    options.run(lambda: actions.orphans_of_table(lake, output, table, search))


@app.command()
def ui(
    context: typer.Context,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, metavar="N", help="Port on 127.0.0.1; 0 for a free one."),
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address and open no browser.")
    ] = False,
) -> None:
    """Show the lake as a read-only web page, on this machine alone."""
    from icefloe.cli import actions

    options: _GlobalOptions = context.obj
    options.run(lambda: actions.show_page(options.lake(), port, opens_browser=not no_browser))


def _timestamp(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a valid timestamp: use 2026-01-31 or 2026-01-31T12:00:00Z.",
            param_hint="--older-than",
        ) from None


def main() -> None:
    """Run the command line."""
    app(prog_name="icefloe")
