"""UPDATE and DELETE: find the rows, then record them as deleted or rewrite their files.

Every mode ends in the same values: files added, files removed, positions deleted, rows counted. The
modes differ in what happens to a file with changes. A file that loses all its rows is removed in
every mode.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame

from icefloe.commands.input_rows import as_schema
from icefloe.deletes.dangling import dangling_deletes
from icefloe.deletes.row_positions import RowActions
from icefloe.file_changes import DeletedRows, FileChanges, InlineChanges, RemoveFiles
from icefloe.metadata.files import ids_of_columns
from icefloe.pruning.candidates import Candidate, FilePlan
from icefloe.results import RowCounts
from icefloe.scan.read_guard import guarded
from icefloe.scan.row_counts import verify_row_counts
from icefloe.scan.scan import Scan
from icefloe.settings import UpdateMode
from icefloe.spark import columns
from icefloe.spark.columns import quote
from icefloe.spark.session import spark_conf
from icefloe.tasks.messages import FileKey
from icefloe.writing.carried_values import check_carried_values
from icefloe.writing.data_files import REPLACING, WrittenRows, find_rows, write_data
from icefloe.writing.rewrite import Rewriter, RewriteResult, row_count_mismatch
from icefloe.writing.rewrite_choice import is_rewritten

# -------------------------------------------------------------------------------------------------
# Few rows of files, which are deleted in the database; their new versions become inline rows

ChangedRows: TypeAlias = tuple[FileChanges, RowCounts]

MOST_INLINE_ROWS = 1000  # of files, per statement
MOST_INLINE_BYTES = 8 * 2**20  # of their new versions


def _change_inline(change: RowChange, hits: PositionsByFile) -> ChangedRows | None:
    """The rows at these positions; None if they are many, or their new versions large."""
    if not change.goes_inline or not 0 < count(hits) <= MOST_INLINE_ROWS:
        return None
    files = [c for c in change.scan.candidates if c.path in hits]
    added = None
    if change.assigned:
        scan = change.scan.restrict_to(files)
        rows = _with_new_values(change, _named(change, guarded(scan, scan.rows_at(hits))))
        added = as_schema(rows.drop(columns.FILE, columns.POS).toArrow(), change.scan.state.schema)
        if added.num_rows != count(hits):
            raise row_count_mismatch(added.num_rows, count(hits))
        if added.nbytes > MOST_INLINE_BYTES:
            return None
    return inline_changes(files, hits, added)


def inline_changes(
    files: Sequence[Candidate], hits: PositionsByFile, added: pa.Table | None
) -> ChangedRows:
    """Rows of files to delete in the database; `added` are the new versions of an UPDATE."""
    deleted = {c.path: DeletedRows(c.live, hits[c.path]) for c in files}
    inline = InlineChanges(deleted=deleted, added=added)
    if added is None:
        return FileChanges(inline=inline), RowCounts(rows_deleted=count(hits))
    return FileChanges(inline=inline, replaced_rows=hits), RowCounts(rows_updated=count(hits))


# -------------------------------------------------------------------------------------------------
# The data work, shared with REPLACE

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
    goes_inline: bool = False  # few rows are changed in the database instead
    named: Sequence[str] | None = None  # the columns that expressions may name; None: all


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
            case UpdateMode.MERGE_ON_READ if not (change.goes_inline and change.assigned):
                return _merge_on_read(change, dropped, rest)
            case _:
                return _by_positions(change, dropped, rest)


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
        rows = _matching(change, in_place, change.named)
        done += _in_tasks(change, rewriter, rows, in_place)
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
    hits = _find(change, files)
    small = None if dropped.replaced else _change_inline(change, hits)
    return small or _outcome(change, dropped, hits)


def _by_positions(
    change: RowChange, dropped: RewriteResult, files: Sequence[Candidate]
) -> ChangedRows:
    """Find the rows first: few go inline, and `auto` rewrites files where many change."""
    if not files:
        return _outcome(change, dropped, {})
    hits = _find(change, files)
    if not dropped.replaced and (small := _change_inline(change, hits)):
        return small
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
    if change.mode is not UpdateMode.AUTO:
        return False
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
        return _positions(change, find_rows(_matching(change, files, change.named)))


def _columns_read(change: RowChange) -> list[str]:
    """The columns that find the rows and compute new values."""
    if change.choose is not None:
        return [field.name for field in change.scan.state.schema.fields]
    return columns_in(change.scan, [change.condition, *change.assigned.values()])


def _matching(
    change: RowChange, files: Sequence[Candidate], names: Sequence[str] | None = None
) -> DataFrame:
    """The rows to change; `names` are the columns that are needed of them (None: all)."""
    scan = change.scan.restrict_to(files)
    by_position = scan.reads_by_position and change.choose is None
    rows = _named(change, scan.candidate_rows(names) if by_position else scan.rows())
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
