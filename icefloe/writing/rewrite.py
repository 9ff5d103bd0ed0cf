"""Copy-on-write: files with changes are written anew, in Arrow tasks where that is possible.

A file is rewritten in a task when its rows stay in their partition and its columns can be carried
over. The others go through Spark: read with deletes applied, changed, and written like new rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.manifest import DataFile
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from icefloe.deletes.row_positions import as_array, as_bitmap
from icefloe.errors import IcefloeError, StorageError
from icefloe.metadata.files import LiveFile, leaves
from icefloe.pruning.candidates import Candidate
from icefloe.results import RowCounts
from icefloe.scan.file_keys import by_file
from icefloe.scan.scan import Scan
from icefloe.schema.partition_spec import source_path
from icefloe.schema.partition_values import partition_columns
from icefloe.spark import columns
from icefloe.spark.columns import quoted
from icefloe.storage.files import delete_each, locate
from icefloe.tasks.messages import ChangeColumns, pack, unpack
from icefloe.tasks.new_versions import write_new_versions
from icefloe.tasks.rewrite import FileToRewrite, RewritePlan, rewrite_and_add, rewrite_files
from icefloe.writing.carried_values import check_carried_values
from icefloe.writing.data_files import (
    WrittenRows,
    as_written,
    file_layout,
    rewritten_folder,
    run_task,
    sort_columns,
    write_data,
    written_names,
    written_rows,
)
from icefloe.writing.manifest_entries import build_data_file, carried_metrics
from icefloe.writing.rewrite_choice import why_through_spark

log = logging.getLogger("icefloe")


_MAX_REWRITE_TASKS = 1000
_FILES_TOLD = 3


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """Files written anew, the files they replace, and what became of the rows."""

    files: tuple[DataFile, ...] = ()
    replaced: tuple[LiveFile, ...] = ()
    counts: RowCounts = field(default_factory=RowCounts)

    def __add__(self, other: RewriteResult) -> RewriteResult:
        return RewriteResult(
            self.files + other.files, self.replaced + other.replaced, self.counts + other.counts
        )


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Rewrites files of one statement: `assigned` has new values, or is empty for DELETE."""

    scan: Scan
    statement_id: str
    assigned: Mapping[str, Column]

    def can_rewrite_in_place(self, candidate: Candidate) -> bool:
        """Whether a file's rows can be rewritten in place, without passing through Spark."""
        return why_through_spark(self.scan.state, candidate, self.assigned) is None

    def in_tasks(
        self, changed: DataFrame, files: Sequence[Candidate], gone: str | None = None
    ) -> tuple[RewriteResult, dict[str, BitMap64]]:
        """Rewrite the files that `changed` has rows of, by key; it is read once, in one job.

        `gone` names a column that tells which of the rows are deleted; without it all are, or
        none when there are new values. Files whose columns cannot be carried over are not
        rewritten: their rows to change are given back.
        """
        changes, plan = self._to_tasks(changed, files, gone, _MAX_REWRITE_TASKS)
        return self.rewritten(run_task(changes, rewrite_files(plan)))

    def new_versions(
        self, changed: DataFrame, files: Sequence[Candidate], tasks: int
    ) -> WrittenRows | None:
        """Write new versions of the rows alone, in so many tasks at most, in one job.

        None where the columns of a file cannot be carried over. What was written is removed again:
        values may come out otherwise when they are made anew, and must be those of all rows.
        """
        changes, plan = self._to_tasks(changed, files, None, tasks)
        told = run_task(changes, write_new_versions(plan))
        state = self.scan.state
        written = written_rows(state, told)
        declined = [result["declined"] for result in told if "declined" in result]
        if not declined:
            return written
        for key, reason in declined:
            path = self.scan.keys.files[key].path
            log.info("All updated rows pass through Spark: %s (%s)", reason, path)
        delete_each(state.io, [file.file_path for file in written.files])
        return None

    def _to_tasks(
        self, changed: DataFrame, files: Sequence[Candidate], gone: str | None, most: int
    ) -> tuple[DataFrame, RewritePlan]:
        """Positions and new values, those of a file in one task, and what tasks need to know."""
        assigned = {
            name: columns.assigned(i)
            for i, name in enumerate(self._names())
            if name in self.assigned
        }
        values = [value.alias(assigned[name]) for name, value in self.assigned.items()]
        changes = changed.select(columns.FILE, columns.POS, *values, *([gone] if gone else []))
        changes = by_file(changes, files, self.scan.keys, most)
        changes = changes.sortWithinPartitions(columns.FILE, columns.POS)
        return changes, self.plan(files, assigned, gone)

    def plan(
        self, files: Sequence[Candidate], assigned: Mapping[str, str], gone: str | None
    ) -> RewritePlan:
        """What tasks need to know; `assigned` names the columns that carry new values."""
        return RewritePlan(
            layout=file_layout(self.scan.state, self.statement_id),
            files={self.scan.keys.of_file(c): self._to_rewrite(c) for c in files},
            file_column=columns.FILE,
            pos_column=columns.POS,
            assigned=assigned,
            gone_column=gone,
        )

    def rewritten(
        self, told: Sequence[Mapping[str, Any]]
    ) -> tuple[RewriteResult, dict[str, BitMap64]]:
        """What tasks did to files, and the rows to change of files that they declined."""
        results = [result["rewrite"] for result in told if "rewrite" in result]
        done = RewriteResult()
        declined: dict[str, BitMap64] = {}
        for result in results:
            candidate = self.scan.keys.files[result["file"]]
            reason = result.get("declined") or result["whole"]
            if reason:
                log.info("%s is written anew as a whole: %s", candidate.path, reason)
            if "declined" in result:
                declined[candidate.path] = as_bitmap(unpack(result["positions"]))
            else:
                done += self._as_rewritten(candidate, result)
        return done, declined

    def rewrite_with_spark(self, hits: Mapping[str, BitMap64]) -> RewriteResult:
        """Rewrite the files that have hits (by location) as rows of a DataFrame."""
        touched = [c for c in self.scan.candidates if hits.get(c.path)]
        if not touched:
            return RewriteResult()
        state = self.scan.state
        rows = self.scan.restrict_to(touched).rows_marked(hits).alias(state.alias)
        selected = F.col(columns.SELECTED)
        if not self.assigned:
            rows = rows.filter(~selected)
        else:
            rows = rows.select(*(self._kept_or_new(name) for name in self._names()))
        written = write_data(state, rows.select(*map(quoted, self._names())), self.statement_id)
        changed = sum(len(hits[c.path]) for c in touched)
        expected = sum(self.scan.live_rows(c) for c in touched)
        expected -= 0 if self.assigned else changed
        if written.rows != expected and not any(c.equality_deletes for c in touched):
            raise row_count_mismatch(written.rows, expected, touched)
        check_carried_values(
            state.schema, [c.live.file for c in touched], written.files, assigned=self.assigned
        )
        return RewriteResult(
            written.files,
            tuple(c.live for c in touched),
            RowCounts(
                rows_updated=changed if self.assigned else 0,
                rows_deleted=0 if self.assigned else changed,
                rows_copied=written.rows - (changed if self.assigned else 0),
            ),
        )

    def _kept_or_new(self, name: str) -> Column:
        if name not in self.assigned:
            return quoted(name)
        chosen = F.when(F.col(columns.SELECTED), self.assigned[name]).otherwise(quoted(name))
        return chosen.alias(name)

    def _names(self) -> list[str]:
        return [field.name for field in self.scan.state.schema.fields]

    def _to_rewrite(self, candidate: Candidate) -> FileToRewrite:
        deleted = self.scan.deleted.get(candidate.path)
        place = locate(self.scan.state.io, candidate.path)
        return FileToRewrite(
            filesystem=place.filesystem,
            path=place.path,
            folder=rewritten_folder(self.scan.state, candidate.live),
            rows=candidate.live.rows,
            deleted=pack(as_array(deleted)) if deleted else None,
        )

    def _as_rewritten(self, candidate: Candidate, result: Mapping[str, Any]) -> RewriteResult:
        state = self.scan.state
        known = leaves(state.schema)
        files = tuple(
            build_data_file(
                written,
                known,
                state.metadata,
                partition=candidate.live.file.partition,
                spec_id=candidate.live.spec_id,
                sort_order_id=self._order_kept(candidate),
                carried=carried_metrics(written, candidate.live.file, state.schema, self.assigned),
            )
            for written in result["files"]
        )
        rows = sum(file.record_count for file in files)
        if rows != result["copied"] + result["updated"]:
            raise row_count_mismatch(rows, result["copied"] + result["updated"], [candidate])
        return RewriteResult(
            files,
            (candidate.live,),
            RowCounts(
                rows_updated=result["updated"],
                rows_deleted=result["deleted"],
                rows_copied=result["copied"],
                bytes_copied=sum(w.get("bytes_copied", 0) for w in result["files"]),
                row_groups_copied=sum(w.get("row_groups_copied", 0) for w in result["files"]),
            ),
        )

    def _order_kept(self, candidate: Candidate) -> int | None:
        """The file's sort order, unless a column it sorts by got new values."""
        order_id = candidate.live.file.sort_order_id
        metadata = self.scan.state.metadata
        order = metadata.sort_order_by_id(order_id) if order_id else None
        if order is None:
            return order_id
        sources = [source_path(self.scan.state.schema, f.source_id) for f in order.fields]
        broken = any(source is None or source[0] in self.assigned for source in sources)
        return 0 if broken else order_id


def row_count_mismatch(
    written: int, expected: int, files: Sequence[Candidate] = ()
) -> IcefloeError:
    """The last check before a commit: rows written must be the rows that were there.

    `files` are those whose rows, as the table's metadata counts them, had to come out.
    """
    told = (
        f"The statement wrote {written} rows where {expected} had to come out. Nothing was "
        "published. The table's deletes or row counts do not agree with its files"
    )
    if not files:
        return IcefloeError(f"{told}.")
    others = f" and {len(files) - _FILES_TOLD} more" if len(files) > _FILES_TOLD else ""
    return StorageError(f"{told}: {', '.join(c.path for c in files[:_FILES_TOLD])}{others}.")


# -------------------------------------------------------------------------------------------------
# Copy-on-write of a MERGE in one job: files are rewritten and new rows written in the same tasks.

_SPREAD = f"{columns.PREFIX}spread"
_MOST_TASKS = 200
_SHUFFLE_TASKS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True, slots=True)
class RewrittenAndAdded:
    """Files written anew, new files, and the rows of files that tasks declined to rewrite."""

    rewritten: RewriteResult
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
