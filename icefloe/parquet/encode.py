"""Encode rows with PyArrow as the chunks of a file are encoded, to a Parquet file in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from icefloe.parquet.fields import Chunk, Group, Meta, PageEncoding
from icefloe.parquet.footer import ParquetBytes, group_rows, open_buffer
from icefloe.parquet.schema import SchemaColumn
from icefloe.parquet.thrift import Struct, items, value

ENCODED = "(encoded)"  # the path of every file in memory

_CODECS = {0: "NONE", 1: "SNAPPY", 2: "GZIP", 4: "BROTLI", 6: "ZSTD", 7: "LZ4"}
_DICTIONARY_ENCODINGS = {2, 8}
_ENCODINGS = {
    5: "DELTA_BINARY_PACKED",
    6: "DELTA_LENGTH_BYTE_ARRAY",
    7: "DELTA_BYTE_ARRAY",
    9: "BYTE_STREAM_SPLIT",
}
_PLAIN = 0
_DATA_PAGE_V2 = 3
_DATA_PAGES = {0, _DATA_PAGE_V2}

Options = Mapping[str, object]


def encode(rows: pa.Table, options: Options) -> ParquetBytes:
    """Rows as a file of one row group."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, rows.schema, **options) as writer:
        if rows.num_rows:
            writer.write_table(rows, row_group_size=rows.num_rows)
    return open_buffer(ENCODED, sink.getvalue())


def options_like(
    file: ParquetBytes,
    columns: Sequence[tuple[SchemaColumn, SchemaColumn | None]],
    options: Options,
) -> dict[str, object]:
    """Writer options that encode columns as the file's chunks are encoded.

    `columns` are the columns to write, each with the column of the file to imitate; those without
    one are encoded according to `options`. Page indexes are written for all columns if the file has
    any.
    """
    chunks = next((items(g, Group.COLUMNS) for g in file.groups if group_rows(g)), [])
    codecs: dict[str, object] = {}
    levels: dict[str, object] = {}
    dictionary: list[str] = []
    encodings: dict[str, str] = {}
    version = "1.0"
    default_codec = str(options.get("compression", "snappy")).upper()
    for column, source in columns:
        for number, path in enumerate(column.paths):
            dotted = b".".join(path).decode()
            chunk = chunks[source.first_leaf + number] if source and chunks else None
            meta = value(chunk, Chunk.META) if chunk else {}
            codecs[dotted] = _CODECS.get(value(meta, Meta.CODEC, -1), default_codec)
            if codecs[dotted] == default_codec and "compression_level" in options:
                levels[dotted] = options["compression_level"]
            encoding = _own_encoding(meta)
            if encoding is None:
                dictionary.append(dotted)
            elif encoding:
                encodings[dotted] = encoding
            version = "2.0" if _has_new_pages(meta) else version
    like_file: dict[str, object] = {
        **options,
        "compression": codecs,
        "use_dictionary": dictionary or False,
        "data_page_version": version,
        "write_page_index": any(Chunk.OFFSET_INDEX in chunk for chunk in chunks),
    }
    like_file.pop("compression_level", None)
    if levels:
        like_file["compression_level"] = levels
    if encodings:
        like_file["column_encoding"] = encodings
    return like_file


def _own_encoding(meta: Struct) -> str | None:
    """The encoding of a chunk without a dictionary ("" is plain); None if it may have one."""
    if not meta:
        return None
    if _overflowed(meta):
        return ""
    encodings = set(value(meta, Meta.ENCODINGS).values)
    if encodings & _DICTIONARY_ENCODINGS or Meta.DICTIONARY_PAGE in meta:
        return None
    return next((_ENCODINGS[number] for number in sorted(encodings & set(_ENCODINGS))), "")


def _overflowed(meta: Struct) -> bool:
    """Whether the writer abandoned a chunk's dictionary: it has plain data pages as well."""
    return any(
        value(stats, PageEncoding.PAGE) in _DATA_PAGES
        and value(stats, PageEncoding.ENCODING) == _PLAIN
        for stats in items(meta, Meta.ENCODING_STATS)
    )


def _has_new_pages(meta: Struct) -> bool:
    return any(
        value(stats, PageEncoding.PAGE) == _DATA_PAGE_V2
        for stats in items(meta, Meta.ENCODING_STATS)
    )
