"""The live rows of data files."""
