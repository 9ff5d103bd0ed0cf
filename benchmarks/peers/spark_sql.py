"""Statements as SQL, for peers with a Spark session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from benchmarks.merges import ON
from benchmarks.statements import BoundStatement, Kind


def run_sql(spark: SparkSession, table: str, bound: BoundStatement) -> None:
    """Run a statement that changes the table."""
    match bound.statement.kind:
        case Kind.DELETE:
            spark.sql(f"DELETE FROM {table} WHERE {bound.where}")
        case Kind.UPDATE:
            spark.sql(f"UPDATE {table} SET {bound.assigned_sql} WHERE {bound.where}")
        case Kind.MERGE:
            clauses = " ".join(clause.sql for clause in bound.statement.merge.clauses)
            spark.read.parquet(bound.source).createOrReplaceTempView("changes")
            spark.sql(f"MERGE INTO {table} AS target USING changes AS source ON {ON} {clauses}")
