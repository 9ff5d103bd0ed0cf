"""Arrow tables as Spark DataFrames."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from icefloe.spark.errors import detect_jvm_exit
from icefloe.spark.session import spark_conf

# Above, Spark's driver does not turn Arrow data into rows; tasks do.
_LOCAL_BYTES = "spark.sql.execution.arrow.localRelationThreshold"
_MANY_BYTES = 1024 * 1024


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A DataFrame of all rows of an Arrow table.

    Empty chunks are left out, since PySpark loses the rows after one. Over Spark Connect PySpark
    refuses a table without rows.
    """
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    # Without a schema PySpark takes a timestamp without a zone for local time, which may not exist.
    schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    with detect_jvm_exit():
        if not batches:
            return no_rows(spark, schema)
        filled = pa.Table.from_batches(batches, schema=table.schema)
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
