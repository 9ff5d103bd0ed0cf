"""PyIceberg's metadata, read and written; the only folder that uses its private names."""
