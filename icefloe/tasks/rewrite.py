"""Rewrite a data file by surgery: what the edits do not touch is copied as bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from icefloe.parquet.partial_rewrite import GroupChange, Spliced, Surgery, cannot_copy
from icefloe.parquet.schema import columns_of
from icefloe.parquet.thrift import items, value
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
    FileKey,
    Positions,
    as_batch,
    pack,
    unpack,
)
from icefloe.tasks.old_file import Edits, OldFile, reading
from icefloe.tasks.write import (
    DataFileWriter,
    FileLayout,
    new_name,
    open_new,
    refuse_nulls,
    write_rows,
)

_LEAST_COPIED = 0.1  # of the file; below it, a plain rewrite costs the same
_MAX_GROUP_BYTES = 512 * 1024 * 1024  # of the columns of a row group that are decoded at once
_MAX_GROUP_ROWS = 64 * 1024 * 1024  # PyArrow writes no larger row group
_MAX_DECODED_BYTES = 512 * 1024 * 1024  # of the rows of a row group, held until they are encoded
_TOO_LARGE = "a row group to encode is too large to be decoded at once"


class CannotOperateError(Exception):
    """The file turned out to be one that has to be written as a whole; nothing was left behind."""


@dataclass(frozen=True)
class Operation:
    """One file, its edits, and what they mean for each of its row groups."""

    file: OldFile
    edits: Edits
    layout: FileLayout
    surgery: Surgery
    changes: tuple[GroupChange, ...]

    @staticmethod
    def of(file: OldFile, edits: Edits, layout: FileLayout) -> Operation:
        """Look what would be copied."""
        updated = frozenset(edits.assigned)
        changes = tuple(
            GroupChange(
                edits.rows_left(start, rows),
                updated if edits.has_updates(start, rows) else frozenset(),
            )
            for start, rows in file.groups
        )
        surgery = Surgery.plan(file.bytes, layout.schema, file.names, layout.parquet)
        return Operation(file, edits, layout, surgery, changes)

    def why_not(self) -> str | None:
        """Why the file has to be, or is better, written as a whole; None when it is not."""
        file = self.file.bytes
        reason = cannot_copy(file)
        if reason:
            return reason
        if is_cut_anew(file.size, self.layout.target_file_bytes):
            return "the file is larger than the table wants its files"
        return too_large(self.file, self.surgery, self.changes) or little_left(
            self.surgery, self.changes
        )

    def run(self) -> list[dict[str, object]]:
        """Write the new file; what it is, for the driver."""
        name = new_name(self.layout)
        path = f"{self.layout.folder}/{name}"
        rows = _Rows(self.file, self.edits)
        sink = open_new(self.layout.filesystem, path)
        try:
            with sink:
                spliced = self.surgery.run(sink, self.changes, rows.of_group)
                if sink.tell() != spliced.size:
                    raise ValueError(f"{path} has {sink.tell()} bytes, not {spliced.size}")
            return [self._result(name, spliced, rows)]
        except BaseException:
            with suppress(OSError):
                self.layout.filesystem.delete_file(path)
            raise

    def _result(self, name: str, spliced: Spliced, rows: _Rows) -> dict[str, object]:
        footer = pq.read_metadata(pa.BufferReader(MAGIC + footer_bytes(spliced.footer)))
        kept = self.surgery.kept(self.changes)
        whole = frozenset.intersection(*kept)
        partly = frozenset.union(*kept) - whole
        nans = [rows.after[name].counts for name in rows.after if name not in partly]
        return {
            "path": f"{self.layout.location}/{name}",
            "partition": (),
            "rows": footer.num_rows,
            "size": spliced.size,
            "columns": {path: vars(metrics) for path, metrics in column_metrics(footer).items()},
            "nans": {path: count for counts in nans for path, count in counts.items()},
            "split_offsets": split_offsets(footer),
            "bytes_copied": spliced.bytes_copied,
            "row_groups_copied": spliced.groups_copied,
            "copied": {
                "whole": whole,
                "partly": {name: rows.nans_added(name) for name in partly},
                "loses_a_group": self._loses_a_group(),
            },
        }

    def _loses_a_group(self) -> bool:
        """Whether a row group goes without being decoded."""
        return any(
            rows and not change.rows
            for change, (_, rows) in zip(self.changes, self.file.groups, strict=True)
        )


@dataclass
class _Rows:
    """Gives the rows to encode, and counts the NaN in each column before and after."""

    file: OldFile
    edits: Edits
    before: dict[str, NanCounter] = field(default_factory=lambda: defaultdict(NanCounter))
    after: dict[str, NanCounter] = field(default_factory=lambda: defaultdict(NanCounter))

    def of_group(self, number: int, names: Sequence[str]) -> pa.Table:
        """Some columns of a row group, with the edits applied."""
        parts: list[pa.Table] = []
        held = 0
        for start, old in self.file.group(number, names):
            new = self.edits.apply(old, start)
            refuse_nulls(new, new.schema)
            new = with_values_below_nulls(new)
            for name in names:
                self.before[name].add(old.select([name]))
                self.after[name].add(new.select([name]))
            parts.append(new)
            held += new.nbytes
            if held > _MAX_DECODED_BYTES:
                raise CannotOperateError(_TOO_LARGE)
        return pa.concat_tables(parts)

    def nans_added(self, name: str) -> dict[str, int]:
        """How many more NaN there are now, by the path of the leaf."""
        before = self.before[name].counts
        return {path: count - before[path] for path, count in self.after[name].counts.items()}


def too_large(file: OldFile, surgery: Surgery, changes: Sequence[GroupChange]) -> str | None:
    """Why a file with such changes has to be written as a whole; None when it has not."""
    to_encode = _to_encode(file, surgery, changes)
    large = any(n > _MAX_GROUP_ROWS or size > _MAX_GROUP_BYTES for n, size in to_encode)
    return _TOO_LARGE if large else None


def little_left(surgery: Surgery, changes: Sequence[GroupChange]) -> str | None:
    """Why a file with such changes is better written as a whole; None when it is not."""
    if surgery.bytes_kept(changes) < _LEAST_COPIED * surgery.file.size:
        return "the changes leave little of the file as it is"
    return None


def _to_encode(
    file: OldFile, surgery: Surgery, changes: Sequence[GroupChange]
) -> Iterator[tuple[int, int]]:
    """Rows of each row group that has columns to encode, and the bytes of these columns."""
    old = {column.name: column.leaves for column in columns_of(file.bytes.footer)}
    leaves = {name: old[there] for name, there in file.names.items()}
    kept = surgery.kept(changes)
    for group, change, copied in zip(file.bytes.groups, changes, kept, strict=True):
        fresh = [p.name for p in surgery.columns if p.name not in copied]
        if change.rows and fresh:
            chunks = items(group, Group.COLUMNS)
            metas = [value(chunks[i], Chunk.META) for name in fresh for i in leaves.get(name, ())]
            yield group_rows(group), sum(value(meta, Meta.UNCOMPRESSED) for meta in metas)


def is_cut_anew(size: int, target: int) -> bool:
    """Whether a file that is rewritten becomes several: it is larger than the table wants them."""
    return size > 2 * target


# -------------------------------------------------------------------------------------------------
# Rewrite data files inside a Spark task: copy-on-write without a row passing the JVM.


@dataclass(frozen=True)
class FileToRewrite:
    """A file that may be rewritten: where it is, how many rows it has, and which are deleted."""

    filesystem: pafs.FileSystem
    path: str  # as the file system spells it
    folder: str  # where the new file goes, as Iceberg spells it: below that of the layout
    rows: int  # as the table's metadata says
    deleted: bytes | None = None


@dataclass(frozen=True)
class RewritePlan:
    """How the files of one statement are rewritten."""

    layout: FileLayout
    files: Mapping[FileKey, FileToRewrite]
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
        for file, changes in rows_by_file(batches, plan.file_column):
            assert file is not None  # noqa: S101 - every change is of a row of some file
            rows = pa.Table.from_batches(list(changes))
            yield as_batch([{"rewrite": rewrite_file(plan, file, rows)}])

    return task


def rewrite_and_add(
    plan: RewritePlan, columns: Sequence[str], changes: ChangeColumns
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A `mapInArrow` task: rows without a file are written as new ones, the others change theirs.

    What happens to the rows of files is told as well. A file stays as it is when none of them is
    changed, or when one that is was named twice: then the driver refuses the statement.
    """
    add = write_rows(plan.layout, columns, changes)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for file, some in rows_by_file(batches, plan.file_column):
            if file is None:
                yield from add(some)
            else:
                yield as_batch(_told_and_rewritten(plan, changes, file, some))

    return task


def _told_and_rewritten(
    plan: RewritePlan, changes: ChangeColumns, file: FileKey, batches: Iterator[pa.RecordBatch]
) -> Iterator[dict[str, object]]:
    """What happens to the rows of one file, and what became of the file."""
    seen = ChangeCollector(changes)
    positions: list[Positions] = []
    held: list[pa.Table] = []
    for batch in batches:
        seen.add(batch)
        positions.append(batch[changes.pos].to_numpy())
        held.append(_changed(plan, changes, batch))
    yield from seen.results()
    changed = pa.concat_tables(held)
    every = np.concatenate(positions)
    named_twice = every[1:][np.diff(every) == 0]
    if changed.num_rows and not np.isin(named_twice, changed[changes.pos].to_numpy()).any():
        yield {"rewrite": rewrite_file(plan, file, changed)}


def _changed(plan: RewritePlan, changes: ChangeColumns, batch: pa.RecordBatch) -> pa.Table:
    """Rows that change, with what is needed of them: new values have the file's types."""
    known = [plan.file_column, plan.pos_column, plan.gone_column]
    chosen = {name: batch[name] for name in known if name is not None}
    for name, column in plan.assigned.items():
        # Before rows are left out: PyArrow aborts on a cast of maps that it filtered.
        chosen[column] = fitted(batch[column], plan.layout.schema.field(name).type)
    changing = pc.greater_equal(batch[changes.action], 0)
    rows = pa.table(chosen)
    return rows if pc.all(changing).as_py() else rows.filter(changing)


def rewrite_file(plan: RewritePlan, key: FileKey, changes: pa.Table) -> dict[str, object]:
    """Write one file anew with `changes` applied.

    What does not change is copied as bytes where that is possible and worth it. A file whose
    columns cannot be carried over here is declined with the reason, and nothing is written; the
    driver then rewrites it through Spark.
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
        files: list[dict[str, object]] = []
        whole: str | None = None
        if edits.rows_left(0, file.rows):
            reason = file.cannot_carry()
            if reason:
                return {"file": key, "declined": reason, "positions": pack(edits.positions)}
            files, whole = _written(file, edits, layout)
    deleted = int(edits.goes.sum())
    return {
        "file": key,
        "files": files,
        "whole": whole,
        "updated": len(edits.positions) - deleted,
        "deleted": deleted,
        "copied": file.rows - len(edits.gone) - len(edits.positions),
    }


@contextmanager
def open_old_file(plan: RewritePlan, key: FileKey) -> Iterator[OldFile]:
    """One of the files, its footer read."""
    old = plan.files[key]
    with old.filesystem.open_input_file(old.path) as source:
        near = isinstance(old.filesystem, pafs.LocalFileSystem)
        yield OldFile.open(old.path, source, plan.layout.schema, old.rows, near=near)


def _written(
    file: OldFile, edits: Edits, layout: FileLayout
) -> tuple[list[dict[str, object]], str | None]:
    """The new files, and why nothing of the old one was copied as bytes."""
    try:
        with reading(file.path):
            operation = Operation.of(file, edits, layout)
            whole = operation.why_not()
        if whole is None:
            return operation.run(), None
    except CannotOperateError as reason:
        whole = str(reason)
    return _written_whole(file, edits, layout), whole


def _written_whole(file: OldFile, edits: Edits, layout: FileLayout) -> list[dict[str, object]]:
    """Decode every row and encode those that stay."""
    writer = DataFileWriter(layout)
    try:
        for start, table in file.batches():
            writer.write(edits.apply(table, start))
        writer.close()
    except BaseException:
        writer.abandon()
        raise
    return writer.results


def _edits(plan: RewritePlan, target: FileToRewrite, changes: pa.Table) -> Edits:
    if plan.gone_column is None:
        goes = np.full(changes.num_rows, not plan.assigned)
    else:
        goes = changes.column(plan.gone_column).to_numpy()
    return Edits(
        positions=changes.column(plan.pos_column).to_numpy(),
        goes=goes,
        values=changes,
        assigned=plan.assigned,
        gone=unpack(target.deleted) if target.deleted else np.empty(0, dtype=np.int64),
    )


def rows_by_file(
    batches: Iterator[pa.RecordBatch], file_column: str
) -> Iterator[tuple[FileKey | None, Iterator[pa.RecordBatch]]]:
    """The rows of one file at a time, as batches; None for rows without a file."""
    runs = (run for batch in batches for run in _split_by_file(batch, file_column))
    for file, some in groupby(runs, key=itemgetter(0)):
        yield file, (batch for _, batch in some)


def _split_by_file(
    batch: pa.RecordBatch, file_column: str
) -> Iterator[tuple[FileKey | None, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    codes = batch.column(file_column).dictionary_encode().indices.fill_null(-1).to_numpy()
    starts = [0, *(int(i) + 1 for i in np.flatnonzero(codes[1:] != codes[:-1]))]
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        yield batch.column(file_column)[start].as_py(), batch.slice(start, end - start)
