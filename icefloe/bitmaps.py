"""Sets of row positions as 64-bit roaring bitmaps, and as the words Spark tests bits in."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

# Positions at or above it are not tested by bits: the words below it take 256 MiB at most.
MOST_ROWS = 2**31


def as_bitmap(positions: npt.NDArray[np.int64]) -> BitMap64:
    """A bitmap of an array of positions."""
    return BitMap64(positions.astype(np.uint64))


def as_array(bitmap: BitMap64) -> npt.NDArray[np.int64]:
    """The positions of a bitmap, ascending."""
    return np.frombuffer(bitmap.to_array(), dtype=np.uint64).astype(np.int64)


def as_words(bitmap: BitMap64) -> npt.NDArray[np.int64]:
    """The bitmap as 64-bit words: bit `p % 64` of word `p // 64` stands for position `p`."""
    if not bitmap:
        return np.empty(0, dtype=np.int64)
    if (most := int(bitmap.max())) >= MOST_ROWS:
        raise ValueError(f"position {most} is too large for words of bits")
    positions = as_array(bitmap)
    words = np.zeros(most // 64 + 1, dtype=np.int64)
    np.bitwise_or.at(words, positions >> 6, np.left_shift(np.int64(1), positions & 63))
    return words


def unite(parts: Iterable[BitMap64]) -> BitMap64:
    """One bitmap of all positions."""
    united = BitMap64()
    for part in parts:
        united |= part
    return united
