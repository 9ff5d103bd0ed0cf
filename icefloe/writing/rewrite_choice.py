"""Choices that a file's metadata allows before it is read.

Whether a task can rewrite the file and copy bytes of it, and whether `auto` rewrites it.
"""

from __future__ import annotations

import logging
from collections.abc import Container

from icefloe.metadata.files import ids_of_columns
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import Candidate
from icefloe.schema.partition_spec import source_path
from icefloe.settings import AutoBy
from icefloe.tasks.rewrite import is_split_by_rewrite

log = logging.getLogger("icefloe")

# Bytes copied in the time it takes to encode one: 16 to 36 were measured.
_COPIED_PER_ENCODED = 16


def why_through_spark(
    state: TableState, candidate: Candidate, assigned: Container[str]
) -> str | None:
    """Why Spark has to rewrite a file; None if metadata shows no reason.

    The task that opens the file may still decline it because of its columns.
    """
    spec = state.metadata.spec()
    for field in spec.fields:
        source = source_path(state.schema, field.source_id)
        if source is None:
            return f"the source column of partition field {field.name!r} was dropped"
        if source[0] in assigned:
            return f"new values of {'.'.join(source)!r} may move rows to other partitions"
    if candidate.live.spec_id != spec.spec_id:
        return "it was written under another partition spec"
    if candidate.equality_deletes:
        return "equality deletes apply to it"
    if candidate.lacks_identity_columns:
        return "it may lack columns it is partitioned by"
    return None


def why_nothing_is_copied(
    state: TableState, candidate: Candidate, assigned: Container[str]
) -> str | None:
    """Why no bytes of a file can be copied; None if metadata shows no reason."""
    through = why_through_spark(state, candidate, assigned)
    if through is not None:
        return f"every row passes through Spark: {through}"
    if is_split_by_rewrite(candidate.live.size, state.settings.target_file_bytes):
        return "every row is encoded again: it is larger than the target file size"
    return None


# -------------------------------------------------------------------------------------------------
# `auto`: the threshold above which a file is rewritten instead of getting deletes.


def is_rewritten(
    state: TableState, candidate: Candidate, assigned: Container[str], updated: int, deleted: int
) -> bool:
    """Whether a file is rewritten for so many changed rows; `assigned` columns get new values."""
    limit = rewritten_above(state, candidate, assigned, loses_rows=deleted > 0)
    rows = candidate.live.rows
    rewritten = updated + deleted > limit * max(1, rows)
    log.info(
        "%s %s: %d of its %d rows change, the threshold is %.3g",
        candidate.path,
        "is rewritten" if rewritten else "gets deletes",
        updated + deleted,
        rows,
        limit,
    )
    return rewritten


def rewritten_above(
    state: TableState, candidate: Candidate, assigned: Container[str], *, loses_rows: bool
) -> float:
    """The fraction of a file's rows above which it is rewritten.

    By bytes, it is where rewriting the file costs as much as writing the new rows elsewhere: one
    encodes the assigned columns and copies the others, the other encodes that fraction of all
    columns.
    """
    limit = state.settings.auto_rewrite_fraction
    if state.settings.auto_by is AutoBy.ROWS or loses_rows or candidate.has_deletes:
        return limit
    if why_nothing_is_copied(state, candidate, assigned) is not None:
        return limit
    encoded = candidate.live.bytes_of(ids_of_columns(state.schema, assigned))
    if not encoded:
        return limit  # the manifest has no sizes, or the file lacks a column
    fraction = encoded / candidate.live.bytes_of_all
    return min(limit, fraction + (1 - fraction) / _COPIED_PER_ENCODED)
