"""Overwrite the partitions that new rows lie in, on tables with files of several specs.

Files of the current spec go by their tuple. A file of an older spec may hold rows of such a
partition besides others: it goes whole where its tuple or bounds say so, else its rows are looked
at and just those of the partition are deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import ManifestContent
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from icefloe.commands.context import Context, statement_files, with_statement_retries
from icefloe.commands.replace.written_rows import (
    PartitionSet,
    PartitionSetMatcher,
    Removal,
    lowered_partitions,
    replace_rows,
    without_other_partitions,
)
from icefloe.commands.run import run
from icefloe.commit.publish import already_done
from icefloe.metadata.manifests import list_manifests
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import plan_files
from icefloe.results import DmlResult
from icefloe.schema.partition_values import partition_columns
from icefloe.spark import columns
from icefloe.spark.frames import frame_of
from icefloe.statements import WriteKind, WriteStatement
from icefloe.write.data_files import write_data


def overwrite_partitions(statement: WriteStatement, context: Context) -> DmlResult:
    """Replace exactly the partitions, of the current spec, that the new rows lie in."""
    if not _has_older_specs(context.read_state(statement.options.branch)):
        return run(statement, context)
    return with_statement_retries(context, statement.options, lambda: _run(statement, context))


def _has_older_specs(state: TableState) -> bool:
    current = state.metadata.default_spec_id
    manifests = list_manifests(state.io, state.snapshot) if state.snapshot else ()
    return any(
        manifest.partition_spec_id != current
        and manifest.content == ManifestContent.DATA
        and (manifest.has_added_files() or manifest.has_existing_files())
        for manifest in manifests
    )


def _run(statement: WriteStatement, context: Context) -> DmlResult:
    state = context.read_state(statement.options.branch)
    if done := already_done(state, statement.options.idempotency_key):
        return done
    with statement_files(state) as statement_id:
        assert statement.rows is not None  # noqa: S101 - overwrite_partitions has rows
        written = write_data(state, statement.rows, statement_id)
        if not written.files:
            return DmlResult(WriteKind.OVERWRITE_PARTITIONS.value)
        spec = state.metadata.spec()
        partitions = PartitionSet.of(spec, written.files, range(len(spec.fields)))
        zone = str(context.spark.conf.get("spark.sql.session.timeZone"))
        lowered = lowered_partitions(state, partitions, zone)
        files = without_other_partitions(plan_files(state, lowered), partitions, covered=True)
        removal = Removal(
            operation=WriteKind.OVERWRITE_PARTITIONS.value,
            state=state,
            files=files,
            matcher=PartitionSetMatcher(lowered, state.schema, state.metadata.specs(), partitions),
            choose=_in_partitions(context, state, partitions),
            summary={},
        )
        return replace_rows(context, removal, written, statement.options, statement_id)


def _in_partitions(
    context: Context, state: TableState, partitions: PartitionSet
) -> Callable[[DataFrame], DataFrame]:
    """Keeps the rows that the current spec puts into one of the partitions."""

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
        chosen = F.broadcast(_as_frame(context, partitions, placed.select(*names).schema))
        same = [F.col(name).eqNullSafe(F.col(_key_of(name))) for name in names]
        return placed.join(chosen, reduce(lambda a, b: a & b, same), "left_semi")

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
    """A key's value; NaN stands in keys as text."""
    is_float = isinstance(kind, T.FloatType | T.DoubleType)
    return float("nan") if is_float and value == "NaN" else value
