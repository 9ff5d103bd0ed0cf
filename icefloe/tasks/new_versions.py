"""New versions of updated rows, made inside a Spark task where the old ones lie.

Changes arrive sorted by file and position, with the new values alone. The other columns are read
here, of the row groups that have changes, and never pass the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from icefloe.tasks.arrays import fitted
from icefloe.tasks.old_file import OldFile
from icefloe.tasks.positions import ChangeCollector, ChangeColumns, Positions
from icefloe.tasks.results import as_batch
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
            for key, some in rows_by_file(batches, plan.file_column):
                assert key is not None  # noqa: S101 - every change is of a row of some file
                changes = pa.Table.from_batches(list(some))
                seen.add(changes)
                with open_old_file(plan, key) as file:
                    if reason := file.cannot_carry():
                        declined.append({"declined": (key, reason)})
                        continue
                    for rows in _new_versions(plan, file, changes):
                        writer.write(rows)
            writer.close()
        except BaseException:
            writer.abandon()
            raise
        files: list[dict[str, object]] = [{"file": result} for result in writer.results]
        yield as_batch([*files, *declined, *seen.results()])

    return task


def _new_versions(plan: RewritePlan, file: OldFile, changes: pa.Table) -> Iterator[pa.Table]:
    """The changed rows of one file as they are to be."""
    kept = [name for name in plan.layout.schema.names if name not in plan.assigned]
    if not kept:
        yield _assembled(plan, pa.table({}), changes)
        return
    positions = changes.column(plan.pos_column).to_numpy()
    for number, (first, rows) in enumerate(file.groups):
        if not _within(positions, first, rows):
            continue
        for start, old in file.group(number, kept):
            here = _within(positions, start, old.num_rows)
            chosen = old.take(pa.array(positions[here.start : here.stop] - start))
            yield _assembled(plan, chosen, changes.slice(here.start, len(here)))


def _within(positions: Positions, start: int, rows: int) -> range:
    """The places of the positions among `rows` rows from `start`."""
    low, high = np.searchsorted(positions, [start, start + rows])
    return range(int(low), int(high))


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
