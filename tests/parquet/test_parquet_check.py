"""The full check finds what is wrong: one that finds nothing in a bad file would prove nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icefloe.parquet.fields import (
    Chunk,
    ColumnIndex,
    File,
    Group,
    Location,
    Meta,
    OffsetIndex,
    Page,
    PageData,
    PageDataV2,
    PageEncoding,
    Sizes,
    Statistics,
)
from icefloe.parquet.footer import MAGIC, footer_bytes, open_buffer
from icefloe.parquet.schema import columns_of
from icefloe.parquet.thrift import (
    Items,
    ThriftType,
    changed,
    items,
    read_struct,
    value,
    write_struct,
)
from support.parquet_check.check import _wrong_chunk, problems
from support.parquet_check.entries import entries_of

COUNT = 5000
ROWS = pa.table(
    {
        "id": pa.array(range(COUNT), pa.int64()),
        "name": [f"n{i % 50}" for i in range(COUNT)],
        "many": [[i, None] if i % 3 else None for i in range(COUNT)],
        "price": pa.array([Decimal(i - 9) / 100 for i in range(COUNT)], pa.decimal128(30, 2)),
        "is": [i > 300 for i in range(COUNT)],
        "fixed": pa.array([i.to_bytes(4, "big") for i in range(COUNT)], pa.binary(4)),
        "inner": [{"x": float(i), "texts": ["a", "bc", None][: i % 4]} for i in range(COUNT)],
    }
)
LEAVES = {
    path: leaf
    for leaf, path in enumerate(
        ["id", "name", "many", "price", "is", "fixed", "inner.x", "inner.texts"]
    )
}
PAGES = {
    "write_page_index": True,
    "data_page_size": 1000,
    "write_batch_size": 100,
    "use_dictionary": False,
}


def written(**options: object) -> pa.Buffer:
    return io_of(ROWS, row_group_size=2000, **options)


def io_of(rows: pa.Table, **options: object) -> pa.Buffer:
    """The rows as a file."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, **options)
    return sink.getvalue()


def with_group(data: pa.Buffer, fields: Mapping[int, Any], more: bytes = b"") -> pa.Buffer:
    """The file with other fields of its first row group, and more bytes before its footer."""
    file = open_buffer("x", data)
    groups = [changed(file.groups[0], fields), *file.groups[1:]]
    footer = changed(
        file.footer, {File.GROUPS: (ThriftType.LIST, Items(ThriftType.STRUCT, groups))}
    )
    return pa.py_buffer(data.to_pybytes()[: file.footer_at] + more + footer_bytes(footer))


def with_chunk(
    data: pa.Buffer, column: str, fields: Mapping[int, Any], more: bytes = b""
) -> pa.Buffer:
    """The file with other fields of a column's first chunk."""
    chunks = list(items(open_buffer("x", data).groups[0], Group.COLUMNS))
    chunks[LEAVES[column]] = changed(chunks[LEAVES[column]], fields)
    return with_group(
        data, {Group.COLUMNS: (ThriftType.LIST, Items(ThriftType.STRUCT, chunks))}, more
    )


def chunk_of(data: pa.Buffer, column: str) -> Any:
    return items(open_buffer("x", data).groups[0], Group.COLUMNS)[LEAVES[column]]


def with_meta(data: pa.Buffer, column: str, fields: Mapping[int, Any]) -> pa.Buffer:
    """The file with other metadata of a column's first chunk."""
    meta = changed(value(chunk_of(data, column), Chunk.META), fields)
    return with_chunk(data, column, {Chunk.META: (ThriftType.STRUCT, meta)})


def with_nested(data: pa.Buffer, column: str, which: int, fields: Mapping[int, Any]) -> pa.Buffer:
    """The file with other statistics of a column's first chunk."""
    statistics = value(value(chunk_of(data, column), Chunk.META), which)
    return with_meta(data, column, {which: (ThriftType.STRUCT, changed(statistics, fields))})


def with_list(
    data: pa.Buffer, column: str, which: int, field: int, change: Callable[[Any], Any]
) -> pa.Buffer:
    """The file with another field of a chunk's page index; of a list, other values."""
    file, chunk = open_buffer("x", data), chunk_of(data, column)
    index, _ = read_struct(file.take(value(chunk, which), value(chunk, which + 1)))
    kind, old = index[field]
    is_list = kind == ThriftType.LIST
    new = Items(old.kind, change(list(old.values))) if is_list else change(old)
    damaged = write_struct(changed(index, {field: (kind, new)}))
    placed = {which: (ThriftType.I64, file.footer_at), which + 1: (ThriftType.I32, len(damaged))}
    return with_chunk(data, column, placed, damaged)


def with_second(data: pa.Buffer, column: str, which: int, field: int, wrong: Any) -> pa.Buffer:
    """The file with another second entry in a list of a chunk's page index, or another number."""

    def change(old: Any) -> Any:
        if not isinstance(old, list):
            return wrong
        assert len(old) > 2
        return [old[0], wrong(old[1]) if callable(wrong) else wrong, *old[2:]]

    return with_list(data, column, which, field, change)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("options", [{}, PAGES], ids=["one page", "many pages"])
def test_files_that_are_right(version, options):
    assert problems("x", written(data_page_version=version, **options)) == []


def test_row_groups():
    data = written(**PAGES)
    assert "size is not the sum" in str(
        problems("x", with_group(data, {Group.BYTES: (ThriftType.I64, 5)}))
    )
    assert "does not start" in str(
        problems("x", with_group(data, {Group.OFFSET: (ThriftType.I64, 5)}))
    )
    wrong = with_group(data, {Group.ORDINAL: (ThriftType.I16, 7)})
    assert "says it is number 7" in str(problems("x", wrong))
    bloom = {Meta.BLOOM: (ThriftType.I64, len(MAGIC)), Meta.BLOOM_LENGTH: (ThriftType.I32, 10)}
    messages = problems("x", with_meta(data, "id", bloom))
    assert "the Bloom filter of column 0" in str(messages)
    bare = with_chunk(data, "id", {Chunk.OFFSET_INDEX: None, Chunk.COLUMN_INDEX: None})
    assert "column chunks have an offset index" in str(problems("x", bare))


def test_a_value_outside_the_bounds():
    data = written(compression="none", use_dictionary=False).to_pybytes()
    at = data.index((1999).to_bytes(8, "little"), 10_000)
    wrong = data[:at] + (99_999).to_bytes(8, "little") + data[at + 8 :]
    messages = problems("x", pa.py_buffer(wrong))
    assert "its values are from 0 to 99999, its bounds are 0 to 1999" in str(messages)


def big(number: int, size: int) -> bytes:
    return number.to_bytes(size, "big", signed=True)


@pytest.mark.parametrize(
    ("column", "field", "wrong", "message"),
    [
        ("id", Statistics.NULLS, 3, "it has 0 NULLs, its statistics say 3"),
        ("many", Statistics.NULLS, 3, "it has 2000 NULLs, its statistics say 3"),
        ("inner.texts", Statistics.NULLS, 3, "NULLs, its statistics say 3"),
        ("name", Statistics.DISTINCT, 49, "it has 50 distinct values, its statistics say 49"),
        ("id", Statistics.MOST, (2000).to_bytes(8, "little"), "its bounds are 0 to 2000"),
        ("id", Statistics.OLD_MOST, (2000).to_bytes(8, "little"), "its bounds are 0 to 2000"),
        ("name", Statistics.LEAST, b"n", "its bounds are b'n' to b'n9'"),
        ("name", Statistics.MOST, b"z", "its bounds are b'n0' to b'z'"),
        ("price", Statistics.LEAST, big(-10, 13), "its bounds are -10 to 1990"),
        ("price", Statistics.OLD_LEAST, big(-10, 13), "its bounds are -10 to None"),
        ("is", Statistics.MOST, b"\0", "its bounds are False to False"),
        ("is", Statistics.OLD_MOST, b"\0", "its bounds are False to False"),
        ("fixed", Statistics.MOST, b"\0\0\7\xd0", "its bounds are"),
        ("inner.x", Statistics.LEAST, bytes(7) + b"\x80", "its bounds are"),
    ],
)
def test_statistics_of_chunks(column, field, wrong, message):
    data = written()
    kind = ThriftType.BINARY if isinstance(wrong, bytes) else ThriftType.I64
    fields: dict[int, Any] = {field: (kind, wrong)}
    if field == Statistics.OLD_LEAST:
        fields[Statistics.OLD_MOST] = None
    if column == "inner.x":  # minus zero is as good as zero
        fields[field] = (kind, b"\1" + wrong[1:])
    messages = problems("x", with_nested(data, column, Meta.STATISTICS, fields))
    assert len(messages) == 1
    assert message in messages[0]


def test_truncated_bounds_must_be_prefixes_of_values():
    """Unless they are marked as exact."""
    data, inexact = written(), (ThriftType.TRUE, False)
    fields = {Statistics.LEAST_IS_EXACT: inexact, Statistics.MOST_IS_EXACT: inexact}

    def with_bounds(low: bytes, high: bytes) -> list[str]:
        bounds = {
            Statistics.LEAST: (ThriftType.BINARY, low),
            Statistics.MOST: (ThriftType.BINARY, high),
        }
        return problems("x", with_nested(data, "name", Meta.STATISTICS, {**fields, **bounds}))

    assert with_bounds(b"n", b"o") == []
    assert with_bounds(b"n0", b"n:") == []
    for low in (b"m", b"n1", b""):
        assert "its bounds are" in str(with_bounds(low, b"o"))
    for high in (b"n", b"p", b"zz", b"ooooo", b"n8"):
        assert "its bounds are" in str(with_bounds(b"n", high))
    fields[Statistics.LEAST_IS_EXACT] = (ThriftType.TRUE, True)
    assert "its bounds are" in str(with_bounds(b"n", b"o"))
    assert with_bounds(b"n0", b"o") == []


def test_a_bound_without_the_other():
    fields = {
        Statistics.LEAST: None,
        Statistics.MOST: (ThriftType.BINARY, (10**9).to_bytes(8, "little")),
    }
    (messages,) = problems("x", with_nested(written(), "id", Meta.STATISTICS, fields))
    assert "its bounds are None to 1000000000" in messages


@pytest.mark.parametrize(
    ("text", "bound"), [("aÿ", "aĀ"), ("a\u007fb", "a\u0080"), ("é", "ê"), ("b\U0010ffff", "c")]
)
def test_bounds_may_have_their_last_character_raised(text, bound):
    data = io_of(pa.table({"s": [text + "x" * 99]}))
    chunk = items(open_buffer("x", data).groups[0], Group.COLUMNS)[0]
    meta = value(chunk, Chunk.META)
    statistics = changed(
        value(meta, Meta.STATISTICS),
        {Statistics.MOST: (ThriftType.BINARY, bound.encode()), Statistics.MOST_IS_EXACT: None},
    )
    meta = changed(meta, {Meta.STATISTICS: (ThriftType.STRUCT, statistics)})
    chunks = Items(ThriftType.STRUCT, [changed(chunk, {Chunk.META: (ThriftType.STRUCT, meta)})])
    assert problems("x", with_group(data, {Group.COLUMNS: (ThriftType.LIST, chunks)})) == []


@pytest.mark.parametrize(
    ("version", "page", "field", "wrong", "message"),
    [
        ("1.0", Page.DATA, PageData.STATISTICS, "nulls", "2 NULLs, its statistics say 3"),
        ("2.0", Page.DATA_V2, PageDataV2.NULLS, 3, "it has 2 NULLs, not 3"),
        ("2.0", Page.DATA_V2, PageDataV2.ROWS, 3, "it has 5 rows, not 3"),
        ("1.0", Page.DATA, PageData.VALUES, 4, "its pages have 4 values, not 5"),
        ("1.0", Page.DATA, PageData.ENCODING, 5, "its pages are encoded as"),
        ("1.0", Page.UNCOMPRESSED, None, 50, "its pages have"),
    ],
)
def test_headers_of_pages(version, page, field, wrong, message):
    """Rewritten in the file, with the same length."""
    rows = pa.table({"n": pa.array([1, None, 3, None, 5], pa.int64())})
    options = {"use_dictionary": False, "compression": "none", "data_page_version": version}
    data = io_of(rows, **options).to_pybytes()
    header, body = read_struct(data, len(MAGIC))
    if field is None:
        new = changed(header, {page: (ThriftType.I32, wrong)})
    elif wrong == "nulls":
        inner = value(header, page)
        stats = changed(value(inner, field), {Statistics.NULLS: (ThriftType.I64, 3)})
        new = changed(
            header, {page: (ThriftType.STRUCT, changed(inner, {field: (ThriftType.STRUCT, stats)}))}
        )
    else:
        inner = changed(value(header, page), {field: (ThriftType.I32, wrong)})
        new = changed(header, {page: (ThriftType.STRUCT, inner)})
    written = write_struct(new)
    assert len(MAGIC) + len(written) == body
    messages = problems_of(data[: len(MAGIC)] + written + data[body:])
    assert message in messages


def problems_of(data: bytes) -> str:
    """The problems, whether PyArrow reads the pages or not."""
    file = open_buffer("x", pa.py_buffer(data))
    chunk = items(file.groups[0], Group.COLUMNS)[0]
    column = pa.array([1, None, 3, None, 5], pa.int64())
    (leaf,) = columns_of(file.footer)[0].values
    (entries,) = entries_of(column, nullable=True)
    return str(list(_wrong_chunk(file, chunk, leaf, entries)))


def test_names_and_order():
    rows = pa.table({"a": [1, 1, 2, None], "b": [5.0, 4.0, 7.0, 7.0]})
    order = [pq.SortingColumn(0), pq.SortingColumn(1, descending=True)]
    assert problems("x", io_of(rows, sorting_columns=order)) == []
    for wrong in (
        [pq.SortingColumn(0, descending=True)],
        [pq.SortingColumn(0, nulls_first=True)],
        [pq.SortingColumn(0), pq.SortingColumn(1)],
    ):
        assert "not in the order of its leaf" in str(
            problems("x", io_of(rows, sorting_columns=wrong))
        )
    path = {Meta.PATH: (ThriftType.LIST, Items(ThriftType.BINARY, [b"other"]))}
    assert problems("x", with_meta(written(), "id", path)) == [
        "row group 0, id: the footer calls it other"
    ]


def test_row_groups_without_rows():
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, ROWS.schema) as writer:
        writer.write_table(ROWS.slice(0, 0))
        writer.write_table(ROWS)
    assert problems("x", sink.getvalue()) == []


@pytest.mark.parametrize(
    ("column", "field", "message"),
    [
        ("many", Sizes.REPETITION, "its levels are"),
        ("inner.texts", Sizes.DEFINITION, "its levels are"),
        ("name", Sizes.BYTES, "its values have 5600 bytes, its statistics say 7"),
    ],
)
def test_size_statistics(column, field, message):
    data = written()
    sizes = value(value(chunk_of(data, column), Chunk.META), Meta.SIZES)
    kind, old = sizes[field]
    if kind == ThriftType.LIST:
        old = Items(old.kind, [old.values[0] + 1, old.values[1] - 1, *old.values[2:]])
    else:
        old = 7
    (problem,) = problems("x", with_nested(data, column, Meta.SIZES, {field: (kind, old)}))
    assert message in problem


def test_encodings():
    data = written(use_dictionary=True)
    meta = value(chunk_of(data, "name"), Chunk.META)
    first, *others = items(meta, Meta.ENCODING_STATS)
    stats = Items(
        ThriftType.STRUCT, [changed(first, {PageEncoding.COUNT: (ThriftType.I32, 9)}), *others]
    )
    wrong = with_meta(data, "name", {Meta.ENCODING_STATS: (ThriftType.LIST, stats)})
    assert "its pages are encoded as" in str(problems("x", wrong))
    wrong = with_meta(data, "name", {Meta.ENCODINGS: (ThriftType.LIST, Items(ThriftType.I32, [0]))})
    assert "does not list its encodings [8]" in str(problems("x", wrong))


@pytest.mark.parametrize(
    ("column", "field", "wrong", "message"),
    [
        ("id", ColumnIndex.LEAST, (7).to_bytes(8, "little"), "page 1: its values are from"),
        ("id", ColumnIndex.MOST, (10**9).to_bytes(8, "little"), "page 1: its values are from"),
        ("id", ColumnIndex.NULL_COUNTS, 3, "page 1: it has 0 NULLs, the column index says 3"),
        ("id", ColumnIndex.NULL_PAGES, True, "page 1: the column index is wrong about all its"),
        ("many", ColumnIndex.LEAST, (7).to_bytes(8, "little"), "page 1: its values are from"),
        ("many", ColumnIndex.NULL_COUNTS, 3, "NULLs, the column index says 3"),
        ("many", ColumnIndex.DEFINITION, 99999, "page 0: its levels are"),
        ("many", ColumnIndex.REPETITION, 99999, "page 0: its levels are"),
        ("price", ColumnIndex.MOST, big(10**9, 13), "page 1: its values are from"),
        ("fixed", ColumnIndex.LEAST, bytes(4), "page 1: its values are from"),
        ("inner.texts", ColumnIndex.MOST, b"bb", "page 1: its values are from"),
        ("id", ColumnIndex.ORDER, 2, "its pages are not in the order"),
    ],
)
def test_column_indexes(column, field, wrong, message):
    data = written(**PAGES)
    messages = problems("x", with_second(data, column, Chunk.COLUMN_INDEX, field, wrong))
    assert message in messages[0]


def test_bounds_of_pages_with_booleans():
    """Their pages are large: of one, there is only the first to be wrong."""
    data = written(write_page_index=True)
    wrong = with_list(data, "is", Chunk.COLUMN_INDEX, ColumnIndex.MOST, lambda _: [b"\0"])
    messages = problems("x", wrong)
    assert "from False to True, its bounds are False to False, as the column index" in str(messages)


@pytest.mark.parametrize("field", [Location.OFFSET, Location.SIZE, Location.FIRST_ROW])
def test_places_in_offset_indexes(field):
    def moved(place: Any) -> Any:
        kind, number = place[field]
        return changed(place, {field: (kind, number + 1)})

    data = written(**PAGES)
    wrong = with_second(data, "many", Chunk.OFFSET_INDEX, OffsetIndex.LOCATIONS, moved)
    assert "has wrong locations of pages" in str(problems("x", wrong))


def test_indexes_of_some_pages_only():
    """Nor without an offset index, which locates the pages."""
    data = written(**PAGES)
    chunk = {Chunk.OFFSET_INDEX: None, Chunk.OFFSET_INDEX_LENGTH: None}
    assert "column index without an offset" in str(problems("x", with_chunk(data, "id", chunk)))
    for which, field, message in (
        (Chunk.COLUMN_INDEX, ColumnIndex.NULL_COUNTS, "its column index has"),
        (Chunk.OFFSET_INDEX, OffsetIndex.BYTES, "its offset index has the bytes of"),
    ):
        short = with_list(data, "name", which, field, lambda old: old[1:])
        assert message in str(problems("x", short))


def test_sizes_in_offset_indexes():
    data = written(**PAGES)
    wrong = with_second(data, "name", Chunk.OFFSET_INDEX, OffsetIndex.BYTES, 7)
    assert "bytes, the offset index says 7" in str(problems("x", wrong))


def test_entries_are_those_of_the_format():
    """The example of Dremel's paper, but for its names: lists within lists, some without elements."""
    inner = pa.list_(pa.struct([("c", pa.string()), ("d", pa.string())]))
    rows = pa.array(
        [
            [
                [{"c": "en-us", "d": "us"}, {"c": "en", "d": None}],
                None,
                [{"c": "en-gb", "d": "gb"}],
            ],
            None,
            [],
            [[], [None]],
        ],
        pa.list_(inner),
    )
    c, d = entries_of(rows, nullable=True)
    assert c.values.to_pylist() == ["en-us", "en", None, "en-gb", None, None, None, None]
    assert c.repetition.tolist() == [0, 2, 1, 1, 0, 0, 0, 1]
    assert c.definition.tolist() == [6, 6, 2, 6, 0, 1, 3, 4]
    assert d.values.to_pylist() == ["us", None, None, "gb", None, None, None, None]
    assert d.definition.tolist() == [6, 5, 2, 6, 0, 1, 3, 4]
    assert (c.rows, c.null_counts, c.bytes) == (4, {5, 1}, 12)
