"""Plans: how one statement will run against one snapshot, and the reason for each choice."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pyiceberg.utils.concurrent import ExecutorFactory

from icefloe.display import HtmlRows, figures_html, table_html
from icefloe.errors import UnsupportedTableError
from icefloe.metadata.table_state import TableState
from icefloe.parquet.footer import DamagedFileError, EncryptedFileError
from icefloe.parquet.partial_rewrite import GroupChange, PartialRewrite, cannot_copy
from icefloe.pruning.candidates import Candidate, FilePlan, SkippedFile
from icefloe.redaction import masked_repr, redacted
from icefloe.settings import Isolation, UpdateKind, UpdateMode
from icefloe.statements import Options, RowStatement
from icefloe.storage.files import locate
from icefloe.tasks.old_file import OldFile, reading
from icefloe.tasks.rewrite import too_large, too_little_copied
from icefloe.tasks.write import FileLayout
from icefloe.writing.data_files import file_layout
from icefloe.writing.rewrite_choice import rewritten_above, why_nothing_is_copied

STAGES = ("scan", "filter", "transform", "write", "coalesce", "commit")


class FileAction(StrEnum):
    """What happens to a candidate file.

    Attributes:
        DROP: every row is deleted, so the file leaves the table by metadata alone.
        REWRITE: a new file replaces it.
        DELETES: delete files name the rows.
        DECIDE: `auto` rewrites it or writes deletes, by what changes.
    """

    DROP = "drop"  # every row is deleted: by metadata alone
    REWRITE = "rewrite"
    DELETES = "write deletes"
    DECIDE = "rewrite or write deletes, by the fraction of rows that changes"


@dataclass(frozen=True, slots=True)
class InlinePlan:
    """What happens to inline rows.

    Attributes:
        rows: rows of the inline tier.
        matches: rows that may change; None if all are flushed first.
    """

    rows: int
    matches: int | None  # rows that may change; None: all are flushed first

    def __str__(self) -> str:
        if self.matches is None:
            return f"{self.rows} rows, which are flushed first"
        return f"{self.rows} rows, of which {self.matches} may match: these change in place"


@masked_repr
@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that may hold rows to change.

    Attributes:
        path: its location.
        rows: its rows.
        bytes: its size.
        action: what happens to it, a `FileAction`.
        because: why.
        how: how it is rewritten, if it is.
    """

    path: str
    rows: int
    bytes: int
    action: FileAction
    because: str
    how: str = ""

    @property
    def reason(self) -> str:
        """Why the file is planned that way, and how it is rewritten."""
        return f"{self.because}; {self.how}" if self.how else self.because


@masked_repr
@dataclass(frozen=True, slots=True)
class Plan:
    """What a statement would do, without doing it; `str(plan)` is for people.

    Attributes:
        operation: the kind of statement.
        table: the table's full name.
        snapshot_id: the snapshot that was planned on.
        mode: merge-on-read, copy-on-write or auto.
        isolation: serializable or snapshot.
        files: candidate files, with what happens to each, and why.
        skipped: files that were ruled out, and why; without those of skipped manifests.
        files_skipped: how many files were ruled out, in skipped manifests too.
        manifests_read: manifests that were read.
        manifests_cached: of those, the ones that this process had read before.
        manifests_skipped: manifests that were ruled out.
        estimated_bytes_read: bytes of the files to read.
        estimated_bytes_written: bytes of data files to write, at most.
        reasons: why the mode and the isolation level were chosen, and what else was decided.
        where: the condition.
        assignments: UPDATE: `column = value`.
        stages: the steps of the statement.
        join: MERGE: the join, with its reason.
        clauses: MERGE: the clauses.
        dpp_applied: MERGE: whether partitions are skipped by the source's values.
        dpp_partition_count: MERGE: partitions that the source has rows for.
        source_rows: MERGE: rows of the source.
        inline: what happens to inline rows; None without an inline tier.

    Examples:
        >>> plan = orders.update().set("n", 0).where("id = 3").explain()
        >>> plan.files_scanned, plan.files_skipped
        (1, 1)
        >>> print(plan)
        UPDATE shop.orders at snapshot ...
    """

    operation: str
    table: str
    snapshot_id: int | None
    mode: UpdateMode
    isolation: Isolation
    files: tuple[PlannedFile, ...]
    skipped: tuple[SkippedFile, ...]
    files_skipped: int
    manifests_read: int
    manifests_cached: int  # of those read, the ones that this process had read before
    manifests_skipped: int
    estimated_bytes_read: int
    estimated_bytes_written: int
    reasons: tuple[str, ...]
    where: str = ""
    assignments: tuple[str, ...] = ()
    stages: tuple[str, ...] = STAGES
    # MERGE only
    join: str | None = None
    clauses: tuple[str, ...] = ()
    dpp_applied: bool = False
    dpp_partition_count: int = 0
    source_rows: int | None = None
    inline: InlinePlan | None = None  # of a table with an inline tier

    @property
    def files_scanned(self) -> int:
        """Candidate files whose rows are read."""
        return sum(file.action is not FileAction.DROP for file in self.files)

    def __str__(self) -> str:
        return redacted("\n".join(_lines(self)))

    def _repr_html_(self) -> str:
        return _html(self)


def plan_statement(
    statement: RowStatement,
    state: TableState,
    files: FilePlan,
    *,
    assigned: Container[str],
    has_subquery: bool,
) -> Plan:
    """Decide what an UPDATE or DELETE does to each file."""
    plan = plan_rows(statement.kind, statement.options, state, files, assigned)
    subquery = "a subquery reads other rows: any row added concurrently is a conflict"
    return replace(
        plan,
        where="(every row)" if statement.where is None else str(statement.where),
        assignments=tuple(f"{name} = {value}" for name, value in statement.assignments),
        reasons=(*plan.reasons, subquery) if has_subquery else plan.reasons,
    )


def plan_rows(
    kind: UpdateKind,
    options: Options,
    state: TableState,
    files: FilePlan,
    assigned: Container[str],
) -> Plan:
    """Decide what happens to each file; raises where the table does not support the mode."""
    mode = options.mode or state.settings.mode(kind)
    isolation = options.isolation or state.settings.isolation(kind)
    _refuse_version_1(state, kind, mode)
    planned = tuple(_planned(state, c, kind, mode, assigned) for c in files.candidates)
    source = "option" if options.mode else _mode_source(state, kind)
    return Plan(
        operation=kind.value,
        table=state.name,
        snapshot_id=state.snapshot_id,
        mode=mode,
        isolation=isolation,
        files=planned,
        skipped=files.skipped,
        files_skipped=files.files_skipped,
        manifests_read=files.manifests_read,
        manifests_cached=files.manifests_cached,
        manifests_skipped=files.manifests_skipped,
        estimated_bytes_read=sum(f.bytes for f in planned if f.action is not FileAction.DROP),
        estimated_bytes_written=_bytes_written(planned, has_new_versions=bool(assigned)),
        reasons=(f"mode {mode.value}: {source}", f"isolation {isolation.value}", *files.notes),
    )


def _planned(
    state: TableState,
    candidate: Candidate,
    kind: UpdateKind,
    mode: UpdateMode,
    assigned: Container[str],
) -> PlannedFile:
    action, because = _action(candidate, kind, mode)
    how = ""
    if action is FileAction.REWRITE:
        how = _how(state, candidate, assigned)
    if action is FileAction.DECIDE:
        how = _auto_threshold(state, candidate, kind, assigned)
    live = candidate.live
    return PlannedFile(candidate.path, live.rows, live.size, action, because, how)


def _how(state: TableState, candidate: Candidate, assigned: Container[str]) -> str:
    """How a file is rewritten, as far as metadata says."""
    why = why_nothing_is_copied(state, candidate, assigned)
    if why:
        return why
    what = "chunks without new values" if assigned else "row groups that lose no row"
    return f"{what} are copied as bytes"


def _auto_threshold(
    state: TableState, candidate: Candidate, kind: UpdateKind, assigned: Container[str]
) -> str:
    """The threshold above which `auto` rewrites a file instead of writing deletes."""
    limit = rewritten_above(state, candidate, assigned, loses_rows=kind is UpdateKind.DELETE)
    text = f"rewritten above {limit:.3g} of its rows"
    if limit < state.settings.auto_rewrite_fraction:
        text += " where none is deleted" if kind is UpdateKind.MERGE else ""
        text += ": by its metadata few bytes have to be encoded"
    return text


def _action(candidate: Candidate, kind: UpdateKind, mode: UpdateMode) -> tuple[FileAction, str]:
    if kind is UpdateKind.DELETE and candidate.covered and not candidate.equality_deletes:
        return FileAction.DROP, "the condition is true for every row"
    reason = "may hold matching rows"
    match mode:
        case UpdateMode.COPY_ON_WRITE:
            return FileAction.REWRITE, reason
        case UpdateMode.MERGE_ON_READ:
            return FileAction.DELETES, reason
        case UpdateMode.AUTO:
            return FileAction.DECIDE, reason


def _refuse_version_1(state: TableState, kind: UpdateKind, mode: UpdateMode) -> None:
    if state.metadata.format_version == 1 and mode is not UpdateMode.COPY_ON_WRITE:
        raise UnsupportedTableError(
            f"{state.name} has format version 1; {mode.value} {kind.value.upper()} requires format "
            "version 2. Upgrade the table with set_properties({'format-version': '2'}), or use "
            "mode='copy-on-write'."
        )


def _mode_source(state: TableState, kind: UpdateKind) -> str:
    key = f"write.{kind.value}.mode"
    return f"table property {key}" if key in state.metadata.properties else "default"


def _bytes_written(files: Sequence[PlannedFile], *, has_new_versions: bool) -> int:
    """An upper limit: every row changes, or every candidate is rewritten; deletes are small."""
    written = {FileAction.REWRITE, FileAction.DECIDE}
    if has_new_versions:
        written.add(FileAction.DELETES)
    return sum(file.bytes for file in files if file.action in written)


_SHOWN = 20  # files of each kind


def _lines(plan: Plan) -> list[str]:
    lines = [
        f"{plan.operation.upper()} {plan.table} at snapshot {plan.snapshot_id}",
        *(f"  set    {text}" for text in plan.assignments),
        f"  {'where ' if plan.join is None else 'on    '} {plan.where}",
        *(f"  {text}" for text in plan.clauses),
        f"  stages {' -> '.join(plan.stages)}",
        *(f"  {reason}" for reason in plan.reasons),
        f"  files  {len(plan.files)} candidates, {plan.files_skipped} skipped "
        f"({plan.manifests_read} manifests read, {plan.manifests_cached} of them from the cache, "
        f"{plan.manifests_skipped} skipped)",
        *([] if plan.inline is None else [f"  inline {plan.inline}"]),
    ]
    lines += [
        f"    {f.action.value}: {f.path} ({f.rows} rows): {f.reason}" for f in plan.files[:_SHOWN]
    ]
    lines += [f"    skip: {f.path}: {f.reason}" for f in plan.skipped[:_SHOWN]]
    left_out = max(0, len(plan.files) - _SHOWN) + max(0, len(plan.skipped) - _SHOWN)
    if left_out:
        lines.append(f"    … and {left_out} more files")
    lines.append(
        f"  reads about {plan.estimated_bytes_read:,} bytes, "
        f"writes at most {plan.estimated_bytes_written:,} bytes of data files"
    )
    return lines


def _html(plan: Plan) -> str:
    """The plan for a notebook: what it is, then the files with what happens to each."""
    figures = {
        "set": plan.assignments,
        "where" if plan.join is None else "on": plan.where,
        "clauses": plan.clauses,
        "how": "; ".join(plan.reasons),
        "inline": plan.inline,
        "files": f"{len(plan.files):,} candidates, {plan.files_skipped:,} skipped",
        "reads": f"about {plan.estimated_bytes_read:,} bytes",
        "writes": f"at most {plan.estimated_bytes_written:,} bytes of data files",
    }
    head = figures_html(
        f"{plan.operation.upper()} {plan.table} at snapshot {plan.snapshot_id}",
        {name: value for name, value in figures.items() if value not in (None, "", ())},
    )
    files: list[tuple[object, ...]] = [
        (f.action.value, f.path, f"{f.rows:,}", f"{f.bytes:,}", f.reason)
        for f in plan.files[:_SHOWN]
    ]
    files += [("skip", one.path, "", "", one.reason) for one in plan.skipped[:_SHOWN]]
    if not files:
        return head
    names = ("action", "file", "rows", "bytes", "reason")
    every = len(plan.files) + len(plan.skipped)
    caption = "Files" if len(files) == every else f"Files ({len(files)} of {every:,})"
    return head + table_html(HtmlRows(names, files, (False, False, True, True, False)), caption)


# -------------------------------------------------------------------------------------------------
# What only footers show about how files would be rewritten: read for `explain` alone

_MOST_FILES = 100  # a wide footer takes some hundredths of a second


@dataclass(frozen=True, slots=True)
class _NotCopied:
    """Why bytes of a file are not copied, or when they would not be."""

    reason: str
    certain: bool = True


def with_footers(
    plan: Plan, state: TableState, candidates: Sequence[Candidate], assigned: Collection[str]
) -> Plan:
    """The plan, with what the footers of (the first) files that may be rewritten show."""
    rewritten = {FileAction.REWRITE, FileAction.DECIDE}
    paths = {file.path for file in plan.files if file.action in rewritten}
    copied = [
        candidate
        for candidate in candidates
        if candidate.path in paths and why_nothing_is_copied(state, candidate, assigned) is None
    ]
    layout, updated = file_layout(state, ""), frozenset(assigned)

    def look(candidate: Candidate) -> _NotCopied | None:
        return _why_not(state, candidate, layout, updated)

    read = copied[:_MOST_FILES]
    reasons = list(ExecutorFactory.get_or_create().map(look, read))
    by_path = {c.path: why for c, why in zip(read, reasons, strict=True) if why is not None}
    unread = _NotCopied("its footer was not read for this plan", certain=False)
    by_path |= {c.path: unread for c in copied[_MOST_FILES:]}
    files = tuple(_with_reason(file, by_path.get(file.path)) for file in plan.files)
    return replace(plan, files=files)


def _with_reason(file: PlannedFile, why: _NotCopied | None) -> PlannedFile:
    if why is None:
        return file
    instead = file.action is FileAction.REWRITE and why.certain
    return replace(file, how=why.reason if instead else f"{file.how}; {why.reason}")


def _why_not(
    state: TableState, candidate: Candidate, layout: FileLayout, updated: frozenset[str]
) -> _NotCopied | None:
    """Why bytes of a file are not copied; None when they are, wherever its rows change."""
    place = locate(state.io, candidate.path)
    try:
        with reading(place.path), place.filesystem.open_input_file(place.path) as source:
            file = OldFile.open(place.path, source, layout.schema, candidate.live.rows)
            return _by_footer(file, layout, updated)
    except (OSError, DamagedFileError, EncryptedFileError) as unreadable:
        return _NotCopied(f"it cannot be rewritten: {unreadable}")


def _by_footer(file: OldFile, layout: FileLayout, updated: frozenset[str]) -> _NotCopied | None:
    if reason := file.cannot_carry():
        return _NotCopied(f"every row passes through Spark: {reason}")
    if reason := cannot_copy(file.bytes):
        return _NotCopied(f"every row is encoded again: {reason}")
    rewrite = PartialRewrite.plan(file.bytes, layout.schema, file.names, layout.parquet)
    # As if rows of every row group changed.
    rows = [rows if updated else max(0, rows - 1) for _, rows in file.groups]
    changes = [GroupChange(count, updated) for count in rows]
    if reason := too_large(file, rewrite, changes):
        return _NotCopied(
            f"every row is encoded again if some of its rows change: {reason}", certain=False
        )
    # Where rows are deleted, row groups that lose none are copied: no reason to report.
    if updated and (reason := too_little_copied(rewrite, changes)):
        everywhere = "every row is encoded again if rows of every row group change"
        return _NotCopied(f"{everywhere}: {reason}", certain=False)
    return None
