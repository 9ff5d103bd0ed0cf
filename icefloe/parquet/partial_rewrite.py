"""Change some rows of a Parquet file and copy the rest of it as bytes.

A row group without changes is copied. If its rows only get new values, the chunks of those columns
are encoded again; if it loses rows, all its chunks are. A column whose chunks cannot be copied (its
type was promoted, or the file lacks it) is encoded in every row group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from icefloe.parquet.encode import Options, encode, options_like
from icefloe.parquet.fields import File, Group, KeyValue, Sorting
from icefloe.parquet.footer import ParquetBytes, chunk_range, group_rows
from icefloe.parquet.schema import SchemaColumn, columns_of, same_shape, schema_of
from icefloe.parquet.splice import ChunkFrom, GroupFrom, Sink, Splicer
from icefloe.parquet.thrift import Items, Struct, ThriftType, changed, items, value

# Copies of the schema that readers trust; wrong once the schema changes.
_SCHEMA_KEYS = {
    b"ARROW:schema",
    b"pandas",
    b"iceberg.schema",
    b"parquet.avro.schema",
    b"avro.schema",
    b"org.apache.spark.sql.parquet.row.metadata",
}
_GEO = b"geo"  # GeoParquet's metadata of geometry columns, with their bounds
_TYPE_ORDER = 1  # the column order that follows the type
_ARROW_SCHEMA = b"ARROW:schema"
# Before 1.2.9, chunks with a dictionary are longer than their metadata says.
_SHORT_CHUNKS = re.compile(rb"parquet-mr(?:$| version (?:0\.|1\.[01]\b|1\.2\.[0-8]\b))")

# Number of a row group, names of columns -> these columns of its rows, with the changes applied.
NewRows = Callable[[int, Sequence[str]], pa.Table]


@dataclass(frozen=True, slots=True)
class GroupChange:
    """The change to a row group: the rows it has afterwards, the columns that get new values."""

    rows: int
    updated: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column of the new file, and the old file's column whose chunks it can copy, if any."""

    column: SchemaColumn
    source: SchemaColumn | None

    @property
    def name(self) -> str:
        """Its name in the new file."""
        return self.column.name


@dataclass(frozen=True, slots=True)
class SplicedFile:
    """A file that was assembled."""

    footer: Struct
    size: int
    bytes_copied: int
    groups_copied: int  # row groups of which every chunk was copied


@dataclass(frozen=True, slots=True)
class PartialRewrite:
    """A file, and the schema of the file that replaces it; `options` are for PyArrow's writer."""

    file: ParquetBytes
    schema: pa.Schema
    columns: tuple[PlannedColumn, ...]
    template: ParquetBytes
    options: Options

    @staticmethod
    def plan(
        file: ParquetBytes, schema: pa.Schema, names: Mapping[str, str], options: Options
    ) -> PartialRewrite:
        """Decide which columns can be copied; `names` maps column names to those in the file."""
        template = encode(schema.empty_table(), options)
        by_name = {column.name: column for column in columns_of(file.footer)}
        planned = []
        for column in columns_of(template.footer):
            source = by_name[names[column.name]] if column.name in names else None
            if source is not None and same_shape(source, column) and _ordered(file, source):
                planned.append(PlannedColumn(source.named(column.name), source))
            else:
                planned.append(PlannedColumn(column, None))
        return PartialRewrite(file, schema, tuple(planned), template, options)

    def bytes_to_copy(self, changes: Sequence[GroupChange]) -> int:
        """How many bytes of chunks a run copies."""
        return sum(
            chunk_range(items(group, Group.COLUMNS)[leaf])[1]
            for group, change in zip(self.file.groups, changes, strict=True)
            for planned in (self._to_copy(group, change) if change.rows else ())
            if planned.source is not None
            for leaf in planned.source.leaves
        )

    def run(self, sink: Sink, changes: Sequence[GroupChange], new_rows: NewRows) -> SplicedFile:
        """Write the new file; row groups that lose all rows are left out."""
        paths = [path for planned in self.columns for path in planned.column.paths]
        splicer = Splicer(sink, paths)
        for number, (group, change) in enumerate(zip(self.file.groups, changes, strict=True)):
            if change.rows:
                splicer.add(self._group(number, group, change, new_rows))
        footer = splicer.finish(self._footer(changes))
        copied = splicer.copied.get(self.file.path, 0)
        return SplicedFile(footer, splicer.size, copied, self._groups_copied(changes))

    def copied_columns(self, changes: Sequence[GroupChange]) -> list[frozenset[str]]:
        """The columns whose chunks are copied, for each row group."""
        return [
            frozenset(planned.name for planned in self._to_copy(group, change))
            for group, change in zip(self.file.groups, changes, strict=True)
        ]

    def _groups_copied(self, changes: Sequence[GroupChange]) -> int:
        copied = zip(changes, self.copied_columns(changes), strict=True)
        return sum(change.rows > 0 and len(names) == len(self.columns) for change, names in copied)

    def _to_copy(self, group: Struct, change: GroupChange) -> list[PlannedColumn]:
        if change.rows != group_rows(group):
            return []
        return [p for p in self.columns if p.source is not None and p.name not in change.updated]

    def _group(
        self, number: int, group: Struct, change: GroupChange, new_rows: NewRows
    ) -> GroupFrom:
        to_copy = {planned.name for planned in self._to_copy(group, change)}
        to_encode = [planned for planned in self.columns if planned.name not in to_copy]
        encoded, by_name = None, {}
        if to_encode:
            encoded = self._encoded(number, change.rows, to_encode, new_rows)
            by_name = {column.name: column for column in columns_of(encoded.footer)}
        chunks = []
        for planned in self.columns:
            if planned.name in to_copy and planned.source is not None:
                chunks += [ChunkFrom(self.file, number, leaf) for leaf in planned.source.leaves]
            elif encoded is not None:
                leaves = by_name[planned.name].leaves
                chunks += [ChunkFrom(encoded, 0, leaf) for leaf in leaves]
        return GroupFrom(change.rows, chunks, group, self._sorting(group, change))

    def _encoded(
        self, number: int, rows: int, to_encode: Sequence[PlannedColumn], new_rows: NewRows
    ) -> ParquetBytes:
        names = [planned.name for planned in to_encode]
        schema = pa.schema([self.schema.field(name) for name in names])
        sources = [(planned.column, planned.source) for planned in to_encode]
        options = options_like(self.file, sources, self.options)
        encoded = encode(new_rows(number, names).cast(schema), options)
        if [group_rows(group) for group in encoded.groups] != [rows]:
            raise ValueError(f"row group {number} of {self.file.path} did not get {rows} rows")
        return encoded

    def _sorting(self, group: Struct, change: GroupChange) -> list[Struct]:
        """The columns that a row group stays sorted by: up to the first that gets new values."""
        new_leaves: dict[int, int] = {}  # by the leaf's number in the old file
        at = 0
        for planned in self.columns:
            if planned.source is not None and planned.name not in change.updated:
                leaves = planned.source.leaves
                new_leaves.update(zip(leaves, range(at, at + len(leaves)), strict=True))
            at += len(planned.column.paths)
        sorted_by: list[Struct] = []
        for sorting in items(group, Group.SORTING):
            leaf = new_leaves.get(value(sorting, Sorting.LEAF))
            if leaf is None:
                break
            sorted_by.append(changed(sorting, {Sorting.LEAF: (ThriftType.I32, leaf)}))
        return sorted_by

    def _footer(self, changes: Sequence[GroupChange]) -> Struct:
        """The old footer with the new columns; the splicer adds the row groups."""
        old = self.file.footer
        schema = schema_of(items(old, File.SCHEMA)[0], [planned.column for planned in self.columns])
        updated = frozenset(name for change in changes for name in change.updated)
        entries = self._key_values(updated)
        return changed(
            old,
            {
                File.SCHEMA: (ThriftType.LIST, schema),
                File.KEY_VALUES: (ThriftType.LIST, Items(ThriftType.STRUCT, entries))
                if entries
                else None,
                File.ORDERS: self._orders(),
            },
        )

    def _orders(self) -> tuple[ThriftType, Items] | None:
        """How each leaf's bounds are ordered, if the old file says so."""
        old = items(self.file.footer, File.ORDERS)
        new = iter(items(self.template.footer, File.ORDERS))
        if not old:
            return None
        orders = []
        for planned in self.columns:
            own = [next(new) for _ in planned.column.paths]
            orders += [old[leaf] for leaf in planned.source.leaves] if planned.source else own
        return ThriftType.LIST, Items(ThriftType.STRUCT, orders)

    def _key_values(self, updated: Collection[str]) -> list[Struct]:
        """The old file's key-value metadata, without entries that are no longer right.

        Copies of the schema stay if the schema does. GeoParquet's entry stays if also no column
        that may hold geometries gets new values.
        """
        old = items(self.file.footer, File.KEY_VALUES)
        if any(_may_hold_geometries(self.schema.field(name).type) for name in updated):
            old = [entry for entry in old if value(entry, KeyValue.KEY) != _GEO]
        before = [column.elements for column in columns_of(self.file.footer)]
        if before == [planned.column.elements for planned in self.columns]:
            return list(old)
        had_arrow = any(value(entry, KeyValue.KEY) == _ARROW_SCHEMA for entry in old)
        outdated = {*_SCHEMA_KEYS, _GEO}
        unchanged = [entry for entry in old if value(entry, KeyValue.KEY) not in outdated]
        arrow_schema = [
            entry
            for entry in items(self.template.footer, File.KEY_VALUES)
            if had_arrow and value(entry, KeyValue.KEY) == _ARROW_SCHEMA
        ]
        return unchanged + arrow_schema


def _may_hold_geometries(kind: pa.DataType) -> bool:
    """Whether GeoParquet stores geometries in columns of this type."""
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(binary or pa.types.is_nested(kind))


def _ordered(file: ParquetBytes, column: SchemaColumn) -> bool:
    """Whether a column's bounds follow the order of its type, or the file does not say."""
    orders = items(file.footer, File.ORDERS)
    return not orders or all(_TYPE_ORDER in orders[leaf] for leaf in column.leaves)


def cannot_copy(file: ParquetBytes) -> str | None:
    """Why chunks of a file cannot be copied as bytes; None if they can."""
    writer = value(file.footer, File.CREATED_BY, b"")
    if _SHORT_CHUNKS.match(writer):
        return f"{writer.decode()} wrote wrong lengths of column chunks"
    return None
