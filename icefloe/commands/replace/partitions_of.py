"""The predicate of the partitions that some rows lie in."""

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
    """A predicate that is true for exactly the partitions `rows` lie in; one Spark job.

    Only the columns that the table is partitioned by are needed. No rows: FALSE.
    """
    spec = PartitionSpec(*partitioning_fields(state.metadata.spec()))
    sources = {c.field_id: c for c in source_columns(state.schema, spec).values()}
    if not sources:
        raise NonPartitionedTableError(state.name)
    found = _distinct(_sources_of(rows, state, spark, set(sources)), spec, state)
    tuples = [to_record(values, spec, state.schema) for values in found]
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
    rows: object, state: TableState, spark: SparkSession, wanted: set[int]
) -> DataFrame:
    """The columns of rows that partitions are made of, in the table's types."""
    frame = as_frame(rows, state, spark)
    tops = {(source_path(state.schema, i) or ("",))[0] for i in wanted}
    with translate_spark_errors():
        given = {field.name.lower(): field for field in frame.schema.fields}
    chosen = []
    for field in spark_schema(state.schema).fields:
        if field.name not in tops:
            continue
        if field.name.lower() not in given:
            raise SchemaMismatchError(
                f"The rows lack {field.name!r}, which the table is partitioned by."
            )
        source = given[field.name.lower()]
        value = store(quoted(source.name), source.dataType, field, field.name)
        chosen.append(value.alias(field.name))
    return frame.select(*chosen)


def _distinct(rows: DataFrame, spec: PartitionSpec, state: TableState) -> list[list[Any]]:
    names = [columns.partition_field(i) for i in range(len(spec.fields))]
    values = partition_columns(spec, state.schema)
    placed = rows.select(*(v.alias(n) for v, n in zip(values, names, strict=True))).distinct()
    with translate_spark_errors():
        found = placed.select(*map(F.col, names)).limit(_MOST_PARTITIONS + 1).collect()
    if len(found) > _MOST_PARTITIONS:
        raise StatementError(
            f"The rows lie in more than {_MOST_PARTITIONS} partitions, too many for a predicate. "
            "Use overwrite_partitions(), or a range."
        )
    return [list(row) for row in found]


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
            "no condition on the column's values says which partition they are in. Use "
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
        raise InvalidPredicateError(text, "a value with a backslash cannot be written in it")
    return text
