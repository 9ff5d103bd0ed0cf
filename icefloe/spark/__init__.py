"""The Spark session, its errors, and SQL text as Spark reads it."""
