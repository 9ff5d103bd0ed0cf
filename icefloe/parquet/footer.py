"""A Parquet file as its footer and byte ranges, checked before anything is copied from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from icefloe.parquet.fields import Chunk, File, Group, Meta, Sizes
from icefloe.parquet.schema import LeafColumn, columns_of
from icefloe.parquet.thrift import Struct, items, read_struct, value, write_struct

MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"
_TAIL = 8  # the footer's length and the magic after it
_FIRST_READ = 65_536
_REQUIRED = (Meta.CODEC, Meta.VALUES, Meta.UNCOMPRESSED, Meta.COMPRESSED, Meta.DATA_PAGE)

Read = Callable[[int, int], bytes]  # offset and length -> bytes


class DamagedFileError(ValueError):
    """A file that is truncated, or whose footer contradicts itself or the table's metadata."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")


class EncryptedFileError(ValueError):
    """A file that cannot be read without keys."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is an encrypted Parquet file")


# Bytes to copy at once. Remote storage has a high cost per request; local files are copied three
# times as fast in pieces that fit the processor's cache.
REMOTE_PIECE = 8 * 1024 * 1024
LOCAL_PIECE = 256 * 1024


@dataclass(frozen=True, slots=True)
class ParquetBytes:
    """A Parquet file: its footer, and a way to read ranges of its bytes."""

    path: str
    size: int
    read: Read
    footer: Struct
    footer_at: int
    piece: int = REMOTE_PIECE  # bytes to copy at once

    @property
    def groups(self) -> Sequence[Struct]:
        """The row groups."""
        return items(self.footer, File.GROUPS)

    def take(self, start: int, length: int) -> bytes:
        """A range of bytes; raises DamagedFileError if the file ends before."""
        return _exactly(self.path, self.read, start, length)


def open_parquet(path: str, size: int, read: Read, piece: int = REMOTE_PIECE) -> ParquetBytes:
    """Read and check a file's footer; raises DamagedFileError or EncryptedFileError."""
    least = len(MAGIC) + _TAIL
    if size < least:
        raise DamagedFileError(path, f"{size} bytes are too few for a Parquet file")
    tail = _exactly(path, read, max(0, size - _FIRST_READ), min(size, _FIRST_READ))
    if tail[-4:] == _ENCRYPTED_MAGIC:
        raise EncryptedFileError(path)
    if tail[-4:] != MAGIC:
        raise DamagedFileError(path, f"it ends with {bytes(tail[-4:])!r} instead of {MAGIC!r}")
    length = int.from_bytes(tail[-_TAIL:-4], "little")
    if length > size - least:
        raise DamagedFileError(path, f"a footer of {length} bytes does not fit in {size} bytes")
    begin = size - _TAIL - length
    if length + _TAIL <= len(tail):
        encoded = tail[-_TAIL - length : -_TAIL]
    else:
        encoded = _exactly(path, read, begin, length)
    try:
        footer, _ = read_struct(encoded)
        file = ParquetBytes(path, size, read, footer, begin, piece)
        _check(file)
    except (DamagedFileError, EncryptedFileError):
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFileError(path, f"its footer cannot be read: {error}") from error
    return file


def open_buffer(path: str, buffer: pa.Buffer) -> ParquetBytes:
    """A Parquet file in memory."""
    view = memoryview(buffer).cast("B")

    def read(start: int, length: int) -> bytes:
        return bytes(view[start : start + length])

    return open_parquet(path, len(view), read, LOCAL_PIECE)


def footer_bytes(footer: Struct) -> bytes:
    """The end of a file: the footer, its length and the magic."""
    encoded = write_struct(footer)
    return encoded + len(encoded).to_bytes(4, "little") + MAGIC


def chunk_range(chunk: Struct) -> tuple[int, int]:
    """The offset of a column chunk, and its length."""
    meta = value(chunk, Chunk.META)
    start = value(meta, Meta.DATA_PAGE)
    dictionary = value(meta, Meta.DICTIONARY_PAGE, 0)
    return (min(start, dictionary) if dictionary > 0 else start), value(meta, Meta.COMPRESSED)


def group_rows(group: Struct) -> int:
    """The rows of a row group."""
    return int(value(group, Group.ROWS))


def check_rows(path: str, rows: int, expected: int) -> None:
    """Raise DamagedFileError if a file has more or fewer rows than the table's metadata says."""
    if rows != expected:
        raise DamagedFileError(path, f"it has {rows} rows, the table's metadata says {expected}")


def _exactly(path: str, read: Read, start: int, length: int) -> bytes:
    data = read(start, length)
    if len(data) != length:
        raise DamagedFileError(path, f"it ends within the bytes {start} to {start + length}")
    return data


def _check(file: ParquetBytes) -> None:
    """Check what the package relies on: each column has a chunk of its type, before the footer."""
    footer = file.footer
    if File.ENCRYPTION in footer:
        raise EncryptedFileError(file.path)
    leaves = [leaf for column in columns_of(footer) for leaf in column.values]
    orders = len(items(footer, File.ORDERS))
    if orders not in (0, len(leaves)):
        raise DamagedFileError(
            file.path, f"it has {orders} column orders for {len(leaves)} columns"
        )
    rows = 0
    for number, group in enumerate(file.groups):
        chunks = items(group, Group.COLUMNS)
        if len(chunks) != len(leaves):
            raise DamagedFileError(
                file.path, f"row group {number} has {len(chunks)} chunks for {len(leaves)} columns"
            )
        for at, chunk in enumerate(chunks if group_rows(group) else ()):
            _check_chunk(file, chunk, leaves[at], f"column {at} of row group {number}")
        rows += group_rows(group)
    if rows != value(footer, File.ROWS):
        raise DamagedFileError(
            file.path,
            f"its row groups have {rows} rows, its footer says {value(footer, File.ROWS)}",
        )


def _check_chunk(file: ParquetBytes, chunk: Struct, leaf: LeafColumn, where: str) -> None:
    if Chunk.CRYPTO in chunk or Chunk.ENCRYPTED in chunk:
        raise EncryptedFileError(file.path)
    if value(chunk, Chunk.FILE_PATH):
        raise DamagedFileError(file.path, f"{where} is in another file")
    meta = value(chunk, Chunk.META)
    missing = [field for field in _REQUIRED if not isinstance(value(meta, field), int)]
    if missing:
        raise DamagedFileError(file.path, f"{where} lacks the fields {missing} of its metadata")
    # PyArrow crashes the process on a footer that fails either check.
    sizes = value(meta, Meta.SIZES, {})
    levels = len(items(sizes, Sizes.REPETITION)), len(items(sizes, Sizes.DEFINITION))
    if value(meta, Meta.TYPE) != leaf.type or not (
        levels[0] in (0, leaf.repetition + 1) and levels[1] in (0, leaf.definition + 1)
    ):
        raise DamagedFileError(file.path, f"{where} does not have the type that the schema says")
    start, length = chunk_range(chunk)
    if start < len(MAGIC) or length < 0 or start + length > file.footer_at:
        raise DamagedFileError(
            file.path,
            f"{where} is at the bytes {start} to {start + length}, outside the data "
            f"(bytes {len(MAGIC)} to {file.footer_at})",
        )
