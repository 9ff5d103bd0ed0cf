"""Whether a file can be rewritten where its rows are, and bytes of it copied, by its metadata."""

from __future__ import annotations

import logging
from collections.abc import Container

from icefloe.metadata.files import ids_of_columns
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import Candidate
from icefloe.schema.partition_spec import source_path
from icefloe.settings import AutoBy
from icefloe.tasks.rewrite import is_cut_anew


def why_through_spark(
    state: TableState, candidate: Candidate, assigned: Container[str]
) -> str | None:
    """What keeps a file from being rewritten in place; None when nothing that is known now does.

    The file's own columns are looked at when it is read: they may still not be carried over.
    """
    spec = state.metadata.spec()
    for field in spec.fields:
        source = source_path(state.schema, field.source_id)
        if source is None:
            return f"the source column of partition field {field.name!r} is gone"
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
    """What keeps bytes of a file from being copied; None when nothing that is known now does."""
    through = why_through_spark(state, candidate, assigned)
    if through is not None:
        return f"every row passes through Spark: {through}"
    if is_cut_anew(candidate.live.size, state.settings.target_file_bytes):
        return "every row is encoded again: it is larger than the table wants its files"
    return None


log = logging.getLogger("icefloe")


# -------------------------------------------------------------------------------------------------
# `auto`: from how many changed rows on a file is written anew, where fewer mean deletes.


# How many bytes are copied in the time that one takes to encode: 16 to 36 were measured.
_COPIED_PER_ENCODED = 16


def is_rewritten(
    state: TableState, candidate: Candidate, assigned: Container[str], updated: int, deleted: int
) -> bool:
    """Whether a file is written anew for so many changed rows; `assigned` have new values."""
    limit = rewritten_above(state, candidate, assigned, loses_rows=deleted > 0)
    rows = candidate.live.rows
    rewritten = updated + deleted > limit * max(1, rows)
    log.info(
        "%s %s: %d of its %d rows go, the limit is %.3g",
        candidate.path,
        "is written anew" if rewritten else "gets deletes",
        updated + deleted,
        rows,
        limit,
    )
    return rewritten


def rewritten_above(
    state: TableState, candidate: Candidate, assigned: Container[str], *, loses_rows: bool
) -> float:
    """The part of a file's rows above which it is written anew.

    By bytes it is where writing the file anew costs as much as writing the new rows elsewhere:
    assigned columns are encoded and the others copied, or that part of all columns is encoded.
    """
    limit = state.settings.auto_rewrite_fraction
    if state.settings.auto_by is AutoBy.ROWS or loses_rows or candidate.has_deletes:
        return limit
    if why_nothing_is_copied(state, candidate, assigned) is not None:
        return limit
    encoded = candidate.live.bytes_of(ids_of_columns(state.schema, assigned))
    if not encoded:
        return limit  # nobody counted, or the file lacks a column
    part = encoded / candidate.live.bytes_of_all
    return min(limit, part + (1 - part) / _COPIED_PER_ENCODED)
