"""Compare column indexes, which tell NULLs and bounds of each page, with what the pages hold."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from icefloe.parquet.compact import Struct, items, read_struct, value
from icefloe.parquet.fields import Chunk, ColumnIndex, Location, OffsetIndex
from icefloe.parquet.footer import ParquetBytes

_NUMBERS = {pa.int32(): "<i", pa.int64(): "<q", pa.float32(): "<f", pa.float64(): "<d"}


def locations_of(file: ParquetBytes, chunk: Struct) -> Sequence[Struct]:
    """Where the offset index of a chunk says that its pages are."""
    return items(_read(file, chunk, Chunk.OFFSET_INDEX), OffsetIndex.LOCATIONS)


def rows_of_leaves(column: pa.Array) -> list[pa.Array | None]:
    """Each leaf of a column, one value for each row; None for leaves that repeat."""
    kind = column.type
    if isinstance(column, pa.DictionaryArray):
        return [column.dictionary_decode()]
    if isinstance(column, pa.ExtensionArray):
        return [column.storage]
    if pa.types.is_struct(kind):
        return [leaf for child in column.flatten() for leaf in rows_of_leaves(child)]
    return [None] * _leaf_count(kind) if pa.types.is_nested(kind) else [column]


def wrong_pages(file: ParquetBytes, chunk: Struct, rows: pa.Array | None) -> Iterator[str]:
    """What a chunk's column index tells wrongly; `rows` has its value for each row."""
    if Chunk.COLUMN_INDEX not in chunk or Chunk.OFFSET_INDEX not in chunk:
        return
    index = _read(file, chunk, Chunk.COLUMN_INDEX)
    firsts = [value(place, Location.FIRST_ROW) for place in locations_of(file, chunk)]
    told = len(items(index, ColumnIndex.NULL_PAGES))
    if told != len(firsts):
        yield f"its column index tells of {told} pages, its offset index of {len(firsts)}"
        return
    if rows is None:
        return
    for page, (first, last) in enumerate(pairwise([*firsts, len(rows)])):
        for wrong in _wrong_page(index, page, rows.slice(first, last - first)):
            yield f"page {page}: {wrong}"


def _wrong_page(index: Struct, page: int, values: pa.Array) -> Iterator[str]:
    nulls = values.null_count
    counts = items(index, ColumnIndex.NULL_COUNTS)
    if counts and counts[page] != nulls:
        yield f"it has {nulls} NULLs, the column index says {counts[page]}"
    if items(index, ColumnIndex.NULL_PAGES)[page] != (nulls == len(values)):
        yield f"the column index is wrong about all its {len(values)} values being NULL"
    elif nulls < len(values):
        low, high = (items(index, bound)[page] for bound in (ColumnIndex.LEAST, ColumnIndex.MOST))
        if not _holds(low, high, values.drop_null()):
            yield f"its values are not from {low!r} to {high!r}, as the column index says"


def _holds(low: bytes, high: bytes, values: pa.Array) -> bool:
    """Whether values lie between bounds, where texts may be cut; other types are not looked at."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        return _holds(low, high, values.cast(pa.int64()))
    if pa.types.is_date32(kind):
        return _holds(low, high, values.cast(pa.int32()))
    if kind in _NUMBERS:
        least, most = extremes(values)
        told = [struct.unpack(_NUMBERS[kind], bound)[0] for bound in (low, high)]
        is_nan = any(map(math.isnan, told))  # which readers take for no bound
        return least is None or is_nan or told == [least, most]
    if pa.types.is_large_string(kind) or pa.types.is_string(kind):
        values = values.cast(pa.large_binary())
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        least, most = extremes(values)
        return bool(low <= least and high >= most)
    return True


def extremes(values: pa.Array) -> tuple[Any, Any]:
    """The least and the greatest value; NaN is neither, and without others there are none."""
    if pa.types.is_floating(values.type):
        values = values.filter(pc.invert(pc.is_nan(values)))
    found = pc.min_max(values)
    return found["min"].as_py(), found["max"].as_py()


def _leaf_count(kind: pa.DataType) -> int:
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaf_count(kind.field(i).type) for i in range(kind.num_fields))


def _read(file: ParquetBytes, chunk: Struct, which: int) -> Struct:
    start, length = value(chunk, which), value(chunk, which + 1)
    return read_struct(file.take(start, length))[0]
