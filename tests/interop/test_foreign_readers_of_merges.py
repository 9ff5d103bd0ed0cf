"""Fifteen MERGEs, both modes, four kinds of tables: after each, five engines read what we read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from icefloe import Table
from support.foreign_readers import disagreements, icefloe_rows
from support.merge_sequence import LAYOUTS, MERGES, SCHEMA, Layout

QUICK = {("merge-on-read", "evolved")}


@pytest.mark.parametrize(
    ("mode", "layout"),
    [
        pytest.param(
            mode,
            layout,
            id=f"{mode}-{layout.name}",
            marks=[] if (mode, layout.name) in QUICK else [pytest.mark.slow],
        )
        for mode in ("merge-on-read", "copy-on-write")
        for layout in LAYOUTS
    ],
)
def test_five_engines_read_the_same_rows_after_each_merge(
    table_of: Callable[..., Table], mode: str, layout: Layout
) -> None:
    assert len(MERGES) == 15
    table = table_of(SCHEMA, mode=mode, partition_by=layout.partition_by)
    layout.fill(table, table.append)
    left = 18
    assert disagreements(table) == {}
    for merge in MERGES:
        if merge is MERGES[-1] and layout.before_last is not None:
            table.evolve_partitions(layout.before_last)
        before = table.snapshot_id
        result = merge.run(table)
        assert result.clauses == merge.counts, merge.name
        assert (table.snapshot_id == before) == (merge.name == "nothing_to_do")
        left += result.rows_inserted - result.rows_deleted
        expected = icefloe_rows(table)
        assert len(expected) == left, merge.name
        assert disagreements(table, expected) == {}, merge.name
