"""Read and write manifests and manifest lists, delete manifests included.

PyIceberg reads manifests with the v2 schema, which drops `referenced_data_file`, and cannot write
delete manifests. This module does both with PyIceberg's Avro reader and writer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from io import BytesIO
from itertools import chain
from typing import Any, Protocol

from pyiceberg.avro import STRUCT_DOUBLE
from pyiceberg.avro.decoder import BinaryDecoder, StreamingBinaryDecoder
from pyiceberg.avro.file import (
    MAGIC,
    META_SCHEMA,
    SYNC_SIZE,
    AvroFile,
    AvroFileHeader,
    AvroOutputFile,
)
from pyiceberg.avro.reader import DoubleReader, Reader
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor, construct_reader
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    construct_partition_summaries,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, visit_with_partner
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import DoubleType, IcebergType, StructType
from pyiceberg.utils.concurrent import ExecutorFactory

from icefloe.errors import StorageError
from icefloe.metadata.files import LiveFile, SnapshotFiles
from icefloe.metadata.manifest_cache import (
    Entries,
    LiveFiles,
    entries_of,
    is_held,
    manifests_in,
)
from icefloe.schema.partition_values import partition_path
from icefloe.storage.file_io import StoreFile
from icefloe.storage.files import new_output, translate_read_errors

_READ_VERSION = 3  # has every field that v1 and v2 manifests may have
_UNASSIGNED = -1
_BLOCK_ENTRIES = 1000


class ManifestFilter(Protocol):
    """Excludes manifests before they are read."""

    def may_match_manifest(self, manifest: ManifestFile) -> bool:
        """Whether the manifest may have a relevant file."""
        ...


def list_manifests(io: FileIO, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
    """The manifests of a snapshot, which are shared by all callers: they must not change them."""

    def read() -> list[ManifestFile]:
        return read_avro(
            io.new_input(snapshot.manifest_list),
            MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION],
            {-1: ManifestFile, 508: PartitionFieldSummary},
            {517: ManifestContent},
        )

    return manifests_in(io, snapshot.manifest_list, read)


def read_entries(io: FileIO, manifest: ManifestFile) -> Entries:
    """Every entry of a manifest, deleted ones included, with inherited fields filled in.

    Entries are shared by all callers, who must not change them.
    """

    def read() -> list[ManifestEntry]:
        entries = read_avro(
            io.new_input(manifest.manifest_path),
            MANIFEST_ENTRY_SCHEMAS[_READ_VERSION],
            {-1: ManifestEntry, 2: DataFile},
            {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
            manifest.manifest_length,
        )
        return [_inherit(entry, manifest) for entry in entries]

    return entries_of(manifest.manifest_path, manifest.manifest_length, io.properties, read)


def read_snapshot_files(
    io: FileIO, snapshot: Snapshot | None, keep: ManifestFilter | None = None
) -> SnapshotFiles:
    """The live files of a snapshot; manifests that `keep` excludes are not opened."""
    if snapshot is None:
        return SnapshotFiles()
    manifests = list_manifests(io, snapshot)
    matching: list[ManifestFile] = []
    skipped: list[ManifestFile] = []
    for manifest in manifests:
        may_match = keep is None or keep.may_match_manifest(manifest)
        (matching if may_match else skipped).append(manifest)
    cached = sum(is_held(m.manifest_path, m.manifest_length) for m in matching)
    read = ExecutorFactory.get_or_create().map(lambda m: _live_by_content(io, m), matching)
    per_manifest = list(read)
    return SnapshotFiles(
        data=tuple(chain.from_iterable(data for data, _ in per_manifest)),
        deletes=tuple(chain.from_iterable(deletes for _, deletes in per_manifest)),
        manifests_read=len(matching),
        manifests_cached=cached,
        manifests_skipped=len(skipped),
        files_in_skipped_manifests=sum(
            (m.added_files_count or 0) + (m.existing_files_count or 0)
            for m in skipped
            if m.content == ManifestContent.DATA
        ),
    )


def live_files(io: FileIO, manifest: ManifestFile) -> tuple[LiveFile, ...]:
    """The files of a manifest that it does not delete."""
    data, deletes = _live_by_content(io, manifest)
    return data + deletes


def _live_by_content(io: FileIO, manifest: ManifestFile) -> LiveFiles:
    entries = read_entries(io, manifest)
    if entries.live is None:
        live = [
            as_live_file(entry, manifest)
            for entry in entries
            if entry.status != ManifestEntryStatus.DELETED
        ]
        entries.live = (
            tuple(file for file in live if file.is_data),
            tuple(file for file in live if not file.is_data),
        )
    return entries.live


def as_live_file(entry: ManifestEntry, manifest: ManifestFile) -> LiveFile:
    """A manifest entry as a value."""
    return LiveFile(
        file=entry.data_file,
        spec_id=manifest.partition_spec_id,
        sequence_number=entry.sequence_number or 0,
        file_sequence_number=entry.file_sequence_number,
        snapshot_id=entry.snapshot_id,
        manifest_path=manifest.manifest_path,
    )


@dataclass(frozen=True, slots=True)
class ManifestWriter:
    """Writes the manifests of one snapshot."""

    io: FileIO
    metadata: TableMetadata
    snapshot_id: int
    codec: str

    def write(
        self,
        path: str,
        content: ManifestContent,
        spec_id: int,
        entries: Sequence[ManifestEntry],
    ) -> ManifestFile:
        """Write `entries` as one manifest of `spec_id` at `path`."""
        spec = self.metadata.specs()[spec_id]
        schema = schema_for_spec(self.metadata, spec)
        with new_output(self.io, path) as output:
            self._write_avro(output, content, spec, schema, entries)
        length = len(output)
        counts = _count(entries)
        sequence_numbers = [
            e.sequence_number
            for e in entries
            if e.status != ManifestEntryStatus.DELETED and e.sequence_number is not None
        ]
        return ManifestFile.from_args(
            manifest_path=path,
            manifest_length=length,
            partition_spec_id=spec_id,
            content=content,
            sequence_number=_UNASSIGNED,
            min_sequence_number=min(sequence_numbers, default=_UNASSIGNED),
            added_snapshot_id=self.snapshot_id,
            added_files_count=counts[ManifestEntryStatus.ADDED][0],
            existing_files_count=counts[ManifestEntryStatus.EXISTING][0],
            deleted_files_count=counts[ManifestEntryStatus.DELETED][0],
            added_rows_count=counts[ManifestEntryStatus.ADDED][1],
            existing_rows_count=counts[ManifestEntryStatus.EXISTING][1],
            deleted_rows_count=counts[ManifestEntryStatus.DELETED][1],
            partitions=construct_partition_summaries(
                spec, schema, [e.data_file.partition for e in entries]
            ),
            key_metadata=None,
        )

    def _write_avro(
        self,
        output: OutputFile,
        content: ManifestContent,
        spec: PartitionSpec,
        schema: Schema,
        entries: Sequence[ManifestEntry],
    ) -> None:
        version = self.metadata.format_version
        partition_type = spec.partition_type(schema)
        meta = {
            "schema": schema.model_dump_json(),
            "partition-spec": "[" + ",".join(f.model_dump_json() for f in spec.fields) + "]",
            "partition-spec-id": str(spec.spec_id),
            "format-version": str(version),
            "avro.codec": self.codec,
        }
        if version > 1:
            meta["content"] = "deletes" if content == ManifestContent.DELETES else "data"
        with AvroOutputFile[ManifestEntry](
            output_file=output,
            file_schema=_file_schema(version, partition_type, content),
            record_schema=_entry_schema(_READ_VERSION, partition_type),
            schema_name="manifest_entry",
            metadata=meta,
        ) as writer:
            for start in range(0, len(entries), _BLOCK_ENTRIES):
                writer.write_block(list(entries[start : start + _BLOCK_ENTRIES]))

    def write_list(
        self,
        path: str,
        manifests: Iterable[ManifestFile],
        parent_snapshot_id: int | None,
        sequence_number: int,
    ) -> None:
        """Write the manifest list of the snapshot at `path`."""
        with (
            new_output(self.io, path) as output,
            write_manifest_list(
                format_version=self.metadata.format_version,
                output_file=output,
                snapshot_id=self.snapshot_id,
                parent_snapshot_id=parent_snapshot_id,
                sequence_number=sequence_number,
                avro_compression=self.codec,  # type: ignore[arg-type]
            ) as writer,
        ):
            writer.add_manifests(list(manifests))


def added_entry(
    file: DataFile, snapshot_id: int, sequence_number: int | None = None
) -> ManifestEntry:
    """An entry for a file this snapshot adds; its sequence number is inherited unless given."""
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=snapshot_id,
        sequence_number=sequence_number,
        file_sequence_number=None,
        data_file=file,
    )


def existing_entry(entry: ManifestEntry) -> ManifestEntry:
    """An entry for a file that an earlier snapshot added and this one keeps."""
    return _with_status(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id)


def deleted_entry(entry: ManifestEntry, snapshot_id: int) -> ManifestEntry:
    """An entry for a file this snapshot removes."""
    return _with_status(entry, ManifestEntryStatus.DELETED, snapshot_id)


def schema_for_spec(metadata: TableMetadata, spec: PartitionSpec) -> Schema:
    """A schema with every source column of `spec`; the current one may have dropped some."""
    newest_first = sorted(metadata.schemas, key=lambda s: s.schema_id, reverse=True)
    for schema in [metadata.schema(), *newest_first]:
        ids = {*schema.field_ids}
        if all(field.source_id in ids for field in spec.fields):
            return schema
    return metadata.schema()


def partition_folder(metadata: TableMetadata, file: LiveFile) -> str:
    """The folder of a file's partition below the data folder; empty if it has none."""
    spec = metadata.specs()[file.spec_id]
    if spec.is_unpartitioned():
        return ""
    return partition_path(file.file.partition, spec, schema_for_spec(metadata, spec))


def _with_status(
    entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None
) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def _inherit(entry: ManifestEntry, manifest: ManifestFile) -> ManifestEntry:
    """Fill in what an entry inherits from its manifest: snapshot, sequence numbers, spec."""
    inherits = manifest.sequence_number == 0 or entry.status == ManifestEntryStatus.ADDED
    if entry.snapshot_id is None and manifest.added_snapshot_id is not None:
        entry.snapshot_id = manifest.added_snapshot_id
    if entry.sequence_number is None and inherits:
        entry.sequence_number = manifest.sequence_number
    if entry.file_sequence_number is None and inherits:
        entry.file_sequence_number = manifest.sequence_number
    entry.data_file.spec_id = manifest.partition_spec_id
    return entry


def _count(
    entries: Sequence[ManifestEntry],
) -> dict[ManifestEntryStatus, tuple[int, int]]:
    counts = dict.fromkeys(ManifestEntryStatus, (0, 0))
    for entry in entries:
        files, rows = counts[entry.status]
        counts[entry.status] = files + 1, rows + entry.data_file.record_count
    return counts


def _entry_schema(version: int, partition_type: StructType) -> Schema:
    data_file = data_file_with_partition(partition_type, version)  # type: ignore[arg-type]
    return manifest_entry_schema_with_data_file(version, data_file)  # type: ignore[arg-type]


def _file_schema(version: int, partition_type: StructType, content: ManifestContent) -> Schema:
    """The stored fields: those of the format version, and for deletes the referenced data file."""
    data_file = data_file_with_partition(partition_type, version)  # type: ignore[arg-type]
    if content == ManifestContent.DELETES and version == 2:
        referenced = next(f for f in DATA_FILE_TYPE[3].fields if f.name == "referenced_data_file")
        data_file = StructType(*data_file.fields, referenced)
    return manifest_entry_schema_with_data_file(version, data_file)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------
# Avro files, which must be complete


def read_avro(
    file: InputFile,
    schema: Schema,
    types: Mapping[int, Callable[..., Any]],
    enums: Mapping[int, Callable[..., Enum]],
    length: int = 0,
) -> list[Any]:
    """Every record of a file, decoded by the `types` and `enums` of field ids.

    A file that is damaged, or shorter than `length`, raises StorageError.
    """
    with translate_read_errors(file.location):
        buffered = _BufferedFile(file)
        try:
            _refuse_truncated(buffered.bytes, length)
            with AvroFile[Any](buffered, schema, dict(types), dict(enums)) as reader:
                if '"double"' in reader.header.meta["avro.schema"]:
                    exact = _ExactDoubles(dict(types), dict(enums))
                    partners = SchemaPartnerAccessor()
                    reader.reader = visit_with_partner(  # type: ignore[misc]
                        reader.schema, schema, exact, partners
                    )
                return list(reader)
        except Exception as damaged:  # decoders raise any error on invalid bytes
            if isinstance(file, StoreFile):
                file.files.forget(file.location)
            reason = f"it is damaged or truncated ({type(damaged).__name__}: {damaged})"
            raise StorageError(f"Cannot read {file.location}: {reason}") from damaged


class _ExactDoubles(ReadSchemaResolver):
    """Reads all digits of doubles, which partitions may have.

    PyIceberg's compiled decoder rounds them to floats.
    """

    def visit_double(self, double_type: DoubleType, partner: IcebergType | None) -> Reader:  # noqa: ARG002
        return _ExactDoubleReader()  # type: ignore[no-untyped-call]


class _ExactDoubleReader(DoubleReader):
    def read(self, decoder: BinaryDecoder) -> float:
        [value] = STRUCT_DOUBLE.unpack(decoder.read(STRUCT_DOUBLE.size))
        return float(value)


class _BufferedFile(InputFile):
    """A file's bytes, read once."""

    def __init__(self, file: InputFile) -> None:
        super().__init__(file.location)
        with file.open(seekable=False) as stream:
            self.bytes = stream.read()

    def __len__(self) -> int:
        return len(self.bytes)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> BytesIO:  # noqa: ARG002 - PyIceberg's signature
        return BytesIO(self.bytes)


def _refuse_truncated(data: bytes, length: int) -> None:
    """Raise unless the blocks of a file fill it, each with the sync marker at its end."""
    if len(data) < length:
        raise ValueError(f"it has {len(data)} bytes of {length}")
    if not data.startswith(MAGIC):
        raise ValueError("it does not begin with Avro's magic bytes")
    decoder = StreamingBinaryDecoder(data)
    header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
    while decoder.tell() < len(data):
        decoder.read_int()  # the number of records
        decoder.skip(decoder.read_int())
        if decoder.read(SYNC_SIZE) != header.sync:
            raise ValueError("a block does not end with the sync marker")
