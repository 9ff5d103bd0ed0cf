"""Check that the rows of a row group are in the order that its footer claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.parquet.fields import Group, Sorting
from icefloe.parquet.thrift import Struct, items, value
from support.parquet_check.entries import Entries, Numbers


def wrong_order(group: Struct, leaves: Sequence[Entries]) -> Iterator[str]:
    """Compare each row with the one before it, by the columns that the group is sorted by."""
    sorting = items(group, Group.SORTING)
    sorted_by = [leaves[value(column, Sorting.LEAF)] for column in sorting]
    if not sorted_by or any((leaf.repetition > 0).any() for leaf in sorted_by):
        return
    tied = np.ones(len(sorted_by[0]) - 1, dtype=bool)
    for column, leaf in zip(sorting, sorted_by, strict=True):
        steps = np.diff(_ranks(leaf.values, column))
        if (steps[tied] < 0).any():
            yield f"its rows are not in the order of its leaf {value(column, Sorting.LEAF)}"
            return
        tied &= steps == 0


def _ranks(values: pa.Array, column: Struct) -> Numbers:
    """The rank of each value in the column's order; equal values have the same rank."""
    ranks: Numbers = pc.rank(values, "ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    if value(column, Sorting.DESCENDING):
        ranks = -ranks
    missing = values.is_null().to_numpy(zero_copy_only=False)
    first, last = int(ranks.min()) - 1, int(ranks.max()) + 1
    ranks[missing] = first if value(column, Sorting.NULLS_FIRST) else last
    return ranks
