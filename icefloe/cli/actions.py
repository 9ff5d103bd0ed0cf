"""What each command does; imported when one runs, since Spark's libraries come with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from icefloe.cli import facts
from icefloe.cli.output import Output, describe, write_expired, write_orphans
from icefloe.cli.prompt import prompt
from icefloe.cli.shell import Shell, guarded
from icefloe.cli.worker import ProgressLine, Worker
from icefloe.errors import StatementError, StorageError
from icefloe.lake import Lake, open_catalog
from icefloe.maintenance.orphans import OrphanSearch

STDIN = "-"


@dataclass(frozen=True, slots=True)
class Place:
    """Which lake: a folder, or a catalog of PyIceberg's configuration."""

    warehouse: Path | None
    catalog: str | None

    @contextmanager
    def opened(self) -> Iterator[Lake]:
        """The lake, without a Spark session until one is needed."""
        with Lake(open_catalog(self.warehouse, self.catalog, {})) as lake:
            yield lake

    @contextmanager
    def found(self) -> Iterator[Lake]:
        """The lake, where there is one; looking makes no folder."""
        if self.warehouse is not None and not (self.warehouse.expanduser() / "catalog.db").exists():
            raise StatementError(
                f"There is no lake in {str(self.warehouse)!r}: it has no catalog.db. Choose its "
                "folder with --warehouse, or make one with `icefloe sql 'CREATE TABLE …'`."
            )
        with self.opened() as lake:
            yield lake


def run_sql(place: Place, output: Output, text: str, file: str | None = None) -> None:
    """Run the statements of a text, which is from `file`."""
    with place.opened() as lake, worker_on(lake) as worker:
        Shell(lake, worker, output).run(text, file)


def run_file(place: Place, output: Output, file: str) -> None:
    """Run the statements of a file; `-` is stdin."""
    run_sql(place, output, _text_of(file), "stdin" if file == STDIN else file)


def run_prompt(place: Place, output: Output, *, debug: bool) -> None:
    """Read statements from a terminal and run them."""
    with place.opened() as lake, worker_on(lake) as worker:
        prompt(Shell(lake, worker, output), partial(guarded, debug=debug))


def list_tables(place: Place, output: Output) -> None:
    """The tables of a lake."""
    with place.found() as lake:
        output.records(facts.tables(lake))


def show_table(place: Place, output: Output, name: str) -> None:
    """What there is to say about one table."""
    with place.found() as lake:
        table = lake.table(name)
        describe(facts.facts(table.name, table.iceberg), output)


def show_history(place: Place, output: Output, name: str) -> None:
    """Snapshots of a table, in the order they became current."""
    with place.found() as lake:
        output.records(facts.history(lake.table(name).iceberg, output.format))


def show_files(place: Place, output: Output, name: str) -> None:
    """Live files of a table."""
    with place.found() as lake:
        output.records(facts.files(lake.table(name).iceberg, output.format))


def compact_table(
    place: Place, output: Output, name: str, where: str | None, target_file_bytes: int | None
) -> None:
    """Join small files, split large ones, apply deletes."""
    with place.found() as lake:
        table = lake.table(name)
        with worker_on(lake) as worker:
            result = worker.run(
                lambda _progress: table.compact(where, target_file_bytes=target_file_bytes)
            )
            output.result(result)


def flush_table(place: Place, output: Output, name: str) -> None:
    """Inline rows to data files."""
    with place.found() as lake:
        output.result(lake.table(name).flush())


def expire_table(
    place: Place, output: Output, name: str, older_than: datetime | None, retain_last: int
) -> None:
    """Forget old snapshots, delete their files."""
    with place.found() as lake:
        table = lake.table(name)
        with ProgressLine(lambda: None, "expiring snapshots"):
            result = table.expire_snapshots(older_than=older_than, retain_last=retain_last)
        write_expired(result, output)


def orphans_of_table(place: Place, output: Output, name: str, search: OrphanSearch) -> None:
    """Files that nothing refers to: listed, and deleted when asked."""
    with place.found() as lake:
        table = lake.table(name)
        with ProgressLine(lambda: None, "looking for orphans"):
            result = table.remove_orphans(**asdict(search))
        write_orphans(result, table.location, output)


@contextmanager
def worker_on(lake: Lake) -> Iterator[Worker]:
    """A thread that works on a lake, and the session it started, until done."""
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
