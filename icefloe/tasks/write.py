"""Write rows as Parquet data files inside a Spark task.

Rows arrive sorted by partition, so one file is open at a time. Files are written under their final
names: Iceberg publishes them by a commit, so nothing is renamed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from urllib.parse import quote_plus

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyarrow.types as pt

from icefloe.storage.filesystem import close_quietly, delete_quietly, open_output
from icefloe.tasks.arrow import (
    NanCounter,
    column_metrics,
    fitted,
    split_offsets,
    with_values_below_nulls,
)
from icefloe.tasks.index_files import index_file
from icefloe.tasks.messages import (
    ChangeCollector,
    ChangeColumns,
    NullInRequiredError,
    RowOutsideError,
    Task,
    WrittenFile,
    as_batch,
)
from icefloe.tasks.sidecars import IndexedFile, IndexToWrite, columns_by_id, delete_sidecars

_EPOCH = date(1970, 1, 1)
_SHOWN_VALUES = 8  # of a row in an error message
_SAMPLE = 16_384  # values


@dataclass(frozen=True)
class PartitionField:
    """A partition field: its column in the rows, its name, and its transform, for paths."""

    column: str
    name: str
    transform: str


@dataclass(frozen=True)
class FileLayout:
    """Where data files are written and how they are encoded."""

    schema: pa.Schema
    filesystem: pafs.FileSystem
    folder: str  # the path in the file system
    location: str  # the same folder as an Iceberg location
    statement_id: str
    target_file_bytes: int
    row_group_bytes: int
    row_group_rows: int
    parquet: dict[str, object]
    partition_fields: tuple[PartitionField, ...] = ()
    cut: str | None = None  # a column: where its value changes, a file ends
    indexes: tuple[IndexToWrite, ...] = ()  # that every file gets sidecars of


# -------------------------------------------------------------------------------------------------
# Tasks.


def write_rows(
    layout: FileLayout,
    columns: Sequence[str],
    changes: ChangeColumns | None = None,
    outside: tuple[str, Sequence[str]] | None = None,
) -> Task:
    """A task that writes `columns` of each row and reports the files.

    With `changes`, rows stand for rows of the table: the task also reports their positions by
    action, and does not write rows that only delete another. `outside` is a column and a list of
    predicates: the column has the number of a predicate that the row does not satisfy, or NULL.
    One row with a number fails the task.
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        collector = ChangeCollector(changes) if changes else None
        writers: list[DataFileWriter] = []
        current: object = None
        try:
            for cut, partition, run in _runs(batches, layout):
                rows = _fit(run.select(columns), layout.schema)
                if collector is not None and changes is not None:
                    collector.add(run)
                    rows = _rows_to_write(rows, run, changes)
                if not rows.num_rows:
                    continue
                if not writers or current != (cut, partition):
                    if writers:
                        writers[-1].close()
                    writers.append(DataFileWriter(layout, partition))
                    current = cut, partition
                _refuse_outside(run, rows, outside)
                writers[-1].write(rows)
            if writers:
                writers[-1].close()
        except BaseException:
            for writer in writers:
                writer.abandon()
            raise
        files = [file for writer in writers for file in writer.files]
        yield as_batch([*files, *(collector.messages() if collector else ())])

    return task


def collect_changes(changes: ChangeColumns) -> Task:
    """A task that reports the positions of its rows, by action."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        collector = ChangeCollector(changes)
        for batch in batches:
            collector.add(batch)
        yield as_batch(collector.messages())

    return task


def _runs(
    batches: Iterator[pa.RecordBatch], layout: FileLayout
) -> Iterator[tuple[object, tuple[object, ...], pa.Table]]:
    """Batches split where the partition changes, and where a file has to end."""
    names = [f.column for f in layout.partition_fields]
    cuts = [layout.cut] if layout.cut else []
    for batch in batches:
        if not batch.num_rows:
            continue
        table = pa.Table.from_batches([batch])
        starts = _run_starts(batch, [*cuts, *names])
        for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            values = tuple(batch.column(name)[start].as_py() for name in names)
            cut = batch.column(layout.cut)[start].as_py() if layout.cut else None
            yield cut, values, table.slice(start, end - start)


def _run_starts(batch: pa.RecordBatch, names: Sequence[str]) -> list[int]:
    differs = np.zeros(batch.num_rows, dtype=bool)
    differs[0] = True
    for name in names:
        codes = batch.column(name).dictionary_encode().indices.fill_null(-1)
        numbers = codes.to_numpy(zero_copy_only=False)
        differs[1:] |= numbers[1:] != numbers[:-1]
    return [int(start) for start in np.flatnonzero(differs)]


def _fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows in the file's exact Arrow types; NULLs are checked later, by name."""
    columns = [
        fitted(column, target.type) for column, target in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _rows_to_write(rows: pa.Table, run: pa.Table, changes: ChangeColumns) -> pa.Table:
    """The rows that become rows of a new file.

    They have the file's types already: PyArrow aborts on a cast of maps that it filtered.
    """
    if changes.action is None:
        return rows
    actions = pa.array(sorted(changes.written), pa.int32())
    is_written = pc.is_in(run[changes.action], value_set=actions)
    return rows if pc.all(is_written).as_py() else rows.filter(is_written)


def _refuse_outside(
    run: pa.Table, rows: pa.Table, outside: tuple[str, Sequence[str]] | None
) -> None:
    """Raise for the first row that has the number of a predicate, showing some of its values."""
    if outside is None:
        return
    column, predicates = outside
    numbers = run.column(column)
    if numbers.null_count == len(numbers):
        return
    first = pc.index(pc.is_valid(numbers), True).as_py()
    values = list(rows.slice(first, 1).to_pylist()[0].items())
    shown = ", ".join(f"{name}={value!r:.60}" for name, value in values[:_SHOWN_VALUES])
    more = ", …" if len(values) > _SHOWN_VALUES else ""
    raise RowOutsideError(predicates[numbers[first].as_py()], f"({shown}{more})")


# -------------------------------------------------------------------------------------------------
# Data files.


class DataFileWriter:
    """Writes the rows of one partition, rolling to a new file at the target size."""

    def __init__(self, layout: FileLayout, partition: tuple[object, ...] = ()) -> None:
        self.layout = layout
        self.files: list[WrittenFile] = []
        self._partition = partition
        self._names: list[str] = []  # every file that was opened
        self._places = _indexed_places(layout)
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._pending_rows = 0
        self._indexed: dict[int, list[pa.Array]] = {}  # columns of the open file, by id
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        """Write rows that have the layout's schema."""
        refuse_nulls(table, self.layout.schema)
        table = with_values_below_nulls(table)
        for piece in self._pieces(table):
            self._pending.append(piece)
            self._pending_bytes += piece.nbytes
            self._pending_rows += piece.num_rows
            if self._group_is_full():
                self._flush()

    def close(self) -> None:
        """Finish the open file."""
        if self._pending_rows:
            self._flush()
        self._roll()

    def abandon(self) -> None:
        """Delete what was written: the task failed, so nothing will refer to it."""
        if self._writer is not None:
            self._writer.is_open = False  # otherwise it finishes the file when it is collected
            path = f"{self.layout.folder}/{self._names[-1]}"
            close_quietly(self._sink, self.layout.filesystem, path, self._writer)
            self._writer = None
        for name in self._names:
            abandon_file(self.layout, name)

    def _group_is_full(self) -> bool:
        limit = min(self.layout.row_group_bytes, self.layout.target_file_bytes)
        return self._pending_bytes >= limit or self._pending_rows >= self.layout.row_group_rows

    def _pieces(self, table: pa.Table) -> Iterator[pa.Table]:
        """The rows in slices no larger than a row group."""
        limit = min(self.layout.row_group_bytes, self.layout.target_file_bytes)
        row_bytes = max(1, table.nbytes // max(1, table.num_rows))
        rows = max(1, min(self.layout.row_group_rows, limit // row_bytes))
        for start in range(0, table.num_rows, rows):
            yield table.slice(start, rows)

    def _flush(self) -> None:
        group = pa.concat_tables(self._pending)
        self._pending, self._pending_bytes, self._pending_rows = [], 0, 0
        if self._writer is None:
            self._open(group)
        self._nans.add(group)
        for field_id, parts in self._indexed.items():
            parts.append(_copied(group.column(self._places[field_id])))
        assert self._writer is not None  # noqa: S101 - just opened
        before = self._sink.tell()
        self._writer.write_table(group, row_group_size=group.num_rows)
        after = self._sink.tell()
        # Stop where the file is nearest to its target, expecting the next group to be as large.
        if after + (after - before) // 2 >= self.layout.target_file_bytes:
            self._roll()

    def _open(self, first: pa.Table) -> None:
        folder = partition_path(self.layout.partition_fields, self._partition)
        name = f"{folder}{new_name(self.layout)}"
        path = f"{self.layout.folder}/{name}"
        self._sink = open_output(self.layout.filesystem, path)
        self._names.append(name)
        self._footer: list[pq.FileMetaData] = []
        self._nans = NanCounter()
        self._indexed = {i: [] for i in self._places}
        try:
            self._writer = pq.ParquetWriter(
                self._sink,
                self.layout.schema,
                metadata_collector=self._footer,
                use_dictionary=columns_with_repeats(first) or False,
                **self.layout.parquet,
            )
        except BaseException:
            close_quietly(self._sink, self.layout.filesystem, path)
            raise

    def _roll(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._sink.flush()
        size = self._sink.tell()
        self._sink.close()
        self._writer = None
        footer = self._footer[0]
        name = self._names[-1]
        columns = {i: pa.chunked_array(parts) for i, parts in self._indexed.items()}
        self._indexed = {}
        self.files.append(
            WrittenFile(
                path=f"{self.layout.location}/{name}",
                partition=self._partition,
                rows=footer.num_rows,
                size=size,
                columns=column_metrics(footer),
                nans=self._nans.counts,
                split_offsets=split_offsets(footer),
                not_indexed=index_written(self.layout, name, size, footer.num_rows, columns),
            )
        )


def index_written(
    layout: FileLayout,
    name: str,
    size: int,
    rows: int,
    columns: Mapping[int, pa.ChunkedArray] | None = None,
) -> tuple[str, ...]:
    """Write the sidecars of a data file; returns why some could not be written.

    `columns` are those that are still in memory, by field id.
    """
    if not layout.indexes:
        return ()
    return index_file(layout.indexes, indexed_file(layout, name, size, rows, columns or {}))


def indexed_file(
    layout: FileLayout, name: str, size: int, rows: int, columns: Mapping[int, pa.ChunkedArray]
) -> IndexedFile:
    """A file of the layout as one to write sidecars for."""
    location, path = f"{layout.location}/{name}", f"{layout.folder}/{name}"
    return IndexedFile(layout.filesystem, path, location, size, rows, columns)


def _indexed_places(layout: FileLayout) -> dict[int, int]:
    """Where the columns of the layout's indexes are in its schema, by field id."""
    wanted = {field_id for index in layout.indexes for field_id in index.field_ids}
    return {i: place for i, place in columns_by_id(layout.schema).items() if i in wanted}


def _copied(column: pa.ChunkedArray) -> pa.Array:
    """A copy: the columns of a batch are in one buffer, which would stay in memory with any."""
    return pa.concat_arrays([*column.chunks, column.chunk(0).slice(0, 0)])


def abandon_file(layout: FileLayout, name: str) -> None:
    """Delete a data file of a failed task, and its sidecars."""
    delete_quietly(layout.filesystem, f"{layout.folder}/{name}")
    delete_sidecars(layout.indexes, f"{layout.location}/{name}")


def new_name(layout: FileLayout) -> str:
    """A unique file name that contains the statement's id, so that the file can be found by it."""
    return f"{layout.statement_id}-{uuid.uuid4().hex[:12]}.parquet"


def partition_path(fields: Sequence[PartitionField], values: Sequence[object]) -> str:
    """`name=value/` for every partition field, as Hive and Iceberg write it."""
    return "".join(
        f"{quote_plus(f.name)}={quote_plus(_readable(f.transform, value), safe='')}/"
        for f, value in zip(fields, values, strict=True)
    )


def _readable(transform: str, value: object) -> str:
    """A partition value as people read it: dates rather than days since 1970."""
    if value is None:
        return "null"
    if transform == "year":
        return f"{1970 + int(str(value)):04d}"
    if transform == "month":
        months = int(str(value))
        return f"{1970 + months // 12:04d}-{months % 12 + 1:02d}"
    if transform == "hour":
        hours = int(str(value))
        return f"{(_EPOCH + timedelta(days=hours // 24)).isoformat()}-{hours % 24:02d}"
    if transform == "day":
        return (_EPOCH + timedelta(days=int(str(value)))).isoformat()
    if transform == "timestamp":
        return (datetime(1970, 1, 1) + timedelta(microseconds=int(str(value)))).isoformat()  # noqa: DTZ001
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


# -------------------------------------------------------------------------------------------------
# NULLs in required columns.


def refuse_nulls(table: pa.Table, schema: pa.Schema) -> None:
    """Raise NullInRequiredError when a required column of the schema has a NULL."""
    for column, target in zip(table.columns, schema, strict=True):
        for chunk in column.chunks:
            _refuse_nulls(target.name, target, chunk)


def _refuse_nulls(path: str, target: pa.Field, array: pa.Array) -> None:
    if not target.nullable and array.null_count:
        raise NullInRequiredError(path)
    kind = target.type
    if pt.is_struct(kind):
        present = array.drop_null() if array.null_count else array
        for index, child in enumerate(kind):
            _refuse_nulls(f"{path}.{child.name}", child, present.field(index))
    elif pt.is_map(kind):
        _refuse_nulls(f"{path}.value", kind.item_field, _elements(array).field(1))
    elif pt.is_list(kind) or pt.is_large_list(kind):
        _refuse_nulls(f"{path}.element", kind.value_field, _elements(array))


def _elements(array: pa.Array) -> pa.Array:
    """The elements of lists or maps, without those under NULLs and outside a slice."""
    present = array.drop_null() if array.null_count else array
    if not len(present):
        return present.values.slice(0, 0)
    first, last = present.offsets[0].as_py(), present.offsets[-1].as_py()
    return present.values.slice(first, last - first)


# -------------------------------------------------------------------------------------------------
# Dictionary encoding.


def columns_with_repeats(first: pa.Table) -> list[str]:
    """The leaf columns, by path, whose values occur twice on average in the first rows."""
    sample = first.slice(0, _SAMPLE).combine_chunks()
    leaves = (
        leaf
        for name, column in zip(sample.column_names, sample.columns, strict=True)
        for chunk in column.chunks
        for leaf in _leaves(name, chunk)
    )
    return [path for path, values in leaves if _repeats(values.slice(0, _SAMPLE))]


def _leaves(path: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    if isinstance(array, pa.ExtensionArray):  # a UUID
        array = array.storage
    kind = array.type
    if pt.is_struct(kind):
        for index, child in enumerate(array.flatten()):
            yield from _leaves(f"{path}.{kind.field(index).name}", child)
    elif pt.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", array.keys)
        yield from _leaves(f"{path}.key_value.value", array.items)
    elif pt.is_list(kind) or pt.is_large_list(kind):
        yield from _leaves(f"{path}.list.element", array.values)
    else:
        yield path, array


def _repeats(values: pa.Array) -> bool:
    present = len(values) - values.null_count
    distinct: int = pc.count_distinct(values, mode="only_valid").as_py()
    return bool(2 * distinct <= present)
