"""Arrow tables as Spark DataFrames."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from icefloe.spark.errors import detect_jvm_exit


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
            return spark.createDataFrame([], schema)
        filled = pa.Table.from_batches(batches, schema=table.schema)
        if any(pa.types.is_timestamp(kind) and kind.tz is None for kind in table.schema.types):
            return spark.createDataFrame(filled, schema)
        return spark.createDataFrame(filled)
