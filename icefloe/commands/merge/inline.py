"""The part of a MERGE that concerns inline rows: they are changed where they are.

The few inline rows that source rows may match are joined with the source in a job of their own.
Source rows that match one of them are not inserted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from icefloe.commands.context import NeedsFlushError
from icefloe.commands.inline_rows import read_rows_of, versions_at
from icefloe.commands.input_rows import as_schema
from icefloe.commands.merge.label import MergeJoin
from icefloe.commands.scan import inline_frame
from icefloe.errors import CardinalityError
from icefloe.file_changes import InlineChanges
from icefloe.inline.cut import Cut
from icefloe.spark import columns
from icefloe.spark.errors import translate_spark_errors
from icefloe.statements import Then

_SHOWN_KEYS = 5
_MORE_PAIRS = 100_000  # of an inline row and a source row, than there are inline rows


@dataclass(frozen=True, slots=True)
class MergedInlineRows:
    """Changes of inline rows, the rows of each clause, and the source rows that matched any."""

    changes: InlineChanges
    clauses: tuple[int, ...]
    source_rows: pa.Array


def merge_inline_rows(joined: MergeJoin, cut: Cut) -> MergedInlineRows:
    """Give each inline row one action.

    Raises:
        CardinalityError: Several source rows match a row that a clause changes.
        NeedsFlushError: There are more pairs of matching rows than the driver should hold.
    """
    names = [field.name for field in cut.schema.fields]
    most = len(cut.rows) + _MORE_PAIRS
    with translate_spark_errors(names):
        rows = joined.inline_rows(inline_frame(joined.scan.spark, cut), names)
        pairs = rows.limit(most + 1).toArrow()
    if pairs.num_rows > most:
        raise NeedsFlushError
    updates, deletes = (joined.bound.numbers(then) for then in (Then.UPDATE, Then.DELETE))
    updated, deleted = _with_action(pairs, updates), _with_action(pairs, deletes)
    _refuse_double_matches(joined, cut, pairs, [*_row_ids(updated), *_row_ids(deleted)])
    actions = Counter(pairs.column(columns.ACTION).to_pylist())
    read = read_rows_of(cut)
    return MergedInlineRows(
        replace(
            read,
            removed=versions_at(cut, deleted.column(columns.POS)),
            replaced=versions_at(cut, updated.column(columns.POS)),
            new_values=as_schema(updated.select(names), cut.schema) if len(updated) else None,
            relied_on=read.relied_on or _relied_on(joined, cut, pairs),
        ),
        tuple(actions[number] for number in range(len(joined.bound.clauses))),
        pc.unique(pairs.column(columns.SOURCE_ROW).drop_null()),
    )


def _relied_on(joined: MergeJoin, cut: Cut, pairs: pa.Table) -> tuple[tuple[int, int], ...]:
    """Rows that kept source rows from being inserted."""
    if not joined.bound.numbers(Then.INSERT):
        return ()
    matched = pairs.filter(pc.is_valid(pairs.column(columns.SOURCE_ROW)))
    return versions_at(cut, pc.unique(matched.column(columns.POS)))


def _with_action(pairs: pa.Table, numbers: Collection[int]) -> pa.Table:
    actions = pa.array(sorted(numbers), pa.int32())
    return pairs.filter(pc.is_in(pairs.column(columns.ACTION), value_set=actions))


def _row_ids(pairs: pa.Table) -> list[int]:
    ids: list[int] = pairs.column(columns.POS).to_pylist()
    return ids


def _refuse_double_matches(
    joined: MergeJoin, cut: Cut, pairs: pa.Table, changed: Collection[int]
) -> None:
    """Raise where several source rows match a row that a clause changes."""
    labelled = pairs.filter(pc.is_valid(pairs.column(columns.ACTION)))
    matches = Counter(_row_ids(labelled))
    clashes = sorted({row_id for row_id in changed if matches[row_id] > 1})[:_SHOWN_KEYS]
    if not clashes:
        return
    keys = [key.target for key in joined.bound.keys] or [f.name for f in cut.schema.fields]
    places = {row_id: place for place, row_id in enumerate(cut.rows.row_ids)}
    rows = cut.arrow().select(keys).take([places[row_id] for row_id in clashes]).to_pylist()
    shown = [tuple(row.values()) for row in rows]
    raise CardinalityError([key[0] if len(key) == 1 else key for key in shown])
