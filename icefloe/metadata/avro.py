"""Read Avro files that have to be whole.

PyIceberg takes the end of a file for the end of its records, wherever that comes, or reads past it:
a manifest that was cut short could have fewer files, and the table fewer rows, without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from io import BytesIO
from typing import Any

from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFile, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.io import InputFile
from pyiceberg.schema import Schema

from icefloe.errors import StorageError
from icefloe.storage.files import naming_unreadable_file


def read_avro(
    file: InputFile,
    schema: Schema,
    types: Mapping[int, Callable[..., Any]],
    enums: Mapping[int, Callable[..., Enum]],
    length: int = 0,
) -> list[Any]:
    """Every record of a file, as `types` and `enums` have it for field ids.

    A file that has fewer bytes than `length` is refused as well.
    """
    with naming_unreadable_file(file.location):
        held = _Held(file)
        try:
            _refuse_cut(held.bytes, length)
            with AvroFile[Any](held, schema, dict(types), dict(enums)) as reader:
                return list(reader)
        except Exception as damaged:  # decoders raise anything over bytes that make no sense
            reason = f"it is damaged or cut short ({type(damaged).__name__}: {damaged})"
            raise StorageError(f"Cannot read {file.location}: {reason}") from damaged


class _Held(InputFile):
    """A file's bytes, read once."""

    def __init__(self, file: InputFile) -> None:
        super().__init__(file.location)
        with file.open() as stream:
            self.bytes = stream.read()

    def __len__(self) -> int:
        return len(self.bytes)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> BytesIO:  # noqa: ARG002 - PyIceberg's signature
        return BytesIO(self.bytes)


def _refuse_cut(data: bytes, least: int) -> None:
    """Raise unless the blocks of a file fill it, each with the file's mark at its end."""
    if len(data) < least:
        raise ValueError(f"it has {len(data)} bytes of {least}")
    if not data.startswith(MAGIC):
        raise ValueError("it does not begin as Avro files do")
    decoder = StreamingBinaryDecoder(data)
    header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
    while decoder.tell() < len(data):
        decoder.read_int()  # the number of records
        decoder.skip(decoder.read_int())
        if decoder.read(SYNC_SIZE) != header.sync:
            raise ValueError("a block of it does not end where it should")
