"""A cut: inline rows of a table at the time of its metadata.

A cut is a pair of metadata and inline rows that existed together. Rows and pointer read one after
the other would miss rows of a flush in between, or have them twice. Where the catalog is in the
same database, the rows are read in one transaction with the pointer to the metadata. Where it is
not, rows that the metadata says are in files are left out, and the pointer is read again after the
rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.schema import Schema

from icefloe.inline.decode import RowNames, decode_rows
from icefloe.inline.layout import InlineTable
from icefloe.inline.rows import InlineRows

INLINE_FILE = "inline"  # what `_file` is for an inline row


class PointerMovedError(Exception):
    """The table was committed to between reading its metadata and its inline rows."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Inline rows of a table at the time of its metadata."""

    table: InlineTable
    schema: Schema
    rows: InlineRows
    is_exact: bool  # exactly the rows that the condition is TRUE for
    # The last change that it has, where numbers of changes tell whether there was another.
    read_at: int | None = None
    through: int | None = None  # to flush into another database: all rows of changes up to this one
    is_pinned: bool = False  # more than one read of a statement sees these rows

    def arrow(self) -> pa.Table:
        """The rows with the table's columns and types."""
        names = RowNames(self.table.full_name, self.rows.row_ids)
        return decode_rows(self.rows.values, self.schema, len(self.rows), names)
