"""Schemas, types and partition specs of Iceberg, Spark and Arrow, converted."""
