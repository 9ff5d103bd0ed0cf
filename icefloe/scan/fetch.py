"""Live rows at positions that indexes have found, read by tasks with PyArrow.

Spark's reader decodes every row group of a file; a task decodes only those with such rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import UUIDType
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from icefloe.deletes.row_positions import as_array
from icefloe.indexes.definitions import IndexDefinition
from icefloe.indexes.sidecars import place_of
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import Candidate
from icefloe.scan.columns import nullable
from icefloe.schema.to_spark import spark_schema
from icefloe.spark import columns
from icefloe.spark.columns import quote
from icefloe.spark.frames import numbers
from icefloe.storage.files import locate
from icefloe.storage.locations import spark_uri
from icefloe.tasks.fetch import FetchPlan, FileToFetch, KeysToMatch, fetch_rows
from icefloe.tasks.messages import pack


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """Keys that tasks look up in an index: only rows that may have one of them are read."""

    definition: IndexDefinition
    values: Sequence[pa.Array]  # one array per indexed column, without NULLs


@dataclass(frozen=True, slots=True)
class Fetch:
    """Reads rows of some files by position."""

    spark: SparkSession
    state: TableState
    names: Sequence[str]  # of the columns to read
    deleted: Mapping[str, BitMap64]  # by data file location

    def at(self, files: Sequence[Candidate], positions: Mapping[str, BitMap64]) -> DataFrame:
        """The live rows at these positions of each file."""
        return self._rows(
            [
                self._file(candidate, positions=pack(as_array(positions[candidate.path])))
                for candidate in files
            ]
        )

    def with_keys(self, files: Sequence[Candidate], lookup: KeyLookup) -> DataFrame:
        """The live rows that may have one of the keys; tasks read the sidecars."""
        fields = lookup.definition.fields(self.state.schema) or []
        types = tuple(str(field.field_type) for field in fields)
        # Where only the key is needed, its code is enough.
        only_key = len(fields) == 1 and list(self.names) == [fields[0].name]
        keys = KeysToMatch(lookup.values, types, only_key)
        return self._rows([self._file(c, lookup=lookup) for c in files], keys)

    def _file(
        self,
        candidate: Candidate,
        *,
        positions: bytes | None = None,
        lookup: KeyLookup | None = None,
    ) -> FileToFetch:
        location = locate(self.state.io, candidate.path)
        deleted = self.deleted.get(candidate.path)
        return FileToFetch(
            location.filesystem,
            location.path,
            spark_uri(candidate.path),
            candidate.live.rows,
            pack(as_array(deleted)) if deleted else None,
            positions,
            place_of(self.state, lookup.definition, candidate.live) if lookup else None,
        )

    def _rows(self, files: Sequence[FileToFetch], keys: KeysToMatch | None = None) -> DataFrame:
        by_name = {field.name: field for field in self.state.schema.fields}
        schema = Schema(*(by_name[name] for name in self.names))
        read = spark_schema(schema)
        # PySpark's `mapInArrow` cannot return columns with dots or backticks in their names.
        numbered = [columns.written(i) for i in range(len(self.names))]
        output = T.StructType(
            [
                *(
                    T.StructField(number, nullable(field.dataType))
                    for number, field in zip(numbered, read.fields, strict=True)
                ),
                T.StructField(columns.FILE, T.StringType()),
                T.StructField(columns.POS, T.LongType()),
            ]
        )
        plan = FetchPlan(
            files, schema_to_pyarrow(schema), to_arrow_schema(output, timezone="UTC"), keys
        )
        rows = numbers(self.spark, len(files)).mapInArrow(fetch_rows(plan), output)
        named = [
            f"{number} AS {quote(name)}" for number, name in zip(numbered, self.names, strict=True)
        ]
        return rows.selectExpr(*named, columns.FILE, columns.POS)


def can_fetch(state: TableState, candidate: Candidate) -> bool:
    """Whether tasks can read a file of the table by position, as Spark would read it."""
    return not (
        candidate.equality_deletes
        or candidate.lacks_identity_columns
        or any(isinstance(kind, UUIDType) for kind in _types(state.schema))
    )


def _types(schema: Schema) -> list[object]:
    return [schema.find_type(field_id) for field_id in schema.field_ids]
