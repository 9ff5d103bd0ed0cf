"""Copy-on-write of a MERGE in one job: files are rewritten and new rows written in the same tasks.

Rows go to the task of their file, sorted by position; new rows come before them, by partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from icefloe.execute.rewrite import Rewriter, Rewritten
from icefloe.execute.write_data import (
    WrittenRows,
    as_written,
    run_task,
    sort_columns,
    written_names,
    written_rows,
)
from icefloe.scan.file_keys import by_file
from icefloe.schema.partition_values import partition_columns
from icefloe.spark import columns
from icefloe.tasks.messages import ChangeColumns
from icefloe.tasks.rewrite import rewrite_and_add

_SPREAD = f"{columns.PREFIX}spread"
_MOST_TASKS = 200
_SHUFFLE_TASKS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True, slots=True)
class RewrittenAndAdded:
    """Files written anew, new files, and the rows of files that tasks declined to rewrite."""

    rewritten: Rewritten
    declined: Mapping[str, BitMap64]
    added: WrittenRows


@dataclass(frozen=True, slots=True)
class FilesAndNewRows:
    """The work: labelled rows with `carried` columns, `deletes` the actions that delete a row.

    Without `adds` there are no new rows, and columns may be missing. New rows of a table without
    partitions are spread over `new_tasks` tasks.
    """

    rewriter: Rewriter
    carried: Sequence[str]
    changes: ChangeColumns
    deletes: Sequence[int]
    adds: bool
    new_tasks: int

    def run(self, labelled: DataFrame) -> RewrittenAndAdded:
        """Do it; one Spark job."""
        scan = self.rewriter.scan
        written = written_names(scan.state)
        assigned = {
            field.name: name
            for field, name in zip(scan.state.schema.fields, written, strict=True)
            if field.name in self.rewriter.assigned
        }
        plan = self.rewriter.plan(scan.candidates, assigned, columns.GONE)
        results = run_task(self._laid_out(labelled), rewrite_and_add(plan, written, self.changes))
        rewritten, declined = self.rewriter.rewritten(results)
        return RewrittenAndAdded(rewritten, declined, written_rows(scan.state, results))

    def _laid_out(self, rows: DataFrame) -> DataFrame:
        state = self.rewriter.scan.state
        is_new = F.col(columns.FILE).isNull()
        spec = state.metadata.spec()
        parts: dict[str, Column] = {}
        if self.adds:
            for i, value in enumerate(partition_columns(spec, state.schema)):
                parts[columns.partition_field(i)] = F.when(is_new, value)
        spread: dict[str, Column] = {}
        if self.adds and self.new_tasks > 1 and not parts:
            spread = {_SPREAD: F.when(is_new, F.spark_partition_id() % F.lit(self.new_tasks))}
        gone = F.col(columns.ACTION).isin(list(self.deletes)) if self.deletes else F.lit(False)
        rows = rows.withColumns({columns.GONE: gone, **parts, **spread})
        scan, tasks = self.rewriter.scan, self.new_tasks if self.adds else 0
        new = [*parts, *spread]
        rows = by_file(rows, scan.candidates, scan.keys, _most_tasks(rows), new, tasks)
        order = sort_columns(state, only=is_new) if self.adds else []
        rows = rows.sortWithinPartitions(columns.FILE, *parts, *order, columns.POS)
        return rows.selectExpr(
            columns.FILE,
            columns.POS,
            columns.ACTION,
            columns.GONE,
            *parts,
            *as_written(state, self.carried),
        )


def _most_tasks(rows: DataFrame) -> int:
    """Not far more than Spark is told to shuffle to."""
    return max(_MOST_TASKS, int(str(rows.sparkSession.conf.get(_SHUFFLE_TASKS))))
