"""A full check of a Parquet file: every page read, every statistic computed again and compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from icefloe.parquet.check_index import extremes, locations_of, rows_of_leaves, wrong_pages
from icefloe.parquet.compact import Struct, items, read_struct, value
from icefloe.parquet.fields import Chunk, Group, Location, Meta, Page
from icefloe.parquet.footer import MAGIC, ParquetBytes, chunk_range, open_buffer

_DICTIONARY_PAGE = 2


def problems(path: str, buffer: pa.Buffer) -> list[str]:
    """What is wrong with a file; none when every page and statistic agrees with its footer.

    Raises what reading the file raises when it cannot be read at all.
    """
    file = open_buffer(path, buffer)
    found = [*_places(file), *_groups(file), *_indexed_in_part(file)]
    reader = pq.ParquetFile(pa.BufferReader(buffer), page_checksum_verification=True)
    for number in range(reader.metadata.num_row_groups):
        group = reader.metadata.row_group(number)
        rows = reader.read_row_group(number)
        if rows.num_rows != group.num_rows:
            found.append(f"row group {number}: {rows.num_rows} rows read, not {group.num_rows}")
        columns = [column.combine_chunks() for column in rows.columns]
        leaves = [leaf for column in columns for leaf in _leaves(column)]
        by_row = [leaf for column in columns for leaf in rows_of_leaves(column)]
        chunks = items(file.groups[number], Group.COLUMNS)
        for leaf, (values, one_each) in enumerate(zip(leaves, by_row, strict=True)):
            chunk = group.column(leaf)
            repeated = reader.schema.column(leaf).max_repetition_level > 0
            found += [
                f"row group {number}, {chunk.path_in_schema}: {wrong}"
                for wrong in (
                    *_nulls(chunk, values, repeated=repeated),
                    *_bounds(chunk, values),
                    *wrong_pages(file, chunks[leaf], one_each),
                )
            ]
    return found


def _places(file: ParquetBytes) -> Iterator[str]:
    """Ranges that overlap, or lie outside the data."""
    ranges = [(0, len(MAGIC), "the magic"), (file.footer_at, file.size, "the footer")]
    for number, group in enumerate(file.groups):
        for leaf, chunk in enumerate(items(group, Group.COLUMNS)):
            where = f"column {leaf} of row group {number}"
            start, length = chunk_range(chunk)
            ranges.append((start, start + length, where))
            meta = value(chunk, Chunk.META)
            for struct, begin, size, what in (
                (meta, Meta.BLOOM, Meta.BLOOM_LENGTH, "Bloom filter"),
                (chunk, Chunk.COLUMN_INDEX, Chunk.COLUMN_INDEX_LENGTH, "column index"),
                (chunk, Chunk.OFFSET_INDEX, Chunk.OFFSET_INDEX_LENGTH, "offset index"),
            ):
                if begin in struct:
                    at = value(struct, begin)
                    ranges.append((at, at + value(struct, size, 0), f"the {what} of {where}"))
    ranges.sort()
    for (_, end, one), (start, _, other) in pairwise(ranges):
        if end > start:
            yield f"{one} and {other} overlap"


def _indexed_in_part(file: ParquetBytes) -> Iterator[str]:
    """Page indexes of some chunks only, with which some readers refuse the file."""
    chunks = [chunk for group in file.groups for chunk in items(group, Group.COLUMNS)]
    indexed = sum(Chunk.OFFSET_INDEX in chunk for chunk in chunks)
    if indexed not in (0, len(chunks)):
        yield f"{indexed} of {len(chunks)} column chunks have an offset index"


def _groups(file: ParquetBytes) -> Iterator[str]:
    for number, group in enumerate(file.groups):
        chunks = items(group, Group.COLUMNS)
        metas = [value(chunk, Chunk.META) for chunk in chunks]
        if value(group, Group.BYTES) != sum(value(m, Meta.UNCOMPRESSED) for m in metas):
            yield f"row group {number}: its size is not the sum of its chunks"
        compressed = sum(value(m, Meta.COMPRESSED) for m in metas)
        if value(group, Group.COMPRESSED, compressed) != compressed:
            yield f"row group {number}: its compressed size is not the sum of its chunks"
        starts = min(chunk_range(chunk)[0] for chunk in chunks)
        if value(group, Group.OFFSET, starts) != starts:
            yield f"row group {number}: it does not begin where it says"
        if value(group, Group.ORDINAL, number) != number:
            yield f"row group {number}: it says it is number {value(group, Group.ORDINAL)}"
        for leaf, chunk in enumerate(chunks):
            for wrong in _pages(file, chunk):
                yield f"row group {number}, column {leaf}: {wrong}"


def _pages(file: ParquetBytes, chunk: Struct) -> Iterator[str]:
    """Walk the pages of a chunk by their headers."""
    meta = value(chunk, Chunk.META)
    start, length = chunk_range(chunk)
    data = file.take(start, length)
    at = values = uncompressed = 0
    places: list[int] = []
    while at < length:
        header, body = read_struct(data, at)
        if value(header, Page.TYPE) == _DICTIONARY_PAGE:
            if at or value(meta, Meta.DICTIONARY_PAGE, start) != start:
                yield "its dictionary is not where the footer says"
        else:
            places.append(start + at)
            page = value(header, Page.DATA) or value(header, Page.DATA_V2)
            values += value(page, Page.VALUES)
        uncompressed += body - at + value(header, Page.UNCOMPRESSED)
        at = body + value(header, Page.COMPRESSED)
    if at != length:
        yield f"its pages end at byte {at} of {length}"
    if values != value(meta, Meta.VALUES):
        yield f"its pages have {values} values, not {value(meta, Meta.VALUES)}"
    if uncompressed != value(meta, Meta.UNCOMPRESSED):
        yield f"its pages have {uncompressed} bytes, not {value(meta, Meta.UNCOMPRESSED)}"
    if places and places[0] != value(meta, Meta.DATA_PAGE):
        yield "its first data page is not where the footer says"
    if Chunk.OFFSET_INDEX in chunk:
        told = [value(place, Location.OFFSET) for place in locations_of(file, chunk)]
        if told != places:
            yield "its offset index does not tell where its pages are"


def _leaves(array: pa.Array) -> list[pa.Array]:
    """The leaf values of a column, without NULLs at any level, in the order of Parquet's leaves."""
    present = array.drop_null() if array.null_count else array
    kind = present.type
    if isinstance(present, pa.DictionaryArray):
        return [present.dictionary_decode()]
    if isinstance(present, pa.ExtensionArray):
        return [present.storage]
    if pa.types.is_struct(kind):
        return [leaf for index in range(kind.num_fields) for leaf in _leaves(present.field(index))]
    if pa.types.is_map(kind):
        return [*_leaves(_elements(present).field(0)), *_leaves(_elements(present).field(1))]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _leaves(_elements(present))
    return [present]


def _elements(array: pa.Array) -> pa.Array:
    if not len(array):
        return array.values.slice(0, 0)
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return array.values.slice(first, last - first)


def _nulls(chunk: pq.ColumnChunkMetaData, values: pa.Array, *, repeated: bool) -> Iterator[str]:
    """Whether NULLs are counted right; inside lists, writers count in several ways."""
    told = chunk.statistics
    nulls = chunk.num_values - len(values)
    if told is not None and told.has_null_count and not repeated and told.null_count != nulls:
        yield f"it has {nulls} NULLs, its statistics say {told.null_count}"


def _bounds(chunk: pq.ColumnChunkMetaData, values: pa.Array) -> Iterator[str]:
    told = chunk.statistics
    if told is None or not told.has_min_max:
        return
    least, most = extremes(values)
    if least is None:
        yield f"it has the bounds {told.min!r} and {told.max!r} without values"
        return
    exact = not isinstance(least, str | bytes)
    low, high = told.min, told.max
    if isinstance(low, float) and (math.isnan(low) or math.isnan(high)):
        return  # as parquet-mr writes them: readers take such bounds for none
    if low > least or high < most or (exact and (low != least or high != most)):
        yield f"its values are from {least!r} to {most!r}, its statistics say {low!r} to {high!r}"
