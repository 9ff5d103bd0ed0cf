"""Write new versions of updated rows inside the Spark task that reads the old ones.

Changes arrive sorted by file and position, and carry only the new values. The other columns are
read here, from the row groups that have changes, and never pass through the JVM.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from icefloe.parquet.footer import DamagedFileError
from icefloe.tasks.arrow import fitted
from icefloe.tasks.messages import ChangeCollector, ChangeColumns, DeclinedFile, Task, as_batch
from icefloe.tasks.old_file import OldFile
from icefloe.tasks.rewrite import RewritePlan, open_old_file, rows_by_file
from icefloe.tasks.write import DataFileWriter


def write_new_versions(plan: RewritePlan) -> Task:
    """A task that writes the changed rows of its files as new rows, and reports their positions.

    A file whose columns cannot be carried over is declined, and its rows are not written.
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        collector = ChangeCollector(ChangeColumns(plan.file_column, plan.pos_column))
        writer = DataFileWriter(plan.layout)
        declined: list[DeclinedFile] = []
        try:
            for key, changes in rows_by_file(batches, plan.file_column):
                assert key is not None  # noqa: S101 - every change is of a row of some file
                with open_old_file(plan, key) as file:
                    if reason := file.cannot_carry():
                        declined.append(DeclinedFile(key, reason))
                        continue
                    old = _OldRows(file, _unassigned(plan))
                    for batch in changes:
                        collector.add(batch)
                        for rows in _new_versions(plan, old, pa.Table.from_batches([batch])):
                            writer.write(rows)
            writer.close()
        except BaseException:
            writer.abandon()
            raise
        yield as_batch([*writer.files, *declined, *collector.messages()])

    return task


class _OldRows:
    """Some columns of a file's rows, read by ascending position.

    One batch is held at a time, and row groups without a requested position are not read.
    """

    def __init__(self, file: OldFile, columns: Sequence[str]) -> None:
        self._file = file
        self.columns = columns
        self._starts = [start for start, _ in file.groups]
        self._group = -1
        self._batches: Iterator[tuple[int, pa.Table]] = iter(())
        self._batch = (0, pa.table({}))

    def batch_with(self, position: int) -> tuple[int, pa.Table]:
        """The batch that contains a position, and the position of its first row."""
        group = bisect_right(self._starts, position) - 1
        if group != self._group:
            self._group, self._batches = group, self._file.group(group, self.columns)
            self._batch = self._next(position)
        while self._batch[0] + self._batch[1].num_rows <= position:
            self._batch = self._next(position)
        return self._batch

    def _next(self, position: int) -> tuple[int, pa.Table]:
        batch = next(self._batches, None)
        if batch is None:
            raise DamagedFileError(self._file.path, f"it has no row {position}")
        return batch


def _unassigned(plan: RewritePlan) -> list[str]:
    """The columns without new values."""
    return [name for name in plan.layout.schema.names if name not in plan.assigned]


def _new_versions(plan: RewritePlan, old: _OldRows, changes: pa.Table) -> Iterator[pa.Table]:
    """The changed rows of one file, with their new values."""
    if not old.columns:
        yield _assembled(plan, pa.table({}), changes)
        return
    positions = changes.column(plan.pos_column).to_numpy()
    done = 0
    while done < len(positions):
        start, rows = old.batch_with(int(positions[done]))
        end = int(np.searchsorted(positions, start + rows.num_rows))
        changed = rows.take(pa.array(positions[done:end] - start))
        yield _assembled(plan, changed, changes.slice(done, end - done))
        done = end


def _assembled(plan: RewritePlan, old: pa.Table, new: pa.Table) -> pa.Table:
    """Rows of the table: assigned columns from `new`, the others from `old`."""
    return pa.table(
        [
            fitted(new.column(plan.assigned[field.name]), field.type)
            if field.name in plan.assigned
            else old.column(field.name)
            for field in plan.layout.schema
        ],
        schema=plan.layout.schema,
    )
