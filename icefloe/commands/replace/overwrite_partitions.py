"""Overwrite the partitions that new rows are in.

Files of the current spec are removed by their partition tuple. A file of an older spec may hold
rows of other partitions too: it is removed as a whole where its tuple or bounds prove that all its
rows are replaced, and otherwise only the rows of the replaced partitions are deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import ManifestContent
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from icefloe.commands.context import Command, Context, Outcome
from icefloe.commands.inline_rows import remove_inline_rows, with_inline_changes
from icefloe.commands.replace.written_rows import (
    PartitionSet,
    PartitionSetMatcher,
    ReplacedRows,
    lowered_partitions,
    replace_rows,
    without_other_partitions,
)
from icefloe.commands.write import NO_ROWS_READ
from icefloe.file_changes import FileChanges, RemovePartitions
from icefloe.inline.cut import Cut
from icefloe.metadata.files import partition_key_of
from icefloe.metadata.manifests import list_manifests
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import plan_files
from icefloe.results import DmlResult
from icefloe.scan.row_counts import count_rows_of_files
from icefloe.schema.partition_values import partition_columns
from icefloe.spark import columns
from icefloe.spark.frames import frame_of
from icefloe.spark.session import time_zone
from icefloe.statements import Options, WriteKind, WriteStatement
from icefloe.writing.data_files import WrittenRows, write_data

OPERATION = WriteKind.OVERWRITE_PARTITIONS.value


@dataclass(frozen=True, slots=True)
class _OverwritePlan:
    state: TableState
    has_older_specs: bool
    cut: Cut | None  # the inline rows


@dataclass(frozen=True, slots=True)
class OverwritePartitionsCommand(Command[_OverwritePlan]):
    """Replace exactly the partitions, of the current spec, that the new rows are in."""

    statement: WriteStatement
    context: Context

    @property
    def options(self) -> Options:
        """How the statement runs."""
        return self.statement.options

    def plan(self, state: TableState, _resources: ExitStack) -> _OverwritePlan:
        """Metadata alone replaces partitions, unless the table has files of older specs."""
        return _OverwritePlan(state, _has_older_specs(state), self.context.tier.cut(state))

    def work(self, plan: _OverwritePlan, statement_id: str) -> Outcome:
        """Write the new rows, then remove what is in their partitions."""
        assert self.statement.rows is not None  # noqa: S101 - overwrite_partitions has rows
        written = write_data(plan.state, self.statement.rows, statement_id)
        if plan.has_older_specs and written.files:
            return self._replace_rows(plan, written, statement_id)
        return self._replace_files(plan, written)

    def _replace_files(self, plan: _OverwritePlan, written: WrittenRows) -> Outcome:
        """Whatever the partitions hold when the commit lands is removed, file by file."""
        state = plan.state
        keys = {partition_key_of(file.spec_id, file.partition) for file in written.files}
        changes = FileChanges(added_data=written.files, removal=RemovePartitions(frozenset(keys)))
        report = DmlResult(OPERATION, rows_inserted=written.rows)
        if written.files:
            choose = _in_partitions(self.context, state, _partitions_of(state, written))
            inline = remove_inline_rows(self.context.spark, plan.cut, choose)
            report, changes = with_inline_changes(self.context.tier, report, changes, inline)
        return Outcome(
            report,
            changes,
            NO_ROWS_READ,
            count_removed=lambda removed: count_rows_of_files(
                self.context.spark, state, removed.data, removed.deletes
            ),
        )

    def _replace_rows(
        self, plan: _OverwritePlan, written: WrittenRows, statement_id: str
    ) -> Outcome:
        """Rows of older specs are deleted one by one where a file holds others too."""
        state = plan.state
        partitions = _partitions_of(state, written)
        lowered = lowered_partitions(state, partitions, time_zone(self.context.spark))
        files = without_other_partitions(plan_files(state, lowered), partitions, covered=True)
        replaced = ReplacedRows(
            operation=OPERATION,
            state=state,
            files=files,
            matcher=PartitionSetMatcher(lowered, state.schema, state.metadata.specs(), partitions),
            choose=_in_partitions(self.context, state, partitions),
            summary={},
            cut=plan.cut,
        )
        return replace_rows(self.context, replaced, written, self.options, statement_id)


def _partitions_of(state: TableState, written: WrittenRows) -> PartitionSet:
    """The partitions of the current spec that the new rows are in."""
    spec = state.metadata.spec()
    return PartitionSet.of(spec, written.files, range(len(spec.fields)))


def _has_older_specs(state: TableState) -> bool:
    current = state.metadata.default_spec_id
    manifests = list_manifests(state.io, state.snapshot) if state.snapshot else ()
    return any(
        manifest.partition_spec_id != current
        and manifest.content == ManifestContent.DATA
        and (manifest.has_added_files() or manifest.has_existing_files())
        for manifest in manifests
    )


def _in_partitions(
    context: Context, state: TableState, partitions: PartitionSet
) -> Callable[[DataFrame], DataFrame]:
    """Selects the rows that the current spec puts into one of the partitions."""

    def choose(rows: DataFrame) -> DataFrame:
        values = partition_columns(partitions.spec, state.schema)
        if not values:
            return rows
        names = [columns.partition_field(i) for i in range(len(values))]
        placed = rows.select(
            columns.FILE,
            columns.POS,
            *(value.alias(name) for name, value in zip(names, values, strict=True)),
        )
        keys = F.broadcast(_as_frame(context, partitions, placed.select(*names).schema))
        same = [F.col(name).eqNullSafe(F.col(_key_of(name))) for name in names]
        return placed.join(keys, reduce(lambda a, b: a & b, same), "left_semi")

    return choose


def _as_frame(context: Context, partitions: PartitionSet, schema: T.StructType) -> DataFrame:
    """The keys of the partitions as rows, in the types of `schema`."""
    keys = list(partitions.keys)
    table = pa.table(
        {
            field.name: pa.array([_spark_value(key[i], field.dataType) for key in keys])
            for i, field in enumerate(schema.fields)
        }
    )
    rows = frame_of(context.spark, table)
    return rows.select(
        *(F.col(f.name).cast(f.dataType).alias(_key_of(f.name)) for f in schema.fields)
    )


def _key_of(name: str) -> str:
    return f"{name}_key"


def _spark_value(value: Any, kind: T.DataType) -> Any:
    """The value of a key for Spark; keys hold NaN as text."""
    is_float = isinstance(kind, T.FloatType | T.DoubleType)
    return float("nan") if is_float and value == "NaN" else value
