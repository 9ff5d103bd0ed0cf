"""UPDATE and DELETE: find the rows, then record them as deleted or rewrite their files.

Every mode ends in the same values: files added, files removed, positions deleted, rows counted. The
modes differ in what happens to a file with changes. A file that loses all its rows is removed in
every mode.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import ceil
from typing import TypeAlias

from pyiceberg.manifest import DataFile
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame

from icefloe.commands.bind import Bound, bind_statement
from icefloe.commands.context import (
    Context,
    ExplainableCommand,
    NeedsFlushError,
    Outcome,
    row_report,
)
from icefloe.commands.inline_rows import change_inline_rows, with_inline_changes
from icefloe.commands.local_bind import LocalBound, bind_locally, change_exact_rows
from icefloe.commands.plan import Plan, plan_statement, with_footers
from icefloe.commit.conflicts import ConflictCheck
from icefloe.deletes.dangling import dangling_deletes
from icefloe.deletes.row_positions import RowActions
from icefloe.file_changes import DeletedRows, FileChanges, RemoveFiles
from icefloe.inline.tier import Cut
from icefloe.metadata.files import ids_of_columns
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import Candidate, FilePlan, plan_files
from icefloe.pruning.comparisons import UNKNOWN
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.results import RowCounts
from icefloe.scan.row_counts import verify_row_counts
from icefloe.scan.scan import Scan
from icefloe.settings import UpdateMode
from icefloe.spark import columns
from icefloe.spark.columns import quote
from icefloe.spark.session import spark_conf
from icefloe.statements import Options, RowStatement
from icefloe.tasks.messages import FileKey
from icefloe.writing.carried_values import check_carried_values
from icefloe.writing.data_files import REPLACING, WrittenRows, find_rows, write_data
from icefloe.writing.rewrite import Rewriter, RewriteResult, row_count_mismatch
from icefloe.writing.rewrite_choice import is_rewritten


@dataclass(frozen=True, slots=True)
class _RowPlan:
    state: TableState
    bound: Bound | LocalBound  # bound without Spark: no file can have rows to change
    files: FilePlan
    plan: Plan
    cut: Cut | None = None  # the inline rows that the condition may be TRUE for


@dataclass(frozen=True, slots=True)
class RowChangeCommand(ExplainableCommand[_RowPlan]):
    """UPDATE or DELETE."""

    statement: RowStatement
    context: Context

    @property
    def options(self) -> Options:
        """How the statement runs."""
        return self.statement.options

    def plan(self, state: TableState, _resources: ExitStack) -> _RowPlan:
        """Bind names and types, choose the files, decide what happens to each.

        Spark is not asked where the statement is certain and the inline tier has all its rows.
        """
        local = bind_locally(self.statement, state) if state.has_inline_tier else None
        if local is not None and (planned := self._plan_locally(state, local)) is not None:
            return planned
        bound = bind_statement(self.statement, state, self.context.spark, self.context.resolve)
        if bound.has_subquery and state.has_inline_tier:
            raise NeedsFlushError
        cut = self.context.tier.cut(state, bound.lowered.inclusive)
        return self._planned(state, bound, plan_files(state, bound.lowered), cut)

    def _plan_locally(self, state: TableState, local: LocalBound) -> _RowPlan | None:
        """The plan without Spark; None where a file may have rows to change."""
        files = plan_files(state, local.lowered)
        if files.candidates:
            return None
        cut = self.context.tier.cut(state, local.lowered.inclusive)
        if cut is not None and not cut.is_exact:
            return None
        return self._planned(state, local, files, cut)

    def _planned(
        self, state: TableState, bound: Bound | LocalBound, files: FilePlan, cut: Cut | None
    ) -> _RowPlan:
        plan = plan_statement(
            self.statement,
            state,
            files,
            assigned=bound.assigned,
            has_subquery=bound.has_subquery,
        )
        return _RowPlan(state, bound, files, plan, cut)

    def explain(self, plan: _RowPlan) -> Plan:
        """The plan, with what the footers of files to rewrite say."""
        return with_footers(plan.plan, plan.state, plan.files.candidates, plan.bound.assigned)

    def work(self, plan: _RowPlan, statement_id: str) -> Outcome:
        """Find the rows and write what replaces them."""
        changes, counts = self._change(plan, statement_id)
        report = row_report(plan.plan, changes, counts)
        inline = changes.inline
        report, changes = with_inline_changes(self.context.tier, report, changes, inline)
        return Outcome(report, changes, _conflict_check(plan))

    def _change(self, plan: _RowPlan, statement_id: str) -> ChangedRows:
        """What changes in both tiers, and the rows of files that do."""
        bound = plan.bound
        if isinstance(bound, LocalBound):
            return FileChanges(inline=change_exact_rows(bound, plan.cut)), RowCounts()
        scan = Scan.of(self.context.spark, plan.state, plan.files.candidates)
        mode = plan.plan.mode
        changes, counts = change_rows(
            RowChange(scan, plan.files, mode, bound.condition, bound.assigned, statement_id)
        )
        inline = change_inline_rows(self.context.spark, bound, plan.cut, plan.state.alias)
        return replace(changes, inline=inline), counts


def _conflict_check(plan: _RowPlan) -> ConflictCheck:
    """Rows added since matter when the condition may be true for them; a subquery reads all."""
    predicate = UNKNOWN if plan.bound.has_subquery else plan.bound.lowered
    matcher = FileMatcher(predicate, plan.state.schema, plan.state.metadata.specs())
    return ConflictCheck(plan.plan.isolation, matcher, plan.bound.has_subquery)


# -------------------------------------------------------------------------------------------------
# The data work, shared with REPLACE

ChangedRows: TypeAlias = tuple[FileChanges, RowCounts]

# How much Spark gives a task to read, and how many tasks may write a small file each.
_TASK_BYTES = 128 * 2**20
_FEWEST_TASKS, _MOST_TASKS = 4, 16


@dataclass(frozen=True, slots=True)
class RowChange:
    """A bound UPDATE or DELETE: which rows, and their new values (none: they are deleted)."""

    scan: Scan
    files: FilePlan
    mode: UpdateMode
    condition: Column | None
    assigned: Mapping[str, Column]
    statement_id: str
    choose: Callable[[DataFrame], DataFrame] | None = None  # selects the rows to change, by a join


def change_rows(change: RowChange) -> ChangedRows:
    """Run the data work of an UPDATE or DELETE; nothing is published yet."""
    covered = [] if change.assigned else _whole_files(change.scan.candidates)
    covered_paths = {c.path for c in covered}
    rest = [c for c in change.scan.candidates if c.path not in covered_paths]
    dropped = RewriteResult(
        replaced=tuple(c.live for c in covered),
        counts=RowCounts(rows_deleted=sum(change.scan.live_rows(c) for c in covered)),
    )
    with verify_row_counts(change.scan, rest):
        match change.mode:
            case UpdateMode.COPY_ON_WRITE:
                return _outcome(change, dropped + _rewrite(change, rest), {})
            case UpdateMode.MERGE_ON_READ:
                return _merge_on_read(change, dropped, rest)
            case UpdateMode.AUTO:
                return _auto(change, dropped, rest)


def _whole_files(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Files to remove by metadata alone; below equality deletes their rows cannot be counted."""
    return [c for c in candidates if c.covered and not c.equality_deletes]


def _rewrite(change: RowChange, files: Sequence[Candidate]) -> RewriteResult:
    """Copy-on-write of the files that have matching rows."""
    rewriter = Rewriter(change.scan, change.statement_id, change.assigned)
    in_place = [c for c in files if rewriter.can_rewrite_in_place(c)]
    others = [c for c in files if not rewriter.can_rewrite_in_place(c)]
    done = RewriteResult()
    if in_place:
        done += _in_tasks(change, rewriter, _matching(change, in_place), in_place)
    if others:
        done += rewriter.rewrite_with_spark(_find(change, others))
    return done


def _in_tasks(
    change: RowChange, rewriter: Rewriter, changed: DataFrame, files: Sequence[Candidate]
) -> RewriteResult:
    """Rewrite in tasks; files whose columns tasks cannot copy are rewritten with Spark."""
    with larger_splits(change.scan, _columns_read(change)):
        done, declined = rewriter.rewrite_in_tasks(changed, files)
    return done + rewriter.rewrite_with_spark(declined)


def _merge_on_read(
    change: RowChange, dropped: RewriteResult, files: Sequence[Candidate]
) -> ChangedRows:
    """Record deleted rows; for UPDATE also write their new versions, in the same Spark job."""
    if not files:
        return _outcome(change, dropped, {})
    if change.assigned:
        written = _write_new_versions(change, _matching(change, files), files)
        return _outcome(change, dropped, _positions(change, written.acted), written)
    return _outcome(change, dropped, _find(change, files))


def _auto(change: RowChange, dropped: RewriteResult, files: Sequence[Candidate]) -> ChangedRows:
    """Find the rows first, then decide per file: rewrite where many change, else write deletes."""
    if not files:
        return _outcome(change, dropped, {})
    hits = _find(change, files)
    many = {
        c.path: hits[c.path] for c in files if c.path in hits and _is_rewritten(change, c, hits)
    }
    few = {path: rows for path, rows in hits.items() if path not in many}
    rewritten = dropped + _rewrite_known(change, many)
    if not change.assigned:
        return _outcome(change, rewritten, few)
    if not few:
        return _outcome(change, rewritten, {})
    others = [c for c in files if c.path in few]
    rows_to_update = _with_keys(change, change.scan.restrict_to(others).rows_at(few))
    written = _write_new_versions(change, rows_to_update, others)
    return _outcome(change, rewritten, few, written)


def _is_rewritten(change: RowChange, candidate: Candidate, hits: PositionsByFile) -> bool:
    """Whether `auto` rewrites a file with these rows to change."""
    changed = len(hits[candidate.path])
    updated, deleted = (changed, 0) if change.assigned else (0, changed)
    return is_rewritten(change.scan.state, candidate, change.assigned, updated, deleted)


def _write_new_versions(
    change: RowChange, rows: DataFrame, files: Sequence[Candidate]
) -> WrittenRows:
    """Write updated rows: in the tasks that read them if these are few, else after a shuffle."""
    state = change.scan.state
    size = sum(candidate.live.size for candidate in files)
    tasks = max(_FEWEST_TASKS, ceil(size / _TASK_BYTES))
    in_place = tasks <= _MOST_TASKS and state.metadata.spec().is_unpartitioned()
    if in_place and (written := _write_by_position(change, rows, files, tasks)):
        return written
    new = _with_new_values(change, rows)
    if in_place:
        new = new.coalesce(tasks)
    written = write_data(state, new, change.statement_id, REPLACING, gather=not in_place)
    touched = _positions(change, written.acted)
    read = [candidate.live.file for candidate in files if candidate.path in touched]
    check_carried_values(state.schema, read, written.files, assigned=change.assigned)
    return written


def _write_by_position(
    change: RowChange, rows: DataFrame, files: Sequence[Candidate], tasks: int
) -> WrittenRows | None:
    """Find rows by few columns and let tasks read the others; None where that does not pay.

    Spark's reader decodes every column of a wide file for one row of a thousand, and more slowly.
    """
    scan, read = change.scan.restrict_to(files), _columns_read(change)
    rewriter = Rewriter(change.scan, change.statement_id, change.assigned)
    if (
        change.condition is None
        or times_read(scan, read) == 1
        or scan.state.metadata.sort_order().fields
        or not all(
            c.live.size <= 2 * _TASK_BYTES and rewriter.can_rewrite_in_place(c) for c in files
        )
        or scan.may_be_declined
    ):
        return None
    with larger_splits(scan, read):
        return rewriter.new_versions(rows, files, tasks)


def _rewrite_known(change: RowChange, hits: PositionsByFile) -> RewriteResult:
    """Copy-on-write of files whose positions to change are known."""
    rewriter = Rewriter(change.scan, change.statement_id, change.assigned)
    files = [c for c in change.scan.candidates if c.path in hits]
    in_place = [c for c in files if rewriter.can_rewrite_in_place(c)]
    others = {c.path: hits[c.path] for c in files if not rewriter.can_rewrite_in_place(c)}
    done = RewriteResult()
    if in_place:
        rows = change.scan.restrict_to(in_place).rows_at(hits)
        done += _in_tasks(change, rewriter, _with_keys(change, rows), in_place)
    return done + rewriter.rewrite_with_spark(others)


def _outcome(
    change: RowChange,
    rewritten: RewriteResult,
    hits: PositionsByFile,
    written: WrittenRows | None = None,
) -> ChangedRows:
    """The file changes and counts; files that lose their last rows are removed."""
    changed = count(hits)
    if written is not None and written.rows != changed:
        raise row_count_mismatch(written.rows, changed)
    is_update = bool(change.assigned)
    changes = file_changes(
        change.scan,
        change.files,
        rewritten,
        marked=hits,
        replaced=hits if is_update else {},
        added=written.files if written else (),
    )
    counts = RowCounts(rows_updated=changed) if is_update else RowCounts(rows_deleted=changed)
    return changes, rewritten.counts + counts


def _find(change: RowChange, files: Sequence[Candidate]) -> dict[str, BitMap64]:
    """The positions to change; only columns that the condition names are read."""
    with larger_splits(change.scan, _columns_read(change)):
        return _positions(change, find_rows(_matching(change, files)))


def _columns_read(change: RowChange) -> list[str]:
    """The columns that find the rows and compute new values."""
    if change.choose is not None:
        return [field.name for field in change.scan.state.schema.fields]
    return columns_in(change.scan, [change.condition, *change.assigned.values()])


def _matching(change: RowChange, files: Sequence[Candidate]) -> DataFrame:
    rows = _named(change, change.scan.restrict_to(files).rows())
    rows = change.choose(rows) if change.choose else rows
    rows = rows if change.condition is None else rows.filter(change.condition)
    return _with_keys(change, rows)


def _with_keys(change: RowChange, rows: DataFrame) -> DataFrame:
    """Rows to change, with the keys of their files in place of URIs."""
    return _named(change, change.scan.keys.in_place_of_uris(rows))


def _named(change: RowChange, rows: DataFrame) -> DataFrame:
    """Rows under the table's name, so that conditions may use `orders.id`."""
    return rows.alias(change.scan.state.alias)


def _with_new_values(change: RowChange, rows: DataFrame) -> DataFrame:
    """The updated rows; every expression sees the row as it was."""
    names = [quote(field.name) for field in change.scan.state.schema.fields]
    changed = rows.withColumns(dict(change.assigned))
    return changed.selectExpr(*names, columns.FILE, columns.POS)


def _positions(change: RowChange, acted: RowActions) -> dict[str, BitMap64]:
    return by_location(change.scan, acted.of([0]))


# -------------------------------------------------------------------------------------------------
# File changes: positions deleted in files that stay, and files that lose their last rows

PositionsByFile = Mapping[str, BitMap64]  # rows by data file location


def by_location(scan: Scan, by_key: Mapping[FileKey, BitMap64]) -> dict[str, BitMap64]:
    """Positions by file location instead of file key."""
    return {scan.keys.files[key].path: rows for key, rows in by_key.items() if rows}


def count(hits: PositionsByFile) -> int:
    """How many rows."""
    return sum(len(rows) for rows in hits.values())


def file_changes(
    scan: Scan,
    files: FilePlan,
    rewritten: RewriteResult,
    marked: PositionsByFile,
    replaced: PositionsByFile,
    added: Sequence[DataFile] = (),
) -> FileChanges:
    """Everything a statement changes: `marked` rows are deleted, or their files removed.

    `replaced` are those of the marked rows that have new versions in `added`.
    """
    emptied = [
        c
        for c in scan.candidates
        if c.path in marked and not c.equality_deletes and len(marked[c.path]) == scan.live_rows(c)
    ]
    emptied_paths = {c.path for c in emptied}
    left = {path: rows for path, rows in marked.items() if path not in emptied_paths}
    removed = (*rewritten.replaced, *(c.live for c in emptied))
    return FileChanges(
        added_data=(*rewritten.files, *added),
        removal=RemoveFiles(removed, dangling_deletes(files.files, removed, scan.delete_contents)),
        deleted_rows={
            c.path: DeletedRows(c.live, left[c.path]) for c in scan.candidates if c.path in left
        },
        replaced_rows=dict(replaced),
    )


# -------------------------------------------------------------------------------------------------
# Larger splits where a statement reads few of a table's columns
#
# Spark cuts files by their size, whichever columns are read. For a wide table that makes many tasks
# with little to do; where they also report positions, each has a Python worker.

_SETTING = "spark.sql.files.maxPartitionBytes"
_DEFAULT = 128 * 2**20
_DEFAULT_TEXT = f"{_DEFAULT}b"
_MOST_TIMES = 8


@contextmanager
def larger_splits(scan: Scan, read: Collection[str]) -> Iterator[None]:
    """While jobs that read only these columns are planned, let a task read more of the files.

    A session that changed the setting keeps it. Spark cuts files finely enough to keep every core
    busy in any case.
    """
    times = times_read(scan, read)
    if times == 1 or scan.spark.conf.get(_SETTING) != _DEFAULT_TEXT:
        yield
        return
    with spark_conf(scan.spark, _SETTING, str(times * _DEFAULT)):
        yield


def columns_in(scan: Scan, expressions: Iterable[Column | None]) -> list[str]:
    """The table's columns that expressions may name, by their text; some may be unused."""
    text = " ".join(str(expression) for expression in expressions).lower()
    names = [field.name for field in scan.state.schema.fields]
    return [name for name in names if name.lower() in text]


def times_read(scan: Scan, read: Collection[str]) -> int:
    """How many times larger all columns are than the columns read; 1 for small tables."""
    files = [candidate.live for candidate in scan.candidates]
    schema = scan.state.schema
    if len(read) == len(schema.fields) or sum(file.size for file in files) <= 2 * _DEFAULT:
        return 1
    columns = ids_of_columns(schema, read)
    sizes = [file.bytes_of(columns) for file in files]
    read_bytes = [size for size in sizes if size is not None]
    if len(read_bytes) < len(sizes):
        return 1  # some manifest lacks column sizes
    all_bytes = sum(file.bytes_of_all for file in files)
    return max(1, min(_MOST_TIMES, all_bytes // max(1, sum(read_bytes))))
