"""Read rows of data files by position: those that an index has found, or finds for some keys.

Only row groups with such rows are decoded, and only the columns that are needed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from icefloe.storage.filesystem import is_local_disk
from icefloe.tasks.arrow import fitted
from icefloe.tasks.btree import CodeTable
from icefloe.tasks.index_codes import EXACT, Coder, Codes, decode, encode
from icefloe.tasks.messages import Positions, Task, unpack
from icefloe.tasks.old_file import OldFile
from icefloe.tasks.sidecars import DamagedSidecarError, SidecarPlace

log = logging.getLogger("icefloe")


@dataclass(frozen=True)
class KeysToMatch:
    """Values of indexed columns, each once, of which rows are read."""

    values: Sequence[pa.Array]  # one array per indexed column, without NULLs
    types: tuple[str, ...]  # of the columns, as Iceberg names them
    only_key: bool = False  # the one column to return: codes that are exact are enough to know it


@dataclass(frozen=True)
class FileToFetch:
    """A data file, and which of its rows to read."""

    filesystem: pafs.FileSystem
    path: str
    uri: str  # as Spark spells it
    rows: int
    deleted: bytes | None = None  # packed positions
    positions: bytes | None = None  # packed; None: of the rows with the plan's keys
    sidecar: SidecarPlace | None = None  # that has the positions of keys


@dataclass(frozen=True)
class FetchPlan:
    """Files to read, and the columns that rows get."""

    files: Sequence[FileToFetch]
    schema: pa.Schema  # the columns to read, as the table has them, with field ids
    output: pa.Schema  # the same columns as Spark takes them, then file and position
    keys: KeysToMatch | None = None


EncodedKeys = dict[Coder, Codes]  # sorted, each once


def fetch_rows(plan: FetchPlan) -> Task:
    """A task that reads rows of the files whose numbers it gets."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoded: EncodedKeys = {}
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _fetch(plan, plan.files[number], encoded)

    return task


def _fetch(plan: FetchPlan, file: FileToFetch, encoded: EncodedKeys) -> Iterator[pa.RecordBatch]:
    if file.positions is not None:
        yield from _read(plan, file, _live(file, unpack(file.positions)))
        return
    try:
        codes, positions = _look_up(plan, file, encoded)
    except FileNotFoundError:
        yield from _read(plan, file, _live(file, np.arange(file.rows)))
    except DamagedSidecarError as damaged:
        log.warning("A sidecar is not used: %s", damaged)
        yield from _read(plan, file, _live(file, np.arange(file.rows)))
    else:
        if codes is not None:
            yield from _decoded(plan, file, codes, positions)
        else:
            yield from _read(plan, file, _live(file, np.unique(positions)))


def _look_up(
    plan: FetchPlan, file: FileToFetch, encoded: EncodedKeys
) -> tuple[Codes | None, Positions]:
    """The positions of rows that may have one of the keys; with codes, if these are enough."""
    keys = plan.keys
    if keys is None or file.sidecar is None:
        raise FileNotFoundError(file.path)
    with file.sidecar.open() as sidecar:
        table = CodeTable.of(sidecar, keys.types)
        if table.coder not in encoded:
            values = _with_prefix(keys.values, table)
            encoded[table.coder] = np.unique(encode(values, table.coder))
        wanted = encoded[table.coder]
        numbers, positions = table.matches(wanted)
    if keys.only_key and table.coder.kind == EXACT:
        return wanted[numbers], positions
    return None, positions


def _with_prefix(values: Sequence[pa.Array], table: CodeTable) -> Sequence[pa.Array]:
    """The values without those that lack the prefix of all values of the file."""
    prefix = table.coder.prefix
    if not prefix:
        return values
    [column] = values
    column = column.cast(pa.large_binary())
    return [column.filter(pc.starts_with(column, prefix))]


def _live(file: FileToFetch, positions: Positions) -> Positions:
    """The positions of rows that are not deleted, ascending."""
    if file.deleted is None:
        return positions
    return np.setdiff1d(positions, unpack(file.deleted), assume_unique=True)


def _decoded(
    plan: FetchPlan, file: FileToFetch, codes: Codes, positions: Positions
) -> Iterator[pa.RecordBatch]:
    """Rows of which only the key is needed, which its code stands for."""
    live = np.ones(len(positions), bool)
    if file.deleted is not None:
        live = ~np.isin(positions, unpack(file.deleted))
    if live.any():
        key = decode(codes[live], plan.schema.field(0).type)
        yield _batch(plan, file, pa.table([key], schema=plan.schema), positions[live])


def _read(plan: FetchPlan, file: FileToFetch, positions: Positions) -> Iterator[pa.RecordBatch]:
    """The rows at some positions, which are sorted."""
    if not len(positions):
        return
    with file.filesystem.open_input_file(file.path) as source:
        is_local = is_local_disk(file.filesystem)
        old = OldFile.open(file.path, source, plan.schema, file.rows, is_local=is_local)
        if reason := old.cannot_carry():
            raise ValueError(f"{file.path} cannot be read by position: {reason}")
        for number, (start, rows) in enumerate(old.groups):
            low, high = np.searchsorted(positions, [start, start + rows])
            if low < high:
                yield from _read_group(plan, file, old, number, positions[low:high])


def _read_group(
    plan: FetchPlan, file: FileToFetch, old: OldFile, number: int, positions: Positions
) -> Iterator[pa.RecordBatch]:
    for start, rows in old.group(number, plan.schema.names):
        low, high = np.searchsorted(positions, [start, start + rows.num_rows])
        if low < high:
            at = positions[low:high]
            yield _batch(plan, file, rows.take(pa.array(at - start)), at)


def _batch(
    plan: FetchPlan, file: FileToFetch, rows: pa.Table, positions: Positions
) -> pa.RecordBatch:
    """Rows in the types that Spark takes, with file and position."""
    arrays = [
        fitted(column, target.type).combine_chunks()
        for column, target in zip(rows.columns, plan.output, strict=False)
    ]
    uri = pa.repeat(pa.scalar(file.uri, plan.output.field(-2).type), len(positions))
    arrays = [*arrays, uri, pa.array(positions, pa.int64())]
    return pa.RecordBatch.from_arrays(arrays, schema=plan.output)
