"""Arrow tables as Spark DataFrames."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from icefloe.spark.columns import PREFIX
from icefloe.spark.errors import detect_jvm_exit, translate_spark_errors
from icefloe.spark.session import spark_conf

# Above, Spark's driver does not turn Arrow data into rows; tasks do.
_LOCAL_BYTES = "spark.sql.execution.arrow.localRelationThreshold"
_MANY_BYTES = 1024 * 1024
# In the text of EXPLAIN COST; the first is of the whole plan.
_SIZE = re.compile(r"Statistics\(sizeInBytes=([0-9.E+]+) ([KMGTPE]?i?B)")
_UNITS = {
    unit: 2 ** (10 * power)
    for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))
}
_ENDLESS = 2**63 - 1
_NUMBER = f"{PREFIX}number"


def frame_of(spark: SparkSession, table: pa.Table, schema: StructType | None = None) -> DataFrame:
    """A DataFrame of all rows of an Arrow table, of the given schema or that of the table.

    Empty chunks are left out, since PySpark loses the rows after one. Over Spark Connect PySpark
    refuses a table without rows.
    """
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    with detect_jvm_exit():
        filled = pa.Table.from_batches(batches, schema=table.schema)
        if schema is not None:
            return spark.createDataFrame(filled, schema) if batches else no_rows(spark, schema)
        # Without a schema PySpark takes a timestamp without a zone for local time, which may not
        # exist.
        schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
        if not batches:
            return no_rows(spark, schema)
        if any(pa.types.is_timestamp(kind) and kind.tz is None for kind in table.schema.types):
            return spark.createDataFrame(filled, schema)
        return spark.createDataFrame(filled)


def frame_of_read_rows(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A DataFrame of rows that were read from a table, converted by tasks if there are many.

    The driver's conversion of 100,000 rows takes longer than all else in reading them. Spark's
    planner knows the size only of what the driver has converted: not for what may be broadcast.
    """
    if table.nbytes <= _MANY_BYTES:
        return frame_of(spark, table)
    with spark_conf(spark, _LOCAL_BYTES, "0"):
        return frame_of(spark, table)


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """A DataFrame without rows, which Spark's optimizer knows to have none."""
    return spark.createDataFrame([], schema).limit(0)


def numbers(spark: SparkSession, count: int) -> DataFrame:
    """The numbers below `count` in as many tasks as run at once: each starts a Python worker."""
    return spark.range(count).coalesce(max(1, count))


def few_rows(frame: DataFrame, rows: int, size: int) -> pa.Table | None:
    """All rows of a DataFrame in its order; None where Spark expects, or finds, more than that.

    One that Spark expects to have more bytes is not read at all.
    """
    with translate_spark_errors():
        if expected_bytes(frame) > size:
            return None
        # A limit has one task fetch the parts of the others, in the order in which they come.
        numbered = frame.selectExpr("*", f"monotonically_increasing_id() AS {_NUMBER}")
        table = numbered.limit(rows + 1).toArrow()
    if table.num_rows > rows:
        return None
    last = table.num_columns - 1
    numbers, table = table.column(last), table.remove_column(last)
    if table.nbytes > size:
        return None
    order = numbers.to_numpy()
    return table if np.all(order[1:] > order[:-1]) else table.take(pc.sort_indices(numbers))


def expected_bytes(frame: DataFrame) -> int:
    """The size of a DataFrame's rows in memory, as Spark's planner estimates it before it runs.

    Of rows from files it is the size of the files; of what it knows nothing about, it is very
    large. Filters are taken to keep every row.
    """
    plan: Any = getattr(frame, "_jdf", None)  # Spark Connect refuses it as an attribute
    if plan is not None:
        return int(plan.queryExecution().optimizedPlan().stats().sizeInBytes())
    cost = frame.sparkSession.sql("EXPLAIN COST SELECT * FROM {frame}", frame=frame).head()
    found = _SIZE.search(cost[0] if cost else "")
    return int(float(found[1]) * _UNITS[found[2]]) if found else _ENDLESS
