"""The changes of one file, by position: applied to its rows as they are read."""

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
    FAR,
    NEAR,
    DamagedFileError,
    EncryptedFileError,
    ParquetBytes,
    check_rows,
    group_rows,
    open_parquet,
)
from icefloe.tasks.arrow import fitted
from icefloe.tasks.messages import Positions


@dataclass(frozen=True)
class Edits:
    """Rows that get new values, rows that go, and rows that are gone already."""

    positions: Positions
    goes: npt.NDArray[np.bool_]  # which of them delete their row
    values: pa.Table
    assigned: Mapping[str, str]  # table column -> column of the values
    gone: Positions

    def rows_left(self, start: int, rows: int) -> int:
        """How many of `rows` rows from position `start` stay."""
        low, high = np.searchsorted(self.positions, [start, start + rows])
        first, last = np.searchsorted(self.gone, [start, start + rows])
        return rows - int(self.goes[low:high].sum()) - int(last - first)

    def has_updates(self, start: int, rows: int) -> bool:
        """Whether some of `rows` rows from position `start` get new values."""
        low, high = np.searchsorted(self.positions, [start, start + rows])
        return not bool(self.goes[low:high].all())

    def apply(self, table: pa.Table, start: int) -> pa.Table:
        """The rows of `table`, from position `start`, as they are to be."""
        low, high = np.searchsorted(self.positions, [start, start + table.num_rows])
        local, goes = self.positions[low:high] - start, self.goes[low:high]
        keep = np.ones(table.num_rows, dtype=bool)
        first, last = np.searchsorted(self.gone, [start, start + table.num_rows])
        keep[self.gone[first:last] - start] = False
        keep[local[goes]] = False
        if not goes.all():
            new = self.values.slice(low, high - low)
            table = self._replace_values(table, local, ~goes, new)
        return table if keep.all() else table.filter(pa.array(keep))

    def _replace_values(
        self, table: pa.Table, rows: Positions, chosen: npt.NDArray[np.bool_], changes: pa.Table
    ) -> pa.Table:
        """Give the chosen rows new values: taken from the old column and the new, end to end."""
        indices = np.arange(table.num_rows)
        indices[rows[chosen]] = table.num_rows + np.flatnonzero(chosen)
        for name, change in self.assigned.items():
            index = table.schema.get_field_index(name)
            if index < 0:
                continue
            wanted = table.schema.field(index)
            new = fitted(changes.column(change), wanted.type)
            both = pa.chunked_array([*table.column(index).chunks, *new.chunks], type=wanted.type)
            table = table.set_column(index, wanted, both.combine_chunks().take(pa.array(indices)))
        return table


# -------------------------------------------------------------------------------------------------
# A data file that is to be rewritten, read in the table's schema by field id.

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
    """An open data file, its footer read, and the schema its rows are wanted in."""

    path: str
    bytes: ParquetBytes
    parquet: pq.ParquetFile
    found: pa.Schema  # as the file has it
    wanted: pa.Schema
    names: Mapping[str, str]  # what the file calls the wanted columns it has
    groups: Sequence[tuple[int, int]]  # where each row group's rows begin, and how many they are

    @staticmethod
    def open(
        path: str, source: pa.NativeFile, wanted: pa.Schema, rows: int, *, near: bool = False
    ) -> OldFile:
        """Read and check the footer; raises what tells of damaged and encrypted files.

        `rows` is how many the table says that there are: with fewer, some would be lost.
        """
        piece = NEAR if near else FAR
        with reading(path):
            size = source.size()
            file = open_parquet(path, size, lambda at, length: source.read_at(length, at), piece)
            parquet = pq.ParquetFile(source, page_checksum_verification=True)
            found = parquet.schema_arrow
            by_id = {field_id(f): f.name for f in found}
        names = {f.name: by_id[field_id(f)] for f in wanted if field_id(f) in by_id}
        told = [group_rows(group) for group in file.groups]
        check_rows(path, sum(told), rows)
        groups = tuple(zip(accumulate(told, initial=0), told, strict=False))
        return OldFile(path, file, parquet, found, wanted, names, groups)

    @property
    def rows(self) -> int:
        """Rows of the file, deleted ones included."""
        return sum(rows for _, rows in self.groups)

    def batches(self) -> Iterator[tuple[int, pa.Table]]:
        """The rows in the wanted schema, with the position each batch starts at."""
        return self._batches(self.wanted, range(len(self.groups)), 0)

    def group(self, number: int, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Some wanted columns of one row group, with the position each batch starts at."""
        start, rows = self.groups[number]
        wanted = pa.schema([self.wanted.field(name) for name in columns])
        if any(name in self.names for name in columns):
            return self._batches(wanted, [number], start)
        return iter([(start, pa.table([pa.nulls(rows, f.type) for f in wanted], schema=wanted))])

    def _batches(
        self, wanted: pa.Schema, groups: Sequence[int], start: int
    ) -> Iterator[tuple[int, pa.Table]]:
        names = [self.names[f.name] for f in wanted if f.name in self.names]
        end = start + sum(self.groups[number][1] for number in groups)
        with reading(self.path):
            batches = self.parquet.iter_batches(_BATCH_ROWS, row_groups=list(groups), columns=names)
        while True:
            with reading(self.path):
                batch = next(batches, None)
                if batch is None:
                    break
                rows = _as_wanted(pa.Table.from_batches([batch]), wanted, self.names)
            yield start, rows
            start += batch.num_rows
        if start != end:
            raise DamagedFileError(self.path, f"its pages end at row {start}, not at row {end}")

    def cannot_carry(self) -> str | None:
        """Why the file's columns cannot be taken over as they are; None when they can."""
        by_id = {field_id(f): f for f in self.found}
        if None in by_id:
            return "the file has columns without field ids"
        if not any(field_id(wanted) in by_id for wanted in self.wanted):
            return "the file has none of the table's columns"
        if self._has_int96():
            return "the file has timestamps of 96 bits, which PyArrow does not read in full"
        if _OLD_CALENDAR in (self.parquet.metadata.metadata or {}):
            return "the file may have old dates in a calendar that only Spark knows"
        for wanted in self.wanted:
            have = by_id.get(field_id(wanted))
            if have is None and not wanted.nullable:
                return f"the file lacks the required column {wanted.name!r}"
            if have is not None and pa.types.is_nested(wanted.type) and not _same(have, wanted):
                return f"the file does not hold the nested column {wanted.name!r} as the table does"
        return None

    def _has_int96(self) -> bool:
        """Whether a wanted column has leaves of the type; PyArrow wraps what nanoseconds lack."""
        leaves = [self.parquet.schema.column(leaf) for leaf in range(len(self.parquet.schema))]
        old = [leaf.path for leaf in leaves if leaf.physical_type == "INT96"]
        return any(
            path == name or path.startswith(f"{name}.")
            for path in old
            for name in self.names.values()
        )


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Tell the path when a file cannot be read, or what is read makes no sense."""
    try:
        yield
    except (DamagedFileError, EncryptedFileError):
        raise
    except (OSError, *_SENSELESS) as error:
        raise OSError(f"{path}: {error}") from error


def field_id(wanted: pa.Field) -> str | None:
    """A field's id, as PyArrow keeps it."""
    found = (wanted.metadata or {}).get(_FIELD_ID)
    return found.decode() if found else None


def _same(have: pa.Field, wanted: pa.Field) -> bool:
    """Whether two nested fields have the same ids, names and types at every level.

    Offsets of 32 or 64 bits are how PyArrow holds values, not how files do.
    """
    if field_id(have) != field_id(wanted) or _large(have.type) != _large(wanted.type):
        return False
    if not pa.types.is_nested(wanted.type):
        return True
    if have.type.num_fields != wanted.type.num_fields:
        return False
    pairs = [(have.type.field(i), wanted.type.field(i)) for i in range(wanted.type.num_fields)]
    return all(
        _same(a, b)
        and (b.nullable or not a.nullable)
        and (a.name == b.name or not pa.types.is_struct(wanted.type))
        for a, b in pairs
    )


def _large(kind: pa.DataType) -> pa.DataType | int:
    """A type with offsets of 64 bits; of nested ones, which kind it is."""
    if pa.types.is_nested(kind):
        return _LARGE_LIST if pa.types.is_list(kind) else kind.id
    return _LARGE.get(kind, kind)


def _as_wanted(rows: pa.Table, wanted: pa.Schema, names: Mapping[str, str]) -> pa.Table:
    columns = []
    for field in wanted:
        if field.name not in names:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
            continue
        column = rows.column(names[field.name])
        columns.append(column if column.type == field.type else pc.cast(column, field.type))
    return pa.table(columns, schema=wanted)
