"""Rewrite data files inside a Spark task: copy-on-write without a row passing through the JVM.

What the edits do not touch is copied as bytes, where that is possible and worth it. Otherwise every
row is decoded and the remaining ones are encoded again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from icefloe.parquet.fields import Chunk, Group, Meta
from icefloe.parquet.footer import MAGIC, footer_bytes, group_rows
from icefloe.parquet.partial_rewrite import GroupChange, PartialRewrite, SplicedFile, cannot_copy
from icefloe.parquet.schema import columns_of
from icefloe.parquet.thrift import items, value
from icefloe.storage.filesystem import is_local_disk, new_file
from icefloe.tasks.arrow import (
    NanCounter,
    column_metrics,
    fitted,
    split_offsets,
    with_values_below_nulls,
)
from icefloe.tasks.index_files import ReplacedFile, index_edited_file
from icefloe.tasks.messages import (
    ChangeCollector,
    ChangeColumns,
    CopiedChunks,
    DeclinedFile,
    FileKey,
    Positions,
    RewrittenFile,
    Task,
    TaskMessage,
    WrittenFile,
    as_batch,
    pack,
    unpack,
)
from icefloe.tasks.old_file import Edits, OldFile, field_id, reading
from icefloe.tasks.sidecars import RowEdits
from icefloe.tasks.write import (
    DataFileWriter,
    FileLayout,
    abandon_file,
    indexed_file,
    new_name,
    refuse_nulls,
    write_rows,
)

_LEAST_COPIED = 0.1  # of the file; below it, encoding the whole file costs the same
_MAX_GROUP_BYTES = 512 * 1024 * 1024  # of the columns of a row group that are decoded at once
_MAX_GROUP_ROWS = 64 * 1024 * 1024  # PyArrow writes no larger row group
_MAX_DECODED_BYTES = 512 * 1024 * 1024  # of the rows of a row group, held until they are encoded
_TOO_LARGE = "a row group to encode is too large to be decoded at once"


@dataclass(frozen=True)
class FileToRewrite:
    """A data file that a task may rewrite."""

    filesystem: pafs.FileSystem
    path: str  # in the file system
    folder: str  # the location for the new file: the layout's, or a folder below it
    rows: int  # as the table's metadata says
    deleted: bytes | None = None  # packed positions of rows that position deletes remove
    location: str = ""  # as the table's metadata has it, and its sidecars


@dataclass(frozen=True)
class RewritePlan:
    """How the files of one statement are rewritten."""

    layout: FileLayout
    files: Mapping[FileKey, FileToRewrite]
    file_column: str
    pos_column: str
    assigned: Mapping[str, str] = field(default_factory=dict)  # table column -> change column
    # Whether a change deletes its row. Without the column all do, or none if there are new values.
    delete_column: str | None = None


# -------------------------------------------------------------------------------------------------
# Tasks. Rows arrive sorted by file and position.


def rewrite_files(plan: RewritePlan) -> Task:
    """A task that rewrites each file that has changes, and reports what it did."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for file, changes in rows_by_file(batches, plan.file_column):
            assert file is not None  # noqa: S101 - every change is of a row of some file
            rows = pa.Table.from_batches(list(changes))
            yield as_batch([rewrite_file(plan, file, rows)])

    return task


def rewrite_and_add(plan: RewritePlan, columns: Sequence[str], changes: ChangeColumns) -> Task:
    """A task that writes rows without a file as new rows; the other rows change their file.

    It also reports the positions of rows by action. A file is not rewritten when no row of it
    changes, or when a row that changes occurs twice: the driver then refuses the statement.
    """
    add = write_rows(plan.layout, columns, changes)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for file, of_file in rows_by_file(batches, plan.file_column):
            if file is None:
                yield from add(of_file)
            else:
                yield as_batch(_collect_and_rewrite(plan, changes, file, of_file))

    return task


def _collect_and_rewrite(
    plan: RewritePlan, changes: ChangeColumns, file: FileKey, batches: Iterator[pa.RecordBatch]
) -> Iterator[TaskMessage]:
    """The positions of the rows of one file by action, and the rewritten file."""
    collector = ChangeCollector(changes)
    positions: list[Positions] = []
    changing: list[pa.Table] = []
    for batch in batches:
        collector.add(batch)
        positions.append(batch[changes.pos].to_numpy())
        changing.append(_changing_rows(plan, changes, batch))
    yield from collector.messages()
    changed = pa.concat_tables(changing)
    every = np.concatenate(positions)
    duplicates = every[1:][np.diff(every) == 0]
    if changed.num_rows and not np.isin(duplicates, changed[changes.pos].to_numpy()).any():
        yield rewrite_file(plan, file, changed)


def _changing_rows(plan: RewritePlan, changes: ChangeColumns, batch: pa.RecordBatch) -> pa.Table:
    """The rows that change, with the columns a rewrite needs; new values have the file's types."""
    names = [plan.file_column, plan.pos_column, plan.delete_column]
    columns = {name: batch[name] for name in names if name is not None}
    for name, column in plan.assigned.items():
        # Before rows are filtered: PyArrow aborts on a cast of maps that it filtered.
        columns[column] = fitted(batch[column], plan.layout.schema.field(name).type)
    changing = pc.greater_equal(batch[changes.action], 0)
    rows = pa.table(columns)
    return rows if pc.all(changing).as_py() else rows.filter(changing)


def rows_by_file(
    batches: Iterator[pa.RecordBatch], file_column: str
) -> Iterator[tuple[FileKey | None, Iterator[pa.RecordBatch]]]:
    """The rows of one file at a time, as batches; None for rows without a file."""
    runs = (run for batch in batches for run in _split_by_file(batch, file_column))
    for file, of_file in groupby(runs, key=itemgetter(0)):
        yield file, (batch for _, batch in of_file)


def _split_by_file(
    batch: pa.RecordBatch, file_column: str
) -> Iterator[tuple[FileKey | None, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    codes = batch.column(file_column).dictionary_encode().indices.fill_null(-1).to_numpy()
    starts = [0, *(int(i) + 1 for i in np.flatnonzero(codes[1:] != codes[:-1]))]
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        yield batch.column(file_column)[start].as_py(), batch.slice(start, end - start)


# -------------------------------------------------------------------------------------------------
# One file.


def rewrite_file(
    plan: RewritePlan, key: FileKey, changes: pa.Table
) -> RewrittenFile | DeclinedFile:
    """Rewrite one file with `changes` applied.

    A file whose columns cannot be carried over here is declined, and nothing is written; the
    driver then rewrites it with Spark.
    """
    target = plan.files[key]
    edits = _edits(plan, target, changes)
    layout = replace(
        plan.layout,
        partition_fields=(),
        location=target.folder,
        folder=f"{plan.layout.folder}{target.folder[len(plan.layout.location) :]}",
    )
    with open_old_file(plan, key) as file:
        files: list[WrittenFile] = []
        not_copied_because: str | None = None
        if edits.rows_left(0, file.rows):
            reason = file.cannot_carry()
            if reason:
                return DeclinedFile(key, reason, pack(edits.positions))
            files, not_copied_because = _write_edited(file, edits, layout, target.location)
    deleted = int(edits.deletes.sum())
    return RewrittenFile(
        key,
        tuple(files),
        rows_updated=len(edits.positions) - deleted,
        rows_deleted=deleted,
        rows_copied=file.rows - len(edits.deleted) - len(edits.positions),
        not_copied_because=not_copied_because,
    )


@contextmanager
def open_old_file(plan: RewritePlan, key: FileKey) -> Iterator[OldFile]:
    """One of the files, with its footer read."""
    old = plan.files[key]
    with old.filesystem.open_input_file(old.path) as source:
        is_local = is_local_disk(old.filesystem)
        yield OldFile.open(old.path, source, plan.layout.schema, old.rows, is_local=is_local)


def _edits(plan: RewritePlan, target: FileToRewrite, changes: pa.Table) -> Edits:
    if plan.delete_column is None:
        deletes = np.full(changes.num_rows, not plan.assigned)
    else:
        deletes = changes.column(plan.delete_column).to_numpy()
    return Edits(
        positions=changes.column(plan.pos_column).to_numpy(),
        deletes=deletes,
        values=changes,
        assigned=plan.assigned,
        deleted=unpack(target.deleted) if target.deleted else np.empty(0, dtype=np.int64),
    )


def _write_edited(
    file: OldFile, edits: Edits, layout: FileLayout, location: str
) -> tuple[list[WrittenFile], str | None]:
    """The new files, and why no bytes of the old one were copied."""
    try:
        with reading(file.path):
            edited = EditedFile.of(file, edits, layout, location)
            reason = edited.why_not_copied()
        if reason is None:
            return [edited.write()], None
    except PartialRewriteError as error:
        reason = str(error)
    return _encode_all_rows(file, edits, layout), reason


def _encode_all_rows(file: OldFile, edits: Edits, layout: FileLayout) -> list[WrittenFile]:
    """Decode every row and encode the remaining ones."""
    writer = DataFileWriter(layout)
    try:
        for start, table in file.batches():
            writer.write(edits.apply(table, start))
        writer.close()
    except BaseException:
        writer.abandon()
        raise
    return writer.files


# -------------------------------------------------------------------------------------------------
# One file of which bytes are copied.


class PartialRewriteError(Exception):
    """The file has to be encoded as a whole; what was written of it has been deleted."""


@dataclass(frozen=True)
class EditedFile:
    """A data file, its edits, and the changes to its row groups that follow from them."""

    file: OldFile
    edits: Edits
    layout: FileLayout
    rewrite: PartialRewrite
    changes: tuple[GroupChange, ...]
    location: str  # of the old file, as the table's metadata has it

    @staticmethod
    def of(file: OldFile, edits: Edits, layout: FileLayout, location: str) -> EditedFile:
        """Find out what can be copied."""
        updated = frozenset(edits.assigned)
        changes = tuple(
            GroupChange(
                edits.rows_left(start, rows),
                updated if edits.has_updates(start, rows) else frozenset(),
            )
            for start, rows in file.groups
        )
        rewrite = PartialRewrite.plan(file.bytes, layout.schema, file.names, layout.parquet)
        return EditedFile(file, edits, layout, rewrite, changes, location)

    def why_not_copied(self) -> str | None:
        """Why every row has to be encoded again, or better is; None if bytes are copied."""
        file = self.file.bytes
        reason = cannot_copy(file)
        if reason:
            return reason
        if is_split_by_rewrite(file.size, self.layout.target_file_bytes):
            return "the file is larger than the target file size"
        return too_large(self.file, self.rewrite, self.changes) or too_little_copied(
            self.rewrite, self.changes
        )

    def write(self) -> WrittenFile:
        """Write the new file."""
        name = new_name(self.layout)
        path = f"{self.layout.folder}/{name}"
        rows = _EditedRows(self.file, self.edits)
        try:
            with new_file(self.layout.filesystem, path) as sink:
                spliced = self.rewrite.run(sink, self.changes, rows.of_group)
                if sink.tell() != spliced.size:
                    raise ValueError(f"{path} has {sink.tell()} bytes, not {spliced.size}")
            return self._written_file(name, spliced, rows)
        except BaseException:
            abandon_file(self.layout, name)
            raise

    def _written_file(self, name: str, spliced: SplicedFile, rows: _EditedRows) -> WrittenFile:
        footer = pq.read_metadata(pa.BufferReader(MAGIC + footer_bytes(spliced.footer)))
        copied = self.rewrite.copied_columns(self.changes)
        whole = frozenset.intersection(*copied)
        partly = frozenset.union(*copied) - whole
        nans = [rows.after[column].counts for column in rows.after if column not in partly]
        return WrittenFile(
            path=f"{self.layout.location}/{name}",
            partition=(),
            rows=footer.num_rows,
            size=spliced.size,
            columns=column_metrics(footer),
            nans={path: count for counts in nans for path, count in counts.items()},
            split_offsets=split_offsets(footer),
            copied=CopiedChunks(
                bytes=spliced.bytes_copied,
                row_groups=spliced.groups_copied,
                whole=whole,
                partly={column: rows.nans_added(column) for column in partly},
                drops_row_groups=self._drops_row_groups(),
            ),
            not_indexed=self._index(name, spliced.size, footer.num_rows),
        )

    def _index(self, name: str, size: int, rows: int) -> tuple[str, ...]:
        """Write the sidecars of the new file; returns why some could not be written."""
        if not self.layout.indexes:
            return ()
        new = indexed_file(self.layout, name, size, rows, {})
        edits = _row_edits(self.edits, self.layout.schema)
        old = ReplacedFile(self.location, self.file.bytes.size, self.file.rows, edits)
        return index_edited_file(self.layout.indexes, new, old)

    def _drops_row_groups(self) -> bool:
        """Whether a row group is removed without being decoded."""
        return any(
            rows and not change.rows
            for change, (_, rows) in zip(self.changes, self.file.groups, strict=True)
        )


def _row_edits(edits: Edits, schema: pa.Schema) -> RowEdits:
    """The edits as those who index the new file need them."""
    updates = ~edits.deletes
    updated = edits.values.filter(pa.array(updates))
    values = {
        int(str(field_id(schema.field(name)))): fitted(
            updated.column(column), schema.field(name).type
        )
        for name, column in edits.assigned.items()
    }
    gone = np.union1d(edits.deleted, edits.positions[edits.deletes])
    return RowEdits(gone, edits.positions[updates], values)


@dataclass
class _EditedRows:
    """Supplies the rows to encode, and counts the NaN values of each column before and after."""

    file: OldFile
    edits: Edits
    before: dict[str, NanCounter] = field(default_factory=lambda: defaultdict(NanCounter))
    after: dict[str, NanCounter] = field(default_factory=lambda: defaultdict(NanCounter))

    def of_group(self, number: int, names: Sequence[str]) -> pa.Table:
        """Some columns of a row group, with the edits applied."""
        parts: list[pa.Table] = []
        decoded_bytes = 0
        for start, old in self.file.group(number, names):
            new = self.edits.apply(old, start)
            refuse_nulls(new, new.schema)
            new = with_values_below_nulls(new)
            for name in names:
                self.before[name].add(old.select([name]))
                self.after[name].add(new.select([name]))
            parts.append(new)
            decoded_bytes += new.nbytes
            if decoded_bytes > _MAX_DECODED_BYTES:
                raise PartialRewriteError(_TOO_LARGE)
        return pa.concat_tables(parts)

    def nans_added(self, name: str) -> dict[str, int]:
        """How many NaN values a column gained, by leaf path; negative where it lost some."""
        before = self.before[name].counts
        return {path: count - before[path] for path, count in self.after[name].counts.items()}


# -------------------------------------------------------------------------------------------------
# Reasons to encode every row again.


def is_split_by_rewrite(size: int, target: int) -> bool:
    """Whether a rewritten file becomes several, because it is larger than the target size."""
    return size > 2 * target


def too_large(file: OldFile, rewrite: PartialRewrite, changes: Sequence[GroupChange]) -> str | None:
    """Why every row has to be encoded again because of row groups too large to be decoded."""
    to_encode = _to_encode(file, rewrite, changes)
    large = any(rows > _MAX_GROUP_ROWS or size > _MAX_GROUP_BYTES for rows, size in to_encode)
    return _TOO_LARGE if large else None


def too_little_copied(rewrite: PartialRewrite, changes: Sequence[GroupChange]) -> str | None:
    """Why encoding every row again is no slower; None if copying is worth it."""
    if rewrite.bytes_to_copy(changes) < _LEAST_COPIED * rewrite.file.size:
        return "the changes leave little of the file as it is"
    return None


def _to_encode(
    file: OldFile, rewrite: PartialRewrite, changes: Sequence[GroupChange]
) -> Iterator[tuple[int, int]]:
    """Rows of each row group that has columns to encode, and the bytes of these columns."""
    by_name = {column.name: column.leaves for column in columns_of(file.bytes.footer)}
    leaves = {name: by_name[old_name] for name, old_name in file.names.items()}
    copied = rewrite.copied_columns(changes)
    for group, change, copied_names in zip(file.bytes.groups, changes, copied, strict=True):
        encoded = [p.name for p in rewrite.columns if p.name not in copied_names]
        if change.rows and encoded:
            chunks = items(group, Group.COLUMNS)
            metas = [value(chunks[i], Chunk.META) for name in encoded for i in leaves.get(name, ())]
            yield group_rows(group), sum(value(meta, Meta.UNCOMPRESSED) for meta in metas)
