"""Whether a file can be rewritten where its rows are, and bytes of it copied, by its metadata."""

from __future__ import annotations

from collections.abc import Container

from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import Candidate
from icefloe.schema.partition_spec import source_path
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
