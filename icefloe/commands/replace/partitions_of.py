"""The predicate of the partitions that some rows are in."""

from __future__ import annotations

import math
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from icefloe.commands.bind import store
from icefloe.commands.input_rows import as_frame
from icefloe.commands.replace.partition_match import NULL, values_of
from icefloe.commands.replace.predicate import (
    SourceColumn,
    partitioning_fields,
    source_columns,
)
from icefloe.errors import (
    InvalidPredicateError,
    NonPartitionedTableError,
    SchemaMismatchError,
    StatementError,
)
from icefloe.metadata.table_state import TableState
from icefloe.pruning.literals import sql_literal, sql_text
from icefloe.schema.partition_spec import source_path
from icefloe.schema.partition_values import partition_columns, to_record
from icefloe.schema.to_spark import spark_schema
from icefloe.spark import columns
from icefloe.spark.columns import quote_path, quoted
from icefloe.spark.errors import translate_spark_errors

_MOST_PARTITIONS = 1000


def partitions_of(rows: object, state: TableState, spark: SparkSession) -> str:
    """A predicate that is TRUE for exactly the partitions that `rows` are in; one Spark job.

    Only the columns that the table is partitioned by are needed. No rows: FALSE.
    """
    spec = PartitionSpec(*partitioning_fields(state.metadata.spec()))
    sources = {c.field_id: c for c in source_columns(state.schema, spec).values()}
    if not sources:
        raise NonPartitionedTableError(state.name)
    partitions = _distinct(_sources_of(rows, state, spark, set(sources)), spec, state)
    tuples = [to_record(values, spec, state.schema) for values in partitions]
    if len(spec.fields) == 1 and isinstance(spec.fields[0].transform, IdentityTransform):
        source = sources[spec.fields[0].source_id]
        return _listed(source, [record[0] for record in tuples])
    texts = [
        " AND ".join(
            _text(field, sources[field.source_id], record[i]) for i, field in enumerate(spec.fields)
        )
        for record in tuples
    ]
    return " OR ".join(f"({text})" for text in sorted(texts)) or "FALSE"


def _sources_of(
    rows: object, state: TableState, spark: SparkSession, source_ids: set[int]
) -> DataFrame:
    """The columns of rows that the table is partitioned by, in the table's types."""
    frame = as_frame(rows, state, spark)
    tops = {(source_path(state.schema, i) or ("",))[0] for i in source_ids}
    with translate_spark_errors():
        fields = {field.name.lower(): field for field in frame.schema.fields}
    selected = []
    for field in spark_schema(state.schema).fields:
        if field.name not in tops:
            continue
        if field.name.lower() not in fields:
            raise SchemaMismatchError(
                f"The rows lack {field.name!r}, which the table is partitioned by."
            )
        source = fields[field.name.lower()]
        value = store(quoted(source.name), source.dataType, field, field.name)
        selected.append(value.alias(field.name))
    return frame.select(*selected)


def _distinct(rows: DataFrame, spec: PartitionSpec, state: TableState) -> list[list[Any]]:
    names = [columns.partition_field(i) for i in range(len(spec.fields))]
    values = partition_columns(spec, state.schema)
    placed = rows.select(*(v.alias(n) for v, n in zip(values, names, strict=True))).distinct()
    with translate_spark_errors():
        partitions = placed.select(*map(F.col, names)).limit(_MOST_PARTITIONS + 1).collect()
    if len(partitions) > _MOST_PARTITIONS:
        raise StatementError(
            f"The rows are in more than {_MOST_PARTITIONS} partitions, too many for a predicate. "
            "Use overwrite_partitions(), or a range."
        )
    return [list(row) for row in partitions]


def _listed(column: SourceColumn, values: list[Any]) -> str:
    present = sorted(_literal(column, value) for value in values if value is not None)
    texts = [f"{quote_path(*column.path)} IN ({', '.join(present)})"] if present else []
    if len(present) < len(values):
        texts.append(f"{quote_path(*column.path)} IS NULL")
    return " OR ".join(texts) or "FALSE"


def _text(field: PartitionField, column: SourceColumn, value: Any) -> str:
    values = values_of(field, column.type, value)
    name = quote_path(*column.path)
    if values == NULL:
        return f"{name} IS NULL"
    if isinstance(field.transform, IdentityTransform):
        return f"{name} = {_literal(column, value)}"
    if values.low is None or values.high is None:
        raise InvalidPredicateError(
            f"{field.transform} of {column.name}",
            "no condition on the column's values selects one of its partitions. Use "
            "overwrite_partitions()",
        )
    if values.is_one:
        return f"{name} = {_literal(column, values.low)}"
    up_to = "<" if values.below_high else "<="
    low, high = _literal(column, values.low), _literal(column, values.high)
    return f"{name} >= {low} AND {name} {up_to} {high}"


def _literal(column: SourceColumn, value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidPredicateError(column.name, f"SQL has no literal for {value}")
    text = sql_text(sql_literal(value, column.type))
    if "\\" in text:
        raise InvalidPredicateError(text, "a predicate cannot have a value with a backslash")
    return text
