"""Put column chunks of several Parquet files together as one file, as the bytes they are.

Row groups are written one after the other, so that the target may be a stream. Bloom filters follow
their row group, page indexes come before the footer; both are carried with their chunks. A file has
page indexes of all its chunks or of none: some readers refuse it otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from icefloe.parquet.fields import Chunk, File, Group, Meta, Sizes
from icefloe.parquet.footer import MAGIC, ParquetBytes, chunk_range, footer_bytes
from icefloe.parquet.page_index import Indexes, IndexReader, miscounts_bytes
from icefloe.parquet.thrift import Items, Kind, Struct, changed, items, value

_MAX_ORDINAL = 32_767


class Sink(Protocol):
    """Where bytes go."""

    def write(self, data: bytes, /) -> object:
        """Append bytes."""
        ...


@dataclass(frozen=True, slots=True)
class ChunkFrom:
    """A column chunk of some file."""

    file: ParquetBytes
    group: int
    leaf: int

    @property
    def struct(self) -> Struct:
        """What the file's footer says of it."""
        found: Struct = items(self.file.groups[self.group], Group.COLUMNS)[self.leaf]
        return found


@dataclass(frozen=True, slots=True)
class GroupFrom:
    """A row group to write: the chunk of every leaf column, and the group it is like otherwise."""

    rows: int
    chunks: Sequence[ChunkFrom]
    like: Struct
    sorting: Sequence[Struct] = ()


class Splicer:
    """Writes row groups made of other files' chunks; counts the bytes taken from each file."""

    def __init__(self, sink: Sink, paths: Sequence[Sequence[bytes]]) -> None:
        """Start a file whose leaf columns have these paths."""
        self._sink = sink
        self._paths = paths
        self._groups: list[Struct] = []
        self._indexes: list[Indexes] = []
        self._readers: dict[str, IndexReader] = {}
        self._pending: tuple[ParquetBytes, int, int] | None = None
        self.size = 0
        self.taken: dict[str, int] = {}  # bytes by the path of the file they came from
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
                group.like,
                {
                    Group.COLUMNS: (Kind.LIST, Items(Kind.STRUCT, chunks)),
                    Group.BYTES: (Kind.I64, sum(value(m, Meta.UNCOMPRESSED) for m in metas)),
                    Group.ROWS: (Kind.I64, group.rows),
                    Group.SORTING: (Kind.LIST, Items(Kind.STRUCT, group.sorting))
                    if group.sorting
                    else None,
                    Group.OFFSET: (Kind.I64, start),
                    Group.COMPRESSED: (Kind.I64, compressed),
                    Group.ORDINAL: (Kind.I16, ordinal) if ordinal <= _MAX_ORDINAL else None,
                },
            )
        )

    def finish(self, footer: Struct) -> Struct:
        """Write the page indexes and the footer, which is `footer` with these row groups."""
        chunks = [chunk for group in self._groups for chunk in items(group, Group.COLUMNS)]
        indexes = self._indexes
        if any(found.offsets is None for found in indexes):
            indexes = [Indexes(found.path) for found in indexes]
        chunks = [
            changed(chunk, self._index(found.columns, Chunk.COLUMN_INDEX, found.path))
            for chunk, found in zip(chunks, indexes, strict=True)
        ]
        chunks = [
            changed(chunk, self._index(found.offsets, Chunk.OFFSET_INDEX, found.path))
            for chunk, found in zip(chunks, indexes, strict=True)
        ]
        width = len(self._paths)
        groups = [
            changed(
                group,
                {
                    Group.COLUMNS: (
                        Kind.LIST,
                        Items(Kind.STRUCT, chunks[number * width : (number + 1) * width]),
                    )
                },
            )
            for number, group in enumerate(self._groups)
        ]
        rows = sum(value(group, Group.ROWS) for group in groups)
        written = changed(
            footer,
            {
                File.ROWS: (Kind.I64, rows),
                File.GROUPS: (Kind.LIST, Items(Kind.STRUCT, groups)),
            },
        )
        self._write(footer_bytes(written))
        return written

    def _index_reader(self, file: ParquetBytes) -> IndexReader:
        """The reader of a file's page indexes; of files in memory, all of one path, the last's."""
        found = self._readers.get(file.path)
        if found is None or found.file is not file:
            found = self._readers[file.path] = IndexReader(file)
        return found

    def _with_bloom(self, chunk: Struct, origin: ChunkFrom) -> Struct:
        """Write a chunk's Bloom filter; one of unknown length, or of no place, is left out."""
        meta = value(chunk, Chunk.META)
        start, length = value(meta, Meta.BLOOM), value(meta, Meta.BLOOM_LENGTH)
        placed: dict[int, tuple[Kind, int] | None] = {Meta.BLOOM: None, Meta.BLOOM_LENGTH: None}
        if _is_inside(origin.file, start, length):
            placed = {Meta.BLOOM: (Kind.I64, self.size), Meta.BLOOM_LENGTH: (Kind.I32, length)}
            self._copy(origin.file, start, length)
        return changed(chunk, {Chunk.META: (Kind.STRUCT, changed(meta, placed))})

    def _index(
        self, encoded: bytes | None, field: int, path: str
    ) -> dict[int, tuple[Kind, int] | None]:
        """Write one page index; the chunk's fields that tell where it is."""
        if encoded is None:
            return {field: None, field + 1: None}
        start = self.size
        self._write(encoded, path)
        return {field: (Kind.I64, start), field + 1: (Kind.I32, len(encoded))}

    def _copy(self, file: ParquetBytes, start: int, length: int) -> None:
        """Take a range; ranges that follow each other are read as one."""
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
        self.taken[path] = self.taken.get(path, 0) + length


def _is_inside(file: ParquetBytes, start: object, length: object) -> bool:
    """Whether so many bytes lie before the file's footer."""
    if not isinstance(start, int) or not isinstance(length, int):
        return False
    return length > 0 and len(MAGIC) <= start <= file.footer_at - length


def _moved(chunk: Struct, delta: int, path: Sequence[bytes]) -> Struct:
    """A chunk's description when its bytes lie `delta` bytes further on."""
    meta = value(chunk, Chunk.META)
    places: dict[int, tuple[Kind, int] | None] = {
        field: (Kind.I64, value(meta, field) + delta)
        for field in (Meta.DATA_PAGE, Meta.INDEX_PAGE, Meta.DICTIONARY_PAGE)
        if field in meta
    }
    for field in (Meta.INDEX_PAGE, Meta.DICTIONARY_PAGE):
        if value(meta, field, 1) <= 0:  # some writers say 0 for "none"
            places[field] = None
    named: dict[int, tuple[Kind, Any] | None] = {Meta.PATH: (Kind.LIST, Items(Kind.BINARY, path))}
    if Meta.SIZES in meta and miscounts_bytes(meta):
        sizes = changed(value(meta, Meta.SIZES), {Sizes.BYTES: None})
        named[Meta.SIZES] = (Kind.STRUCT, sizes)
    return changed(
        chunk,
        {
            Chunk.FILE_PATH: None,
            Chunk.FILE_OFFSET: (Kind.I64, 0),
            Chunk.META: (Kind.STRUCT, changed(meta, {**places, **named})),
        },
    )
