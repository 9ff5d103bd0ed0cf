"""A full check of a Parquet file: every page read, every statistic computed again and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from icefloe.parquet.fields import (
    Chunk,
    File,
    Group,
    Meta,
    Page,
    PageData,
    PageDataV2,
    PageEncoding,
    Statistics,
)
from icefloe.parquet.footer import MAGIC, ParquetBytes, chunk_range, group_rows, open_buffer
from icefloe.parquet.schema import LeafColumn, columns_of
from icefloe.parquet.thrift import Struct, changed, items, read_struct, value
from support.parquet_check.entries import Entries, entries_of
from support.parquet_check.indexes import FoundPage, PageBytes, wrong_indexes
from support.parquet_check.order import wrong_order
from support.parquet_check.values import wrong_levels, wrong_statistics

_DICTIONARY_PAGE = 2


def problems(path: str, buffer: pa.Buffer) -> list[str]:
    """What is wrong with a file; none when every page and statistic agrees with its footer.

    Raises what reading the file raises when it cannot be read at all.
    """
    file = open_buffer(path, buffer)
    found = [*_places(file), *_groups(file), *_indexed_in_part(file)]
    reader = pq.ParquetFile(pa.BufferReader(buffer), page_checksum_verification=True)
    leaves = [leaf for column in columns_of(file.footer) for leaf in column.values]
    for number, group in enumerate(file.groups):
        if not group_rows(group):
            continue
        rows = reader.read_row_group(number)
        if rows.num_rows != group_rows(group):
            found.append(f"row group {number}: {rows.num_rows} rows read, not {group_rows(group)}")
        columns = zip(rows.columns, rows.schema, strict=True)
        entries = [
            leaf
            for column, field in columns
            for leaf in entries_of(column.combine_chunks(), nullable=field.nullable)
        ]
        chunks = items(group, Group.COLUMNS)
        found += [f"row group {number}: {wrong}" for wrong in wrong_order(group, entries)]
        for leaf, chunk, values in zip(leaves, chunks, entries, strict=True):
            name = b".".join(leaf.path).decode()
            found += [
                f"row group {number}, {name}: {wrong}"
                for wrong in _wrong_chunk(file, chunk, leaf, values)
            ]
    return found


def _wrong_chunk(
    file: ParquetBytes, chunk: Struct, leaf: LeafColumn, entries: Entries
) -> Iterator[str]:
    """What the footer, the pages' headers and the page indexes tell wrongly of a chunk."""
    meta = value(chunk, Chunk.META)
    if tuple(items(meta, Meta.PATH)) != leaf.path:
        yield f"the footer calls it {b'.'.join(items(meta, Meta.PATH)).decode()}"
    if len(entries) != value(meta, Meta.VALUES):
        yield f"{len(entries)} values were read, not {value(meta, Meta.VALUES)}"
    told = value(meta, Meta.STATISTICS, {})
    if leaf.repetition and value(file.footer, File.CREATED_BY, b"").startswith(b"DuckDB"):
        told = changed(told, {Statistics.NULLS: None})  # it counts NULL structures in lists twice
    yield from wrong_statistics(told, entries, leaf.type or 0)
    yield from wrong_levels(value(meta, Meta.SIZES, {}), entries)
    pages = _pages(file, chunk)
    yield from _wrong_totals(meta, pages, *chunk_range(chunk))
    yield from _wrong_encodings(meta, pages)
    found: list[FoundPage] = []
    first = 0
    for page in pages:
        if not page.is_dictionary:
            found.append(FoundPage(page, entries.slice(first, page.values)))
            first += page.values
    for number, one in enumerate(found):
        for wrong in _wrong_page(one, leaf):
            yield f"page {number}: {wrong}"
    yield from wrong_indexes(file, chunk, leaf, found)


def _pages(file: ParquetBytes, chunk: Struct) -> list[PageBytes]:
    """Walk the pages of a chunk by their headers."""
    start, length = chunk_range(chunk)
    data = file.take(start, length)
    pages: list[PageBytes] = []
    at = 0
    while at < length:
        header, body = read_struct(data, at)
        end = body + value(header, Page.COMPRESSED)
        pages.append(PageBytes(start + at, end - at, body - at, header))
        at = end
    return pages


def _wrong_totals(
    meta: Struct, pages: Sequence[PageBytes], start: int, length: int
) -> Iterator[str]:
    """Whether the footer does not tell where pages are and how large they are together."""
    stored = sum(page.size for page in pages)
    if stored != length:
        yield f"its pages end at byte {stored} of {length}"
    values = sum(page.values for page in pages if not page.is_dictionary)
    if values != value(meta, Meta.VALUES):
        yield f"its pages have {values} values, not {value(meta, Meta.VALUES)}"
    size = sum(page.header_size + value(page.header, Page.UNCOMPRESSED) for page in pages)
    if size != value(meta, Meta.UNCOMPRESSED):
        yield f"its pages have {size} bytes, not {value(meta, Meta.UNCOMPRESSED)}"
    dictionaries = [page.start for page in pages if page.is_dictionary]
    if dictionaries not in ([], [value(meta, Meta.DICTIONARY_PAGE, start)]):
        yield "its dictionary is not where the footer says"
    data = [page.start for page in pages if not page.is_dictionary]
    if data and data[0] != value(meta, Meta.DATA_PAGE):
        yield "its first data page is not where the footer says"


def _wrong_page(page: FoundPage, leaf: LeafColumn) -> Iterator[str]:
    """What a page's header tells wrongly."""
    header = page.bytes.header
    data, newer = value(header, Page.DATA), value(header, Page.DATA_V2)
    told = value(data, PageData.STATISTICS, {}) if data else value(newer, PageDataV2.STATISTICS, {})
    yield from wrong_statistics(told, page.entries, leaf.type or 0)
    if newer and value(newer, PageDataV2.NULLS) not in page.entries.null_counts:
        yield f"it has {max(page.entries.null_counts)} NULLs, not {value(newer, PageDataV2.NULLS)}"
    if newer and value(newer, PageDataV2.ROWS) != page.entries.rows:
        yield f"it has {page.entries.rows} rows, not {value(newer, PageDataV2.ROWS)}"


def _wrong_encodings(meta: Struct, pages: Sequence[PageBytes]) -> Iterator[str]:
    """Whether the footer does not tell how the pages are encoded.

    Of which version pages are is not compared: PyArrow takes the newer ones for old ones here.
    """
    used = Counter((page.is_dictionary, page.encoding) for page in pages)
    told: Counter[tuple[bool, int]] = Counter()
    for stat in items(meta, Meta.ENCODING_STATS):
        is_dictionary = value(stat, PageEncoding.PAGE) == _DICTIONARY_PAGE
        told[is_dictionary, value(stat, PageEncoding.ENCODING)] += value(stat, PageEncoding.COUNT)
    if told and told != used:
        yield f"its pages are encoded as {dict(used)}, the footer says {dict(told)}"
    missing = {page.encoding for page in pages if not page.is_dictionary}
    missing -= set(items(meta, Meta.ENCODINGS))
    if missing:
        yield f"the footer does not tell of its encodings {sorted(missing)}"


def _places(file: ParquetBytes) -> Iterator[str]:
    """Ranges that overlap, or lie outside the data."""
    ranges = [(0, len(MAGIC), "the magic"), (file.footer_at, file.size, "the footer")]
    for number, group in enumerate(file.groups):
        for leaf, chunk in enumerate(items(group, Group.COLUMNS) if group_rows(group) else ()):
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
        if not group_rows(group):
            continue
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
