"""A full check of a Parquet file: read every page, recompute every statistic, and compare."""

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
from support.parquet_check.indexes import DataPage, PageBytes, wrong_indexes
from support.parquet_check.order import wrong_order
from support.parquet_check.values import wrong_levels, wrong_statistics

_DICTIONARY_PAGE = 2


def problems(path: str, buffer: pa.Buffer) -> list[str]:
    """The problems of a file; none if every page and statistic agrees with its footer.

    Errors of a file that cannot be read at all are raised.
    """
    file = open_buffer(path, buffer)
    messages = [*_overlaps(file), *_groups(file), *_indexed_in_part(file)]
    reader = pq.ParquetFile(pa.BufferReader(buffer), page_checksum_verification=True)
    leaves = [leaf for column in columns_of(file.footer) for leaf in column.values]
    for number, group in enumerate(file.groups):
        if not group_rows(group):
            continue
        rows = reader.read_row_group(number)
        if rows.num_rows != group_rows(group):
            messages.append(
                f"row group {number}: {rows.num_rows} rows read, not {group_rows(group)}"
            )
        columns = zip(rows.columns, rows.schema, strict=True)
        entries = [
            leaf
            for column, field in columns
            for leaf in entries_of(column.combine_chunks(), nullable=field.nullable)
        ]
        chunks = items(group, Group.COLUMNS)
        messages += [f"row group {number}: {wrong}" for wrong in wrong_order(group, entries)]
        for leaf, chunk, values in zip(leaves, chunks, entries, strict=True):
            name = b".".join(leaf.path).decode()
            messages += [
                f"row group {number}, {name}: {wrong}"
                for wrong in _wrong_chunk(file, chunk, leaf, values)
            ]
    return messages


def _wrong_chunk(
    file: ParquetBytes, chunk: Struct, leaf: LeafColumn, entries: Entries
) -> Iterator[str]:
    """Problems of a chunk: of its footer entry, its page headers and its page indexes."""
    meta = value(chunk, Chunk.META)
    if tuple(items(meta, Meta.PATH)) != leaf.path:
        yield f"the footer calls it {b'.'.join(items(meta, Meta.PATH)).decode()}"
    if len(entries) != value(meta, Meta.VALUES):
        yield f"{len(entries)} values were read, not {value(meta, Meta.VALUES)}"
    statistics = value(meta, Meta.STATISTICS, {})
    if leaf.repetition and value(file.footer, File.CREATED_BY, b"").startswith(b"DuckDB"):
        statistics = changed(
            statistics, {Statistics.NULLS: None}
        )  # it counts NULL structures in lists twice
    yield from wrong_statistics(statistics, entries, leaf.type or 0)
    yield from wrong_levels(value(meta, Meta.SIZES, {}), entries)
    pages = _pages(file, chunk)
    yield from _wrong_totals(meta, pages, *chunk_range(chunk))
    yield from _wrong_encodings(meta, pages)
    data_pages: list[DataPage] = []
    first = 0
    for page in pages:
        if not page.is_dictionary:
            data_pages.append(DataPage(page, entries.slice(first, page.values)))
            first += page.values
    for number, data_page in enumerate(data_pages):
        for wrong in _wrong_page(data_page, leaf):
            yield f"page {number}: {wrong}"
    yield from wrong_indexes(file, chunk, leaf, data_pages)


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
    """Problems of the footer's offsets and sizes of pages."""
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


def _wrong_page(page: DataPage, leaf: LeafColumn) -> Iterator[str]:
    """Problems of a page's header."""
    header = page.bytes.header
    data, newer = value(header, Page.DATA), value(header, Page.DATA_V2)
    statistics = (
        value(data, PageData.STATISTICS, {}) if data else value(newer, PageDataV2.STATISTICS, {})
    )
    yield from wrong_statistics(statistics, page.entries, leaf.type or 0)
    if newer and value(newer, PageDataV2.NULLS) not in page.entries.null_counts:
        yield f"it has {max(page.entries.null_counts)} NULLs, not {value(newer, PageDataV2.NULLS)}"
    if newer and value(newer, PageDataV2.ROWS) != page.entries.rows:
        yield f"it has {page.entries.rows} rows, not {value(newer, PageDataV2.ROWS)}"


def _wrong_encodings(meta: Struct, pages: Sequence[PageBytes]) -> Iterator[str]:
    """Problems of the footer's list of encodings.

    The version of pages is not compared: PyArrow counts pages of version 2 as version 1 here.
    """
    used = Counter((page.is_dictionary, page.encoding) for page in pages)
    listed: Counter[tuple[bool, int]] = Counter()
    for stat in items(meta, Meta.ENCODING_STATS):
        is_dictionary = value(stat, PageEncoding.PAGE) == _DICTIONARY_PAGE
        listed[is_dictionary, value(stat, PageEncoding.ENCODING)] += value(stat, PageEncoding.COUNT)
    if listed and listed != used:
        yield f"its pages are encoded as {dict(used)}, the footer says {dict(listed)}"
    missing = {page.encoding for page in pages if not page.is_dictionary}
    missing -= set(items(meta, Meta.ENCODINGS))
    if missing:
        yield f"the footer does not list its encodings {sorted(missing)}"


def _overlaps(file: ParquetBytes) -> Iterator[str]:
    """Ranges that overlap, or are outside the data."""
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
    """Page indexes of some chunks only: some readers refuse such a file."""
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
            yield f"row group {number}: it does not start where it says"
        if value(group, Group.ORDINAL, number) != number:
            yield f"row group {number}: it says it is number {value(group, Group.ORDINAL)}"
