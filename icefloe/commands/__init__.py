"""Statements: each binds, plans, does its work on Spark and publishes one snapshot."""
