"""New data files and rewritten ones."""
