"""Read the live rows of data files with Spark."""
