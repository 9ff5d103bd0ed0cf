"""What searches share: a table's files and inline rows, read by position or column by column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.types import NestedField
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from icefloe.commands.scan import inline_frame
from icefloe.deletes.row_positions import as_array
from icefloe.indexes.definitions import IndexDefinition
from icefloe.inline.cut import INLINE_FILE, Cut
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import Candidate
from icefloe.scan.read_guard import guarded
from icefloe.scan.scan import Scan
from icefloe.schema.to_spark import spark_schema
from icefloe.spark import columns
from icefloe.spark.columns import quote
from icefloe.spark.frames import frame_of, no_rows
from icefloe.storage.files import locate
from icefloe.storage.locations import spark_uri
from icefloe.tasks.messages import Positions, SearchHits, TaskMessage
from icefloe.tasks.old_file import OldFile
from icefloe.tasks.ranking import Hit, Keys

# As the file of a hit: after the URIs of all files.
_INLINE = "\U0010ffff"
_THREADS = 16
_RANK = f"{columns.PREFIX}rank"


@dataclass(frozen=True)
class SearchedTable:
    """The rows of a table that are searched by one of its indexes."""

    spark: SparkSession
    state: TableState
    definition: IndexDefinition
    scan: Scan
    cut: Cut | None

    @cached_property
    def column(self) -> NestedField:
        """The indexed column."""
        [column] = self.definition.fields(self.state.schema) or []
        return column

    @cached_property
    def by_uri(self) -> dict[str, Candidate]:
        """The data files, as hits name them."""
        return {spark_uri(candidate.path): candidate for candidate in self.scan.candidates}

    @cached_property
    def inline_values(self) -> pa.Array:
        """The indexed column of the inline rows."""
        if self.cut is None:
            return pa.array([])
        return self.cut.arrow().column(self.column.name).combine_chunks()

    def inline_hits(self, rows: Positions, keys: Keys) -> list[Hit]:
        """Inline rows, by their places in the cut, as hits."""
        return [(k, _INLINE, r) for k, r in zip(keys.tolist(), rows.tolist(), strict=True)]

    def deleted(self, candidate: Candidate) -> Positions:
        """The positions that are deleted in a file."""
        deleted = self.scan.deleted.get(candidate.path)
        return np.empty(0, np.int64) if deleted is None else as_array(deleted)

    def values(self, candidates: Sequence[Candidate], *, deleted: bool = False) -> DataFrame:
        """The indexed column of files, with file and position; `deleted` for deleted rows too."""
        scan = self.scan.restrict_to(candidates)
        if deleted:
            whole = (replace(c, position_deletes=(), equality_deletes=()) for c in candidates)
            scan = replace(scan, candidates=tuple(whole), deleted={})
        return self._with_value(guarded(scan, scan.rows()))

    def values_at(self, hits: Iterable[Hit]) -> DataFrame:
        """The indexed column of some rows of files, with file and position."""
        return self._with_value(self._rows_at(hits, [self.column.name]))

    def _with_value(self, rows: DataFrame) -> DataFrame:
        value = f"{quote(self.column.name)} AS {columns.written(0)}"
        return rows.selectExpr(value, columns.FILE, columns.POS)

    def _rows_at(self, hits: Iterable[Hit], names: Sequence[str]) -> DataFrame:
        """Live rows at some positions of files, with file and position."""
        positions: dict[str, BitMap64] = {}
        for _, uri, position in hits:
            positions.setdefault(self.by_uri[uri].path, BitMap64()).add(position)
        files = [c for c in self.scan.candidates if c.path in positions]
        with ThreadPoolExecutor(_THREADS) as pool:
            can_fetch = list(pool.map(self._can_fetch, files))
        fetched = [c for c, can in zip(files, can_fetch, strict=True) if can]
        others = [c for c, can in zip(files, can_fetch, strict=True) if not can]
        parts = []
        if fetched:
            parts.append(self.scan.fetch(names).at(fetched, positions))
        if others:
            scan = self.scan.restrict_to(others)
            rows = guarded(scan, scan.rows_at(positions))
            parts.append(rows.selectExpr(*map(quote, names), columns.FILE, columns.POS))
        return reduce(DataFrame.union, parts)

    def _can_fetch(self, candidate: Candidate) -> bool:
        """Whether PyArrow reads a file as Spark does; others may have been written by anyone."""
        if not self.scan.can_fetch(candidate):
            return False
        place = locate(self.state.io, candidate.path)
        schema = schema_to_pyarrow(self.state.schema)
        try:
            with place.filesystem.open_input_file(place.path) as source:
                file = OldFile.open(place.path, source, schema, candidate.live.rows)
                return file.cannot_carry() is None
        except (OSError, ValueError):  # Spark says what is wrong with the file
            return False

    def frame(self, hits: Sequence[Hit], score: str, sign: int) -> DataFrame:
        """The rows of hits in their order, with the key times `sign` as the score."""
        names = [field.name for field in self.state.schema.fields]
        schema = spark_schema(self.state.schema).add(score, T.DoubleType())
        if not hits:
            return no_rows(self.spark, schema)
        in_files = [hit for hit in hits if hit[1] != _INLINE]
        inline = [position for _, file, position in hits if file == _INLINE]
        parts = [self._rows_at(in_files, names)] if in_files else []
        if inline and self.cut is not None:
            parts.append(inline_frame(self.spark, self.cut, inline))
        ranks = F.broadcast(self._ranks(hits, score, sign))
        rows = reduce(DataFrame.union, parts).join(ranks, [columns.FILE, columns.POS])
        # One sorted partition: a range partitioning would read the rows twice.
        ordered = rows.repartition(1).sortWithinPartitions(_RANK)
        return ordered.selectExpr(*map(quote, names), score)

    def _ranks(self, hits: Sequence[Hit], score: str, sign: int) -> DataFrame:
        ids = self.cut.rows.row_ids if self.cut is not None else []
        places = [
            (INLINE_FILE, int(ids[position])) if file == _INLINE else (file, position)
            for _, file, position in hits
        ]
        table = pa.table(
            {
                columns.FILE: pa.array([file for file, _ in places], pa.string()),
                columns.POS: pa.array([position for _, position in places], pa.int64()),
                score: pa.array([sign * key for key, _, _ in hits], pa.float64()),
                _RANK: pa.array(range(len(hits)), pa.int64()),
            }
        )
        return frame_of(self.spark, table)


def hits_of(messages: Iterable[TaskMessage]) -> list[Hit]:
    """The hits that tasks reported."""
    return [
        hit
        for each in messages
        if isinstance(each, SearchHits)
        for hit in zip(each.keys, each.files, each.positions, strict=True)
    ]
