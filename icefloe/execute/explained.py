"""What only the footers of files tell of how they would be rewritten; read for `explain` alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from icefloe.execute.write_data import file_layout
from icefloe.metadata.state import TableState
from icefloe.metadata.storage import locate
from icefloe.parquet.footer import DamagedFileError, EncryptedFileError
from icefloe.parquet.surgery import GroupChange, Surgery, cannot_copy
from icefloe.plan.files import Candidate
from icefloe.plan.in_place import why_nothing_is_copied
from icefloe.plan.plan import FileAction, Plan, PlannedFile
from icefloe.tasks.old_file import OldFile
from icefloe.tasks.operation import little_left, too_large
from icefloe.tasks.write import FileLayout

_THREADS = 16
_MOST_FILES = 1000
_IF_EVERYWHERE = "if rows of every row group change"


def with_footers(
    plan: Plan, state: TableState, candidates: Sequence[Candidate], assigned: Collection[str]
) -> Plan:
    """The plan, with what footers tell of files that may be rewritten; of many, of the first."""
    rewritten = {FileAction.REWRITE, FileAction.DECIDE}
    wanted = {file.path for file in plan.files if file.action in rewritten}
    chosen = [
        candidate
        for candidate in candidates
        if candidate.path in wanted and why_nothing_is_copied(state, candidate, assigned) is None
    ][:_MOST_FILES]
    layout = file_layout(state, "")
    updated = frozenset(assigned)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda c: _why_not(state, c, layout, updated), chosen))
    told = {c.path: why for c, why in zip(chosen, found, strict=True) if why is not None}
    return replace(plan, files=tuple(_told(file, told.get(file.path)) for file in plan.files))


def _told(file: PlannedFile, why: str | None) -> PlannedFile:
    if why is None:
        return file
    sure = file.action is FileAction.REWRITE and _IF_EVERYWHERE not in why
    return replace(file, how=why if sure else f"{file.how}; {why}")


def _why_not(
    state: TableState, candidate: Candidate, layout: FileLayout, updated: frozenset[str]
) -> str | None:
    """Why bytes of a file are not copied; None when they are, wherever its rows change."""
    place = locate(state.io, candidate.path)
    try:
        with place.filesystem.open_input_file(place.path) as source:
            file = OldFile.open(place.path, source, layout.schema, candidate.live.rows)
    except (OSError, DamagedFileError, EncryptedFileError) as unreadable:
        return f"it cannot be rewritten: {unreadable}"
    if reason := file.cannot_carry():
        return f"every row passes through Spark: {reason}"
    if reason := cannot_copy(file.bytes):
        return f"every row is encoded again: {reason}"
    surgery = Surgery.plan(file.bytes, layout.schema, file.names, layout.parquet)
    rows = [rows if updated else max(0, rows - 1) for _, rows in file.groups]
    changes = [GroupChange(count, updated) for count in rows]
    reason = too_large(file, surgery, changes)
    if updated:  # where rows go, row groups that lose none are copied
        reason = reason or little_left(surgery, changes)
    return f"every row is encoded again {_IF_EVERYWHERE}: {reason}" if reason else None
