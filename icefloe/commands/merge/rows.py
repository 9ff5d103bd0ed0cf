"""The data work of a MERGE: write new rows, then record deleted positions or rewrite files.

Merge-on-read is one job, and so is copy-on-write where no row leaves its file. Otherwise, and for
`auto`, the labelled rows are persisted: a first job finds the files that they touch, then those
files are rewritten, and new rows are written like any others.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from icefloe.commands.merge.join import JoinShape
from icefloe.commands.merge.label import MergeJoin
from icefloe.commands.merge.source import persisted
from icefloe.commands.row_changes import (
    PositionsByFile,
    by_location,
    count,
    file_changes,
)
from icefloe.deletes.row_positions import RowActions
from icefloe.errors import CardinalityError
from icefloe.file_changes import FileChanges
from icefloe.indexes.definitions import delete_data_files
from icefloe.pruning.candidates import Candidate, FilePlan
from icefloe.results import RowCounts
from icefloe.scan.row_counts import verify_row_counts
from icefloe.scan.scan import Scan
from icefloe.settings import UpdateMode
from icefloe.spark import columns
from icefloe.spark.columns import quoted
from icefloe.spark.session import spark_conf
from icefloe.statements import Then
from icefloe.tasks.messages import ChangeColumns
from icefloe.writing.carried_values import check_carried_values
from icefloe.writing.data_files import WrittenRows, find_rows, write_data
from icefloe.writing.rewrite import FilesAndNewRows, Rewriter, RewriteResult, row_count_mismatch
from icefloe.writing.rewrite_choice import is_rewritten

_SHOWN_KEYS = 5
_ANY_BYTES = 2**63 - 1
_MANY_FILES = 1000  # each task gets the list of all files


@dataclass(frozen=True, slots=True)
class MergedRows:
    """What was written, how many rows changed, and how many rows each clause applied to."""

    changes: FileChanges
    counts: RowCounts
    clauses: tuple[int, ...]


@dataclass(frozen=True)
class MergeRows:
    """The data work of one MERGE."""

    joined: MergeJoin
    files: FilePlan
    mode: UpdateMode
    statement_id: str

    def run(self) -> MergedRows:
        """Do it; nothing is published yet."""
        read = [] if self.joined.join.shape is JoinShape.NONE else [*self._scan.candidates]
        if self.joined.lookup is not None:  # tasks check the files that they read rows of
            read = [c for c in read if c.path not in self.joined.lookup.files]
        with verify_row_counts(self._scan, read):
            return self._run()

    def _run(self) -> MergedRows:
        inserts_only = self.joined.join.shape in (JoinShape.NONE, JoinShape.SOURCE_ANTI)
        if inserts_only or self.mode is UpdateMode.MERGE_ON_READ:
            return self._merge_on_read()
        done = self._copy_on_write() if self._fits_one_job else None
        if done is not None:
            return done
        with persisted(self.joined.rows(self._names)) as labelled:
            return self._survey_and_rewrite(labelled)

    def _merge_on_read(self) -> MergedRows:
        """Write new rows and mark old ones deleted, in one Spark job."""
        rows = self.joined.rows(self._names)
        with self._planned_once(rows.sparkSession):
            written = write_data(
                self._scan.state,
                rows,
                self.statement_id,
                self._columns,
                gather=not self.joined.join.gathers,
            )
        self._refuse_double_matches(written.acted)
        new = self._count(written.acted, self._inserts) + self._count(written.acted, self._updates)
        if written.rows != new:
            raise row_count_mismatch(written.rows, new)
        check_carried_values(
            self._scan.state.schema,
            [c.live.file for c in self._candidates(self._located(written.acted, self._updates))],
            written.files,
            assigned=self.joined.bound.updated_columns,
            added_rows=self._count(written.acted, self._inserts),
        )
        marked = self._located(written.acted, self._changing)
        return self._outcome(written.acted, RewriteResult(), marked, written)

    @property
    def _fits_one_job(self) -> bool:
        """Whether rows stay in their files, and no task gets too many files or new rows."""
        state, join = self._scan.state, self.joined.join
        few = join.broadcast and join.new_tasks == 1
        return (
            self.mode is UpdateMode.COPY_ON_WRITE
            and len(self._scan.candidates) <= _MANY_FILES
            and (few or state.metadata.spec().is_unpartitioned() or not self._inserts)
            and all(map(self._rewriter.can_rewrite_in_place, self._scan.candidates))
            and not self._scan.may_be_declined
        )

    def _copy_on_write(self) -> MergedRows | None:
        """Find rows, rewrite their files and write new rows in one Spark job.

        None where tasks declined a file. What they wrote is removed: labels may differ when they
        are computed again (`current_timestamp()`), and all rows must have the same.
        """
        carried = self._names if self._inserts else self.joined.bound.updated_columns
        work = FilesAndNewRows(
            self._rewriter,
            carried,
            self._columns,
            self._deletes,
            bool(self._inserts),
            self.joined.join.new_tasks,
        )
        rows = self.joined.rows(carried)
        with self._planned_once(rows.sparkSession):
            done = work.run(rows)
        acted = done.added.acted
        self._refuse_double_matches(acted)
        if done.declined:
            written = (*done.rewritten.files, *done.added.files)
            delete_data_files(self._scan.state, [file.file_path for file in written])
            return None
        _check_rewritten(done.rewritten, self._located(acted, self._changing))
        if done.added.rows != self._count(acted, self._inserts):
            raise row_count_mismatch(done.added.rows, self._count(acted, self._inserts))
        return self._outcome(acted, done.rewritten, {}, done.added)

    @contextmanager
    def _planned_once(self, spark: SparkSession) -> Iterator[None]:
        """Turn off adaptive planning where every shuffle has one task: it would only take time.

        Spark would shuffle to more tasks because it cannot know how few rows of the table match.
        """
        join = self.joined.join
        if join.shape is not JoinShape.PROBE or join.tasks != 1:
            yield
            return
        with (
            spark_conf(spark, "spark.sql.adaptive.enabled", "false"),
            spark_conf(spark, "spark.sql.maxSinglePartitionBytes", str(_ANY_BYTES)),
        ):
            yield

    def _survey_and_rewrite(self, labelled: DataFrame) -> MergedRows:
        """Find the rows first, then rewrite files: in tasks, or with the new rows through Spark."""
        acted = find_rows(labelled, self._columns)
        self._refuse_double_matches(acted)
        hits = self._located(acted, self._changing)
        rewritten_paths = self._paths_to_rewrite(acted, hits)
        in_place = [
            c for c in self._candidates(rewritten_paths) if self._rewriter.can_rewrite_in_place(c)
        ]
        rewritten, declined = self._rewrite(labelled, in_place, hits)
        done = {c.path for c in in_place} - set(declined)
        through = self._candidates(rewritten_paths - done)
        written = self._write_the_rest(labelled, acted, through, hits, done)
        updated_elsewhere = self._located(acted, self._updates, but=done)
        copied = written.rows - self._count(acted, self._inserts) - count(updated_elsewhere)
        _check_copied(self._scan, through, hits, copied)
        rewritten += RewriteResult(
            replaced=tuple(c.live for c in through), counts=RowCounts(rows_copied=copied)
        )
        marked = {path: rows for path, rows in hits.items() if path not in rewritten_paths}
        return self._outcome(acted, rewritten, marked, written)

    def _paths_to_rewrite(self, acted: RowActions, hits: PositionsByFile) -> set[str]:
        """Files to rewrite; files that lose every row are removed without being read."""
        deleted = self._located(acted, self._deletes)
        paths = set()
        for candidate in self._candidates(hits):
            deletes = len(deleted.get(candidate.path, ()))
            if deletes == self._scan.live_rows(candidate) and not candidate.equality_deletes:
                continue
            if self.mode is UpdateMode.COPY_ON_WRITE or self._is_rewritten(
                candidate, len(hits[candidate.path]) - deletes, deletes
            ):
                paths.add(candidate.path)
        return paths

    def _is_rewritten(self, candidate: Candidate, updated: int, deleted: int) -> bool:
        """Whether `auto` rewrites a file with so many updated and deleted rows."""
        assigned = self.joined.bound.updated_columns
        return is_rewritten(self._scan.state, candidate, assigned, updated, deleted)

    def _rewrite(
        self, labelled: DataFrame, files: Sequence[Candidate], hits: PositionsByFile
    ) -> tuple[RewriteResult, dict[str, BitMap64]]:
        if not files:
            return RewriteResult(), {}
        changed = labelled.filter(F.col(columns.ACTION) >= 0).filter(self._is_in(files))
        is_deleted = F.col(columns.ACTION).isin(self._deletes) if self._deletes else F.lit(False)
        rewritten, declined = self._rewriter.rewrite_in_tasks(
            changed.withColumn(columns.IS_DELETED, is_deleted), files, columns.IS_DELETED
        )
        paths = {c.path for c in files}
        _check_rewritten(rewritten, {p: h for p, h in hits.items() if p in paths - set(declined)})
        return rewritten, declined

    def _write_the_rest(
        self,
        labelled: DataFrame,
        acted: RowActions,
        through: Sequence[Candidate],
        hits: PositionsByFile,
        done: set[str],
    ) -> WrittenRows:
        """Write new rows, updated rows of files not rewritten in tasks, and rows to copy."""
        updated = self._located(acted, self._updates, but=done)
        if not (self._count(acted, self._inserts) or updated or through):
            return WrittenRows()
        is_new = F.col(columns.ACTION).isin(self._inserts) if self._inserts else F.lit(False)
        replaces = F.col(columns.ACTION).isin(self._updates) if self._updates else F.lit(False)
        rows = labelled.filter(is_new | (replaces & ~self._is_in(self._candidates(done))))
        rows = rows.select(*map(quoted, self._names))
        if through:
            marked = self._scan.restrict_to(through).rows_marked(hits)
            others = marked.filter(~F.col(columns.SELECTED)).select(*map(quoted, self._names))
            rows = rows.unionByName(others)
        written = write_data(self._scan.state, rows, self.statement_id, gather=True)
        # Updated rows whose files stay count as added to the rows of the others.
        elsewhere = self._located(acted, self._updates, but={*done, *(c.path for c in through)})
        added = self._count(acted, self._inserts) + count(elsewhere)
        check_carried_values(
            self._scan.state.schema,
            [c.live.file for c in through],
            written.files,
            assigned=self.joined.bound.updated_columns,
            added_rows=added,
        )
        return written

    def _outcome(
        self,
        acted: RowActions,
        rewritten: RewriteResult,
        marked: PositionsByFile,
        written: WrittenRows,
    ) -> MergedRows:
        replaced = self._located(acted, self._updates)
        changes = file_changes(
            self._scan,
            self.files,
            rewritten,
            marked,
            {path: rows for path, rows in replaced.items() if path in marked},
            written.files,
        )
        counts = replace(
            rewritten.counts,
            rows_inserted=self._count(acted, self._inserts),
            rows_updated=self._count(acted, self._updates),
            rows_deleted=self._count(acted, self._deletes),
        )
        clauses = range(len(self.joined.bound.clauses))
        return MergedRows(changes, counts, tuple(acted.count(number) for number in clauses))

    def _refuse_double_matches(self, acted: RowActions) -> None:
        """Raise where several source rows match a row that a clause changes."""
        repeated = by_location(self._scan, acted.repeated)
        changed = self._located(acted, self._changing)
        clashes = {p: rows & changed[p] for p, rows in repeated.items() if p in changed}
        clashes = {path: rows for path, rows in clashes.items() if rows}
        if clashes:
            raise CardinalityError(self._keys_at(clashes))

    def _keys_at(self, clashes: PositionsByFile) -> list[object]:
        """The keys of a few of the rows."""
        few: dict[str, BitMap64] = {}
        for path, rows in clashes.items():
            left = _SHOWN_KEYS - count(few)
            if left > 0:
                few[path] = BitMap64(list(rows[:left]))
        names = [key.target for key in self.joined.bound.keys] or self._names
        rows_at = self._scan.restrict_to(self._candidates(few)).rows_at(few)
        keys = rows_at.select(*map(quoted, names)).limit(_SHOWN_KEYS).collect()
        return [row[0] if len(row) == 1 else tuple(row) for row in keys]

    @property
    def _scan(self) -> Scan:
        return self.joined.scan

    @cached_property
    def _rewriter(self) -> Rewriter:
        assigned = {name: quoted(name) for name in self.joined.bound.updated_columns}
        return Rewriter(self._scan, self.statement_id, assigned)

    @property
    def _names(self) -> list[str]:
        return [field.name for field in self._scan.state.schema.fields]

    @property
    def _columns(self) -> ChangeColumns:
        written = frozenset((*self._inserts, *self._updates))
        return ChangeColumns(columns.FILE, columns.POS, columns.ACTION, written)

    @property
    def _inserts(self) -> list[int]:
        return self.joined.bound.numbers(Then.INSERT)

    @property
    def _updates(self) -> list[int]:
        return self.joined.bound.numbers(Then.UPDATE)

    @property
    def _deletes(self) -> list[int]:
        return self.joined.bound.numbers(Then.DELETE)

    @property
    def _changing(self) -> list[int]:
        return [*self._updates, *self._deletes]

    def _candidates(self, paths: Container[str]) -> list[Candidate]:
        return [c for c in self._scan.candidates if c.path in paths]

    def _is_in(self, files: Sequence[Candidate]) -> Column:
        """Whether a labelled row represents a row of one of these files."""
        if not files:
            return F.lit(False)
        keys = self._scan.keys.of_files(files)
        return F.coalesce(F.col(columns.FILE).isin(keys), F.lit(False))

    def _located(
        self, acted: RowActions, actions: Iterable[int], but: Container[str] = ()
    ) -> dict[str, BitMap64]:
        by_path = by_location(self._scan, acted.of(actions))
        return {path: rows for path, rows in by_path.items() if path not in but}

    def _count(self, acted: RowActions, actions: Iterable[int]) -> int:
        return sum(map(acted.count, actions))


def _check_rewritten(rewritten: RewriteResult, hits: PositionsByFile) -> None:
    """Every changed row of the files that tasks rewrote must have been changed by them."""
    changed = rewritten.counts.rows_updated + rewritten.counts.rows_deleted
    if changed != count(hits):
        raise row_count_mismatch(changed, count(hits))


def _check_copied(
    scan: Scan, files: Sequence[Candidate], hits: PositionsByFile, copied: int
) -> None:
    """The last check before a commit: every row that no clause changes must be written."""
    if any(c.equality_deletes for c in files):
        return  # how many rows they leave is not known beforehand
    expected = sum(scan.live_rows(c) - len(hits[c.path]) for c in files)
    if copied != expected:
        raise row_count_mismatch(copied, expected, files)
