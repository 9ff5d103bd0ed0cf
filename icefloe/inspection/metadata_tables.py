"""Metadata tables as DataFrames: history, snapshots, files, partitions, manifests."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.table import Table as IcebergTable
from pyspark.sql import DataFrame, SparkSession

from icefloe.errors import StatementError
from icefloe.spark.frames import frame_of

METADATA_TABLES = ("history", "snapshots", "files", "partitions", "manifests")


def metadata_table(name: str, table: IcebergTable, spark: SparkSession) -> DataFrame:
    """One metadata table; PyIceberg reads it, Spark shows it."""
    return frame_of(spark, metadata_arrow(name, table))


def metadata_arrow(name: str, table: IcebergTable) -> pa.Table:
    """One metadata table, of types that Spark takes too."""
    if name not in METADATA_TABLES:
        raise StatementError(
            f"Unknown metadata table {name!r}. They are: {', '.join(METADATA_TABLES)}."
        )
    found: pa.Table = getattr(table.inspect, name)()
    return _readable(found)


def _readable(table: pa.Table) -> pa.Table:
    """Types that Spark takes from Arrow: times in microseconds and UTC, empty structs left out."""
    for index, field in enumerate(table.schema):
        if pa.types.is_struct(field.type) and field.type.num_fields == 0:
            return _readable(table.remove_column(index))
        if pa.types.is_timestamp(field.type) and (field.type.unit != "us" or field.type.tz is None):
            utc = table.column(index).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
            table = table.set_column(index, field.name, utc)
    return table
