"""REPLACE USING: new rows replace all rows that have the same values in some columns."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import IsNull, Or, Reference
from pyiceberg.manifest import DataFile
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import (
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
)
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from icefloe.commands.context import Context, ExplainableCommand, Outcome
from icefloe.commands.input_rows import fit_rows
from icefloe.commands.plan import Plan, with_footers
from icefloe.commands.replace.written_rows import (
    PartitionSet,
    PartitionSetMatcher,
    ReplacedRows,
    lowered_partitions,
    plan_removal,
    replace_rows,
    without_other_partitions,
)
from icefloe.commands.write import NO_ROWS_READ
from icefloe.errors import ColumnNotFoundError, StatementError
from icefloe.file_changes import FileChanges
from icefloe.inline.cut import Cut
from icefloe.metadata.files import LiveFile
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import Candidate, plan_files
from icefloe.pruning.comparisons import UNKNOWN, FilePredicate, PredicateColumn, all_of, compare
from icefloe.pruning.literals import sql_literal
from icefloe.pruning.predicate import Comparison
from icefloe.results import DmlResult
from icefloe.scan.scan import Scan
from icefloe.spark import columns
from icefloe.spark.columns import quoted
from icefloe.spark.session import time_zone
from icefloe.statements import Options, UsingStatement
from icefloe.writing.data_files import write_data

OPERATION = "replace_using"
COLUMNS_KEY = "icefloe.using"


@dataclass(frozen=True, slots=True)
class _Keys:
    """The values of new rows in the key columns, as far as metadata has them."""

    partitions: PartitionSet
    lowered: FilePredicate
    are_partitions: bool  # every key column is a partition column: all rows of a file match or none


@dataclass(frozen=True, slots=True)
class _UsingPlan:
    state: TableState
    fields: list[NestedField]
    rows: DataFrame
    cut: Cut | None  # the inline rows


@dataclass(frozen=True, slots=True)
class ReplaceUsingCommand(ExplainableCommand[_UsingPlan]):
    """REPLACE USING: replace the rows that share a key with a new row."""

    statement: UsingStatement
    context: Context

    @property
    def options(self) -> Options:
        """How the statement runs."""
        return self.statement.options

    def plan(self, state: TableState, _resources: ExitStack) -> _UsingPlan:
        """Bind the key columns and fit the new rows; files are chosen once these are written."""
        fields = _key_fields(self.statement, state)
        rows = fit_rows(self.statement.rows, state, self.context.spark)
        return _UsingPlan(state, fields, rows, self.context.tier.cut(state))

    def explain(self, plan: _UsingPlan) -> Plan:
        """What is known before the new rows are: every file may hold rows with their keys."""
        names = ", ".join(field.name for field in plan.fields)
        where = f"({names}) occurs in the new rows; files are ruled out once these are written"
        files = plan_files(plan.state, UNKNOWN)
        shown = plan_removal(OPERATION, plan.state, files, self.options, where)
        return with_footers(shown, plan.state, files.candidates, ())

    def work(self, plan: _UsingPlan, statement_id: str) -> Outcome:
        """Write the new rows, then delete the old ones that have their keys."""
        state = plan.state
        written = write_data(state, plan.rows, statement_id)
        if not written.files:
            return Outcome(DmlResult(OPERATION), FileChanges(), NO_ROWS_READ)
        keys = _keys_of(state, plan.fields, written.files, time_zone(self.context.spark))
        files = without_other_partitions(
            plan_files(state, keys.lowered), keys.partitions, covered=keys.are_partitions
        )
        replaced = ReplacedRows(
            operation=OPERATION,
            state=state,
            files=files,
            matcher=PartitionSetMatcher(
                keys.lowered, state.schema, state.metadata.specs(), keys.partitions
            ),
            choose=_with_keys_of(self.context, state, plan.fields, written.files),
            summary={COLUMNS_KEY: ", ".join(field.name for field in plan.fields)},
            cut=plan.cut,
        )
        return replace_rows(self.context, replaced, written, self.options, statement_id)


def _has_map(kind: IcebergType) -> bool:
    match kind:
        case MapType():
            return True
        case ListType():
            return _has_map(kind.element_type)
        case StructType():
            return any(_has_map(field.field_type) for field in kind.fields)
        case _:
            return False


def _key_fields(statement: UsingStatement, state: TableState) -> list[NestedField]:
    """The named columns, each once; names are matched without regard to case."""
    if not statement.columns:
        raise StatementError("replace_using() names no column. Name the columns of the key.")
    fields: list[NestedField] = []
    for name in statement.columns:
        exact = [f for f in state.schema.fields if f.name == name]
        same = exact or [f for f in state.schema.fields if f.name.lower() == str(name).lower()]
        if len(same) != 1:
            raise ColumnNotFoundError(str(name), [f.name for f in state.schema.fields])
        if same[0] in fields:
            raise StatementError(f"replace_using() names the column {name!r} twice.")
        if _has_map(same[0].field_type):
            raise StatementError(
                f"replace_using() cannot compare the column {name!r}: it is or contains a map."
            )
        fields.append(same[0])
    return fields


def _keys_of(
    state: TableState, fields: list[NestedField], files: Collection[DataFile], zone: str
) -> _Keys:
    """Partition fields over key columns determine which partitions can have equal keys."""
    spec = state.metadata.spec()
    key_ids = {field.field_id for field in fields}
    positions = [
        position
        for position, field in enumerate(spec.fields)
        if field.source_id in key_ids and not isinstance(field.transform, VoidTransform)
    ]
    partitions = PartitionSet.of(spec, files, positions)
    identities = {
        field.source_id
        for field in partitions.fields
        if isinstance(field.transform, IdentityTransform)
    }
    by_partition = lowered_partitions(state, partitions, zone) if positions else UNKNOWN
    if identities == key_ids:
        return _Keys(partitions, by_partition, are_partitions=True)
    ranges = [_range(field, files, zone) for field in fields]
    inclusive = all_of([by_partition, *ranges]).inclusive
    return _Keys(partitions, FilePredicate(inclusive, None), are_partitions=False)


def _range(field: NestedField, files: Collection[DataFile], zone: str) -> FilePredicate:
    """Between the smallest and the largest value of a column in files, or NULL if they have any."""
    kind, i = field.field_type, field.field_id
    if not isinstance(kind, PrimitiveType) or "." in field.name:
        return UNKNOWN
    column = PredicateColumn(field.name, kind, zone)
    if column.may_be_nan:
        return UNKNOWN
    lows: list[Any] = []
    highs: list[Any] = []
    for file in files:
        nulls = (file.null_value_counts or {}).get(i)
        if nulls == file.record_count:
            continue
        low, high = (file.lower_bounds or {}).get(i), (file.upper_bounds or {}).get(i)
        if low is None or high is None:
            return UNKNOWN
        lows.append(from_bytes(kind, low))
        highs.append(from_bytes(kind, high))
    has_nulls = any((file.null_value_counts or {}).get(i) != 0 for file in files)
    return _between(column, lows, highs, has_nulls=has_nulls)


def _between(
    column: PredicateColumn, lows: list[Any], highs: list[Any], *, has_nulls: bool
) -> FilePredicate:
    is_null = IsNull(term=Reference(column.name))
    if not lows:
        return FilePredicate(is_null, None)
    low = sql_literal(min(lows), column.type)
    high = sql_literal(max(highs), column.type)
    between = all_of(
        [
            compare(column, Comparison.GREATER_OR_EQUAL, low),
            compare(column, Comparison.LESS_OR_EQUAL, high),
        ]
    ).inclusive
    return FilePredicate(Or(between, is_null) if has_nulls else between, None)


def _with_keys_of(
    context: Context, state: TableState, fields: list[NestedField], files: Collection[DataFile]
) -> Callable[[DataFrame], DataFrame]:
    """Selects the rows whose key, NULLs included, is that of a row in `files`."""
    names = [field.name for field in fields]
    aliases = [f"{columns.PREFIX}key{i}" for i in range(len(names))]
    written = [
        Candidate(LiveFile(file, file.spec_id, 0, None, None, manifest_path="")) for file in files
    ]

    def choose(rows: DataFrame) -> DataFrame:
        new = Scan(context.spark, state, tuple(written)).plain_rows()
        pairs = list(zip(names, aliases, strict=True))
        keys = new.select(*(quoted(name).alias(alias) for name, alias in pairs)).distinct()
        same = [quoted(name).eqNullSafe(F.col(alias)) for name, alias in pairs]
        return rows.join(keys, reduce(lambda a, b: a & b, same), "left_semi")

    return choose
