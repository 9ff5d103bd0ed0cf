"""Read and write position delete files, as one bitmap per data file.

Scans, rewrites and conflict checks share the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.utils.concurrent import ExecutorFactory
from pyroaring import BitMap64

from icefloe.deletes.row_positions import as_array, as_bitmap
from icefloe.errors import UnsupportedTableError
from icefloe.file_changes import DeletedRows
from icefloe.metadata.files import PATH_FIELD_ID, POS_FIELD_ID, LiveFile, PartitionKey
from icefloe.metadata.manifest_cache import cache_bytes
from icefloe.metadata.manifests import partition_folder
from icefloe.metadata.table_state import TableState
from icefloe.parquet.footer import DamagedFileError, check_rows, open_parquet
from icefloe.storage.file_cache import FileCache, file_keys
from icefloe.storage.files import new_stream, open_input

_WRITE_ROWS = 1_000_000
_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(PATH_FIELD_ID)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(POS_FIELD_ID)}),
    ]
)

Deleted = dict[str, BitMap64]
Positions = npt.NDArray[np.int64]


# -------------------------------------------------------------------------------------------------
# Reading.


def read_position_deletes(io: FileIO, deletes: Iterable[LiveFile]) -> dict[str, Deleted]:
    """The deleted positions by delete file and then by data file, which callers must not change.

    They are held, within the limit that the catalog's properties set for manifests.
    """
    unique = {delete.path: delete for delete in deletes}
    limit = cache_bytes(io.properties)
    if not unique or not limit:
        return _read_all(io, unique)
    keys = file_keys(io, {path: delete.size for path, delete in unique.items()})
    held = {path: delete_files.get(key) for path, key in keys.items() if key is not None}
    read = _read_all(io, {p: d for p, d in unique.items() if held.get(p) is None})
    for path, deleted in read.items():
        if (key := keys[path]) is not None:
            delete_files.put(key, deleted, limit)
    return {path: read[path] if path in read else held[path] or {} for path in unique}


def _read_all(io: FileIO, deletes: Mapping[str, LiveFile]) -> dict[str, Deleted]:
    contents = ExecutorFactory.get_or_create().map(lambda d: _read(io, d), deletes.values())
    return dict(zip(deletes, contents, strict=True))


def _bytes_of(deleted: Deleted) -> int:
    """Memory of the positions, estimated from roaring's containers and CPython's objects."""
    positions = sum(map(_bytes_of_positions, deleted.values()))
    return positions + _FILE_BYTES * (len(deleted) + 1)


def _bytes_of_positions(positions: BitMap64) -> int:
    of = positions.get_statistics()
    arrays, runs = of["n_bytes_array_containers"], of["n_bytes_run_containers"]
    return arrays + runs + of["n_bytes_bitset_containers"] + _CONTAINER_BYTES * of["n_containers"]


_FILE_BYTES, _CONTAINER_BYTES = 500, 50
delete_files: FileCache[Deleted] = FileCache(_bytes_of)


def _read(io: FileIO, delete: LiveFile) -> Deleted:
    if not delete.is_parquet:
        raise UnsupportedTableError(
            f"Delete file {delete.path} is {delete.file.file_format}; icefloe reads Parquet "
            "deletes only. Compact the table with the engine that wrote it."
        )
    deleted: Deleted = {}
    with open_input(io, delete.path, delete.size) as source:
        # Some damaged footers make PyArrow crash the process: check before it reads.
        open_parquet(delete.path, source.size(), lambda at, length: source.read_at(length, at))
        footer = pq.read_metadata(source)
        _check_columns(delete, footer.schema)
        parquet = pq.ParquetFile(
            source,
            metadata=footer,
            read_dictionary=["file_path"],
            page_checksum_verification=True,
        )
        rows = 0
        for batch in parquet.iter_batches(_WRITE_ROWS, columns=["file_path", "pos"]):
            _collect(delete, batch, deleted)
            rows += batch.num_rows
        check_rows(delete.path, rows, delete.rows)
    return deleted


def _check_columns(delete: LiveFile, schema: pq.ParquetSchema) -> None:
    """Refuse a file that has no position deletes; the logical type of the paths does not matter."""
    columns = [schema.column(number) for number in range(len(schema))]
    kinds = {column.path: column.physical_type for column in columns}
    if (kinds.get("file_path"), kinds.get("pos")) != ("BYTE_ARRAY", "INT64"):
        raise DamagedFileError(delete.path, "its columns are not those of position deletes")


def _collect(delete: LiveFile, batch: pa.RecordBatch, deleted: Deleted) -> None:
    paths, positions = batch.column("file_path"), batch.column("pos")
    if paths.null_count or positions.null_count or (pc.min(positions).as_py() or 0) < 0:
        raise DamagedFileError(delete.path, "one of its rows has no file or no position")
    if not pa.types.is_dictionary(paths.type):
        paths = pc.dictionary_encode(paths)
    codes = paths.indices.to_numpy(zero_copy_only=False)
    numbers = positions.to_numpy(zero_copy_only=False)
    for number in np.unique(codes):
        if number >= len(paths.dictionary):
            raise DamagedFileError(delete.path, "one of its rows has no file")
        path = paths.dictionary[int(number)].as_py()
        path = path.decode() if isinstance(path, bytes) else path
        of_path = numbers if len(paths.dictionary) == 1 else numbers[codes == number]
        deleted.setdefault(path, BitMap64()).update(as_bitmap(of_path))


# -------------------------------------------------------------------------------------------------
# Writing.


def write_position_deletes(
    state: TableState, statement_id: str, deleted: Mapping[str, DeletedRows]
) -> list[DataFile]:
    """Write position deletes under each data file's spec and partition, one file per partition.

    With `write.delete.granularity` = `file`, one per data file.
    """
    groups: dict[PartitionKey | str, list[DeletedRows]] = {}
    for rows in deleted.values():
        per_file = state.settings.deletes_per_file
        key = rows.file.path if per_file else rows.file.partition_key
        groups.setdefault(key, []).append(rows)
    written: list[DataFile] = []
    for number, group in enumerate(groups.values()):
        first = group[0].file
        folder = partition_folder(state.metadata, first)
        where = _Partition(first.spec_id, first.file.partition, f"{folder}/" if folder else "")
        positions = {rows.file.path: rows.positions for rows in group}
        written += _write_partition(state, f"{statement_id}-d{number}", positions, where)
    return written


@dataclass(frozen=True, slots=True)
class _Partition:
    """The spec and partition of data files, and of the delete files that apply to them."""

    spec_id: int
    partition: Record
    folder: str  # below the data folder, with a slash at its end; empty if unpartitioned


def _write_partition(
    state: TableState, name: str, positions: Mapping[str, BitMap64], where: _Partition
) -> list[DataFile]:
    """Write the deletes of one partition, sorted by path and position, rolling at target size."""
    files: list[DataFile] = []
    pending: list[tuple[str, Positions]] = []
    pending_rows = 0
    # An encoded row takes a few bytes; the path is a dictionary entry.
    limit = max(1, state.settings.target_file_bytes // 4)
    for path, chunk in _sorted_chunks(positions, min(limit, _WRITE_ROWS)):
        pending.append((path, chunk))
        pending_rows += len(chunk)
        if pending_rows >= limit:
            files.append(_write(state, f"{name}-{len(files)}", pending, where))
            pending, pending_rows = [], 0
    if pending:
        files.append(_write(state, f"{name}-{len(files)}", pending, where))
    return files


def _sorted_chunks(positions: Mapping[str, BitMap64], rows: int) -> Iterator[tuple[str, Positions]]:
    for path in sorted(positions, key=str.encode):
        numbers = as_array(positions[path])
        for start in range(0, len(numbers), rows):
            yield path, numbers[start : start + rows]


def _write(
    state: TableState, name: str, chunks: list[tuple[str, Positions]], where: _Partition
) -> DataFile:
    location = f"{state.data_location}/{where.folder}{name}-deletes.parquet"
    paths = [path for path, _ in chunks]
    rows = sum(len(positions) for _, positions in chunks)
    least = min(int(positions.min()) for _, positions in chunks)
    most = max(int(positions.max()) for _, positions in chunks)
    with new_stream(state.io, location) as sink:
        with pq.ParquetWriter(
            sink,
            _SCHEMA,
            compression=state.settings.compression,
            write_page_checksum=True,
        ) as writer:
            for group in _groups(chunks):
                writer.write_table(_table(group))
        size = sink.tell()
    file = DataFile.from_args(
        _table_format_version=3,
        content=DataFileContent.POSITION_DELETES,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=where.partition,
        record_count=rows,
        file_size_in_bytes=size,
        column_sizes=None,
        value_counts={PATH_FIELD_ID: rows, POS_FIELD_ID: rows},
        null_value_counts={PATH_FIELD_ID: 0, POS_FIELD_ID: 0},
        nan_value_counts=None,
        # Full paths, never truncated: equal bounds identify the data file.
        lower_bounds={PATH_FIELD_ID: paths[0].encode(), POS_FIELD_ID: _long(least)},
        upper_bounds={PATH_FIELD_ID: paths[-1].encode(), POS_FIELD_ID: _long(most)},
        key_metadata=None,
        split_offsets=[4],
        equality_ids=None,
        sort_order_id=None,
        referenced_data_file=paths[0] if paths[0] == paths[-1] else None,
    )
    file.spec_id = where.spec_id
    return file


def _groups(chunks: list[tuple[str, Positions]]) -> Iterator[list[tuple[str, Positions]]]:
    """Chunks grouped as row groups, none with many more rows than a chunk may have."""
    group: list[tuple[str, Positions]] = []
    rows = 0
    for chunk in chunks:
        if group and rows + len(chunk[1]) > _WRITE_ROWS:
            yield group
            group, rows = [], 0
        group.append(chunk)
        rows += len(chunk[1])
    yield group


def _table(chunks: list[tuple[str, Positions]]) -> pa.Table:
    numbers = {path: n for n, path in enumerate(dict.fromkeys(path for path, _ in chunks))}
    codes = np.concatenate([np.full(len(c), numbers[p], dtype=np.int32) for p, c in chunks])
    paths = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(numbers, pa.string()))
    positions = pa.array(np.concatenate([c for _, c in chunks]))
    return pa.Table.from_arrays([paths.cast(pa.string()), positions], schema=_SCHEMA)


def _long(value: int) -> bytes:
    return int(value).to_bytes(8, "little", signed=True)
