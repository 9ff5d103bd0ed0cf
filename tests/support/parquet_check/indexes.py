"""Compare page indexes with the pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from icefloe.parquet.fields import (
    Chunk,
    ColumnIndex,
    Location,
    OffsetIndex,
    Page,
    PageData,
    PageDataV2,
)
from icefloe.parquet.footer import ParquetBytes
from icefloe.parquet.schema import LeafColumn
from icefloe.parquet.thrift import Struct, items, read_struct, value
from support.parquet_check.entries import Entries
from support.parquet_check.values import as_bound, histogram, wrong_bounds

_ASCENDING, _DESCENDING = 1, 2


@dataclass(frozen=True, slots=True)
class PageBytes:
    """A page, and its offset in the file."""

    start: int
    size: int  # with its header
    header_size: int
    header: Struct

    @property
    def is_dictionary(self) -> bool:
        """Whether it has a dictionary instead of entries."""
        return Page.DICTIONARY in self.header

    @property
    def values(self) -> int:
        """How many values it has."""
        return int(value(self._details, PageData.VALUES))

    @property
    def encoding(self) -> int:
        """The number of the encoding of its values."""
        newer = Page.DATA_V2 in self.header
        return int(value(self._details, PageDataV2.ENCODING if newer else PageData.ENCODING))

    @property
    def _details(self) -> Struct:
        kinds = (Page.DATA, Page.DATA_V2, Page.DICTIONARY)
        return next(value(self.header, kind) for kind in kinds if kind in self.header)


@dataclass(frozen=True, slots=True)
class DataPage:
    """A page of data, and its entries."""

    bytes: PageBytes
    entries: Entries


def wrong_indexes(
    file: ParquetBytes, chunk: Struct, leaf: LeafColumn, pages: Sequence[DataPage]
) -> Iterator[str]:
    """Problems of a chunk's page indexes."""
    if Chunk.OFFSET_INDEX in chunk:
        yield from _wrong_offsets(_read(file, chunk, Chunk.OFFSET_INDEX), pages)
    elif Chunk.COLUMN_INDEX in chunk:
        yield "it has a column index without an offset index"
    if Chunk.COLUMN_INDEX in chunk:
        yield from _wrong_columns(_read(file, chunk, Chunk.COLUMN_INDEX), leaf, pages)


def _wrong_offsets(index: Struct, pages: Sequence[DataPage]) -> Iterator[str]:
    locations = [
        tuple(value(location, f) for f in (Location.OFFSET, Location.SIZE, Location.FIRST_ROW))
        for location in items(index, OffsetIndex.LOCATIONS)
    ]
    if locations != _locations(pages):
        yield "its offset index has wrong locations of pages"
    sizes = items(index, OffsetIndex.BYTES)
    if sizes and len(sizes) != len(pages):
        yield f"its offset index has the bytes of {len(sizes)} pages, not of {len(pages)}"
        return
    for number, (size, page) in enumerate(zip(sizes, pages, strict=bool(sizes))):
        if page.entries.bytes not in (None, size):
            yield f"page {number}: it has {page.entries.bytes} bytes, the offset index says {size}"


def _wrong_columns(index: Struct, leaf: LeafColumn, pages: Sequence[DataPage]) -> Iterator[str]:
    lists = (ColumnIndex.NULL_PAGES, ColumnIndex.LEAST, ColumnIndex.MOST, ColumnIndex.NULL_COUNTS)
    counts = {len(items(index, which)) for which in lists if which in index}
    if counts != {len(pages)}:
        yield f"its column index has {sorted(counts)} pages, not {len(pages)}"
        return
    for number, page in enumerate(pages):
        for wrong in _wrong_page(index, number, page.entries, leaf):
            yield f"page {number}: {wrong}"
    yield from _wrong_order(index, pages, leaf)


def _locations(pages: Sequence[DataPage]) -> list[tuple[int, int, int]]:
    locations, row = [], 0
    for page in pages:
        locations.append((page.bytes.start, page.bytes.size, row))
        row += page.entries.rows
    return locations


def _wrong_page(index: Struct, page: int, entries: Entries, leaf: LeafColumn) -> Iterator[str]:
    counts = items(index, ColumnIndex.NULL_COUNTS)
    if counts and counts[page] not in entries.null_counts:
        nulls = max(entries.null_counts)
        yield f"it has {nulls} NULLs, the column index says {counts[page]}"
    missing = entries.values.null_count == len(entries)
    if items(index, ColumnIndex.NULL_PAGES)[page] != missing:
        yield f"the column index is wrong about all its {len(entries)} values being NULL"
    elif not missing:
        low, high = (items(index, bound)[page] for bound in (ColumnIndex.LEAST, ColumnIndex.MOST))
        for wrong in wrong_bounds((low, high), entries, leaf.type or 0):
            yield f"{wrong}, as the column index says"
    for which, levels, most in (
        (ColumnIndex.REPETITION, entries.repetition, leaf.repetition),
        (ColumnIndex.DEFINITION, entries.definition, leaf.definition),
    ):
        stored = list(items(index, which))[page * (most + 1) : (page + 1) * (most + 1)]
        if stored and stored != histogram(levels, most + 1):
            yield f"its levels are {histogram(levels, most + 1)}, the column index says {stored}"


def _wrong_order(index: Struct, pages: Sequence[DataPage], leaf: LeafColumn) -> Iterator[str]:
    """Problems of the order of bounds that the index claims."""
    order = value(index, ColumnIndex.ORDER)
    if order not in (_ASCENDING, _DESCENDING):
        return
    for which in (ColumnIndex.LEAST, ColumnIndex.MOST):
        bounds: list[Any] = [
            as_bound(bound, page.entries.values.type, leaf.type or 0)
            for bound, page in zip(items(index, which), pages, strict=True)
            if page.entries.values.null_count < len(page.entries)
        ]
        bounds = [b for b in bounds if not (isinstance(b, float) and math.isnan(b))]
        follow = pairwise(bounds if order == _ASCENDING else reversed(bounds))
        if any(one > other for one, other in follow):
            yield "its pages are not in the order that the column index says"
            return


def _read(file: ParquetBytes, chunk: Struct, which: int) -> Struct:
    start, length = value(chunk, which), value(chunk, which + 1)
    return read_struct(file.take(start, length))[0]
