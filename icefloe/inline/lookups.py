"""Database indexes of columns by which statements look up inline rows.

An UPDATE of one row by its key would look through all inline rows. The first one on a table that
has many gives the column an index, which later inserts keep up; the look-ups of reads use it, too.
Indexes are for speed alone: what the database refuses is left.
"""

from __future__ import annotations

import logging

from pyiceberg.expressions import And, BooleanExpression, EqualTo, In, Reference
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType, UnknownType

from icefloe.errors import CommitOutcomeUnknown, StorageError
from icefloe.inline.layout import InlineColumn, InlineTable, kind_of
from icefloe.inline.rows import row_span
from icefloe.inline.store import InlineStore, StoreConnection
from icefloe.inline.tables import find_table

_LOG = logging.getLogger("icefloe")

_MANY_ROWS = 10_000  # that a statement does not look through for the rows of a key


class LookupIndexes:
    """The indexes of one store's tables that this process has seen to."""

    def __init__(self) -> None:
        self._known: set[tuple[int, InlineColumn]] = set()

    def add(
        self, store: InlineStore, table: InlineTable, condition: BooleanExpression, schema: Schema
    ) -> None:
        """Index the column by which a condition finds rows, if the table has many.

        Args:
            store: The database.
            table: The table in the store.
            condition: The condition of a statement, as `FilePredicate.inclusive`.
            schema: The schema whose columns it names.
        """
        column = lookup_column(condition, schema)
        if column not in table.columns or (table.id, column) in self._known:
            return
        try:
            with store.reading() as connection:
                if row_span(connection, table) < _MANY_ROWS:
                    return
            self._known.add((table.id, column))
            with store.writing() as connection:
                connection.lock_store()
                if find_table(connection, table.catalog_name, table.table_uuid):
                    _add_index(connection, table, column)
        except (StorageError, CommitOutcomeUnknown) as error:
            _LOG.debug("no index on inline rows of %s: %s", table.full_name, error)


def lookup_column(condition: BooleanExpression, schema: Schema) -> InlineColumn | None:
    """The column whose index would find the rows of a condition; None if no index would."""
    match condition:
        case And(left=left, right=right):
            return lookup_column(left, schema) or lookup_column(right, schema)
        case EqualTo(term=Reference(name=name)) | In(term=Reference(name=name)):
            fields = [field for field in schema.fields if field.name == name]
            kinds = [field.field_type for field in fields]
            if len(kinds) != 1 or not isinstance(kinds[0], PrimitiveType):
                return None
            if isinstance(kinds[0], UnknownType):
                return None
            return InlineColumn(fields[0].field_id, kind_of(kinds[0]))
        case _:
            return None


def _add_index(connection: StoreConnection, table: InlineTable, column: InlineColumn) -> None:
    rows = table.rows.name
    # PostgreSQL refuses rows with long values in an ordered index.
    method = " USING hash" if connection.is_postgresql else ""
    connection.connection.exec_driver_sql(
        f"CREATE INDEX IF NOT EXISTS {rows}_{column.name} ON {rows}{method} ({column.name})"
    )
