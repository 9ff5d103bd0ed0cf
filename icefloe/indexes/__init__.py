"""Secondary indexes: sidecars beside data files that say where rows with some values are."""
