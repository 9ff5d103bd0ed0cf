"""Assemble a Parquet file from column chunks of other files, copied as bytes.

Row groups are written in order, so the target may be a stream. Bloom filters follow their row
group, page indexes precede the footer; both are copied with their chunks. A file has page indexes
for all its chunks or for none: some readers refuse it otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from icefloe.parquet.fields import Chunk, File, Group, Meta, Sizes
from icefloe.parquet.footer import MAGIC, ParquetBytes, chunk_range, footer_bytes
from icefloe.parquet.page_index import Indexes, IndexReader, miscounts_bytes
from icefloe.parquet.thrift import Items, Struct, ThriftType, changed, items, value

_MAX_ORDINAL = 32_767


class Sink(Protocol):
    """A stream to write to."""

    def write(self, data: bytes, /) -> object:
        """Append bytes."""
        ...


@dataclass(frozen=True, slots=True)
class ChunkFrom:
    """A column chunk of a file."""

    file: ParquetBytes
    group: int
    leaf: int

    @property
    def struct(self) -> Struct:
        """The chunk's description in the file's footer."""
        chunk: Struct = items(self.file.groups[self.group], Group.COLUMNS)[self.leaf]
        return chunk


@dataclass(frozen=True, slots=True)
class GroupFrom:
    """A row group to write: a chunk for every leaf column, and the group to take the rest from."""

    rows: int
    chunks: Sequence[ChunkFrom]
    template: Struct
    sorting: Sequence[Struct] = ()


class Splicer:
    """Writes row groups from chunks of other files; counts the bytes copied from each file."""

    def __init__(self, sink: Sink, paths: Sequence[Sequence[bytes]]) -> None:
        """Start a file whose leaf columns have these paths."""
        self._sink = sink
        self._paths = paths
        self._groups: list[Struct] = []
        self._indexes: list[Indexes] = []
        self._readers: dict[str, IndexReader] = {}
        self._pending: tuple[ParquetBytes, int, int] | None = None
        self.size = 0
        self.copied: dict[str, int] = {}  # bytes by the path of the file they are from
        self._write(MAGIC)

    def add(self, group: GroupFrom) -> None:
        """Write one row group."""
        start = self.size
        chunks: list[Struct] = []
        for chunk, path in zip(group.chunks, self._paths, strict=True):
            begin, length = chunk_range(chunk.struct)
            delta = self.size - begin
            chunks.append(_moved(chunk.struct, delta, path))
            self._indexes.append(self._index_reader(chunk.file).moved(chunk.struct, delta))
            self._copy(chunk.file, begin, length)
        self._flush()
        metas = [value(chunk, Chunk.META) for chunk in chunks]
        compressed = sum(value(meta, Meta.COMPRESSED) for meta in metas)
        chunks = [
            self._with_bloom(chunk, origin)
            for chunk, origin in zip(chunks, group.chunks, strict=True)
        ]
        self._flush()
        ordinal = len(self._groups)
        self._groups.append(
            changed(
                group.template,
                {
                    Group.COLUMNS: (ThriftType.LIST, Items(ThriftType.STRUCT, chunks)),
                    Group.BYTES: (ThriftType.I64, sum(value(m, Meta.UNCOMPRESSED) for m in metas)),
                    Group.ROWS: (ThriftType.I64, group.rows),
                    Group.SORTING: (ThriftType.LIST, Items(ThriftType.STRUCT, group.sorting))
                    if group.sorting
                    else None,
                    Group.OFFSET: (ThriftType.I64, start),
                    Group.COMPRESSED: (ThriftType.I64, compressed),
                    Group.ORDINAL: (ThriftType.I16, ordinal) if ordinal <= _MAX_ORDINAL else None,
                },
            )
        )

    def finish(self, footer: Struct) -> Struct:
        """Write the page indexes and the footer, which is `footer` with these row groups."""
        chunks = [chunk for group in self._groups for chunk in items(group, Group.COLUMNS)]
        indexes = self._indexes
        if any(index.offsets is None for index in indexes):
            indexes = [Indexes(index.path) for index in indexes]
        chunks = [
            changed(chunk, self._index(index.columns, Chunk.COLUMN_INDEX, index.path))
            for chunk, index in zip(chunks, indexes, strict=True)
        ]
        chunks = [
            changed(chunk, self._index(index.offsets, Chunk.OFFSET_INDEX, index.path))
            for chunk, index in zip(chunks, indexes, strict=True)
        ]
        width = len(self._paths)
        groups = [
            changed(
                group,
                {
                    Group.COLUMNS: (
                        ThriftType.LIST,
                        Items(ThriftType.STRUCT, chunks[number * width : (number + 1) * width]),
                    )
                },
            )
            for number, group in enumerate(self._groups)
        ]
        rows = sum(value(group, Group.ROWS) for group in groups)
        written = changed(
            footer,
            {
                File.ROWS: (ThriftType.I64, rows),
                File.GROUPS: (ThriftType.LIST, Items(ThriftType.STRUCT, groups)),
            },
        )
        self._write(footer_bytes(written))
        return written

    def _index_reader(self, file: ParquetBytes) -> IndexReader:
        """The reader of a file's page indexes; files in memory share a path, and the last wins."""
        reader = self._readers.get(file.path)
        if reader is None or reader.file is not file:
            reader = self._readers[file.path] = IndexReader(file)
        return reader

    def _with_bloom(self, chunk: Struct, origin: ChunkFrom) -> Struct:
        """Write a chunk's Bloom filter; one without a valid offset and length is left out."""
        meta = value(chunk, Chunk.META)
        start, length = value(meta, Meta.BLOOM), value(meta, Meta.BLOOM_LENGTH)
        fields: dict[int, tuple[ThriftType, int] | None] = {
            Meta.BLOOM: None,
            Meta.BLOOM_LENGTH: None,
        }
        if _is_inside(origin.file, start, length):
            fields = {
                Meta.BLOOM: (ThriftType.I64, self.size),
                Meta.BLOOM_LENGTH: (ThriftType.I32, length),
            }
            self._copy(origin.file, start, length)
        return changed(chunk, {Chunk.META: (ThriftType.STRUCT, changed(meta, fields))})

    def _index(
        self, encoded: bytes | None, field: int, path: str
    ) -> dict[int, tuple[ThriftType, int] | None]:
        """Write one page index; returns the chunk's fields that locate it."""
        if encoded is None:
            return {field: None, field + 1: None}
        start = self.size
        self._write(encoded, path)
        return {field: (ThriftType.I64, start), field + 1: (ThriftType.I32, len(encoded))}

    def _copy(self, file: ParquetBytes, start: int, length: int) -> None:
        """Copy a range; adjacent ranges are read as one."""
        self.size += length
        if self._pending is not None and self._pending[0] is file and self._pending[2] == start:
            self._pending = (file, self._pending[1], start + length)
            return
        self._flush()
        self._pending = (file, start, start + length)

    def _flush(self) -> None:
        if self._pending is None:
            return
        file, start, end = self._pending
        self._pending = None
        for begin in range(start, end, file.piece):
            self._sink.write(file.take(begin, min(file.piece, end - begin)))
        self._count(file.path, end - start)

    def _write(self, data: bytes, path: str | None = None) -> None:
        self._sink.write(data)
        self.size += len(data)
        if path is not None:
            self._count(path, len(data))

    def _count(self, path: str, length: int) -> None:
        self.copied[path] = self.copied.get(path, 0) + length


def _is_inside(file: ParquetBytes, start: object, length: object) -> bool:
    """Whether a range of bytes is before the file's footer."""
    if not isinstance(start, int) or not isinstance(length, int):
        return False
    return length > 0 and len(MAGIC) <= start <= file.footer_at - length


def _moved(chunk: Struct, delta: int, path: Sequence[bytes]) -> Struct:
    """A chunk's description after its bytes moved by `delta`, under another path."""
    meta = value(chunk, Chunk.META)
    offsets: dict[int, tuple[ThriftType, int] | None] = {
        field: (ThriftType.I64, value(meta, field) + delta)
        for field in (Meta.DATA_PAGE, Meta.INDEX_PAGE, Meta.DICTIONARY_PAGE)
        if field in meta
    }
    for field in (Meta.INDEX_PAGE, Meta.DICTIONARY_PAGE):
        if value(meta, field, 1) <= 0:  # some writers write 0 for "none"
            offsets[field] = None
    others: dict[int, tuple[ThriftType, Any] | None] = {
        Meta.PATH: (ThriftType.LIST, Items(ThriftType.BINARY, path))
    }
    if Meta.SIZES in meta and miscounts_bytes(meta):
        sizes = changed(value(meta, Meta.SIZES), {Sizes.BYTES: None})
        others[Meta.SIZES] = (ThriftType.STRUCT, sizes)
    return changed(
        chunk,
        {
            Chunk.FILE_PATH: None,
            Chunk.FILE_OFFSET: (ThriftType.I64, 0),
            Chunk.META: (ThriftType.STRUCT, changed(meta, {**offsets, **others})),
        },
    )
