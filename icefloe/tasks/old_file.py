"""A data file to rewrite: read in the table's schema by field id, its edits applied by position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icefloe.parquet.footer import (
    LOCAL_PIECE,
    REMOTE_PIECE,
    DamagedFileError,
    EncryptedFileError,
    ParquetBytes,
    check_rows,
    group_rows,
    open_parquet,
)
from icefloe.tasks.arrow import fitted
from icefloe.tasks.messages import Positions

_BATCH_ROWS = 65_536
_FIELD_ID = b"PARQUET:field_id"
_OLD_CALENDAR = b"org.apache.spark.legacyDateTime"
_LARGE_LIST = pa.large_list(pa.null()).id
_SENSELESS = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    pa.ArrowNotImplementedError,
    pa.ArrowCapacityError,
)
_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


@dataclass(frozen=True)
class OldFile:
    """An open data file, its footer read, and the schema that its rows are read in."""

    path: str
    bytes: ParquetBytes
    parquet: pq.ParquetFile
    file_schema: pa.Schema
    schema: pa.Schema  # the table's
    names: Mapping[str, str]  # names of the schema's columns that the file has -> names in the file
    groups: Sequence[tuple[int, int]]  # position of each row group's first row, and its rows

    @staticmethod
    def open(
        path: str, source: pa.NativeFile, schema: pa.Schema, rows: int, *, is_local: bool = False
    ) -> OldFile:
        """Read and check the footer; raises DamagedFileError, EncryptedFileError or OSError.

        `rows` is the row count in the table's metadata: a file with fewer rows lost some.
        """
        piece = LOCAL_PIECE if is_local else REMOTE_PIECE
        with reading(path):
            size = source.size()
            file = open_parquet(path, size, lambda at, length: source.read_at(length, at), piece)
            parquet = pq.ParquetFile(source, page_checksum_verification=True)
            file_schema = parquet.schema_arrow
            by_id = {field_id(f): f.name for f in file_schema}
        names = {f.name: by_id[field_id(f)] for f in schema if field_id(f) in by_id}
        counts = [group_rows(group) for group in file.groups]
        check_rows(path, sum(counts), rows)
        groups = tuple(zip(accumulate(counts, initial=0), counts, strict=False))
        return OldFile(path, file, parquet, file_schema, schema, names, groups)

    @property
    def rows(self) -> int:
        """Rows of the file, deleted ones included."""
        return sum(rows for _, rows in self.groups)

    def batches(self) -> Iterator[tuple[int, pa.Table]]:
        """The rows in the table's schema, with the position each batch starts at."""
        return self._batches(self.schema, range(len(self.groups)), 0)

    def group(self, number: int, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Some of the table's columns of one row group, with the position each batch starts at."""
        start, rows = self.groups[number]
        schema = pa.schema([self.schema.field(name) for name in columns])
        if any(name in self.names for name in columns):
            return self._batches(schema, [number], start)
        return iter([(start, pa.table([pa.nulls(rows, f.type) for f in schema], schema=schema))])

    def _batches(
        self, schema: pa.Schema, groups: Sequence[int], start: int
    ) -> Iterator[tuple[int, pa.Table]]:
        names = [self.names[f.name] for f in schema if f.name in self.names]
        end = start + sum(self.groups[number][1] for number in groups)
        with reading(self.path):
            batches = self.parquet.iter_batches(_BATCH_ROWS, row_groups=list(groups), columns=names)
        while True:
            with reading(self.path):
                batch = next(batches, None)
                if batch is None:
                    break
                rows = _in_schema(pa.Table.from_batches([batch]), schema, self.names)
            yield start, rows
            start += batch.num_rows
        if start != end:
            raise DamagedFileError(self.path, f"its pages end at row {start}, not at row {end}")

    def cannot_carry(self) -> str | None:
        """Why the file's columns cannot be carried over as PyArrow reads them; None if they can."""
        by_id = {field_id(f): f for f in self.file_schema}
        if None in by_id:
            return "the file has columns without field ids"
        if not any(field_id(f) in by_id for f in self.schema):
            return "the file has none of the table's columns"
        if self._has_int96():
            return "the file has timestamps of 96 bits, which PyArrow does not read in full"
        if _OLD_CALENDAR in (self.parquet.metadata.metadata or {}):
            return "the file may have old dates in a calendar that only Spark knows"
        for target in self.schema:
            field = by_id.get(field_id(target))
            if field is None and not target.nullable:
                return f"the file lacks the required column {target.name!r}"
            if field is not None and pa.types.is_nested(target.type) and not _same(field, target):
                return f"the nested column {target.name!r} of the file differs from the table's"
        return None

    def _has_int96(self) -> bool:
        """Whether a column has INT96 leaves: PyArrow wraps those that nanoseconds cannot hold."""
        leaves = [self.parquet.schema.column(leaf) for leaf in range(len(self.parquet.schema))]
        int96 = [leaf.path for leaf in leaves if leaf.physical_type == "INT96"]
        return any(
            path == name or path.startswith(f"{name}.")
            for path in int96
            for name in self.names.values()
        )


def why_spark_differs(parquet: pq.ParquetFile) -> str | None:
    """Why PyArrow may read other values of a file than Spark; None if it reads the same."""
    leaves = range(len(parquet.schema))
    if any(parquet.schema.column(leaf).physical_type == "INT96" for leaf in leaves):
        return "the file has timestamps of 96 bits, which PyArrow does not read in full"
    if _OLD_CALENDAR in (parquet.metadata.metadata or {}):
        return "the file may have old dates in a calendar that only Spark knows"
    return None


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Name the path in errors of a file that cannot be read, or whose content makes no sense."""
    try:
        yield
    except (DamagedFileError, EncryptedFileError):
        raise
    except (OSError, *_SENSELESS) as error:
        raise OSError(f"{path}: {error}") from error


def field_id(field: pa.Field) -> str | None:
    """A field's id, as PyArrow represents it."""
    encoded = (field.metadata or {}).get(_FIELD_ID)
    return encoded.decode() if encoded else None


def _same(field: pa.Field, target: pa.Field) -> bool:
    """Whether two nested fields have the same ids, names and types at every level.

    Offsets of 32 or 64 bits are a matter of memory: the file is the same.
    """
    if field_id(field) != field_id(target) or _large(field.type) != _large(target.type):
        return False
    if not pa.types.is_nested(target.type):
        return True
    if field.type.num_fields != target.type.num_fields:
        return False
    pairs = [(field.type.field(i), target.type.field(i)) for i in range(target.type.num_fields)]
    return all(
        _same(a, b)
        and (b.nullable or not a.nullable)
        and (a.name == b.name or not pa.types.is_struct(target.type))
        for a, b in pairs
    )


def _large(kind: pa.DataType) -> pa.DataType | int:
    """A type with 64-bit offsets; the id of a nested type."""
    if pa.types.is_nested(kind):
        return _LARGE_LIST if pa.types.is_list(kind) else kind.id
    return _LARGE.get(kind, kind)


def _in_schema(rows: pa.Table, schema: pa.Schema, names: Mapping[str, str]) -> pa.Table:
    columns = []
    for field in schema:
        if field.name not in names:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
            continue
        column = rows.column(names[field.name])
        columns.append(column if column.type == field.type else pc.cast(column, field.type))
    return pa.table(columns, schema=schema)


# -------------------------------------------------------------------------------------------------
# Edits, applied to rows as they are read.


@dataclass(frozen=True)
class Edits:
    """Rows of a file that get new values, that are deleted, and that were deleted before."""

    positions: Positions
    deletes: npt.NDArray[np.bool_]  # whether the edit deletes its row
    values: pa.Table
    assigned: Mapping[str, str]  # table column -> column of the values
    deleted: Positions  # rows that position deletes remove

    def rows_left(self, start: int, rows: int) -> int:
        """How many of `rows` rows from position `start` remain."""
        low, high = np.searchsorted(self.positions, [start, start + rows])
        first, last = np.searchsorted(self.deleted, [start, start + rows])
        return rows - int(self.deletes[low:high].sum()) - int(last - first)

    def has_updates(self, start: int, rows: int) -> bool:
        """Whether some of `rows` rows from position `start` get new values."""
        low, high = np.searchsorted(self.positions, [start, start + rows])
        return not bool(self.deletes[low:high].all())

    def apply(self, table: pa.Table, start: int) -> pa.Table:
        """The rows of `table`, which starts at position `start`, with the edits applied."""
        low, high = np.searchsorted(self.positions, [start, start + table.num_rows])
        local, deletes = self.positions[low:high] - start, self.deletes[low:high]
        keep = np.ones(table.num_rows, dtype=bool)
        first, last = np.searchsorted(self.deleted, [start, start + table.num_rows])
        keep[self.deleted[first:last] - start] = False
        keep[local[deletes]] = False
        if not deletes.all():
            new = self.values.slice(low, high - low)
            table = self._replace_values(table, local, ~deletes, new)
        return table if keep.all() else table.filter(pa.array(keep))

    def _replace_values(
        self, table: pa.Table, rows: Positions, updates: npt.NDArray[np.bool_], changes: pa.Table
    ) -> pa.Table:
        """Give the updated rows new values: by indices into the old column followed by the new."""
        indices = np.arange(table.num_rows)
        indices[rows[updates]] = table.num_rows + np.flatnonzero(updates)
        for name, change in self.assigned.items():
            index = table.schema.get_field_index(name)
            if index < 0:
                continue
            target = table.schema.field(index)
            new = fitted(changes.column(change), target.type)
            both = pa.chunked_array([*table.column(index).chunks, *new.chunks], type=target.type)
            table = table.set_column(index, target, both.combine_chunks().take(pa.array(indices)))
        return table
