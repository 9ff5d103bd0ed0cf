"""Plans become files, on Spark."""
