"""Page indexes of column chunks: read in few requests, and encoded for the chunk's new offset."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from icefloe.parquet.fields import Chunk, Group, Location, Meta, OffsetIndex
from icefloe.parquet.footer import MAGIC, DamagedFileError, ParquetBytes, chunk_range
from icefloe.parquet.thrift import (
    Items,
    Struct,
    ThriftType,
    changed,
    items,
    read_struct,
    value,
    write_struct,
)

_GAP = 4096  # bytes between indexes that are read too rather than skipped
_MAX_READ = 8 * 1024 * 1024
_DELTA_BYTE_ARRAY = 7


@dataclass(frozen=True, slots=True)
class Indexes:
    """The encoded page indexes of one chunk; None where it has none that can be used."""

    path: str
    columns: bytes | None = None
    offsets: bytes | None = None


@dataclass(slots=True)
class IndexReader:
    """Reads the page indexes of a file; they are adjacent, so few reads suffice."""

    file: ParquetBytes
    _runs: list[tuple[int, int]] = field(init=False)
    _read: dict[int, bytes] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._runs = _runs(self.file)

    def moved(self, chunk: Struct, delta: int) -> Indexes:
        """The indexes of a chunk that moves by `delta` bytes.

        Without indexes if they cannot be read: readers do not need them.
        """
        try:
            offsets = self._take(chunk, Chunk.OFFSET_INDEX)
            if offsets is None:
                return Indexes(self.file.path)
            index = _moved_pages(read_struct(offsets)[0], chunk_range(chunk), delta)
            if miscounts_bytes(value(chunk, Chunk.META)):
                index = changed(index, {OffsetIndex.BYTES: None})
            moved = write_struct(index)
            return Indexes(self.file.path, self._take(chunk, Chunk.COLUMN_INDEX), moved)
        except (ValueError, TypeError, AttributeError):
            return Indexes(self.file.path)

    def _take(self, chunk: Struct, which: int) -> bytes | None:
        index_range = _index_range(chunk, which)
        if index_range is None:
            return None
        start, end = index_range
        run = bisect_right(self._runs, (start, self.file.size)) - 1
        if run < 0 or self._runs[run][1] < end:
            raise DamagedFileError(self.file.path, "a page index is outside the data")
        first, last = self._runs[run]
        if run not in self._read:
            self._read[run] = self.file.take(first, last - first)
        return bytes(self._read[run][start - first : end - first])


def miscounts_bytes(meta: Struct) -> bool:
    """Whether the byte counts of a chunk's values may be wrong.

    With DELTA_BYTE_ARRAY, PyArrow counts only the bytes that differ from the value before.
    """
    return _DELTA_BYTE_ARRAY in items(meta, Meta.ENCODINGS)


def _runs(file: ParquetBytes) -> list[tuple[int, int]]:
    """The byte ranges of a file's page indexes; those near each other are one range."""
    runs: list[tuple[int, int]] = []
    for start, end in sorted(_index_ranges(file)):
        if runs and start - runs[-1][1] <= _GAP and end - runs[-1][0] <= _MAX_READ:
            runs[-1] = (runs[-1][0], max(end, runs[-1][1]))
        else:
            runs.append((start, end))
    return runs


def _index_ranges(file: ParquetBytes) -> Iterator[tuple[int, int]]:
    for group in file.groups:
        for chunk in items(group, Group.COLUMNS):
            for which in (Chunk.OFFSET_INDEX, Chunk.COLUMN_INDEX):
                index_range = _index_range(chunk, which)
                if index_range is not None:
                    start, end = index_range
                    if len(MAGIC) <= start < end <= file.footer_at:
                        yield index_range


def _index_range(chunk: Struct, which: int) -> tuple[int, int] | None:
    """The start and the end of an index of a chunk."""
    start, length = value(chunk, which), value(chunk, which + 1)
    if not isinstance(start, int) or not isinstance(length, int):
        return None
    return (start, start + length) if start > 0 and length > 0 else None


def _moved_pages(index: Struct, chunk: tuple[int, int], delta: int) -> Struct:
    """An offset index whose pages moved by `delta` bytes."""
    start, length = chunk
    locations = []
    for location in items(index, OffsetIndex.LOCATIONS):
        offset = value(location, Location.OFFSET)
        if not start <= offset < start + length:
            raise ValueError(f"a page at byte {offset} is outside its chunk")
        locations.append(changed(location, {Location.OFFSET: (ThriftType.I64, offset + delta)}))
    return changed(
        index, {OffsetIndex.LOCATIONS: (ThriftType.LIST, Items(ThriftType.STRUCT, locations))}
    )
