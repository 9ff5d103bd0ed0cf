"""Metadata tables: `history`, `snapshots`, `files`, `partitions` and `manifests` of a table."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.table import Table as IcebergTable
from pyspark.sql import DataFrame, SparkSession

from icefloe.errors import StatementError
from icefloe.spark.frames import frame_of

METADATA_TABLES = ("history", "snapshots", "files", "partitions", "manifests")


def metadata_table(name: str, table: IcebergTable, spark: SparkSession) -> DataFrame:
    """One metadata table as a DataFrame."""
    return frame_of(spark, metadata_arrow(name, table))


def metadata_arrow(name: str, table: IcebergTable) -> pa.Table:
    """One metadata table as PyIceberg reads it, in types that Spark supports."""
    if name not in METADATA_TABLES:
        raise StatementError(
            f"Unknown metadata table {name!r}. Metadata tables are: {', '.join(METADATA_TABLES)}."
        )
    rows: pa.Table = getattr(table.inspect, name)()
    return _spark_compatible(rows)


def _spark_compatible(table: pa.Table) -> pa.Table:
    """Convert timestamps to microseconds in UTC and drop empty structs, as Spark requires."""
    for index, field in enumerate(table.schema):
        if pa.types.is_struct(field.type) and field.type.num_fields == 0:
            return _spark_compatible(table.remove_column(index))
        if pa.types.is_timestamp(field.type) and (field.type.unit != "us" or field.type.tz is None):
            utc = table.column(index).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
            table = table.set_column(index, field.name, utc)
    return table
