"""`auto`: from how many changed rows on a file is written anew, where fewer mean deletes."""

from __future__ import annotations

import logging
from collections.abc import Container

from pyiceberg.schema import Schema, index_by_id

from icefloe.metadata.state import TableState
from icefloe.plan.files import Candidate
from icefloe.plan.in_place import why_through_spark
from icefloe.settings import AutoBy

log = logging.getLogger("icefloe")

# How many bytes are copied in the time that one takes to encode: 13 to 32 were measured.
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
    if why_through_spark(state, candidate, assigned) is not None:
        return limit
    encoded = _encoded_part(state.schema, candidate, assigned)
    return limit if encoded is None else min(limit, encoded + (1 - encoded) / _COPIED_PER_ENCODED)


def _encoded_part(schema: Schema, candidate: Candidate, assigned: Container[str]) -> float | None:
    """The part of a file's bytes that assigned columns take; None where the manifest has none."""
    sizes = candidate.live.file.column_sizes or {}
    encoded = 0
    for field in schema.fields:
        if field.name in assigned:
            found = [sizes[number] for number in index_by_id(Schema(field)) if number in sizes]
            if not found:
                return None  # the file lacks the column, or nobody counted
            encoded += sum(found)
    total = sum(sizes.values())
    return encoded / total if encoded else None
