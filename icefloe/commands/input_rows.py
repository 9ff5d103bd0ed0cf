"""Input rows (DataFrame, Arrow, pandas, dicts) as a DataFrame that fits the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd
import pyarrow as pa
from pyiceberg.schema import Schema
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from icefloe.commands.bind import store
from icefloe.errors import (
    ColumnTypeMismatchError,
    SchemaMismatchError,
    StatementError,
    TypeMismatchError,
)
from icefloe.metadata.table_state import TableState
from icefloe.schema.arrow_values import arrow_schema
from icefloe.schema.to_spark import spark_schema
from icefloe.spark.columns import quoted
from icefloe.spark.errors import translate_spark_errors, translate_task_errors
from icefloe.spark.frames import frame_of
from icefloe.tasks.arrow import fitted
from icefloe.tasks.write import refuse_nulls
from icefloe.writing.local_rows import (
    MOST_BYTES,
    MOST_ROWS,
    can_write_locally,
    check_partitions,
    has_types,
    in_schema_order,
)


def fit_new_rows(rows: object, state: TableState, spark: SparkSession) -> DataFrame | pa.Table:
    """Rows to add, as `fit_rows` gives them, or an Arrow table if the driver can write them."""
    table = _as_arrow(rows, state)
    if table is not None and can_write_locally(state, table):
        return table
    return fit_rows(rows if table is None else table, state, spark)


def fit_few_rows(
    rows: object, state: TableState, session: Callable[[], SparkSession]
) -> pa.Table | None:
    """Rows to insert inline, in the table's exact Arrow types; None if there are too many.

    Rows that need a cast are cast by Spark, as for `append`. Rows that no partition can hold are
    refused now, not when they are flushed.
    """
    table = _as_arrow(rows, state)
    if table is not None and (table.num_rows > MOST_ROWS or table.nbytes > MOST_BYTES):
        return None
    if table is None or not has_types(table, state.schema):
        frame = fit_rows(rows if table is None else table, state, session())
        with translate_spark_errors():
            table = frame.limit(MOST_ROWS + 1).toArrow()
    if table.num_rows > MOST_ROWS or table.nbytes > MOST_BYTES:
        return None
    few = as_schema(in_schema_order(table, state.schema), state.schema)
    check_partitions(state, few)
    return few


def as_schema(rows: pa.Table, schema: Schema) -> pa.Table:
    """Rows in the table's exact Arrow types; NULL in a required column is refused."""
    expected = arrow_schema(schema)
    arrays = [fitted(rows.column(index), field.type) for index, field in enumerate(expected)]
    loose = pa.schema([field.with_nullable(True) for field in expected])
    table = pa.Table.from_arrays(arrays, schema=loose)
    with translate_task_errors("memory"):
        refuse_nulls(table, expected)
    return table


def fit_rows(rows: object, state: TableState, spark: SparkSession) -> DataFrame:
    """Rows with the table's columns, order and types; rows that do not fit are refused."""
    frame = as_frame(rows, state, spark)
    schema = spark_schema(state.schema)
    with translate_spark_errors():
        row_schema = frame.schema
    by_name = _by_name(row_schema, schema)
    columns = []
    for field in schema.fields:
        source = by_name[field.name.lower()]
        try:
            value = store(quoted(source.name), source.dataType, field, field.name)
        except TypeMismatchError as error:
            raise ColumnTypeMismatchError(error.column, error.expected, error.actual) from error
        columns.append(value.alias(field.name))
    return frame.select(*columns)


def source_rows(rows: object, state: TableState) -> pa.Table | None:
    """Rows of any columns that the driver holds; dicts get the table's types where they fit."""
    if isinstance(rows, Sequence) and not isinstance(rows, (str, bytes)):
        return _from_any_dicts(rows, state)
    return _as_arrow(rows, state)


def as_frame(rows: object, state: TableState, spark: SparkSession) -> DataFrame:
    """Rows of any accepted kind as a DataFrame; local rows become one partition."""
    table = _as_arrow(rows, state)
    if table is not None:
        with translate_spark_errors():
            frame = frame_of(spark, table)
        small = table.nbytes < state.settings.target_file_bytes
        return frame.coalesce(1) if small else frame
    if hasattr(rows, "mapInArrow") and hasattr(rows, "schema"):
        return rows  # type: ignore[return-value]  # a DataFrame, classic or Connect
    raise StatementError(
        "Rows must be a Spark DataFrame, an Arrow table or batch, a pandas frame or a list of "
        f"dicts, not {type(rows).__name__}."
    )


def _as_arrow(rows: object, state: TableState) -> pa.Table | None:
    """Rows that the driver holds as an Arrow table; None for anything else."""
    match rows:
        case pa.Table():
            return rows
        case pa.RecordBatch():
            return pa.Table.from_batches([rows])
        case pd.DataFrame():
            return pa.Table.from_pandas(rows, preserve_index=False)
        case Sequence() if not isinstance(rows, str | bytes):
            return _from_dicts(rows, state)
    return None


def _from_any_dicts(rows: Sequence[Any], state: TableState) -> pa.Table:
    _refuse_other_than_dicts(rows)
    schema = arrow_schema(state.schema)
    fields = {field.name.lower(): field for field in schema}
    names = list(dict.fromkeys(str(key) for row in rows for key in row)) or schema.names
    columns = []
    for name in names:
        values = [row.get(name) for row in rows]
        field = fields.get(name.lower())
        try:
            columns.append(pa.array(values) if field is None else _column(values, field))
        except (ColumnTypeMismatchError, pa.ArrowInvalid, pa.ArrowTypeError):
            columns.append(_inferred(name, values))
    return pa.table(columns, names=names)


def _inferred(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as bad:
        raise ColumnTypeMismatchError(name, "one type", "values of several", str(bad)) from bad


def _refuse_other_than_dicts(rows: Sequence[Any]) -> None:
    if not all(isinstance(row, Mapping) for row in rows):
        raise StatementError("A list of rows must hold dicts of column name to value.")


def _from_dicts(rows: Sequence[Any], state: TableState) -> pa.Table:
    """Dicts by the table's own types, so that an int literal fits a DOUBLE or an INT column."""
    _refuse_other_than_dicts(rows)
    schema = arrow_schema(state.schema)
    names = {field.name.lower(): field.name for field in schema}
    keys = {key for row in rows for key in row}
    extra = sorted(key for key in keys if str(key).lower() not in names)
    missing = [name for low, name in names.items() if low not in {str(k).lower() for k in keys}]
    if rows and (extra or missing):
        raise _mismatch(missing, extra)
    lowered = [{str(key).lower(): value for key, value in row.items()} for row in rows]
    return pa.Table.from_arrays(
        [_column([row.get(f.name.lower()) for row in lowered], f) for f in schema],
        schema=pa.schema([f.with_nullable(True) for f in schema]),
    )


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    if pa.types.is_timestamp(field.type) and field.type.tz is not None:
        # As PySpark does: a datetime without a zone is local time.
        values = [
            v.astimezone() if isinstance(v, datetime) and v.tzinfo is None else v for v in values
        ]
    try:
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as bad:
        raise ColumnTypeMismatchError(
            field.name, str(field.type), "a value that does not fit", str(bad)
        ) from bad


def _by_name(rows: T.StructType, table: T.StructType) -> dict[str, T.StructField]:
    """The fields of rows by lower-case name; they must be the table's."""
    by_name: dict[str, T.StructField] = {}
    for field in rows.fields:
        if field.name.lower() in by_name:
            raise SchemaMismatchError(f"The rows have the column {field.name!r} twice.")
        by_name[field.name.lower()] = field
    names = {field.name.lower(): field.name for field in table.fields}
    missing = [name for low, name in names.items() if low not in by_name]
    extra = [field.name for low, field in by_name.items() if low not in names]
    if missing or extra:
        raise _mismatch(missing, extra)
    return by_name


def _mismatch(missing: list[str], extra: list[str]) -> SchemaMismatchError:
    problems = []
    if missing:
        problems.append(f"the rows lack {', '.join(map(repr, missing))}")
    if extra:
        problems.append(f"the table has no {', '.join(map(repr, map(str, extra)))}")
    return SchemaMismatchError(
        f"The rows do not fit the table: {'; '.join(problems)}. Select the table's columns, with "
        "NULL where there is no value."
    )
