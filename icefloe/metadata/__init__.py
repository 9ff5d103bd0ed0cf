"""Iceberg's metadata, read and written; the only folder that uses PyIceberg's private names."""
