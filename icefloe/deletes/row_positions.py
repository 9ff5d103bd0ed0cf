"""Sets of row positions as 64-bit roaring bitmaps, and as the words Spark tests bits in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from icefloe.tasks.messages import FileKey, unpack

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


# -------------------------------------------------------------------------------------------------
# What tasks tell of the rows they saw: which rows of which files, by what happens to them.

ByFile = Mapping[FileKey, BitMap64]


@dataclass(frozen=True, slots=True)
class RowActions:
    """Rows of files by action, new rows by action, and rows of files that were named twice."""

    positions: Mapping[int, ByFile] = field(default_factory=dict)
    new: Mapping[int, int] = field(default_factory=dict)
    repeated: ByFile = field(default_factory=dict)

    def of(self, actions: Iterable[int]) -> dict[FileKey, BitMap64]:
        """The rows of some actions, by file."""
        chosen = [self.positions[action] for action in actions if action in self.positions]
        return {
            file: unite(by_file[file] for by_file in chosen if file in by_file)
            for file in {file for by_file in chosen for file in by_file}
        }

    def count(self, action: int) -> int:
        """How many rows an action was for, new ones included."""
        known = sum(len(rows) for rows in self.positions.get(action, {}).values())
        return known + self.new.get(action, 0)


def acted_rows(results: Iterable[Mapping[str, Any]]) -> RowActions:
    """Put together what all tasks told."""
    positions: dict[int, dict[FileKey, BitMap64]] = {}
    new: dict[int, int] = {}
    seen: dict[FileKey, BitMap64] = {}
    repeated: dict[FileKey, BitMap64] = {}
    for result in results:
        if "new" in result:
            new[result["action"]] = new.get(result["action"], 0) + result["new"]
        if "positions" not in result:
            continue
        file, packed = result["positions"]
        told = unpack(packed)
        rows = as_bitmap(told)
        again = as_bitmap(told[1:][np.diff(told) == 0]) | (seen.get(file, BitMap64()) & rows)
        if again:
            repeated[file] = repeated.get(file, BitMap64()) | again
        seen.setdefault(file, BitMap64()).update(rows)
        positions.setdefault(result["action"], {}).setdefault(file, BitMap64()).update(rows)
    return RowActions(positions, new, repeated)
