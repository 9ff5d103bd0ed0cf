"""The best rows of a search: those with the smallest keys, ties by file and position."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.tasks.messages import Positions, SearchHits

Keys = npt.NDArray[np.float64]
Hit = tuple[float, str, int]  # key, file, position


def first_rows(keys: Keys, limit: int) -> Positions:
    """The indices of the rows with the smallest keys, in their order; of equal keys the first."""
    indices = np.arange(len(keys))
    if len(keys) > limit:
        last = np.partition(keys, limit - 1)[limit - 1]
        ties = np.flatnonzero(keys == last)
        below = np.flatnonzero(keys < last)
        indices = np.sort(np.concatenate([below, ties[: limit - len(below)]]))
    return indices[np.argsort(keys[indices], kind="stable")]


def best(hits: Iterable[Hit], limit: int) -> list[Hit]:
    """The best hits, in order."""
    return sorted(hits)[:limit]


class BestRows:
    """Collects the best of the rows that pass through a task."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._hits: list[Hit] = []

    def add(self, files: pa.Array, positions: pa.Array, rows: Positions, keys: Keys) -> None:
        """Add some rows of a batch, which have these keys."""
        if len(rows) > self._limit:
            near = keys <= np.partition(keys, self._limit - 1)[self._limit - 1]
            rows, keys = rows[near], keys[near]
        if not len(rows):
            return
        encoded = files.take(pa.array(rows)).dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        at = positions.to_numpy(zero_copy_only=False)[rows]
        for number, file in enumerate(encoded.dictionary.to_pylist()):
            of_file = np.flatnonzero(codes == number)
            order = of_file[np.lexsort((at[of_file], keys[of_file]))][: self._limit]
            new = zip(keys[order].tolist(), at[order].tolist(), strict=True)
            self._hits = best([*self._hits, *((key, file, pos) for key, pos in new)], self._limit)

    def message(self) -> SearchHits:
        """The best rows, for the driver."""
        return SearchHits(
            tuple(key for key, _, _ in self._hits),
            tuple(file for _, file, _ in self._hits),
            tuple(position for _, _, position in self._hits),
        )
