"""Row positions on their way from workers to the driver and back: sorted, packed, per file."""

from __future__ import annotations

import zlib
from collections import defaultdict

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Positions = npt.NDArray[np.int64]


def pack(positions: Positions) -> bytes:
    """Sorted positions as compressed differences: about two bytes each when dense."""
    return zlib.compress(np.diff(positions, prepend=np.int64(0)).tobytes(), 1)


def unpack(packed: bytes) -> Positions:
    """The inverse of `pack`."""
    return np.cumsum(np.frombuffer(zlib.decompress(packed), dtype=np.int64))


class PositionCollector:
    """Gathers the positions of the rows that pass through a task, by file."""

    def __init__(self) -> None:
        self._chunks: dict[str, list[Positions]] = defaultdict(list)

    def add(self, files: pa.Array, positions: pa.Array) -> None:
        """Take one batch of rows."""
        encoded = files.dictionary_encode()
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        values = positions.to_numpy(zero_copy_only=False)
        for number, path in enumerate(encoded.dictionary.to_pylist()):
            chosen = values if len(encoded.dictionary) == 1 else values[indices == number]
            self._chunks[path].append(chosen)

    def packed(self) -> dict[str, bytes]:
        """Every file's positions, sorted and packed."""
        return {path: pack(np.unique(np.concatenate(c))) for path, c in self._chunks.items()}
