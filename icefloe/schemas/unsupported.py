"""The refusal of a column whose type does not pass between Iceberg and Spark."""

from __future__ import annotations

from icefloe.errors import UnsupportedTableError


def unsupported_column(path: str, type_name: str, advice: str) -> UnsupportedTableError:
    """The error for the column at `path` (dots between levels; empty: the type alone)."""
    subject = f"Column {path!r} has type {type_name}" if path else f"The type is {type_name}"
    return UnsupportedTableError(
        f"{subject}, which cannot be stored in Iceberg and read back by Spark. {advice}"
    )
