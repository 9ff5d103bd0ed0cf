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
    with detect_jvm_exit():
        if not batches:
            schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
            return spark.createDataFrame([], schema)
        return spark.createDataFrame(pa.Table.from_batches(batches, schema=table.schema))
