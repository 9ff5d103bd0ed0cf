"""The data and delete files of a snapshot, as their manifest entries describe them."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TypeAlias

from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    _ManifestEvalVisitor,
    _StrictMetricsEvaluator,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, ListType, MapType, PrimitiveType, StructType

from icefloe.redaction import masked_repr

# Iceberg's reserved field ids of a position-delete file.
PATH_FIELD_ID = 2147483546
POS_FIELD_ID = 2147483545

_REFERENCED_DATA_FILE = 17  # index in a v3 manifest entry; v2 writers fill it too

PartitionKey: TypeAlias = tuple[int, tuple[object, ...]]


def partition_key_of(spec_id: int, partition: Record) -> PartitionKey:
    """Spec and partition tuple as a key, in which NaN equals itself."""
    values = (partition[i] for i in range(len(partition)))
    return spec_id, tuple("NaN" if v != v else v for v in values)  # noqa: PLR0124 - NaN alone


def unpartitioned_specs(metadata: TableMetadata) -> frozenset[int]:
    """Specs whose equality deletes apply to every file: without fields, or with void ones only."""
    return frozenset(
        spec_id
        for spec_id, spec in metadata.specs().items()
        if all(isinstance(field.transform, VoidTransform) for field in spec.fields)
    )


def ids_of_columns(schema: Schema, names: Container[str]) -> tuple[frozenset[int], ...]:
    """The field ids of each of some columns, nested fields included."""
    return tuple(
        frozenset((field.field_id, *index_by_id(field.field_type)))
        for field in schema.fields
        if field.name in names
    )


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf column of a schema: what Parquet calls a column."""

    field_id: int
    type: PrimitiveType
    repeated: bool  # inside a list or map, where bounds do not apply to rows


def leaves(schema: Schema) -> dict[str, Leaf]:
    """Leaf columns by their path in a Parquet file that PyArrow wrote."""
    by_path: dict[str, Leaf] = {}
    for column in schema.fields:
        _collect(column.name, column.field_id, column.field_type, by_path, repeated=False)
    return by_path


def _collect(
    path: str, field_id: int, kind: IcebergType, by_path: dict[str, Leaf], *, repeated: bool
) -> None:
    if isinstance(kind, StructType):
        for child in kind.fields:
            _collect(
                f"{path}.{child.name}", child.field_id, child.field_type, by_path, repeated=repeated
            )
    elif isinstance(kind, ListType):
        _collect(f"{path}.list.element", kind.element_id, kind.element_type, by_path, repeated=True)
    elif isinstance(kind, MapType):
        _collect(f"{path}.key_value.key", kind.key_id, kind.key_type, by_path, repeated=True)
        _collect(f"{path}.key_value.value", kind.value_id, kind.value_type, by_path, repeated=True)
    elif isinstance(kind, PrimitiveType):
        by_path[path] = Leaf(field_id, kind, repeated)


@masked_repr
@dataclass(frozen=True, slots=True)
class LiveFile:
    """One live manifest entry: a data or delete file with its sequence numbers."""

    file: DataFile
    spec_id: int
    sequence_number: int
    file_sequence_number: int | None
    snapshot_id: int | None
    manifest_path: str

    @property
    def path(self) -> str:
        """The file's location, as Iceberg spells it."""
        return self.file.file_path

    @property
    def rows(self) -> int:
        """Rows in the file, deleted ones included."""
        return self.file.record_count

    @property
    def size(self) -> int:
        """The file's size in bytes."""
        return self.file.file_size_in_bytes

    def bytes_of(self, columns: Sequence[frozenset[int]]) -> int | None:
        """The bytes of some columns in the file; each column is the set of its field ids.

        None where the manifest lacks the size, as for a column that is not in the file.
        """
        sizes = self.file.column_sizes or {}
        per_column = [[sizes[i] for i in ids if i in sizes] for ids in columns]
        return sum(map(sum, per_column)) if all(per_column) else None

    @property
    def bytes_of_all(self) -> int:
        """The bytes of all columns in the file, as far as the manifest has them."""
        return sum((self.file.column_sizes or {}).values())

    @property
    def partition_key(self) -> PartitionKey:
        """Spec and partition tuple: equal for files of one partition."""
        return partition_key_of(self.spec_id, self.file.partition)

    @property
    def is_data(self) -> bool:
        """Whether this is a data file."""
        return self.file.content == DataFileContent.DATA

    @property
    def is_equality_delete(self) -> bool:
        """Whether this delete file deletes rows by value."""
        return self.file.content == DataFileContent.EQUALITY_DELETES

    @property
    def is_parquet(self) -> bool:
        """Whether the file is Parquet, the one format icefloe reads."""
        return self.file.file_format == FileFormat.PARQUET

    @property
    def referenced_path(self) -> str | None:
        """The only data file that a position-delete file refers to; None if unknown or several."""
        if len(self.file) > _REFERENCED_DATA_FILE and self.file[_REFERENCED_DATA_FILE]:
            return str(self.file[_REFERENCED_DATA_FILE])
        lower = (self.file.lower_bounds or {}).get(PATH_FIELD_ID)
        upper = (self.file.upper_bounds or {}).get(PATH_FIELD_ID)
        return lower.decode() if lower is not None and lower == upper else None


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """The files of one snapshot, without those in manifests that a filter excluded."""

    data: tuple[LiveFile, ...] = ()
    deletes: tuple[LiveFile, ...] = ()
    manifests_read: int = 0  # those whose entries were looked at
    manifests_cached: int = 0  # of these, those that this process had read before
    manifests_skipped: int = 0
    files_in_skipped_manifests: int = 0


@dataclass(frozen=True, slots=True)
class DeleteIndex:
    """Which delete files apply to which data file, by Iceberg's sequence and partition rules."""

    by_path: dict[str, tuple[LiveFile, ...]] = field(default_factory=dict)
    by_partition: dict[PartitionKey, tuple[LiveFile, ...]] = field(default_factory=dict)
    equality: dict[PartitionKey, tuple[LiveFile, ...]] = field(default_factory=dict)
    global_equality: tuple[LiveFile, ...] = ()

    @classmethod
    def of(cls, deletes: tuple[LiveFile, ...], unpartitioned_specs: frozenset[int]) -> DeleteIndex:
        """Index the delete files of a snapshot."""
        by_path: dict[str, list[LiveFile]] = {}
        by_partition: dict[PartitionKey, list[LiveFile]] = {}
        equality: dict[PartitionKey, list[LiveFile]] = {}
        everywhere: list[LiveFile] = []
        for delete in deletes:
            if delete.is_equality_delete and delete.spec_id in unpartitioned_specs:
                everywhere.append(delete)
            elif delete.is_equality_delete:
                equality.setdefault(delete.partition_key, []).append(delete)
            elif (path := delete.referenced_path) is not None:
                by_path.setdefault(path, []).append(delete)
            else:
                by_partition.setdefault(delete.partition_key, []).append(delete)
        return cls(
            {key: tuple(files) for key, files in by_path.items()},
            {key: tuple(files) for key, files in by_partition.items()},
            {key: tuple(files) for key, files in equality.items()},
            tuple(everywhere),
        )

    def position_deletes(self, data: LiveFile) -> tuple[LiveFile, ...]:
        """Position-delete files that may delete rows of `data`."""
        deletes = self.by_path.get(data.path, ()) + self.by_partition.get(data.partition_key, ())
        return tuple(d for d in deletes if d.sequence_number >= data.sequence_number)

    def equality_deletes(self, data: LiveFile) -> tuple[LiveFile, ...]:
        """Equality-delete files that apply to rows of `data`."""
        deletes = self.equality.get(data.partition_key, ()) + self.global_equality
        return tuple(d for d in deletes if d.sequence_number > data.sequence_number)


# -------------------------------------------------------------------------------------------------
# PyIceberg's private evaluators of file and manifest metrics


def inclusive_metrics_test(
    schema: Schema, expression: BooleanExpression
) -> Callable[[DataFile], bool]:
    """A test whether a file's metrics allow a row for which the expression is TRUE."""
    return _InclusiveMetricsEvaluator(schema, expression).eval


def strict_metrics_test(
    schema: Schema, expression: BooleanExpression
) -> Callable[[DataFile], bool]:
    """A test whether a file's metrics prove that the expression is TRUE for every row."""
    return _StrictMetricsEvaluator(schema, expression).eval


def partition_summaries_test(
    partition_schema: Schema, projected: BooleanExpression
) -> Callable[[ManifestFile], bool]:
    """A test whether a manifest's partition summaries allow a partition that matches."""
    evaluator = _ManifestEvalVisitor(partition_schema, projected, case_sensitive=True)
    # The evaluator stores the manifest that it evaluates; a copy keeps the test without state.
    return lambda manifest: copy(evaluator).eval(manifest)
