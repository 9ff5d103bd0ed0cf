"""What only the footers of files tell of how they would be rewritten; read for `explain` alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pyiceberg.utils.concurrent import ExecutorFactory

from icefloe.metadata.table_state import TableState
from icefloe.parquet.footer import DamagedFileError, EncryptedFileError
from icefloe.parquet.partial_rewrite import GroupChange, Surgery, cannot_copy
from icefloe.plan.plan import FileAction, Plan, PlannedFile
from icefloe.pruning.candidates import Candidate
from icefloe.storage.files import locate
from icefloe.tasks.old_file import OldFile, reading
from icefloe.tasks.rewrite import little_left, too_large
from icefloe.tasks.write import FileLayout
from icefloe.write.data_files import file_layout
from icefloe.write.rewrite_choice import why_nothing_is_copied

_MOST_FILES = 100  # a wide footer takes some hundredths of a second


@dataclass(frozen=True, slots=True)
class _Found:
    """Why bytes of a file are not copied, or when they would not be."""

    reason: str
    sure: bool = True


def with_footers(
    plan: Plan, state: TableState, candidates: Sequence[Candidate], assigned: Collection[str]
) -> Plan:
    """The plan, with what footers tell of files that may be rewritten; of many, of the first."""
    rewritten = {FileAction.REWRITE, FileAction.DECIDE}
    wanted = {file.path for file in plan.files if file.action in rewritten}
    copied = [
        candidate
        for candidate in candidates
        if candidate.path in wanted and why_nothing_is_copied(state, candidate, assigned) is None
    ]
    layout, updated = file_layout(state, ""), frozenset(assigned)

    def look(candidate: Candidate) -> _Found | None:
        return _why_not(state, candidate, layout, updated)

    chosen = copied[:_MOST_FILES]
    found = list(ExecutorFactory.get_or_create().map(look, chosen))
    told = {c.path: why for c, why in zip(chosen, found, strict=True) if why is not None}
    unread = _Found("its footer was not read for this plan", sure=False)
    told |= {c.path: unread for c in copied[_MOST_FILES:]}
    return replace(plan, files=tuple(_told(file, told.get(file.path)) for file in plan.files))


def _told(file: PlannedFile, why: _Found | None) -> PlannedFile:
    if why is None:
        return file
    instead = file.action is FileAction.REWRITE and why.sure
    return replace(file, how=why.reason if instead else f"{file.how}; {why.reason}")


def _why_not(
    state: TableState, candidate: Candidate, layout: FileLayout, updated: frozenset[str]
) -> _Found | None:
    """Why bytes of a file are not copied; None when they are, wherever its rows change."""
    place = locate(state.io, candidate.path)
    try:
        with reading(place.path), place.filesystem.open_input_file(place.path) as source:
            file = OldFile.open(place.path, source, layout.schema, candidate.live.rows)
            return _by_footer(file, layout, updated)
    except (OSError, DamagedFileError, EncryptedFileError) as unreadable:
        return _Found(f"it cannot be rewritten: {unreadable}")


def _by_footer(file: OldFile, layout: FileLayout, updated: frozenset[str]) -> _Found | None:
    if reason := file.cannot_carry():
        return _Found(f"every row passes through Spark: {reason}")
    if reason := cannot_copy(file.bytes):
        return _Found(f"every row is encoded again: {reason}")
    surgery = Surgery.plan(file.bytes, layout.schema, file.names, layout.parquet)
    # As if rows of every row group were to change.
    rows = [rows if updated else max(0, rows - 1) for _, rows in file.groups]
    changes = [GroupChange(count, updated) for count in rows]
    if reason := too_large(file, surgery, changes):
        return _Found(
            f"every row is encoded again if some of its rows change: {reason}", sure=False
        )
    # Where rows go, row groups that lose none are copied: nothing to tell.
    if updated and (reason := little_left(surgery, changes)):
        everywhere = "every row is encoded again if rows of every row group change"
        return _Found(f"{everywhere}: {reason}", sure=False)
    return None
