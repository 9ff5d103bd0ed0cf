"""Inspection of tables from their metadata: facts, metadata tables, the log of commits."""
