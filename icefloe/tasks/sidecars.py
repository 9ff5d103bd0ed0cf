"""Sidecars: files beside data files that say where rows with some values are.

A sidecar is an Arrow IPC file. Its schema's metadata has a header, which says of which data file
and index it is, sections that a kind of index needs when it opens the file, and checksums of all
that a look-up relies on. Tasks that write data files write their sidecars.

A sidecar counts only if it is of the data file, its size and its number of rows, and its checksums
are right. Anything else is an uncovered file: slower, and never a lost row.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from icefloe.storage.filesystem import delete_quietly, is_local_disk, new_file
from icefloe.tasks.messages import Positions
from icefloe.tasks.old_file import OldFile, why_spark_differs

VERSION = 1
# Keys of the schema's metadata; kinds of indexes add sections of their own.
HEADER, CHECKSUMS, HEADER_CHECKSUM = b"icefloe.index", b"crc", b"header_crc"
_FIELD_ID = b"PARQUET:field_id"


class NotIndexableError(ValueError):
    """A data file has values that an index cannot have; the file stays without a sidecar."""


@dataclass(frozen=True)
class IndexToWrite:
    """An index of a table, as tasks that write data files need it."""

    index_id: str
    name: str
    kind: str
    field_ids: tuple[int, ...]
    types: tuple[str, ...]  # Iceberg's names
    params: Mapping[str, object]
    filesystem: pafs.FileSystem
    folder: str  # of the index's sidecars, in the file system
    schema: pa.Schema | None = None  # of the table, which files of other engines have to fit
    builder: IndexBuilder | None = None  # None: its sidecars are only read


@dataclass(frozen=True)
class IndexBuilder:
    """How the sidecars of a kind of index are made.

    Tasks get these functions with the indexes of a table. As names in the code of every task that
    writes files, they would be pickled for tables without indexes too.
    """

    build: Callable[[IndexToWrite, IndexedFile], SidecarContent | None]  # None: it needs none
    # From the sidecar of a file that is replaced; None where that does not say it.
    remap: Callable[[IndexToWrite, SidecarPlace, RowEdits, int], SidecarContent | None] | None = (
        None
    )


@dataclass(frozen=True)
class IndexedFile:
    """A data file to write sidecars for."""

    filesystem: pafs.FileSystem
    path: str  # in the file system
    location: str  # as the table's metadata has it
    size: int
    rows: int
    # Columns of which the rows are still in memory, by field id; others are read from the file.
    columns: Mapping[int, pa.ChunkedArray] = field(default_factory=dict)


@dataclass(frozen=True)
class RowEdits:
    """How the rows of a data file differ from those of the file that it replaces."""

    gone: Positions  # rows that the new file lacks, sorted
    updated: Positions  # rows with new values in some columns, sorted
    values: Mapping[int, pa.ChunkedArray]  # of the updated rows, by field id


@dataclass(frozen=True)
class SidecarContent:
    """What a kind of index stores of one data file."""

    batches: Sequence[pa.RecordBatch]  # of fixed-width columns without NULLs, or of binary ones
    header: Mapping[str, object] = field(default_factory=dict)  # plain values
    sections: Mapping[bytes, bytes] = field(default_factory=dict)


def sidecar_path(index_folder: str, data_file: str) -> str:
    """Where the sidecar of a data file is, below the folder of its index.

    Its name is that of the data file: engines that delete files by name keep it as long. The hash
    keeps files of one name in several folders apart.
    """
    folder = hashlib.sha1(data_file.encode(), usedforsecurity=False).hexdigest()[:8]
    return f"{index_folder}/{folder}/{data_file.rpartition('/')[2]}"


def change_in_place(filesystem: pafs.FileSystem, path: str, size: int) -> str | None:
    """How a data file differs from the table's metadata; None if it shows no difference.

    An index that answers alone reads no byte of the file. A disk of this machine has the file's
    size at hand; an object store would take a request for each file.
    """
    if not is_local_disk(filesystem):
        return None
    info = filesystem.get_file_info(path)
    if info.type != pafs.FileType.File:
        return f"{path} is missing"
    if info.size == size:
        return None
    return f"{path} has {info.size} bytes, and {size} in the table's metadata: it was changed"


def write_sidecar(index: IndexToWrite, file: IndexedFile, content: SidecarContent) -> int:
    """Write one sidecar; returns its size."""
    schema = content.batches[0].schema if content.batches else pa.schema([])
    header = {
        "v": VERSION,
        "index": index.index_id,
        "kind": index.kind,
        "fields": list(index.field_ids),
        "types": list(index.types),
        "data_file": file.location,
        "data_bytes": file.size,
        "rows": file.rows,
        "columns": _columns_of(schema),
        "writer": "icefloe",
        **content.header,
    }
    checksums = [batch_checksum(batch) for batch in content.batches]
    metadata = {
        **content.sections,
        HEADER: json.dumps(header).encode(),
        CHECKSUMS: np.array(checksums, "<u4").tobytes(),
    }
    metadata[HEADER_CHECKSUM] = str(header_checksum(metadata)).encode()
    path = sidecar_path(index.folder, file.location)
    try:
        with new_file(index.filesystem, path) as sink:
            with pa.ipc.new_file(sink, schema.with_metadata(metadata)) as writer:
                for batch in content.batches:
                    writer.write_batch(batch)
            return int(sink.tell())
    except BaseException:
        delete_quietly(index.filesystem, path)
        raise


def delete_sidecars(indexes: Sequence[IndexToWrite], location: str) -> None:
    """Delete the sidecars of a data file that was not finished."""
    for index in indexes:
        delete_quietly(index.filesystem, sidecar_path(index.folder, location))


class DamagedSidecarError(Exception):
    """A sidecar is damaged, or not of this data file."""


@dataclass(frozen=True)
class SidecarPlace:
    """Where the sidecar of a data file is, and what its header must say."""

    filesystem: pafs.FileSystem
    path: str
    expected: Mapping[str, object]
    problem: str | None = None  # of the data file, which makes the sidecar one of another file

    @staticmethod
    def of(index: IndexToWrite, location: str, size: int, rows: int) -> SidecarPlace:
        """The sidecar of a data file of that location, size and number of rows."""
        expected = {
            "v": VERSION,
            "index": index.index_id,
            "kind": index.kind,
            "fields": list(index.field_ids),
            "data_file": location,
            "data_bytes": size,
            "rows": rows,
        }
        return SidecarPlace(index.filesystem, sidecar_path(index.folder, location), expected)

    @contextmanager
    def open(self) -> Iterator[Sidecar]:
        """Open and check the sidecar.

        Raises:
            FileNotFoundError: The index does not cover the file.
            DamagedSidecarError: The sidecar cannot be used; from the block too, when it is read.
        """
        if self.problem is not None:
            raise DamagedSidecarError(self.problem)
        try:
            with self.filesystem.open_input_file(self.path) as source:
                yield self._checked(pa.ipc.open_file(source))
        except (FileNotFoundError, DamagedSidecarError):
            raise
        except (
            pa.ArrowException,
            zlib.error,
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
        ) as error:  # decoders raise any of these on invalid bytes
            message = f"{self.path}: {type(error).__name__}: {error}"
            raise DamagedSidecarError(message) from error

    def _checked(self, reader: pa.ipc.RecordBatchFileReader) -> Sidecar:
        metadata = dict(reader.schema.metadata or {})
        if str(header_checksum(metadata)).encode() != metadata.get(HEADER_CHECKSUM):
            raise DamagedSidecarError(f"{self.path}: the checksum of its header is wrong")
        header = json.loads(metadata[HEADER])
        different = [name for name, value in self.expected.items() if header.get(name) != value]
        if different:
            names = ", ".join(different)
            raise DamagedSidecarError(f"{self.path} is of another file or index: {names}")
        if header["columns"] != _columns_of(reader.schema):
            # The same bytes as another type would have the same checksums.
            raise DamagedSidecarError(f"{self.path}: its columns have other types")
        checksums = np.frombuffer(metadata[CHECKSUMS], "<u4")
        if len(checksums) != reader.num_record_batches:
            raise DamagedSidecarError(f"{self.path} lacks batches")
        return Sidecar(self.path, reader, header, metadata, checksums)


@dataclass(frozen=True)
class Sidecar:
    """An open sidecar whose header is that of a data file."""

    path: str
    reader: pa.ipc.RecordBatchFileReader
    header: Mapping[str, Any]
    sections: Mapping[bytes, bytes]
    checksums: npt.NDArray[np.uint32]

    def batch(self, number: int) -> pa.RecordBatch:
        """A batch whose checksum is right; raises DamagedSidecarError."""
        batch = self.reader.get_batch(number)
        batch.validate(full=True)
        if batch_checksum(batch) != int(self.checksums[number]):
            raise DamagedSidecarError(f"{self.path}: the checksum of batch {number} is wrong")
        return batch


def _columns_of(schema: pa.Schema) -> list[str]:
    """Names and types of columns, for the header."""
    return [f"{field.name} {field.type}" for field in schema]


def batch_checksum(batch: pa.RecordBatch) -> int:
    """The checksum of one batch: of the bytes of its values, column by column."""
    checksum = 0
    for column in batch.columns:
        if pa.types.is_large_binary(column.type):
            for value in column:
                checksum = zlib.crc32(value.as_buffer(), checksum)
        else:
            values = column.to_numpy(zero_copy_only=False)
            checksum = zlib.crc32(np.ascontiguousarray(values).data, checksum)
    return checksum


def header_checksum(metadata: Mapping[bytes, bytes]) -> int:
    """The checksum of everything in the metadata that a look-up relies on."""
    checksum = 0
    for key in sorted(metadata):
        if key != HEADER_CHECKSUM:
            part = metadata[key]
            checksum = zlib.crc32(b"%s:%d:" % (key, len(part)) + part, checksum)
    return checksum


def indexed_columns(index: IndexToWrite, file: IndexedFile) -> list[pa.Array]:
    """The indexed columns of a data file, each as one array."""
    if all(field_id in file.columns for field_id in index.field_ids):
        columns = [file.columns[field_id] for field_id in index.field_ids]
    else:
        columns = _read_columns(index, file)
    if any(len(column) != file.rows for column in columns):
        raise NotIndexableError(f"it does not have {file.rows} rows")
    return [combined(column) for column in columns]


def _read_columns(index: IndexToWrite, file: IndexedFile) -> list[pa.ChunkedArray]:
    """Read the columns; refuses a file whose rows tasks could not read by position later."""
    with file.filesystem.open_input_file(file.path) as source:
        if source.size() != file.size:
            raise NotIndexableError(f"it has {source.size()} bytes, not {file.size}")
        parquet = pq.ParquetFile(source, page_checksum_verification=True)
        reason = why_spark_differs(parquet)
        if reason is None and index.schema is not None:
            reason = OldFile.open(file.path, source, index.schema, file.rows).cannot_carry()
        if reason is not None:
            raise NotIndexableError(reason)
        schema = parquet.schema_arrow
        by_id = columns_by_id(schema)
        if not by_id:
            raise NotIndexableError("its columns have no field ids")
        if len(set(schema.names)) < len(schema.names):
            raise NotIndexableError("several of its columns have one name")
        if any(field_id not in by_id for field_id in index.field_ids):
            raise NotIndexableError("it lacks an indexed column")
        names = [schema.names[by_id[field_id]] for field_id in index.field_ids]
        if any("." in name for name in names):
            raise NotIndexableError("the name of an indexed column has a dot in it")
        table = parquet.read(names, use_threads=False)
    return [table.column(name) for name in names]


def columns_by_id(schema: pa.Schema) -> dict[int, int]:
    """Where the columns of a file's schema are, by field id."""
    ids = [(column.metadata or {}).get(_FIELD_ID) for column in schema]
    return {int(field_id): place for place, field_id in enumerate(ids) if field_id is not None}


def combined(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array, its values not encoded and of 64-bit offsets."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_string(kind):
        column = column.cast(pa.large_string())
    elif pa.types.is_binary(kind):
        column = column.cast(pa.large_binary())
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):  # of extension types
        combined = pa.concat_arrays(combined.chunks) if combined.num_chunks else pa.array([], kind)
    return combined
