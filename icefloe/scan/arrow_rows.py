"""Live rows of a few small files as Arrow, read by PyArrow in the driver.

A Spark job for a row of a small file takes ten times as long. Only files are read whose columns
PyArrow provably reads as Spark does: by field id, in the types of the table or in those that they
were promoted from. Everything else is left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField
from pyroaring import BitMap64

from icefloe.deletes.position_deletes import Positions
from icefloe.deletes.row_positions import as_array, as_bitmap
from icefloe.errors import StorageError, UnsupportedTableError
from icefloe.metadata.table_state import TableState
from icefloe.parquet.footer import open_parquet
from icefloe.pruning.candidates import Candidate
from icefloe.scan.arrow_filter import Mask, UnjudgedError, columns_in, matching_rows
from icefloe.scan.scan import read_deleted_rows
from icefloe.storage.files import open_input
from icefloe.storage.filesystem import StoreError
from icefloe.tasks.sidecars import combined

MOST_FILES = 4
MOST_BYTES = 64 * 2**20

_FIELD_ID = b"PARQUET:field_id"
# Spark's own writer: dates and timestamps may be of another calendar.
_OF_SPARK = b"org.apache.spark."


class _UnusualFileError(Exception):
    """A file that PyArrow may read differently than Spark."""


@dataclass(frozen=True, slots=True)
class ArrowRead:
    """Which rows and columns of a table's files to read."""

    state: TableState
    condition: BooleanExpression  # exact for rows
    names: Sequence[str]  # of columns of the table
    limit: int | None = None  # how many rows are enough
    among: tuple[str, pa.Array] | None = None  # a column, and the values that it must have one of

    @property
    def tested(self) -> set[str]:
        """The columns that decide which rows match."""
        return columns_in(self.condition) | ({self.among[0]} if self.among else set())


def read_arrow_rows(read: ArrowRead, candidates: Sequence[Candidate]) -> pa.Table | None:
    """The live rows of files for which the condition is TRUE; None if Spark has to read them."""
    matches = find_arrow_rows(read, candidates)
    if matches is None:
        return None
    columns = [_expected(read.state).field(name) for name in read.names]
    parts = [pa.schema(columns).empty_table(), *(match.rows for match in matches)]
    return pa.concat_tables(parts).slice(0, read.limit)


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows of one file for which a condition is TRUE."""

    file: Candidate
    positions: BitMap64
    rows: pa.Table  # the columns that were asked for, in the order of the positions


def find_arrow_rows(read: ArrowRead, candidates: Sequence[Candidate]) -> list[FoundRows] | None:
    """The same rows with their positions, at least as many as the limit if there are so many."""
    if not are_few_and_plain(candidates):
        return None
    expected = _expected(read.state)
    matches: list[FoundRows] = []
    try:
        deleted, _ = read_deleted_rows(read.state, candidates)
        rows = 0
        for candidate in candidates:
            positions, parts = BitMap64(), []
            for at, part in _read_file(
                read, candidate, expected, deleted.get(candidate.path, BitMap64())
            ):
                positions |= as_bitmap(at)
                parts.append(part)
                rows += len(at)
                if read.limit is not None and rows >= read.limit:
                    break
            if parts:
                matches.append(FoundRows(candidate, positions, pa.concat_tables(parts)))
            if read.limit is not None and rows >= read.limit:
                break
    except (_UnusualFileError, UnjudgedError, UnsupportedTableError, pa.ArrowException):
        return None
    except StorageError as error:
        _refuse_down_store(error)
        return None
    return matches


def _refuse_down_store(error: StorageError) -> None:
    """Spark may read what the driver cannot, but has to wait as long for a store that is down."""
    if isinstance(error.__cause__, StoreError):
        raise error


def _expected(state: TableState) -> pa.Schema:
    """The table's columns without constraints: NULL in a required one is NULL, as in Spark."""
    return pa.schema([_loose(field) for field in schema_to_pyarrow(state.schema)])


def are_few_and_plain(candidates: Sequence[Candidate]) -> bool:
    """Whether the driver may read these files."""
    return (
        len(candidates) <= MOST_FILES
        and sum(map(_bytes_to_read, candidates)) <= MOST_BYTES
        and not any(c.equality_deletes or c.lacks_identity_columns for c in candidates)
    )


def _bytes_to_read(candidate: Candidate) -> int:
    """The row groups of a file that may have matching rows, if all are of one size."""
    live, answer = candidate.live, candidate.answer
    groups = len(live.file.split_offsets or ())
    if answer is None or groups < 2 or not live.rows:
        return live.size
    hit = np.unique(as_array(answer.positions) * groups // live.rows)
    return live.size * len(hit) // groups


def _loose(field: pa.Field) -> pa.Field:
    return field.with_nullable(True)


def _read_file(
    read: ArrowRead, candidate: Candidate, expected: pa.Schema, deleted: BitMap64
) -> Iterator[tuple[Positions, pa.Table]]:
    """The matching rows of each row group that has any, and their positions."""
    with open_input(read.state.io, candidate.path, candidate.live.size) as source:
        # Some damaged footers make PyArrow crash the process: check before it reads.
        open_parquet(candidate.path, source.size(), lambda at, size: source.read_at(size, at))
        parquet = pq.ParquetFile(source, page_checksum_verification=True)
        file = _File.of(parquet, read.state.schema, expected)
        if parquet.metadata.num_rows != candidate.live.rows:
            raise _UnusualFileError
        positions = as_array(deleted)
        start = 0
        for group in range(parquet.num_row_groups):
            size = parquet.metadata.row_group(group).num_rows
            first, last = np.searchsorted(positions, [start, start + size])
            live = np.ones(size, np.bool_)
            live[positions[first:last] - start] = False
            if candidate.answer is not None:
                live &= _among(as_array(candidate.answer.positions), start, size)
            rows = _read_group(read, file, group, live) if live.any() else None
            if rows is not None:
                yield start + np.flatnonzero(live), rows
            start += size


def _among(positions: Positions, start: int, size: int) -> Mask:
    """Which of `size` rows from position `start` are among these."""
    first, last = np.searchsorted(positions, [start, start + size])
    mask = np.zeros(size, np.bool_)
    mask[positions[first:last] - start] = True
    return mask


def _read_group(read: ArrowRead, file: _File, group: int, live: Mask) -> pa.Table | None:
    """The matching rows, which `live` marks then; None if there are none.

    Columns that the condition does not name are read if there are any.
    """
    named = read.tested
    tested = file.read(group, sorted(named))
    if not isinstance(read.condition, AlwaysTrue):
        live &= matching_rows(read.condition, tested, read.state.schema)
    if read.among is not None:
        name, values = read.among
        live &= combined(pc.is_in(tested.column(name), values)).to_numpy(zero_copy_only=False)
    if not live.any():
        return None
    others = file.read(group, [name for name in read.names if name not in named])
    arrays = [(tested if name in named else others).column(name) for name in read.names]
    rows = pa.table(arrays, schema=pa.schema([file.expected.field(name) for name in read.names]))
    return rows if live.all() or not read.names else rows.take(pa.array(np.flatnonzero(live)))


@dataclass(frozen=True, slots=True)
class _File:
    """A file, and the names that the table's columns have in it."""

    parquet: pq.ParquetFile
    expected: pa.Schema  # of the table
    stored: Mapping[str, str]  # by the table's name; columns that the file lacks are missing

    @classmethod
    def of(cls, parquet: pq.ParquetFile, schema: Schema, expected: pa.Schema) -> _File:
        """Find the columns by field id; raises where PyArrow may read another value than Spark."""
        found = parquet.schema_arrow
        by_id = {_id_of(field): field for field in found}
        metadata = parquet.metadata.metadata or {}
        physical = {parquet.schema.column(i).physical_type for i in range(len(parquet.schema))}
        if (
            None in by_id
            or len(by_id) < len(found)
            or len(set(found.names)) < len(found)
            or any("." in name for name in found.names)
            or any(key.startswith(_OF_SPARK) for key in metadata)
            or "INT96" in physical
        ):
            raise _UnusualFileError
        stored: dict[str, str] = {}
        for field, wanted in zip(schema.fields, expected, strict=True):
            column = by_id.get(field.field_id)
            if column is None:
                _check_absent(field)
            elif not _reads_as(column, wanted):
                raise _UnusualFileError
            else:
                stored[field.name] = column.name
        return cls(parquet, expected, stored)

    def read(self, group: int, names: Sequence[str]) -> pa.Table:
        """Columns of a row group in the table's types."""
        stored = [self.stored[name] for name in names if name in self.stored]
        size = self.parquet.metadata.row_group(group).num_rows
        rows = self.parquet.read_row_group(group, stored) if stored else None
        arrays = []
        for name in names:
            wanted = self.expected.field(name).type
            column = rows.column(self.stored[name]) if name in self.stored and rows else None
            arrays.append(pa.nulls(size, wanted) if column is None else column.cast(wanted))
        if not names:
            return pa.table({})
        return pa.table(arrays, schema=pa.schema([self.expected.field(name) for name in names]))


def _id_of(field: pa.Field) -> int | None:
    stored = (field.metadata or {}).get(_FIELD_ID)
    return None if stored is None else int(stored)


def _check_absent(field: NestedField) -> None:
    """A column that was added later reads NULL."""
    if field.required or field.initial_default is not None:
        raise _UnusualFileError


def _reads_as(stored: pa.Field, wanted: pa.Field) -> bool:
    """Whether a cast of what PyArrow reads gives the values that Spark reads."""
    kind, target = stored.type, wanted.type
    if pa.types.is_nested(target):
        return _same_nested(stored, wanted)
    match kind, target:
        case _ if kind == target or _same_bytes(kind, target):
            return True
        case _ if pa.types.is_int64(target):
            return bool(pa.types.is_int32(kind))
        case _ if pa.types.is_float64(target):
            return bool(pa.types.is_float32(kind))
        case _ if pa.types.is_decimal128(target) and pa.types.is_decimal128(kind):
            return bool(kind.scale == target.scale and kind.precision <= target.precision)
        case _:
            return False


def _same_bytes(kind: pa.DataType, target: pa.DataType) -> bool:
    """Strings, or bytes, with offsets of 32 or 64 bits."""
    text = pa.types.is_string, pa.types.is_large_string
    data = pa.types.is_binary, pa.types.is_large_binary
    return any(
        any(test(kind) for test in tests) and any(test(target) for test in tests)
        for tests in (text, data)
    )


def _same_nested(stored: pa.Field, wanted: pa.Field) -> bool:
    """Whether a nested column has exactly the fields of the table, by id and name."""
    kind, target = stored.type, wanted.type
    if _id_of(stored) != _id_of(wanted):
        return False
    if not pa.types.is_nested(target):
        return bool(kind == target) or _same_bytes(kind, target)
    if _nesting(kind) != _nesting(target) or kind.num_fields != target.num_fields:
        return False
    children = [(kind.field(i), target.field(i)) for i in range(target.num_fields)]
    if pa.types.is_map(target):
        children = [(kind.key_field, target.key_field), (kind.item_field, target.item_field)]
    named = pa.types.is_struct(target)
    return all(
        _same_nested(one, other) and (not named or one.name == other.name)
        for one, other in children
    )


def _nesting(kind: pa.DataType) -> str:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "list"
    if pa.types.is_struct(kind):
        return "struct"
    return "map" if pa.types.is_map(kind) else "other"
