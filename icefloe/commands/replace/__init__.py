"""REPLACE WHERE, REPLACE USING and the overwrite of partitions."""
