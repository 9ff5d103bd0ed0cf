"""What a table holds and how it came about, as rows."""
