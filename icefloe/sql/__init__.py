"""`lake.sql`: SQL text → the statements that the builders make."""
