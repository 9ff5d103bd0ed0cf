"""Types, partition specs and transforms, in Iceberg's and Spark's terms."""
