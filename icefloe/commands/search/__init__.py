"""`table.search`: full text and nearest vectors."""
