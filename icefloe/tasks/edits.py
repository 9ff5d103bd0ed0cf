"""The changes of one file, by position: applied to its rows as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.tasks.arrays import fitted
from icefloe.tasks.positions import Positions


@dataclass(frozen=True)
class Edits:
    """Rows that get new values, rows that go, and rows that are gone already."""

    positions: Positions
    goes: npt.NDArray[np.bool_]  # which of them delete their row
    values: pa.Table
    assigned: Mapping[str, str]  # table column -> column of the values
    gone: Positions

    def rows_left(self, start: int, rows: int) -> int:
        """How many of `rows` rows from position `start` stay."""
        low, high = np.searchsorted(self.positions, [start, start + rows])
        first, last = np.searchsorted(self.gone, [start, start + rows])
        return rows - int(self.goes[low:high].sum()) - int(last - first)

    def has_updates(self, start: int, rows: int) -> bool:
        """Whether some of `rows` rows from position `start` get new values."""
        low, high = np.searchsorted(self.positions, [start, start + rows])
        return not bool(self.goes[low:high].all())

    def apply(self, table: pa.Table, start: int) -> pa.Table:
        """The rows of `table`, from position `start`, as they are to be."""
        low, high = np.searchsorted(self.positions, [start, start + table.num_rows])
        local, goes = self.positions[low:high] - start, self.goes[low:high]
        keep = np.ones(table.num_rows, dtype=bool)
        first, last = np.searchsorted(self.gone, [start, start + table.num_rows])
        keep[self.gone[first:last] - start] = False
        keep[local[goes]] = False
        if not goes.all():
            new = self.values.slice(low, high - low)
            table = self._replace_values(table, local, ~goes, new)
        return table if keep.all() else table.filter(pa.array(keep))

    def _replace_values(
        self, table: pa.Table, rows: Positions, chosen: npt.NDArray[np.bool_], changes: pa.Table
    ) -> pa.Table:
        """Give the chosen rows new values: taken from the old column and the new, end to end."""
        indices = np.arange(table.num_rows)
        indices[rows[chosen]] = table.num_rows + np.flatnonzero(chosen)
        for name, change in self.assigned.items():
            index = table.schema.get_field_index(name)
            if index < 0:
                continue
            wanted = table.schema.field(index)
            new = fitted(changes.column(change), wanted.type)
            both = pa.chunked_array([*table.column(index).chunks, *new.chunks], type=wanted.type)
            table = table.set_column(index, wanted, both.combine_chunks().take(pa.array(indices)))
        return table
