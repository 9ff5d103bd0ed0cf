"""Change some rows of a Parquet file and copy the rest of it as bytes.

A row group without a change is copied. Where rows only get new values, the chunks of those columns
are encoded again; where rows go, the row group is. A column whose chunks cannot stay (its type was
promoted, or the file lacks it) is encoded in every row group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from icefloe.parquet.encode import Options, encode, options_like
from icefloe.parquet.fields import File, Group, KeyValue, Sorting
from icefloe.parquet.footer import ParquetBytes, chunk_range, group_rows
from icefloe.parquet.schema import Column, columns_of, same_shape, schema_of
from icefloe.parquet.splice import ChunkFrom, GroupFrom, Sink, Splicer
from icefloe.parquet.thrift import Items, Kind, Struct, changed, items, value

# Copies of the schema that other readers trust; wrong once a column is another one.
_SCHEMA_KEYS = {
    b"ARROW:schema",
    b"pandas",
    b"iceberg.schema",
    b"parquet.avro.schema",
    b"avro.schema",
    b"org.apache.spark.sql.parquet.row.metadata",
}
_GEO = b"geo"  # what GeoParquet tells of columns with shapes, their bounds too
_TYPE_ORDER = 1  # of the ways to order bounds
_ARROW_SCHEMA = b"ARROW:schema"
# Before 1.2.9, chunks with a dictionary are longer than they say.
_SHORT_CHUNKS = re.compile(rb"parquet-mr(?:$| version (?:0\.|1\.[01]\b|1\.2\.[0-8]\b))")

# The rows of a row group as they are to be: its number, names of columns -> these columns.
NewRows = Callable[[int, Sequence[str]], pa.Table]


@dataclass(frozen=True, slots=True)
class GroupChange:
    """What happens to a row group: how many rows it has then, which columns get new values."""

    rows: int
    updated: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column of the new file, and the old file's column whose chunks it takes, if it can."""

    column: Column
    source: Column | None

    @property
    def name(self) -> str:
        """Its name in the new file."""
        return self.column.name


@dataclass(frozen=True, slots=True)
class SplicedFile:
    """A file that was put together."""

    footer: Struct
    size: int
    bytes_copied: int
    groups_copied: int  # row groups that are the old file's, all columns of them


@dataclass(frozen=True, slots=True)
class PartialRewrite:
    """One file, and the schema that it gets; `options` are those of PyArrow's writer."""

    file: ParquetBytes
    schema: pa.Schema
    columns: tuple[PlannedColumn, ...]
    template: ParquetBytes
    options: Options

    @staticmethod
    def plan(
        file: ParquetBytes, schema: pa.Schema, names: Mapping[str, str], options: Options
    ) -> PartialRewrite:
        """Decide which columns can be copied; `names` tells what the file calls a column."""
        template = encode(schema.empty_table(), options)
        have = {column.name: column for column in columns_of(file.footer)}
        planned = []
        for wanted in columns_of(template.footer):
            source = have[names[wanted.name]] if wanted.name in names else None
            if source is not None and same_shape(source, wanted) and _ordered(file, source):
                planned.append(PlannedColumn(source.named(wanted.name), source))
            else:
                planned.append(PlannedColumn(wanted, None))
        return PartialRewrite(file, schema, tuple(planned), template, options)

    def bytes_to_copy(self, changes: Sequence[GroupChange]) -> int:
        """How many bytes of chunks would be copied."""
        return sum(
            chunk_range(items(group, Group.COLUMNS)[leaf])[1]
            for group, change in zip(self.file.groups, changes, strict=True)
            for planned in (self._kept(group, change) if change.rows else ())
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
        taken = splicer.taken.get(self.file.path, 0)
        return SplicedFile(footer, splicer.size, taken, self._groups_kept(changes))

    def copied_columns(self, changes: Sequence[GroupChange]) -> list[frozenset[str]]:
        """The columns whose chunks are copied, for each row group."""
        return [
            frozenset(planned.name for planned in self._kept(group, change))
            for group, change in zip(self.file.groups, changes, strict=True)
        ]

    def _groups_kept(self, changes: Sequence[GroupChange]) -> int:
        kept = zip(changes, self.copied_columns(changes), strict=True)
        return sum(change.rows > 0 and len(names) == len(self.columns) for change, names in kept)

    def _kept(self, group: Struct, change: GroupChange) -> list[PlannedColumn]:
        if change.rows != group_rows(group):
            return []
        return [p for p in self.columns if p.source is not None and p.name not in change.updated]

    def _group(
        self, number: int, group: Struct, change: GroupChange, new_rows: NewRows
    ) -> GroupFrom:
        kept = {planned.name for planned in self._kept(group, change)}
        fresh = [planned for planned in self.columns if planned.name not in kept]
        encoded, places = None, {}
        if fresh:
            encoded = self._encoded(number, change.rows, fresh, new_rows)
            places = {column.name: column for column in columns_of(encoded.footer)}
        chunks = []
        for planned in self.columns:
            if planned.name in kept and planned.source is not None:
                chunks += [ChunkFrom(self.file, number, leaf) for leaf in planned.source.leaves]
            elif encoded is not None:
                leaves = places[planned.name].leaves
                chunks += [ChunkFrom(encoded, 0, leaf) for leaf in leaves]
        return GroupFrom(change.rows, chunks, group, self._sorting(group, change))

    def _encoded(
        self, number: int, rows: int, fresh: Sequence[PlannedColumn], new_rows: NewRows
    ) -> ParquetBytes:
        names = [planned.name for planned in fresh]
        schema = pa.schema([self.schema.field(name) for name in names])
        like = options_like(self.file, [(p.column, p.source) for p in fresh], self.options)
        encoded = encode(new_rows(number, names).cast(schema), like)
        if [group_rows(group) for group in encoded.groups] != [rows]:
            raise ValueError(f"row group {number} of {self.file.path} did not get {rows} rows")
        return encoded

    def _sorting(self, group: Struct, change: GroupChange) -> list[Struct]:
        """The columns a row group stays sorted by: up to the first that got new values."""
        places: dict[int, int] = {}
        at = 0
        for planned in self.columns:
            if planned.source is not None and planned.name not in change.updated:
                leaves = planned.source.leaves
                places.update(zip(leaves, range(at, at + len(leaves)), strict=True))
            at += len(planned.column.paths)
        kept: list[Struct] = []
        for sorting in items(group, Group.SORTING):
            place = places.get(value(sorting, Sorting.LEAF))
            if place is None:
                break
            kept.append(changed(sorting, {Sorting.LEAF: (Kind.I32, place)}))
        return kept

    def _footer(self, changes: Sequence[GroupChange]) -> Struct:
        """The old footer with the new columns; row groups come later."""
        old = self.file.footer
        schema = schema_of(items(old, File.SCHEMA)[0], [planned.column for planned in self.columns])
        updated = frozenset(name for change in changes for name in change.updated)
        facts = self._key_values(updated)
        return changed(
            old,
            {
                File.SCHEMA: (Kind.LIST, schema),
                File.KEY_VALUES: (Kind.LIST, Items(Kind.STRUCT, facts)) if facts else None,
                File.ORDERS: self._orders(),
            },
        )

    def _orders(self) -> tuple[Kind, Items] | None:
        """How each leaf's bounds are ordered, where the old file tells."""
        old = items(self.file.footer, File.ORDERS)
        new = iter(items(self.template.footer, File.ORDERS))
        if not old:
            return None
        orders = []
        for planned in self.columns:
            own = [next(new) for _ in planned.column.paths]
            orders += [old[leaf] for leaf in planned.source.leaves] if planned.source else own
        return Kind.LIST, Items(Kind.STRUCT, orders)

    def _key_values(self, updated: Collection[str]) -> list[Struct]:
        """The old file's key-value metadata, without what is no longer right.

        Copies of the schema are kept if that is the same, and what is told of shapes if besides no
        column that may hold some got new values.
        """
        old = items(self.file.footer, File.KEY_VALUES)
        if any(_may_hold_shapes(self.schema.field(name).type) for name in updated):
            old = [entry for entry in old if value(entry, KeyValue.KEY) != _GEO]
        before = [column.elements for column in columns_of(self.file.footer)]
        if before == [planned.column.elements for planned in self.columns]:
            return list(old)
        had_arrow = any(value(entry, KeyValue.KEY) == _ARROW_SCHEMA for entry in old)
        wrong = {*_SCHEMA_KEYS, _GEO}
        kept = [entry for entry in old if value(entry, KeyValue.KEY) not in wrong]
        fresh = [
            entry
            for entry in items(self.template.footer, File.KEY_VALUES)
            if had_arrow and value(entry, KeyValue.KEY) == _ARROW_SCHEMA
        ]
        return kept + fresh


def _may_hold_shapes(kind: pa.DataType) -> bool:
    """Whether GeoParquet's shapes come in columns of this type."""
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(binary or pa.types.is_nested(kind))


def _ordered(file: ParquetBytes, column: Column) -> bool:
    """Whether a column's bounds are ordered by its type, as ours are, or its file does not tell."""
    orders = items(file.footer, File.ORDERS)
    return not orders or all(_TYPE_ORDER in orders[leaf] for leaf in column.leaves)


def cannot_copy(file: ParquetBytes) -> str | None:
    """Why chunks of a file cannot be taken as bytes; None when they can."""
    writer = value(file.footer, File.CREATED_BY, b"")
    if _SHORT_CHUNKS.match(writer):
        return f"{writer.decode()} wrote wrong lengths of column chunks"
    return None
