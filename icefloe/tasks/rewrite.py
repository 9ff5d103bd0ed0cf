"""Rewrite data files inside a Spark task: copy-on-write without a row passing the JVM.

Changes arrive sorted by file and position. Each file is streamed once, its deleted rows left out
and its updated rows given their new values in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icefloe.tasks.positions import Positions, pack, unpack
from icefloe.tasks.results import as_batch
from icefloe.tasks.write import DataFileWriter, FileLayout

_BATCH_ROWS = 65_536
_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class FileToRewrite:
    """A file that may be rewritten: where it is, and its rows already deleted."""

    path: str  # as the file system spells it
    folder: str  # of the file, as Iceberg spells it
    deleted: bytes | None = None


@dataclass(frozen=True)
class RewritePlan:
    """How the files of one statement are rewritten."""

    layout: FileLayout
    files: Mapping[str, FileToRewrite]  # by the URI Spark reads them under
    file_column: str
    pos_column: str
    assigned: Mapping[str, str] = field(default_factory=dict)  # table column -> change column
    # Which changes are deletions; without it all are, or none when there are new values.
    gone_column: str | None = None


def rewrite_files(
    plan: RewritePlan,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A `mapInArrow` task: rewrite each file that has changes, tell what became of it."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for uri, changes in _changes_by_file(batches, plan.file_column):
            yield as_batch([{"rewrite": rewrite_file(plan, uri, changes)}])

    return task


def rewrite_file(plan: RewritePlan, uri: str, changes: pa.Table) -> dict[str, object]:
    """Write one file anew with `changes` applied.

    A file whose columns cannot be carried over here is declined with the reason, and nothing is
    written; the driver then rewrites it through Spark.
    """
    target = plan.files[uri]
    positions = changes.column(plan.pos_column).to_numpy()
    gone = unpack(target.deleted) if target.deleted else np.empty(0, dtype=np.int64)
    goes = _deletions(plan, changes)
    with plan.layout.filesystem.open_input_file(target.path) as source:
        parquet = pq.ParquetFile(source)
        reason = _cannot_carry(parquet.schema_arrow, plan.layout.schema)
        if reason:
            return {"uri": uri, "declined": reason, "positions": pack(positions)}
        writer = DataFileWriter(
            replace(
                plan.layout,
                partition_fields=(),
                location=target.folder,
                folder=target.path.rpartition("/")[0],
            )
        )
        try:
            for start, table in _projected(parquet, plan.layout.schema):
                writer.write(_apply(plan, table, start, _Changes(positions, goes, changes), gone))
            writer.close()
        except BaseException:
            writer.abandon()
            raise
    return {
        "uri": uri,
        "files": writer.results,
        "updated": int((~goes).sum()),
        "deleted": int(goes.sum()),
        "copied": parquet.metadata.num_rows - len(gone) - len(positions),
    }


@dataclass(frozen=True)
class _Changes:
    """The changes of one file, by position."""

    positions: Positions
    goes: npt.NDArray[np.bool_]  # which delete their row
    values: pa.Table


def _deletions(plan: RewritePlan, changes: pa.Table) -> npt.NDArray[np.bool_]:
    """Which changes delete their row."""
    if plan.gone_column is None:
        return np.full(changes.num_rows, not plan.assigned)
    told: npt.NDArray[np.bool_] = changes.column(plan.gone_column).to_numpy()
    return told


def _apply(
    plan: RewritePlan,
    table: pa.Table,
    start: int,
    changes: _Changes,
    gone: Positions,
) -> pa.Table:
    """The rows of one batch, from position `start`: updated ones with their new values."""
    low, high = np.searchsorted(changes.positions, [start, start + table.num_rows])
    local, goes = changes.positions[low:high] - start, changes.goes[low:high]
    keep = np.ones(table.num_rows, dtype=bool)
    first, last = np.searchsorted(gone, [start, start + table.num_rows])
    keep[gone[first:last] - start] = False
    keep[local[goes]] = False
    if not goes.all():
        new = changes.values.slice(low, high - low)
        table = _replace_values(table, local, ~goes, new, plan.assigned)
    return table if keep.all() else table.filter(pa.array(keep))


def _replace_values(
    table: pa.Table,
    rows: Positions,
    chosen: npt.NDArray[np.bool_],
    changes: pa.Table,
    assigned: Mapping[str, str],
) -> pa.Table:
    """Give the chosen rows new values: taken from the old column and the new, laid end to end."""
    indices = np.arange(table.num_rows)
    indices[rows[chosen]] = table.num_rows + np.flatnonzero(chosen)
    for name, change in assigned.items():
        index = table.schema.get_field_index(name)
        wanted = table.schema.field(index)
        new = pc.cast(changes.column(change), wanted.type)
        both = pa.chunked_array([*table.column(index).chunks, *new.chunks], type=wanted.type)
        table = table.set_column(index, wanted, both.combine_chunks().take(pa.array(indices)))
    return table


def _changes_by_file(
    batches: Iterator[pa.RecordBatch], file_column: str
) -> Iterator[tuple[str, pa.Table]]:
    """The changes of one file at a time; only one file's are held."""
    current: str | None = None
    held: list[pa.RecordBatch] = []
    for batch in batches:
        for uri, part in _split_by_file(batch, file_column):
            if uri != current and held and current is not None:
                yield current, pa.Table.from_batches(held)
                held = []
            current = uri
            held.append(part)
    if held and current is not None:
        yield current, pa.Table.from_batches(held)


def _split_by_file(batch: pa.RecordBatch, file_column: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    codes = batch.column(file_column).dictionary_encode().indices.to_numpy()
    starts = [0, *(int(i) + 1 for i in np.flatnonzero(codes[1:] != codes[:-1]))]
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        yield batch.column(file_column)[start].as_py(), batch.slice(start, end - start)


def _cannot_carry(found: pa.Schema, wanted: pa.Schema) -> str | None:
    """Why a file's columns cannot be taken over as they are; None when they can."""
    by_id = {_field_id(f): f for f in found}
    if None in by_id:
        return "the file has columns without field ids"
    if not any(_field_id(field_) in by_id for field_ in wanted):
        return "the file has none of the table's columns"
    for field_ in wanted:
        have = by_id.get(_field_id(field_))
        if have is None and not field_.nullable:
            return f"the file lacks the required column {field_.name!r}"
        if have is not None and pa.types.is_nested(field_.type) and not _same(have, field_):
            return f"the nested column {field_.name!r} has changed since the file was written"
    return None


def _same(have: pa.Field, wanted: pa.Field) -> bool:
    """Whether two nested fields have the same ids, names and types at every level."""
    if _field_id(have) != _field_id(wanted):
        return False
    if not pa.types.is_nested(wanted.type):
        return bool(have.type == wanted.type)
    if have.type.id != wanted.type.id or have.type.num_fields != wanted.type.num_fields:
        return False
    pairs = [(have.type.field(i), wanted.type.field(i)) for i in range(wanted.type.num_fields)]
    return all(
        _same(a, b) and (a.name == b.name or not pa.types.is_struct(wanted.type)) for a, b in pairs
    )


def _field_id(field_: pa.Field) -> str | None:
    found = (field_.metadata or {}).get(_FIELD_ID)
    return found.decode() if found else None


def _projected(parquet: pq.ParquetFile, wanted: pa.Schema) -> Iterator[tuple[int, pa.Table]]:
    """The file's rows in the wanted schema, by field id, with the position each batch starts at."""
    names = {_field_id(f): f.name for f in parquet.schema_arrow}
    chosen = [names[_field_id(f)] for f in wanted if _field_id(f) in names]
    start = 0
    for batch in parquet.iter_batches(_BATCH_ROWS, columns=chosen):
        columns = [_column(batch, names.get(_field_id(f)), f) for f in wanted]
        yield start, pa.Table.from_arrays(columns, schema=wanted)
        start += batch.num_rows


def _column(batch: pa.RecordBatch, name: str | None, wanted: pa.Field) -> pa.Array:
    if name is None:
        return pa.nulls(batch.num_rows, wanted.type)
    column = batch.column(batch.schema.get_field_index(name))
    return column if column.type == wanted.type else pc.cast(column, wanted.type)
