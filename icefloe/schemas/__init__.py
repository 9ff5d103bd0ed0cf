"""Schemas, partition specs and sort orders, in Iceberg's terms and in Spark's."""
