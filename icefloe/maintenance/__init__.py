"""Table maintenance: compaction, snapshot expiry, orphan removal, manifest rewrites, purge."""
