"""Row positions: sets of them as bitmaps, and those that tasks report, grouped by action."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from icefloe.tasks.messages import FileKey, NewRowCount, RowPositions, TaskMessage, unpack

# -------------------------------------------------------------------------------------------------
# 64-bit roaring bitmaps, and the words that Spark tests bits in.

# Higher positions are not tested by bits: the words for those below take 256 MiB at most.
MOST_ROWS = 2**31


def as_bitmap(positions: npt.NDArray[np.int64]) -> BitMap64:
    """An array of positions as a bitmap."""
    return BitMap64(positions.astype(np.uint64))


def as_array(bitmap: BitMap64) -> npt.NDArray[np.int64]:
    """The positions of a bitmap, ascending."""
    return np.frombuffer(bitmap.to_array(), dtype=np.uint64).astype(np.int64)


def as_words(bitmap: BitMap64) -> npt.NDArray[np.int64]:
    """The bitmap as 64-bit words: bit `p % 64` of word `p // 64` is position `p`."""
    if not bitmap:
        return np.empty(0, dtype=np.int64)
    if (most := int(bitmap.max())) >= MOST_ROWS:
        raise ValueError(f"position {most} is too large to be tested by bits")
    positions = as_array(bitmap)
    words = np.zeros(most // 64 + 1, dtype=np.int64)
    np.bitwise_or.at(words, positions >> 6, np.left_shift(np.int64(1), positions & 63))
    return words


def unite(parts: Iterable[BitMap64]) -> BitMap64:
    """One bitmap of all positions."""
    union = BitMap64()
    for part in parts:
        union |= part
    return union


# -------------------------------------------------------------------------------------------------
# Row positions reported by tasks, grouped by action.

ByFile = Mapping[FileKey, BitMap64]


@dataclass(frozen=True, slots=True)
class RowActions:
    """Rows of files by action, new rows by action, and rows of files that were seen twice."""

    positions: Mapping[int, ByFile] = field(default_factory=dict)
    new: Mapping[int, int] = field(default_factory=dict)
    repeated: ByFile = field(default_factory=dict)

    def of(self, actions: Iterable[int]) -> dict[FileKey, BitMap64]:
        """The rows of some actions, by file."""
        parts = [self.positions[action] for action in actions if action in self.positions]
        return {
            file: unite(by_file[file] for by_file in parts if file in by_file)
            for file in {file for by_file in parts for file in by_file}
        }

    def count(self, action: int) -> int:
        """How many rows an action applies to, new ones included."""
        old = sum(len(rows) for rows in self.positions.get(action, {}).values())
        return old + self.new.get(action, 0)


def row_actions(messages: Iterable[TaskMessage]) -> RowActions:
    """The reports of all tasks together."""
    positions: dict[int, dict[FileKey, BitMap64]] = {}
    new: dict[int, int] = {}
    seen: dict[FileKey, BitMap64] = {}
    repeated: dict[FileKey, BitMap64] = {}
    for message in messages:
        if isinstance(message, NewRowCount):
            new[message.action] = new.get(message.action, 0) + message.rows
        elif isinstance(message, RowPositions):
            file, numbers = message.file, unpack(message.packed)
            rows = as_bitmap(numbers)
            within = as_bitmap(numbers[1:][np.diff(numbers) == 0])
            if twice := within | (seen.get(file, BitMap64()) & rows):
                repeated[file] = repeated.get(file, BitMap64()) | twice
            seen.setdefault(file, BitMap64()).update(rows)
            positions.setdefault(message.action, {}).setdefault(file, BitMap64()).update(rows)
    return RowActions(positions, new, repeated)
