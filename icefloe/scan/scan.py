"""Live rows of data files as a DataFrame: Spark's Parquet reader by field id, without deleted rows.

Files without deletes are read as they are. For the others a small table with one row per file
(bitmap words of deleted positions, sequence number, partition) is broadcast and joined by file
size or path; equality deletes are null-safe anti-joins limited to older files of the partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from icefloe.deletes.position_deletes import Deleted, read_position_deletes
from icefloe.deletes.row_positions import MOST_ROWS, as_words, unite
from icefloe.errors import UnsupportedTableError
from icefloe.metadata.files import LiveFile, unpartitioned_specs
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import Candidate
from icefloe.scan.columns import (
    DICTIONARY_FILTER,
    PhysicalLayout,
    by_id_alone,
    guarded,
    may_have_zeros,
    may_hide_nans,
    names_may_be_reused,
    physical_layouts,
    under_own_name,
)
from icefloe.scan.fetch import Fetch, can_fetch
from icefloe.scan.file_keys import (
    FileKeys,
    file_column,
    refuse_second_names,
    refuse_unplain,
    turns,
)
from icefloe.schema.partition_values import python_value
from icefloe.schema.to_spark import spark_schema, spark_type
from icefloe.spark import columns
from icefloe.spark.columns import quote, quoted, selected
from icefloe.spark.connectors import check_connector
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.frames import frame_of, no_rows
from icefloe.spark.session import prepare, spark_conf
from icefloe.storage.locations import spark_uri
from icefloe.storage.spark_files import connector_of, file_path, spark_files

_KEY_SEQUENCE = f"{columns.PREFIX}key_sequence"
_KEY_PARTITION = f"{columns.PREFIX}key_partition"
# Spark's metadata columns, by our names.
_POSITION = {columns.POS: "_metadata.row_index"}
_SIZE = {columns.SIZE: "_metadata.file_size"}
# How many paths the driver looks for itself, and Spark's default for it.
_LISTED, _MOST_LISTED = "spark.sql.sources.parallelPartitionDiscovery.threshold", 32
_UNKNOWN = "Spark read a file that is not part of the scan: %s (%d bytes)"
_CHANGED = "%s has %d bytes, another size than in the table metadata: it was changed in place"


@dataclass(frozen=True)
class Scan:
    """The rows of some data files, as one statement reads them."""

    spark: SparkSession
    state: TableState
    candidates: tuple[Candidate, ...]
    deleted: Mapping[str, BitMap64] = field(default_factory=dict)  # by data file location
    # The deleted positions of each position-delete file, by its location.
    delete_contents: Mapping[str, Deleted] = field(default_factory=dict)

    @classmethod
    def of(cls, spark: SparkSession, state: TableState, candidates: Sequence[Candidate]) -> Scan:
        """Read the position deletes of the files."""
        deleted, contents = read_deleted_rows(state, candidates)
        return cls(spark, state, tuple(candidates), deleted, contents)

    @cached_property
    def keys(self) -> FileKeys:
        """The keys that replace file URIs in the rows of a statement."""
        return FileKeys.of(self.candidates)

    @cached_property
    def _layouts(self) -> dict[str, PhysicalLayout]:
        """Layouts of files without field ids; footers are read if the table has a name mapping."""
        return physical_layouts(self.state, [c.path for c in self.candidates])

    def restrict_to(self, candidates: Sequence[Candidate]) -> Scan:
        """The same scan over some of its files."""
        return replace(self, candidates=tuple(candidates))

    def rows(self) -> DataFrame:
        """Live rows with the table's columns, then file and position."""
        return self._rows(None)

    def plain_rows(self) -> DataFrame:
        """Live rows with the table's columns only, which are cheaper to read."""
        return self._rows(None, with_positions=False)

    def candidate_rows(self, names: Sequence[str] | None = None) -> DataFrame:
        """Live rows that the condition of the candidates may be TRUE for, with file and position.

        Of files where an index has the positions of these rows, only they are read, with the
        columns `names` (None: all).
        """
        names = names or [field.name for field in self.state.schema.fields]
        by_position = [c for c in self.candidates if self._is_fetched(c)]
        paths = {c.path for c in by_position}
        others = [c for c in self.candidates if c.path not in paths]
        parts = []
        if by_position:
            positions = {c.path: c.answer.positions for c in by_position if c.answer}
            parts.append(self.fetch(names).at(by_position, positions))
        if others or not by_position:
            rows = self.restrict_to(others).rows()
            parts.append(rows.selectExpr(*map(quote, names), columns.FILE, columns.POS))
        return reduce(DataFrame.union, parts)

    def fetch(self, names: Sequence[str]) -> Fetch:
        """Reads rows of the files by position."""
        return Fetch(self.spark, self.state, names, self.deleted)

    def can_fetch(self, candidate: Candidate) -> bool:
        """Whether tasks can read rows of a file by position."""
        return not self.may_be_declined and can_fetch(self.state, candidate)

    @property
    def reads_by_position(self) -> bool:
        """Whether an index has the positions of rows of some files, and reading these pays."""
        return any(map(self._is_fetched, self.candidates))

    def _is_fetched(self, candidate: Candidate) -> bool:
        answer = candidate.answer
        return answer is not None and answer.reading_pays and self.can_fetch(candidate)

    def rows_at(self, positions: Mapping[str, BitMap64]) -> DataFrame:
        """Live rows at these positions of each file (by location)."""
        marked = self._rows(positions)
        return marked.filter(F.col(columns.SELECTED)).drop(columns.SELECTED)

    def rows_marked(self, positions: Mapping[str, BitMap64]) -> DataFrame:
        """Live rows, with a column that marks those at these positions."""
        return self._rows(positions)

    def _rows(
        self, only: Mapping[str, BitMap64] | None, *, with_positions: bool = True
    ) -> DataFrame:
        if not self.candidates:
            return self._no_rows(marked=only is not None, with_positions=with_positions)
        with_facts = self.candidates if only is not None else self._needing_facts
        turn_of = turns(with_facts)
        groups: dict[tuple[int | None, PhysicalLayout | None], list[Candidate]] = {}
        for candidate in self.candidates:
            key = turn_of.get(candidate.path), self._layouts.get(candidate.path)
            groups.setdefault(key, []).append(candidate)
        parts = [
            self._filtered(files, layout, only, with_positions=with_positions)
            if turn is not None
            else self._read(files, layout, [], _POSITION if with_positions else {})
            for (turn, layout), files in groups.items()
        ]
        return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)

    @property
    def _needing_facts(self) -> tuple[Candidate, ...]:
        """Files whose live rows the metadata decides, or of which it has values that they lack."""
        return tuple(
            c
            for c in self.candidates
            if c.has_deletes or c.path in self.deleted or c.lacks_identity_columns
        )

    @property
    def may_be_declined(self) -> bool:
        """Whether tasks may be unable to copy the columns of files as they are."""
        nested = any(not f.field_type.is_primitive for f in self.state.schema.fields)
        evolved = nested and len(self.state.metadata.schemas) > 1
        return evolved or bool(self._layouts)

    def live_rows(self, candidate: Candidate) -> int:
        """Rows of a file without its position deletes; equality deletes are not counted."""
        return candidate.live.rows - len(self.deleted.get(candidate.path, ()))

    def _filtered(
        self,
        files: list[Candidate],
        layout: PhysicalLayout | None,
        only: Mapping[str, BitMap64] | None,
        *,
        with_positions: bool,
    ) -> DataFrame:
        """Live rows of files that have deletes, or of which only some positions are read."""
        rows = self._read(files, layout, self._hidden_fields(files), {**_POSITION, **_SIZE})
        key = file_column(files)
        if key == columns.FILE:
            refuse_unplain(files)
        rows = _with_facts(rows, self._facts(files, only), key)
        rows = rows.filter(f"{_known_file(key)} AND NOT {_has_bit(columns.DELETED)}")
        rows = self._without_equality_deleted(rows, files)
        visible = self._visible(files)
        if with_positions:
            visible += [columns.FILE, columns.POS]
        if only is not None:
            visible.append(f"{_has_bit(columns.SELECTED)} AS {columns.SELECTED}")
        return rows.selectExpr(*visible)

    def _no_rows(self, *, marked: bool, with_positions: bool) -> DataFrame:
        schema = spark_schema(self.state.schema)
        if with_positions:
            schema = schema.add(columns.FILE, T.StringType()).add(columns.POS, T.LongType())
        if marked:
            schema = schema.add(columns.SELECTED, T.BooleanType())
        return no_rows(self.spark, schema)

    def _read(
        self,
        files: list[Candidate],
        layout: PhysicalLayout | None,
        hidden: list[NestedField],
        metadata: Mapping[str, str],
    ) -> DataFrame:
        refuse_second_names(files)
        schema = self.state.schema
        fields = (*schema.fields, *hidden)
        # Spark optimizes `coalesce` of one value away, but its result has no field id.
        outputs: list[str | Column] = [
            f"coalesce({quote(field.name)}) AS {quote(field.name)}" for field in fields
        ]
        if layout:
            read_schema, outputs = layout.spark_schema, list(layout.columns(schema))
        elif names_may_be_reused(self.state):
            read_schema = by_id_alone(Schema(*fields))
            outputs = [under_own_name(f) for f in fields]
        else:
            read_schema = spark_schema(Schema(*fields), with_ids=True)
        stored = [candidate.live.file for candidate in files]
        options = {DICTIONARY_FILTER: "false"} if may_have_zeros(schema, stored) else {}
        rows = self.parquet(read_schema, [candidate.path for candidate in files], options)
        hidden_nans = may_hide_nans(schema, stored)
        for index, field_ in enumerate(schema.fields):
            if field_.field_id in hidden_nans:
                column = outputs[index]
                column = quoted(field_.name) if isinstance(column, str) else column
                outputs[index] = guarded(column, field_).alias(field_.name)
        if metadata:
            path = file_path([candidate.path for candidate in files])
            metadata = {columns.FILE: path, **metadata}
        return selected(rows, [*outputs, *(f"{m} AS {name}" for name, m in metadata.items())])

    @property
    def read_by_id(self) -> list[Candidate]:
        """Files whose columns are found by field id, not by a name mapping."""
        return [c for c in self.candidates if c.path not in self._layouts]

    def parquet(
        self, schema: T.StructType, paths: list[str], options: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Read exactly these files with Spark: no globs, no partition columns from folder names.

        Options of the read override the session's settings. Reading by field id has a setting only,
        which is set here and checked again after each job.
        """
        with translate_spark_errors():
            prepare(self.spark)
            files = spark_files(self.state.io, paths)
            if (connector := connector_of(paths[0])) is not None:
                check_connector(self.spark, connector)
            with _listed_by_driver(self.spark, files.paths):
                return (
                    self.spark.read.schema(schema)
                    .option("recursiveFileLookup", "true")
                    .option("__globPaths__", "false")
                    .option("ignoreMissingFiles", "false")
                    .option("ignoreCorruptFiles", "false")
                    .option("mergeSchema", "false")
                    .option("datetimeRebaseMode", "CORRECTED")
                    .option("int96RebaseMode", "CORRECTED")
                    .option("parquet.page.verify-checksum.enabled", "true")
                    .options(**files.options, **(options or {}))
                    .parquet(*files.paths)
                )

    def _facts(self, files: list[Candidate], only: Mapping[str, BitMap64] | None) -> DataFrame:
        """One row per file: what decides which of its rows are live."""
        numbers: dict[object, int] = {}
        words = pa.list_(pa.int64())
        table = {
            columns.FILE: pa.array([spark_uri(c.path) for c in files], pa.string()),
            columns.SIZE: pa.array([c.live.file.file_size_in_bytes for c in files], pa.int64()),
            columns.DELETED: pa.array([as_words(self._deleted(c)) for c in files], words),
            columns.SEQUENCE: pa.array([c.live.sequence_number for c in files], pa.int64()),
            columns.PARTITION: pa.array(
                [numbers.setdefault(c.live.partition_key, len(numbers)) for c in files], pa.int32()
            ),
        }
        if only is not None:
            selected = [as_words(only.get(c.path, BitMap64())) for c in files]
            table[columns.SELECTED] = pa.array(selected, words)
        facts = frame_of(self.spark, pa.table(table))
        return self._with_partition_values(facts, files)

    def _deleted(self, candidate: Candidate) -> BitMap64:
        return self.deleted.get(candidate.path, BitMap64())

    def _with_partition_values(self, facts: DataFrame, files: list[Candidate]) -> DataFrame:
        """Add the values of identity partition columns that the files may lack."""
        for source_id, by_spec in _identity_fields(self.state, files).items():
            kind = spark_type(self.state.schema.find_type(source_id))
            rows = [
                (
                    spark_uri(c.path),
                    python_value(c.live.file.partition[by_spec[c.live.spec_id]], kind),
                )
                for c in files
                if c.live.spec_id in by_spec
            ]
            schema = T.StructType(
                [
                    T.StructField(columns.FILE, T.StringType()),
                    T.StructField(columns.equality(source_id), kind),
                ]
            )
            facts = facts.join(self.spark.createDataFrame(rows, schema), columns.FILE, "left")
        return facts

    def _visible(self, files: list[Candidate]) -> list[str]:
        constants = _identity_fields(self.state, files)
        visible = []
        for column in self.state.schema.fields:
            name = value = quote(column.name)
            if column.field_id in constants:
                value = f"coalesce({name}, {columns.equality(column.field_id)})"
            visible.append(f"{value} AS {name}")
        return visible

    def _hidden_fields(self, files: list[Candidate]) -> list[NestedField]:
        """Columns that equality deletes use but the table no longer has."""
        current = set(self.state.schema.field_ids)
        used = {i for c in files for d in c.equality_deletes for i in d.file.equality_ids or ()}
        return [
            NestedField(i, columns.equality(i), _old_field(self.state, i).field_type)
            for i in sorted(used - current)
        ]

    def _without_equality_deleted(self, rows: DataFrame, files: list[Candidate]) -> DataFrame:
        numbers: dict[object, int] = {}
        for candidate in files:
            numbers.setdefault(candidate.live.partition_key, len(numbers))
        deletes = {d.path: d for c in files for d in c.equality_deletes}
        by_columns: dict[tuple[tuple[int, ...], bool], list[LiveFile]] = {}
        unpartitioned = unpartitioned_specs(self.state.metadata)
        for delete in deletes.values():
            ids = tuple(sorted(delete.file.equality_ids or ()))
            by_columns.setdefault((ids, delete.spec_id in unpartitioned), []).append(delete)
        for (ids, everywhere), group in by_columns.items():
            keys = self._equality_keys(group, ids, numbers, everywhere=everywhere)
            rows = rows.join(keys, self._is_deleted(ids, everywhere=everywhere), "left_anti")
        return rows

    def _equality_keys(
        self,
        deletes: list[LiveFile],
        ids: tuple[int, ...],
        numbers: Mapping[object, int],
        *,
        everywhere: bool,
    ) -> DataFrame:
        """Deleted values with the latest sequence number that deletes them, per partition."""
        fields = [NestedField(i, _key(i), _old_field(self.state, i).field_type) for i in ids]
        schema = spark_schema(Schema(*fields), with_ids=True)
        parts = []
        for delete in deletes:
            _refuse_unreadable_delete(delete)
            number = -1 if everywhere else numbers[delete.partition_key]
            parts.append(
                self.parquet(schema, [delete.path]).select(
                    "*",
                    F.lit(delete.sequence_number).alias(_KEY_SEQUENCE),
                    F.lit(number).alias(_KEY_PARTITION),
                )
            )
        keys = [*map(_key, ids), _KEY_PARTITION]
        latest = F.max(_KEY_SEQUENCE).alias(_KEY_SEQUENCE)
        return reduce(DataFrame.union, parts).groupBy(*keys).agg(latest)

    def _is_deleted(self, ids: tuple[int, ...], *, everywhere: bool) -> Column:
        current = set(self.state.schema.field_ids)
        condition = F.col(columns.SEQUENCE) < F.col(_KEY_SEQUENCE)
        if not everywhere:
            condition = condition & (F.col(columns.PARTITION) == F.col(_KEY_PARTITION))
        for i in ids:
            name = self.state.schema.find_column_name(i) if i in current else columns.equality(i)
            condition = condition & quoted(str(name)).eqNullSafe(F.col(_key(i)))
        return condition


def read_deleted_rows(
    state: TableState, candidates: Sequence[Candidate]
) -> tuple[dict[str, BitMap64], dict[str, Deleted]]:
    """The deleted positions of each data file that has any, and of each delete file."""
    contents = read_position_deletes(
        state.io, (delete for c in candidates for delete in c.position_deletes)
    )
    inline = state.deleted_inline
    by_file = {
        c.path: _of_file(c, contents, inline.get(c.path))
        for c in candidates
        if c.position_deletes or c.path in inline
    }
    return {path: positions for path, positions in by_file.items() if positions}, contents


def _of_file(
    candidate: Candidate, contents: Mapping[str, Deleted], inline: BitMap64 | None
) -> BitMap64:
    bitmaps = [inline, *(contents[d.path].get(candidate.path) for d in candidate.position_deletes)]
    united = unite(bitmap for bitmap in bitmaps if bitmap is not None)
    if united and united.max() >= candidate.live.rows:
        # Positions beyond the end of the file must not count as deleted rows.
        united.remove_range(candidate.live.rows, int(united.max()) + 1)
    if united and united.max() >= MOST_ROWS:
        raise UnsupportedTableError(
            f"Position {united.max()} of {candidate.path} is deleted, which the table's metadata "
            f"says has {candidate.live.rows} rows. icefloe applies position deletes to files of "
            f"up to {MOST_ROWS} rows. Check the file's row count, and compact the table with the "
            "engine that wrote it."
        )
    return united


def _listed_by_driver(spark: SparkSession, paths: Sequence[str]) -> AbstractContextManager[None]:
    """Have no Spark job look for the files of a disk, which takes longer, however many they are."""
    if len(paths) <= _MOST_LISTED or not paths[0].startswith("file:"):
        return nullcontext()
    return spark_conf(spark, _LISTED, str(len(paths)))


def _with_facts(rows: DataFrame, facts: DataFrame, key: str) -> DataFrame:
    """Join each row with its file's facts, which are NULL for a row of an unknown file."""
    others = [name for name in (columns.FILE, columns.SIZE) if name != key]
    return rows.join(F.broadcast(facts.drop(*others)), key, "left")


def _known_file(key: str) -> str:
    """TRUE, or an error for a row of an unknown file, which is never dropped."""
    message = _CHANGED if key == columns.SIZE else _UNKNOWN
    unknown = f"raise_error(format_string('{message}', {columns.FILE}, {columns.SIZE}))"
    sequence = columns.SEQUENCE
    return f"CASE WHEN {sequence} IS NULL THEN {unknown} ELSE {sequence} END >= 0"


def _has_bit(words: str) -> str:
    """Whether the row's position is in its file's bitmap."""
    word = f"get({words}, CAST(shiftright({columns.POS}, 6) AS INT))"
    return f"coalesce(getbit({word}, CAST({columns.POS} & 63 AS INT)) = 1, false)"


def _identity_fields(state: TableState, files: list[Candidate]) -> dict[int, dict[int, int]]:
    """Identity partition columns that files may lack: by column, the field's index in each spec."""
    by_column: dict[int, dict[int, int]] = {}
    current = set(state.schema.field_ids)
    for spec_id in {c.live.spec_id for c in files if c.lacks_identity_columns}:
        for index, field_ in enumerate(state.metadata.specs()[spec_id].fields):
            if str(field_.transform) == "identity" and field_.source_id in current:
                by_column.setdefault(field_.source_id, {})[spec_id] = index
    return by_column


def _key(field_id: int) -> str:
    """The column of a deleted value, a name that no delete file has."""
    return f"{columns.PREFIX}key{field_id}"


def _old_field(state: TableState, field_id: int) -> NestedField:
    """A top-level field by id, from whichever schema of the table has it."""
    for schema in (state.schema, *reversed(state.metadata.schemas)):
        for field_ in schema.fields:
            if field_.field_id == field_id:
                return field_
    raise UnsupportedTableError(
        f"{state.name} has equality deletes on field {field_id}, which is not a column of any of "
        "its schemas. Compact the table with the engine that wrote them."
    )


def _refuse_unreadable_delete(delete: LiveFile) -> None:
    if not delete.is_parquet:
        raise UnsupportedTableError(
            f"Equality-delete file {delete.path} is {delete.file.file_format}; icefloe reads "
            "Parquet deletes only. Compact the table with the engine that wrote it."
        )
