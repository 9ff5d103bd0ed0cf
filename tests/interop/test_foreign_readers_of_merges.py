"""Fifteen MERGEs, both modes, four kinds of tables: after each, five engines read what we read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from icefloe import Table
from support.foreign_readers import READERS, disagreements, icefloe_rows, one_in_turn
from support.merge_sequence import LAYOUTS, MERGES, SCHEMA, Layout


@pytest.mark.parametrize(
    ("mode", "layout", "in_turn"),
    [
        pytest.param(
            "merge-on-read", LAYOUTS[-1], True, id="one engine in turn", marks=pytest.mark.slow
        ),
        *(
            pytest.param(mode, layout, False, id=f"{mode}-{layout.name}", marks=pytest.mark.slow)
            for mode in ("merge-on-read", "copy-on-write")
            for layout in LAYOUTS
        ),
    ],
)
def test_five_engines_read_the_same_rows_after_each_merge(
    table_of: Callable[..., Table], mode: str, layout: Layout, in_turn: bool
) -> None:
    assert len(MERGES) == 15
    table = table_of(SCHEMA, mode=mode, partition_by=layout.partition_by)
    layout.fill(table, table.append)
    left = 18
    assert disagreements(table) == {}
    for turn, merge in enumerate(MERGES):
        if merge is MERGES[-1] and layout.before_last is not None:
            table.evolve_partitions(layout.before_last)
        before = table.snapshot_id
        result = merge.run(table)
        assert result.clauses == merge.counts, merge.name
        assert (table.snapshot_id == before) == (merge.name == "nothing_to_do")
        left += result.rows_inserted - result.rows_deleted
        expected = icefloe_rows(table)
        assert len(expected) == left, merge.name
        readers = one_in_turn(turn) if in_turn else READERS
        assert disagreements(table, expected, readers) == {}, merge.name
    assert disagreements(table) == {}
