"""Write rows as Parquet data files inside a Spark task.

Rows arrive sorted by partition, so one file is open at a time. Files are written under their final
names: Iceberg publishes them by a commit, so nothing is renamed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from urllib.parse import quote_plus

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyarrow.types as pt

from icefloe.tasks.arrow import (
    NanCounter,
    column_metrics,
    fitted,
    split_offsets,
    with_values_below_nulls,
)
from icefloe.tasks.messages import (
    ChangeCollector,
    ChangeColumns,
    NullInRequiredError,
    RowOutsideError,
    as_batch,
)

# -------------------------------------------------------------------------------------------------
# Which columns of a new file get a dictionary.

_SAMPLE = 16_384  # values


def columns_with_repeats(first: pa.Table) -> list[str]:
    """Leaf columns, by their paths in the file, whose first values come up twice on average."""
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


_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True)
class PartitionField:
    """A partition field as the writer needs it: its name and how its values are shown in paths."""

    column: str
    name: str
    transform: str


@dataclass(frozen=True)
class FileLayout:
    """Where data files go and how they are encoded."""

    schema: pa.Schema
    filesystem: pafs.FileSystem
    folder: str  # as the file system spells it
    location: str  # the same folder as Iceberg spells it
    statement_id: str
    target_file_bytes: int
    row_group_bytes: int
    row_group_rows: int
    parquet: dict[str, object]
    partition_fields: tuple[PartitionField, ...] = ()
    cut: str | None = None  # a column: where its value changes, a file ends


@dataclass
class DataFileWriter:
    """Writes the rows of one partition, rolling to a new file at the target size."""

    layout: FileLayout
    partition: tuple[object, ...] = ()
    results: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._pending_rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._path = ""

    def write(self, table: pa.Table) -> None:
        """Take rows of the layout's schema."""
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
        """Remove what this task wrote: it failed, so nothing will refer to it."""
        if self._writer is not None:
            self._writer.is_open = False  # or it would try to finish the file when collected
            self._sink.close()
            self.results.append({"path": self._path})
        for result in self.results:
            path = f"{self.layout.folder}{str(result['path'])[len(self.layout.location) :]}"
            try:
                self.layout.filesystem.delete_file(path)
            except OSError:
                continue

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
        assert self._writer is not None  # noqa: S101 - just opened
        before = self._sink.tell()
        self._writer.write_table(group, row_group_size=group.num_rows)
        after = self._sink.tell()
        # Stop where the file is nearest to its target, expecting the next group to be as large.
        if after + (after - before) // 2 >= self.layout.target_file_bytes:
            self._roll()

    def _open(self, first: pa.Table) -> None:
        folder = partition_path(self.layout.partition_fields, self.partition)
        name = f"{folder}{new_name(self.layout)}"
        self._path = f"{self.layout.location}/{name}"
        path = f"{self.layout.folder}/{name}"
        self._sink = open_new(self.layout.filesystem, path)
        self._footer: list[pq.FileMetaData] = []
        self._nans = NanCounter()
        try:
            self._writer = pq.ParquetWriter(
                self._sink,
                self.layout.schema,
                metadata_collector=self._footer,
                use_dictionary=columns_with_repeats(first) or False,
                **self.layout.parquet,
            )
        except BaseException:
            self._sink.close()
            self.results.append({"path": self._path})  # to be removed with the others
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
        self.results.append(
            {
                "path": self._path,
                "partition": self.partition,
                "rows": footer.num_rows,
                "size": size,
                "columns": {
                    path: vars(metrics) for path, metrics in column_metrics(footer).items()
                },
                "nans": self._nans.counts,
                "split_offsets": split_offsets(footer),
            }
        )


def new_name(layout: FileLayout) -> str:
    """A name that no other file has; the statement's id is in it, so that it can be found."""
    return f"{layout.statement_id}-{uuid.uuid4().hex[:12]}.parquet"


def open_new(filesystem: pafs.FileSystem, path: str) -> pa.NativeFile:
    """Open a file to be written, in a folder that may not be there yet."""
    if not isinstance(filesystem, pafs.S3FileSystem):
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
    return filesystem.open_output_stream(path)


def refuse_nulls(table: pa.Table, schema: pa.Schema) -> None:
    """Raise when a required column of the schema has a NULL."""
    for column, wanted in zip(table.columns, schema, strict=True):
        for chunk in column.chunks:
            _refuse_nulls(wanted.name, wanted, chunk)


def _refuse_nulls(path: str, wanted: pa.Field, array: pa.Array) -> None:
    if not wanted.nullable and array.null_count:
        raise NullInRequiredError(path)
    kind = wanted.type
    if pa.types.is_struct(kind):
        present = array.drop_null() if array.null_count else array
        for index, child in enumerate(kind):
            _refuse_nulls(f"{path}.{child.name}", child, present.field(index))
    elif pa.types.is_map(kind):
        _refuse_nulls(f"{path}.value", kind.item_field, _values_of(array).field(1))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _refuse_nulls(f"{path}.element", kind.value_field, _values_of(array))


def _values_of(array: pa.Array) -> pa.Array:
    """What the lists or maps of an array hold, without what lies under NULLs and slices."""
    present = array.drop_null() if array.null_count else array
    if not len(present):
        return present.values.slice(0, 0)
    first, last = present.offsets[0].as_py(), present.offsets[-1].as_py()
    return present.values.slice(first, last - first)


def write_rows(
    layout: FileLayout,
    columns: Sequence[str],
    changes: ChangeColumns | None = None,
    outside: tuple[str, Sequence[str]] | None = None,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A `mapInArrow` task: write `columns` of each row, tell the files.

    With `changes` the rows stand for rows of the table: what happens to those is told too, and
    rows that only delete another are not written. `outside` names the column with the number of a
    predicate that a row does not satisfy, and the predicates: one such row fails the task.
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = ChangeCollector(changes) if changes else None
        done: list[DataFileWriter] = []
        current: object = None
        try:
            for piece, partition, some in _runs(batches, layout):
                rows = _fit(some.select(columns), layout.schema)
                if seen is not None and changes is not None:
                    seen.add(some)
                    rows = _written(rows, some, changes)
                if not rows.num_rows:
                    continue
                if not done or current != (piece, partition):
                    if done:
                        done[-1].close()
                    done.append(DataFileWriter(layout, partition))
                    current = piece, partition
                _refuse_outside(some, rows, outside)
                done[-1].write(rows)
            if done:
                done[-1].close()
        except BaseException:
            for writer in done:
                writer.abandon()
            raise
        told: list[dict[str, object]] = [{"file": r} for w in done for r in w.results]
        yield as_batch([*told, *(seen.results() if seen else ())])

    return task


def _refuse_outside(
    told: pa.Table, rows: pa.Table, outside: tuple[str, Sequence[str]] | None
) -> None:
    """Fail on the first row that has the number of a predicate, showing some of its values."""
    if outside is None:
        return
    numbers = told.column(outside[0])
    if numbers.null_count == len(numbers):
        return
    first = pc.index(pc.is_valid(numbers), True).as_py()
    values = list(rows.slice(first, 1).to_pylist()[0].items())
    shown = ", ".join(f"{name}={value!r:.60}" for name, value in values[:8])
    more = ", …" if len(values) > 8 else ""
    raise RowOutsideError(outside[1][numbers[first].as_py()], f"({shown}{more})")


def collect_changes(
    changes: ChangeColumns,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A `mapInArrow` task: tell the positions of the rows it sees, by what happens to them."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = ChangeCollector(changes)
        for batch in batches:
            seen.add(batch)
        yield as_batch(seen.results())

    return task


def _written(rows: pa.Table, told: pa.Table, changes: ChangeColumns) -> pa.Table:
    """The rows that become rows of a new file.

    They have the file's types already: PyArrow aborts on a cast of maps that it filtered.
    """
    if changes.action is None:
        return rows
    kept = pa.array(sorted(changes.written), pa.int32())
    chosen = pc.is_in(told[changes.action], value_set=kept)
    return rows if pc.all(chosen).as_py() else rows.filter(chosen)


def partition_path(fields: Sequence[PartitionField], values: Sequence[object]) -> str:
    """`name=value/` for every partition field, as Hive and Iceberg write it."""
    return "".join(
        f"{quote_plus(f.name)}={quote_plus(_shown(f.transform, value), safe='')}/"
        for f, value in zip(fields, values, strict=True)
    )


def _shown(transform: str, value: object) -> str:
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


def _runs(
    batches: Iterator[pa.RecordBatch], layout: FileLayout
) -> Iterator[tuple[object, tuple[object, ...], pa.Table]]:
    """Batches cut where the partition changes, and where a file has to end."""
    names = [f.column for f in layout.partition_fields]
    pieces = [layout.cut] if layout.cut else []
    for batch in batches:
        if not batch.num_rows:
            continue
        table = pa.Table.from_batches([batch])
        starts = _run_starts(batch, [*pieces, *names])
        for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            values = tuple(batch.column(name)[start].as_py() for name in names)
            piece = batch.column(layout.cut)[start].as_py() if layout.cut else None
            yield piece, values, table.slice(start, end - start)


def _run_starts(batch: pa.RecordBatch, names: Sequence[str]) -> list[int]:
    changes = np.zeros(batch.num_rows, dtype=bool)
    changes[0] = True
    for name in names:
        codes = batch.column(name).dictionary_encode().indices.fill_null(-1)
        numbers = codes.to_numpy(zero_copy_only=False)
        changes[1:] |= numbers[1:] != numbers[:-1]
    return [int(start) for start in np.flatnonzero(changes)]


def _fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows in the file's exact Arrow types; NULLs are judged later, by name."""
    columns = [
        fitted(column, wanted.type) for column, wanted in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)
