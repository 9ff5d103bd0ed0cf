"""New versions of updated rows, made inside a Spark task where the old ones lie.

Changes arrive sorted by file and position, with the new values alone. The other columns are read
here, of the row groups that have changes, and never pass the JVM.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from icefloe.parquet.footer import DamagedFileError
from icefloe.tasks.arrow import fitted
from icefloe.tasks.messages import ChangeCollector, ChangeColumns, as_batch
from icefloe.tasks.old_file import OldFile
from icefloe.tasks.rewrite import RewritePlan, open_old_file, rows_by_file
from icefloe.tasks.write import DataFileWriter


def write_new_versions(
    plan: RewritePlan,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A `mapInArrow` task: write the changed rows of every file it is given, tell which they are.

    A file whose columns cannot be carried over is declined with the reason, and left out.
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = ChangeCollector(ChangeColumns(plan.file_column, plan.pos_column))
        writer = DataFileWriter(plan.layout)
        declined: list[dict[str, object]] = []
        try:
            for key, changes in rows_by_file(batches, plan.file_column):
                assert key is not None  # noqa: S101 - every change is of a row of some file
                with open_old_file(plan, key) as file:
                    if reason := file.cannot_carry():
                        declined.append({"declined": (key, reason)})
                        continue
                    old = _OldRows(file, _kept(plan))
                    for batch in changes:
                        seen.add(batch)
                        for rows in _new_versions(plan, old, pa.Table.from_batches([batch])):
                            writer.write(rows)
            writer.close()
        except BaseException:
            writer.abandon()
            raise
        files: list[dict[str, object]] = [{"file": result} for result in writer.results]
        yield as_batch([*files, *declined, *seen.results()])

    return task


class _OldRows:
    """Some columns of a file's rows, asked for by rising position.

    One batch is held at a time, and row groups that nothing is asked of are not read.
    """

    def __init__(self, file: OldFile, columns: Sequence[str]) -> None:
        self._file = file
        self.columns = columns
        self._starts = [start for start, _ in file.groups]
        self._group = -1
        self._batches: Iterator[tuple[int, pa.Table]] = iter(())
        self._batch = (0, pa.table({}))

    def batch_with(self, position: int) -> tuple[int, pa.Table]:
        """The rows around a position, and the position of the first of them."""
        group = bisect_right(self._starts, position) - 1
        if group != self._group:
            self._group, self._batches = group, self._file.group(group, self.columns)
            self._batch = self._next(position)
        while self._batch[0] + self._batch[1].num_rows <= position:
            self._batch = self._next(position)
        return self._batch

    def _next(self, position: int) -> tuple[int, pa.Table]:
        found = next(self._batches, None)
        if found is None:
            raise DamagedFileError(self._file.path, f"it has no row {position}")
        return found


def _kept(plan: RewritePlan) -> list[str]:
    """The columns without new values."""
    return [name for name in plan.layout.schema.names if name not in plan.assigned]


def _new_versions(plan: RewritePlan, old: _OldRows, changes: pa.Table) -> Iterator[pa.Table]:
    """Changed rows of one file as they are to be."""
    if not old.columns:
        yield _assembled(plan, pa.table({}), changes)
        return
    positions = changes.column(plan.pos_column).to_numpy()
    done = 0
    while done < len(positions):
        start, rows = old.batch_with(int(positions[done]))
        end = int(np.searchsorted(positions, start + rows.num_rows))
        chosen = rows.take(pa.array(positions[done:end] - start))
        yield _assembled(plan, chosen, changes.slice(done, end - done))
        done = end


def _assembled(plan: RewritePlan, old: pa.Table, new: pa.Table) -> pa.Table:
    """Rows of the table: columns with new values from one table, the others from another."""
    return pa.table(
        [
            fitted(new.column(plan.assigned[field.name]), field.type)
            if field.name in plan.assigned
            else old.column(field.name)
            for field in plan.layout.schema
        ],
        schema=plan.layout.schema,
    )
