"""Tables with indexes that never ask for Spark: PyIceberg writes the rows, a function the sidecars."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
from pyarrow.fs import LocalFileSystem
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from icefloe import Lake, Table
from icefloe.indexes.definitions import definitions_of, folder_of, to_write, usable
from icefloe.indexes.lookup import LookupResult, look_up
from icefloe.metadata.files import LiveFile
from icefloe.metadata.table_state import TableState
from icefloe.pruning.comparisons import FilePredicate
from icefloe.pruning.conditions import lower
from icefloe.storage.files import locate
from icefloe.tasks.index_files import index_file
from icefloe.tasks.sidecars import IndexedFile, sidecar_path
from support.tables import data_files

Rows = Sequence[dict[str, Any]]


def make_table(lake: Lake, name: str, schema: Schema, *batches: Rows) -> Table:
    """A table with one data file per batch."""
    lake.create_namespace("default")
    lake.catalog.create_table(f"default.{name}", schema)
    table = lake.table(name)
    for rows in batches:
        append_rows(table, rows)
    return table


def append_rows(table: Table, rows: Rows) -> None:
    """One data file, written by PyIceberg."""
    schema = schema_to_pyarrow(table.iceberg.schema(), include_field_ids=False)
    table.iceberg.append(pa.Table.from_pylist(list(rows), schema=schema))


def define_index(table: Table, name: str, *columns: str, index_id: str = "") -> None:
    """Define an index as `create_index` does, without its sidecars."""
    schema = table.iceberg.schema()
    definition = {
        "v": 1,
        "id": index_id or f"{crc32(name.encode()):08x}",
        "kind": "btree",
        "fields": [schema.find_field(column).field_id for column in columns],
        "params": {"on_write": True},
        "made": 0,
    }
    with table.iceberg.transaction() as transaction:
        transaction.set_properties({f"icefloe.indexes.{name}": json.dumps(definition)})


def build_sidecars(table: Table, *files: LiveFile) -> list[str]:
    """Write the sidecars of every index; returns why some files have none."""
    state = table._state()
    problems: list[str] = []
    for live in files or data_files(table):
        problems += index_file(to_write(state, usable(state)), as_indexed(live))
    return problems


def sidecar_of(table: Table, index: str, live: LiveFile) -> Path:
    """Where the sidecar of a data file is, whether it exists or not."""
    state = table._state()
    [definition] = [each for each in definitions_of(state.metadata) if each.name == index]
    folder = locate(state.io, folder_of(state, definition)).path
    return Path(sidecar_path(folder, live.path))


def stored_sidecars(table: Table) -> set[Path]:
    """Every file in the folder of the table's sidecars."""
    state = table._state()
    folder = Path(locate(state.io, state.index_location).path)
    return {path for path in folder.rglob("*") if path.is_file()}


def asked(
    state: TableState, files: Sequence[LiveFile], condition: str
) -> tuple[FilePredicate, LookupResult]:
    """A condition, and what the table's indexes say of some data files."""
    lowered = lower(condition, state.schema, time_zone="UTC")
    return lowered, look_up(state, lowered.inclusive, files)


def found_rows(
    state: TableState, files: Sequence[LiveFile], condition: str
) -> list[list[int] | None]:
    """Per data file the rows that an index found; None where none has an answer."""
    answers = asked(state, files, condition)[1].answers
    found = [answers.get(live.path) for live in files]
    return [None if answer is None else list(answer.positions) for answer in found]


def positions(table: Table, condition: str) -> list[list[int] | None]:
    """The same of every data file of a table."""
    return found_rows(table._state(), data_files(table), condition)


@contextmanager
def warnings_of_icefloe() -> Iterator[list[str]]:
    """The warnings that the block logs."""
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    log, handler = logging.getLogger("icefloe"), Handler(logging.WARNING)
    log.addHandler(handler)
    try:
        yield messages
    finally:
        log.removeHandler(handler)


def as_indexed(live: LiveFile) -> IndexedFile:
    """A data file on the local disk, as sidecars are written for it."""
    path = live.path.removeprefix("file://")
    return IndexedFile(LocalFileSystem(), path, live.path, live.size, live.rows)
