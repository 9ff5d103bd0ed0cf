"""The work of each command; imported when a command runs, because it imports Spark's libraries."""

from __future__ import annotations

import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from html import escape
from pathlib import Path

from pyspark.sql import SparkSession
from rich.text import Text

from icefloe.cli import facts
from icefloe.cli.output import (
    Output,
    stderr,
    write_expire_result,
    write_orphans_result,
    write_table_facts,
)
from icefloe.cli.prompt import prompt
from icefloe.cli.shell import Shell, run_reporting_errors
from icefloe.cli.worker import ProgressLine, Worker, redirect_stderr, spark_log
from icefloe.errors import (
    IcefloeError,
    SetupError,
    StatementError,
    StorageError,
    TableNotFoundError,
)
from icefloe.inspection.facts import table_facts
from icefloe.lake import Lake, configured_inline_uri, open_catalog
from icefloe.maintenance.orphans import OrphanSearch
from icefloe.redaction import redacted
from icefloe.settings import INLINE, INLINE_STORE

STDIN = "-"
DEFAULT_WAREHOUSE = Path("lake")


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """The lake to open: a folder, or a catalog in PyIceberg's configuration."""

    warehouse: Path | None
    catalog: str | None

    @property
    def command(self) -> Sequence[str]:
        """The words that open this lake on the command line."""
        if self.catalog is not None:
            return ("icefloe", "--catalog", self.catalog)
        if self.warehouse == DEFAULT_WAREHOUSE:
            return ("icefloe",)
        return ("icefloe", "--warehouse", str(self.warehouse))

    @contextmanager
    def open(self) -> Iterator[Lake]:
        """Open the lake; a Spark session starts when it is needed."""
        inline_uri = configured_inline_uri(self.catalog)
        with Lake(open_catalog(self.warehouse, self.catalog, {}), None, inline_uri) as lake:
            yield lake

    @contextmanager
    def open_existing(self) -> Iterator[Lake]:
        """Open a lake that exists; unlike `open` this creates no folder."""
        if self.warehouse is not None and not (self.warehouse.expanduser() / "catalog.db").exists():
            raise StatementError(
                f"There is no lake in {str(self.warehouse)!r}: no catalog.db was found. Set the "
                "folder with --warehouse, or create a lake with `icefloe sql 'CREATE TABLE …'`."
            )
        with self.open() as lake:
            yield lake


def run_sql(options: LakeOptions, output: Output, text: str, file: str | None = None) -> None:
    """Run the statements of a text; error messages name `file` as its origin."""
    with options.open() as lake, worker_on(lake) as worker:
        Shell(lake, worker, output).run(text, file)


def run_file(options: LakeOptions, output: Output, file: str) -> None:
    """Run the statements of a file; `-` is stdin."""
    run_sql(options, output, _text_of(file), "stdin" if file == STDIN else file)


def run_prompt(options: LakeOptions, output: Output, *, debug: bool) -> None:
    """Run statements from the prompt."""
    with options.open() as lake, worker_on(lake) as worker:
        prompt(Shell(lake, worker, output), partial(run_reporting_errors, debug=debug))


def list_tables(options: LakeOptions, output: Output) -> None:
    """List the tables of a lake."""
    with options.open_existing() as lake:
        output.records(facts.tables(lake))


def show_table(options: LakeOptions, output: Output, name: str) -> None:
    """Show columns, partitions, counts, snapshot and properties of a table."""
    with options.open_existing() as lake:
        table = lake.table(name)
        described = table_facts(table.name, table.iceberg)
        inline = table.inline
        described["inline"] = None if inline is None else asdict(inline)
        write_table_facts(described, output)


def show_history(options: LakeOptions, output: Output, name: str) -> None:
    """List the snapshots of a table in the order they became current."""
    with options.open_existing() as lake:
        output.records(facts.history(lake.table(name).iceberg, output.format))


def show_files(options: LakeOptions, output: Output, name: str) -> None:
    """List the live files of a table."""
    with options.open_existing() as lake:
        output.records(facts.files(lake.table(name).iceberg, output.format))


def show_indexes(options: LakeOptions, output: Output, name: str) -> None:
    """List the indexes of a table."""
    with options.open_existing() as lake:
        table = lake.table(name)
        with worker_on(lake) as worker:
            listed = worker.run(lambda _progress: table.indexes().toArrow())
        output.records(facts.of_arrow(listed))


def compact_table(
    options: LakeOptions,
    output: Output,
    name: str,
    where: str | None,
    target_file_bytes: int | None,
) -> None:
    """Merge small files, split large ones, apply deletes."""
    with options.open_existing() as lake:
        table = lake.table(name)
        with worker_on(lake) as worker:
            result = worker.run(
                lambda _progress: table.compact(where, target_file_bytes=target_file_bytes)
            )
            output.result(result)


def flush_tables(
    options: LakeOptions, output: Output, name: str | None, *, due: bool, watch: float | None
) -> None:
    """Move inline rows of one table or of all to data files; with `watch`, again and again.

    What is wrong with one table keeps no other from being flushed, and does not end the watch.
    """
    with options.open_existing() as lake:
        while True:
            failed = []
            for each in [name] if name else lake.tables():
                try:
                    _flush_table(lake, output, each, due=due, named=name is not None)
                except IcefloeError as error:
                    if name and watch is None:
                        raise
                    stderr().print(Text(redacted(f"{each}: {error}"), style="red"))
                    failed.append(each)
            if watch is None:
                break
            time.sleep(watch)
    if failed:
        raise StorageError(f"Not all inline rows were flushed: see {', '.join(failed)}.")


def _flush_table(lake: Lake, output: Output, name: str, *, due: bool, named: bool) -> None:
    try:
        table = lake.table(name)
        if not (named or {INLINE, INLINE_STORE} & table.properties.keys()):
            return  # it has no inline rows, and may be one that icefloe cannot read
    except TableNotFoundError:
        if named:
            raise
        return  # it was dropped since the tables were listed
    inline = table.inline
    is_due = inline is not None and inline.is_due
    if is_due if due else (named or inline):
        output.result(table.flush())


def expire_table(
    options: LakeOptions, output: Output, name: str, older_than: datetime | None, retain_last: int
) -> None:
    """Expire old snapshots and delete the files that only they need."""
    with options.open_existing() as lake:
        table = lake.table(name)
        with ProgressLine(lambda: None, "expiring snapshots"):
            result = table.expire_snapshots(older_than=older_than, retain_last=retain_last)
        write_expire_result(result, output)


def orphans_of_table(options: LakeOptions, output: Output, name: str, search: OrphanSearch) -> None:
    """List files that nothing refers to, and delete them if `search` says so."""
    with options.open_existing() as lake:
        table = lake.table(name)
        with ProgressLine(lambda: None, "searching for orphans"):
            result = table.remove_orphans(**asdict(search))
        write_orphans_result(result, table.location, output)


def show_page(options: LakeOptions, port: int, *, opens_browser: bool) -> None:
    """Serve the web page of a lake until Ctrl-C."""
    try:
        from icefloe.ui.server import serve
    except ImportError as missing:
        raise SetupError(
            f"The web page needs the package {missing.name!r}, which is not installed here: "
            "pip install 'icefloe[ui]'."
        ) from missing

    def opened(address: str) -> None:
        sys.stdout.write(f"{address}\nCtrl-C stops the page.\n")  # never folded
        sys.stdout.flush()
        if opens_browser:
            webbrowser.open(resources.enter_context(_redirect_to(address)).as_uri())

    with ExitStack() as resources, options.open_existing() as lake:

        def start_spark() -> SparkSession:
            with redirect_stderr(spark_log()):
                return lake.spark

        place = options.catalog or str(options.warehouse)
        serve(lake, place, port, opened, start_spark, options.command)


@contextmanager
def _redirect_to(address: str) -> Iterator[Path]:
    """A file that leads to an address, for this user alone: command lines are seen by all."""
    with tempfile.NamedTemporaryFile("w", prefix="icefloe-", suffix=".html", delete=False) as file:
        file.write(f'<meta http-equiv="refresh" content="0; url={escape(address)}">')
    try:
        yield Path(file.name)
    finally:
        Path(file.name).unlink(missing_ok=True)


@contextmanager
def worker_on(lake: Lake) -> Iterator[Worker]:
    """A worker for a lake; at the end it stops, with a session that it started."""
    worker = Worker(lake)
    try:
        yield worker
    finally:
        worker.stop()


def _text_of(file: str) -> str:
    if file == STDIN:
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{file} cannot be read: {error}") from error
