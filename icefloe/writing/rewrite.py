"""Copy-on-write: rewrite files that have changes, in Arrow tasks where that is possible.

A task rewrites a file in place if its rows stay in their partition and its columns can be carried
over. Spark rewrites the others: it reads them with deletes applied, changes the rows, and writes
them like new rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from icefloe.deletes.row_positions import as_array, as_bitmap
from icefloe.errors import IcefloeError, StorageError
from icefloe.indexes.definitions import delete_data_files
from icefloe.metadata.files import LiveFile, leaves
from icefloe.pruning.candidates import Candidate
from icefloe.results import RowCounts
from icefloe.scan.file_keys import by_file
from icefloe.scan.scan import Scan
from icefloe.schema.partition_spec import source_path
from icefloe.schema.partition_values import partition_columns
from icefloe.spark import columns
from icefloe.spark.columns import quoted
from icefloe.storage.files import locate
from icefloe.tasks.messages import (
    ChangeColumns,
    DeclinedFile,
    RewrittenFile,
    TaskMessage,
    pack,
    unpack,
)
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
from icefloe.writing.manifest_entries import EntryPlacement, build_data_file, inherited_metrics
from icefloe.writing.rewrite_choice import why_through_spark

log = logging.getLogger("icefloe")

_MAX_REWRITE_TASKS = 1000
_SHOWN_FILES = 3


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """Rewritten files, the files they replace, and how many rows were changed or copied."""

    files: tuple[DataFile, ...] = ()
    replaced: tuple[LiveFile, ...] = ()
    counts: RowCounts = field(default_factory=RowCounts)

    def __add__(self, other: RewriteResult) -> RewriteResult:
        return RewriteResult(
            self.files + other.files, self.replaced + other.replaced, self.counts + other.counts
        )


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Rewrites files of one statement; `assigned` has the new values and is empty for DELETE."""

    scan: Scan
    statement_id: str
    assigned: Mapping[str, Column]

    def can_rewrite_in_place(self, candidate: Candidate) -> bool:
        """Whether a task can rewrite a file, as far as metadata shows."""
        return why_through_spark(self.scan.state, candidate, self.assigned) is None

    def rewrite_in_tasks(
        self, changed: DataFrame, files: Sequence[Candidate], delete_column: str | None = None
    ) -> tuple[RewriteResult, dict[str, BitMap64]]:
        """Rewrite the files that `changed` has rows of; it is read once, in one job.

        `delete_column` is boolean: whether the row is deleted. Without it all rows are, or none if
        there are new values. Files whose columns cannot be carried over are not rewritten: their
        rows to change are returned, by location.
        """
        changes, plan = self._to_tasks(changed, files, delete_column, _MAX_REWRITE_TASKS)
        return self.rewritten(run_task(changes, rewrite_files(plan)))

    def new_versions(
        self, changed: DataFrame, files: Sequence[Candidate], tasks: int
    ) -> WrittenRows | None:
        """Write only the new versions of the rows, in at most `tasks` tasks, in one job.

        None if the columns of a file cannot be carried over. What was written is then deleted:
        computed a second time, values may differ, and all rows must come from one computation.
        """
        changes, plan = self._to_tasks(changed, files, None, tasks)
        messages = run_task(changes, write_new_versions(plan))
        state = self.scan.state
        written = written_rows(state, messages)
        declined = [message for message in messages if isinstance(message, DeclinedFile)]
        if not declined:
            return written
        for file in declined:
            path = self.scan.keys.files[file.file].path
            log.info("All updated rows pass through Spark: %s (%s)", file.reason, path)
        delete_data_files(state, [file.file_path for file in written.files])
        return None

    def _to_tasks(
        self, changed: DataFrame, files: Sequence[Candidate], delete_column: str | None, most: int
    ) -> tuple[DataFrame, RewritePlan]:
        """Positions and new values, with each file's in one task, and the plan for these tasks."""
        assigned = {
            name: columns.assigned(i)
            for i, name in enumerate(self._names())
            if name in self.assigned
        }
        values = [value.alias(assigned[name]) for name, value in self.assigned.items()]
        changes = changed.select(
            columns.FILE, columns.POS, *values, *([delete_column] if delete_column else [])
        )
        changes = by_file(changes, files, self.scan.keys, most)
        changes = changes.sortWithinPartitions(columns.FILE, columns.POS)
        return changes, self.plan(files, assigned, delete_column)

    def plan(
        self, files: Sequence[Candidate], assigned: Mapping[str, str], delete_column: str | None
    ) -> RewritePlan:
        """The plan for tasks; `assigned` has the columns with the new values."""
        return RewritePlan(
            layout=file_layout(self.scan.state, self.statement_id),
            files={self.scan.keys.of_file(c): self._to_rewrite(c) for c in files},
            file_column=columns.FILE,
            pos_column=columns.POS,
            assigned=assigned,
            delete_column=delete_column,
        )

    def rewritten(
        self, messages: Sequence[TaskMessage]
    ) -> tuple[RewriteResult, dict[str, BitMap64]]:
        """The files that tasks rewrote, and the rows to change of files that they declined."""
        done = RewriteResult()
        declined: dict[str, BitMap64] = {}
        reason: str | None
        for message in messages:
            if isinstance(message, DeclinedFile):
                path, reason = self.scan.keys.files[message.file].path, message.reason
                if message.positions is None:
                    raise IcefloeError(f"A task declined {path} without its rows to change.")
                declined[path] = as_bitmap(unpack(message.positions))
            elif isinstance(message, RewrittenFile):
                candidate = self.scan.keys.files[message.file]
                path, reason = candidate.path, message.not_copied_because
                done += self._result_of(candidate, message)
            else:
                continue
            if reason:
                log.info("Every row of %s is encoded again: %s", path, reason)
        return done, declined

    def rewrite_with_spark(self, hits: Mapping[str, BitMap64]) -> RewriteResult:
        """Rewrite the files that have rows in `hits` (by location) as rows of a DataFrame."""
        touched = [c for c in self.scan.candidates if hits.get(c.path)]
        if not touched:
            return RewriteResult()
        state = self.scan.state
        rows = self.scan.restrict_to(touched).rows_marked(hits).alias(state.alias)
        selected = F.col(columns.SELECTED)
        if not self.assigned:
            rows = rows.filter(~selected)
        else:
            rows = rows.select(*(self._old_or_new(name) for name in self._names()))
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

    def _old_or_new(self, name: str) -> Column:
        if name not in self.assigned:
            return quoted(name)
        new = F.when(F.col(columns.SELECTED), self.assigned[name]).otherwise(quoted(name))
        return new.alias(name)

    def _names(self) -> list[str]:
        return [field.name for field in self.scan.state.schema.fields]

    def _to_rewrite(self, candidate: Candidate) -> FileToRewrite:
        deleted = self.scan.deleted.get(candidate.path)
        location = locate(self.scan.state.io, candidate.path)
        return FileToRewrite(
            filesystem=location.filesystem,
            path=location.path,
            folder=rewritten_folder(self.scan.state, candidate.live),
            rows=candidate.live.rows,
            deleted=pack(as_array(deleted)) if deleted else None,
            location=candidate.path,
        )

    def _result_of(self, candidate: Candidate, message: RewrittenFile) -> RewriteResult:
        state = self.scan.state
        columns_by_path = leaves(state.schema)
        placement = EntryPlacement(
            candidate.live.file.partition,
            candidate.live.spec_id,
            self._remaining_order(candidate),
        )
        files = tuple(
            build_data_file(
                written,
                columns_by_path,
                state.metadata,
                placement,
                inherited_metrics(written, candidate.live.file, state.schema, self.assigned),
            )
            for written in message.replacements
        )
        rows = sum(file.record_count for file in files)
        expected = message.rows_copied + message.rows_updated
        if rows != expected:
            raise row_count_mismatch(rows, expected, [candidate])
        return RewriteResult(
            files,
            (candidate.live,),
            RowCounts(
                rows_updated=message.rows_updated,
                rows_deleted=message.rows_deleted,
                rows_copied=message.rows_copied,
                bytes_copied=sum(written.copied.bytes for written in message.replacements),
                row_groups_copied=sum(w.copied.row_groups for w in message.replacements),
            ),
        )

    def _remaining_order(self, candidate: Candidate) -> int | None:
        """The file's sort order, unless a column that it sorts by gets new values."""
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
    """The error for a statement that wrote more or fewer rows than it had to.

    `files` are those whose rows, as the table's metadata counts them, are `expected`.
    """
    message = (
        f"Row count check failed: wrote {written} rows, expected {expected}. Nothing was "
        "published. The table's deletes or row counts do not agree with its files"
    )
    if not files:
        return IcefloeError(f"{message}.")
    more = f" and {len(files) - _SHOWN_FILES} more" if len(files) > _SHOWN_FILES else ""
    return StorageError(f"{message}: {', '.join(c.path for c in files[:_SHOWN_FILES])}{more}.")


# -------------------------------------------------------------------------------------------------
# Copy-on-write of a MERGE in one job: the same tasks rewrite files and write new rows.

_SPREAD = f"{columns.PREFIX}spread"
_MOST_TASKS = 200
_SHUFFLE_TASKS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True, slots=True)
class RewrittenAndAdded:
    """Rewritten files, new files, and the rows to change of files that tasks declined."""

    rewritten: RewriteResult
    declined: Mapping[str, BitMap64]
    added: WrittenRows


@dataclass(frozen=True, slots=True)
class FilesAndNewRows:
    """A MERGE's labelled rows with `carried` columns; actions in `deletes` delete a row.

    Without `adds` there are no new rows, and columns may be missing. New rows of an unpartitioned
    table are spread over `new_tasks` tasks.
    """

    rewriter: Rewriter
    carried: Sequence[str]
    changes: ChangeColumns
    deletes: Sequence[int]
    adds: bool
    new_tasks: int

    def run(self, labelled: DataFrame) -> RewrittenAndAdded:
        """Rewrite the files and write the new rows; one Spark job."""
        scan = self.rewriter.scan
        written = written_names(scan.state)
        assigned = {
            field.name: name
            for field, name in zip(scan.state.schema.fields, written, strict=True)
            if field.name in self.rewriter.assigned
        }
        plan = self.rewriter.plan(scan.candidates, assigned, columns.IS_DELETED)
        task = rewrite_and_add(plan, written, self.changes)
        messages = run_task(self._clustered(labelled), task)
        rewritten, declined = self.rewriter.rewritten(messages)
        return RewrittenAndAdded(rewritten, declined, written_rows(scan.state, messages))

    def _clustered(self, rows: DataFrame) -> DataFrame:
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
        is_deleted = (
            F.col(columns.ACTION).isin(list(self.deletes)) if self.deletes else F.lit(False)
        )
        rows = rows.withColumns({columns.IS_DELETED: is_deleted, **parts, **spread})
        scan, tasks = self.rewriter.scan, self.new_tasks if self.adds else 0
        new = [*parts, *spread]
        rows = by_file(rows, scan.candidates, scan.keys, _most_tasks(rows), new, tasks)
        order = sort_columns(state, only=is_new) if self.adds else []
        rows = rows.sortWithinPartitions(columns.FILE, *parts, *order, columns.POS)
        return rows.selectExpr(
            columns.FILE,
            columns.POS,
            columns.ACTION,
            columns.IS_DELETED,
            *parts,
            *as_written(state, self.carried),
        )


def _most_tasks(rows: DataFrame) -> int:
    """At least the session's shuffle partitions."""
    return max(_MOST_TASKS, int(str(rows.sparkSession.conf.get(_SHUFFLE_TASKS))))
