"""Sets of row positions as 64-bit roaring bitmaps, and as the words Spark tests bits in."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64


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
    bits = np.zeros((int(bitmap.max()) // 64 + 1) * 64, dtype=bool)
    bits[as_array(bitmap)] = True
    return np.packbits(bits, bitorder="little").view(np.int64)


def unite(parts: Iterable[BitMap64]) -> BitMap64:
    """One bitmap of all positions."""
    united = BitMap64()
    for part in parts:
        united |= part
    return united
