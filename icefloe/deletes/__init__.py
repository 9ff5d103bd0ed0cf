"""Deleted rows: their positions, and the files that record them."""
