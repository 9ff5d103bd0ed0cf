"""MERGE: source, keys, files, join, one action per row."""
