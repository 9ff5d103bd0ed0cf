"""Rewrite data files inside a Spark task: copy-on-write without a row passing the JVM.

Changes arrive sorted by file and position. Each file is streamed once, its deleted rows left out
and its updated rows given their new values in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from icefloe.tasks.arrays import fitted
from icefloe.tasks.edits import Edits
from icefloe.tasks.old_file import OldFile, reading
from icefloe.tasks.operation import CannotOperateError, Operation
from icefloe.tasks.positions import (
    ChangeCollector,
    ChangeColumns,
    FileKey,
    Positions,
    pack,
    unpack,
)
from icefloe.tasks.results import as_batch
from icefloe.tasks.write import DataFileWriter, FileLayout, write_rows


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
