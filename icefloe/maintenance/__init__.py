"""Upkeep of tables: files compacted, history expired, orphans removed, manifests rewritten."""
