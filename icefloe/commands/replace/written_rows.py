"""Replace old rows by new rows that are written already: by partition or by key.

The new rows are written first. What is deleted is then decided by exactly the rows that will be
published, and the input is read only once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.expressions import NotNull, Reference
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType
from pyspark.sql import DataFrame

from icefloe.commands.context import Context, Outcome, row_report
from icefloe.commands.inline_rows import remove_inline_rows, with_inline_changes
from icefloe.commands.plan import Plan, plan_statement
from icefloe.commands.replace.partition_match import NULL, values_of
from icefloe.commands.row_changes import RowChange, change_rows
from icefloe.commit.conflicts import ConflictCheck
from icefloe.inline.cut import Cut
from icefloe.metadata.files import partition_key_of
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import Candidate, FilePlan, SkippedFile
from icefloe.pruning.comparisons import (
    ALWAYS,
    UNKNOWN,
    FilePredicate,
    PredicateColumn,
    all_of,
    any_of,
    compare,
    is_in,
    is_null,
)
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.pruning.literals import sql_literal
from icefloe.pruning.predicate import Comparison
from icefloe.results import RowCounts
from icefloe.scan.scan import Scan
from icefloe.settings import UpdateKind
from icefloe.statements import Options, RowStatement
from icefloe.writing.data_files import WrittenRows


@dataclass(frozen=True, slots=True)
class ReplacedRows:
    """The old rows that new rows replace: files that may hold them, and how to select them."""

    operation: str
    state: TableState
    files: FilePlan
    matcher: FileMatcher
    choose: Callable[[DataFrame], DataFrame]
    summary: dict[str, str]
    cut: Cut | None  # the inline rows


def plan_removal(
    operation: str, state: TableState, files: FilePlan, options: Options, where: str
) -> Plan:
    """What happens to the files, as in a DELETE."""
    statement = RowStatement(UpdateKind.DELETE, None, (), options)
    plan = plan_statement(statement, state, files, assigned=(), has_subquery=False)
    return replace(plan, operation=operation, where=where)


def replace_rows(
    context: Context,
    removal: ReplacedRows,
    written: WrittenRows,
    options: Options,
    statement_id: str,
) -> Outcome:
    """Delete the old rows, to be published together with the new ones."""
    state = removal.state
    plan = plan_removal(removal.operation, state, removal.files, options, "")
    scan = Scan.of(context.spark, state, removal.files.candidates)
    changes, counts = change_rows(
        RowChange(scan, removal.files, plan.mode, None, {}, statement_id, choose=removal.choose)
    )
    changes = replace(changes, added_data=(*changes.added_data, *written.files))
    counts += RowCounts(rows_inserted=written.rows)
    inline = remove_inline_rows(context.spark, removal.cut, removal.choose)
    report, changes = with_inline_changes(
        context.tier, row_report(plan, changes, counts), changes, inline
    )
    return Outcome(
        report,
        changes,
        ConflictCheck(plan.isolation, removal.matcher),
        removal.summary,
    )


# -------------------------------------------------------------------------------------------------
# Files that may hold rows of the partitions that new rows were written to

# Files are tested against every tuple: above this, files of older specs are all read.
_MOST_TUPLES = 200


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """Values of some fields of one spec, as tuples; `positions` are the fields' indexes in it."""

    spec: PartitionSpec
    positions: tuple[int, ...]
    keys: frozenset[tuple[Any, ...]]

    @classmethod
    def of(
        cls, spec: PartitionSpec, files: Collection[DataFile], positions: Sequence[int]
    ) -> PartitionSet:
        """The partitions of `files`, which have `spec`."""
        indexes = tuple(positions)
        return cls(spec, indexes, frozenset(_key(spec, f.partition, indexes) for f in files))

    @property
    def fields(self) -> list[PartitionField]:
        """The fields whose values the keys hold."""
        return [self.spec.fields[position] for position in self.positions]

    def has(self, partition: Record) -> bool:
        """Whether a partition of the spec has one of the keys."""
        return _key(self.spec, partition, self.positions) in self.keys


def _key(spec: PartitionSpec, partition: Record, positions: Sequence[int]) -> tuple[Any, ...]:
    _, values = partition_key_of(spec.spec_id, partition)
    return tuple(values[position] for position in positions)


class PartitionSetMatcher(FileMatcher):
    """Files that may hold rows of a set of partitions: those of its spec by key, others by values.

    A transform without ranges, such as bucket, can be matched by key only.
    """

    def __init__(
        self,
        lowered: FilePredicate,
        schema: Schema,
        specs: Mapping[int, PartitionSpec],
        partitions: PartitionSet,
    ) -> None:
        super().__init__(lowered, schema, specs)
        self._partitions = partitions

    def why_not(self, file: DataFile, spec_id: int) -> str | None:
        """Why the file is ruled out; None when it may match."""
        partitions = self._partitions
        if spec_id == partitions.spec.spec_id and not partitions.has(file.partition):
            return "partition"
        return super().why_not(file, spec_id)


def without_other_partitions(
    files: FilePlan, partitions: PartitionSet, *, covered: bool
) -> FilePlan:
    """Files of the set's spec are candidates only in its partitions; `covered`: all their rows."""
    kept: list[Candidate] = []
    skipped = list(files.skipped)
    for candidate in files.candidates:
        if candidate.live.spec_id != partitions.spec.spec_id:
            kept.append(candidate)
        elif partitions.has(candidate.live.file.partition):
            kept.append(replace(candidate, covered=covered or candidate.covered))
        else:
            skipped.append(SkippedFile(candidate.path, "partition"))
    return replace(files, candidates=tuple(kept), skipped=tuple(skipped))


def lowered_partitions(
    state: TableState, partitions: PartitionSet, time_zone: str
) -> FilePredicate:
    """A predicate that all rows of the partitions satisfy, for files of any spec."""
    schema = state.schema
    fields = partitions.fields
    if not fields:
        return ALWAYS  # one partition: the whole table
    if len(fields) == 1 and isinstance(fields[0].transform, IdentityTransform):
        return _identity(schema, fields[0], partitions.keys, time_zone)
    if len(partitions.keys) > _MOST_TUPLES:
        return UNKNOWN
    return any_of(
        [
            all_of(
                [
                    _lowered(schema, field, value, time_zone)
                    for field, value in zip(fields, key, strict=True)
                ]
            )
            for key in partitions.keys
        ]
    )


def _identity(
    schema: Schema, field: PartitionField, keys: Collection[tuple[Any, ...]], time_zone: str
) -> FilePredicate:
    column = _column(schema, field, time_zone)
    if column is None or column.may_be_nan:
        return UNKNOWN
    values = [value for (value,) in keys if value is not None]
    parts = [is_null(column, negated=False)] if len(values) < len(keys) else []
    if values:
        parts.append(is_in(column, [sql_literal(v, column.type) for v in values], negated=False))
    return any_of(parts)


def _lowered(schema: Schema, field: PartitionField, value: Any, time_zone: str) -> FilePredicate:
    """A predicate that all rows satisfy for which the field has `value`."""
    column = _column(schema, field, time_zone)
    if isinstance(field.transform, VoidTransform):
        return ALWAYS
    if column is None or column.may_be_nan:
        return UNKNOWN
    values = values_of(field, column.type, value)
    if values == NULL:
        return is_null(column, negated=False)
    if values.low is None or values.high is None:
        return FilePredicate(NotNull(term=Reference(column.name)), None)
    if values.is_one:
        return compare(column, Comparison.EQUAL, sql_literal(values.low, column.type))
    up_to = Comparison.LESS if values.below_high else Comparison.LESS_OR_EQUAL
    return all_of(
        [
            compare(column, Comparison.GREATER_OR_EQUAL, sql_literal(values.low, column.type)),
            compare(column, up_to, sql_literal(values.high, column.type)),
        ]
    )


def _column(schema: Schema, field: PartitionField, time_zone: str) -> PredicateColumn | None:
    """The source of a field, if it is a column of the table itself."""
    for column in schema.fields:
        if column.field_id == field.source_id and isinstance(column.field_type, PrimitiveType):
            if "." in column.name:
                return None  # PyIceberg reads it as the path of a nested field
            return PredicateColumn(column.name, column.field_type, time_zone)
    return None
