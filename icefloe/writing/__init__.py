"""Write new data files and rewrite existing ones."""
