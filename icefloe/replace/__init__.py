"""REPLACE WHERE, REPLACE USING, partitions overwritten: old rows out, new rows in, at once."""
