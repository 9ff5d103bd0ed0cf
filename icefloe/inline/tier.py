"""The inline tier of a lake: rows in the catalog's database that are part of its tables.

A cut is a pair of metadata and inline rows that existed together: the rows are read in one
transaction with the pointer to the metadata. Rows and pointer read one after the other would miss
rows of a flush in between, or have them twice.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema

from icefloe.errors import UnsupportedTableError
from icefloe.file_changes import RowVersion
from icefloe.inline.bookkeeping import last_change, remove_keys
from icefloe.inline.decode import RowNames, decode_rows
from icefloe.inline.layout import InlineTable, inline_columns
from icefloe.inline.rows import (
    InlineRows,
    age_of_oldest,
    count_rows,
    estimate_bytes,
    select_rows,
    select_versions,
)
from icefloe.inline.store import InlineStore, StoreConnection, read_store_id
from icefloe.inline.tables import (
    CatalogTable,
    drop_table,
    find_table,
    pointer,
    register_table,
    rename_table,
)
from icefloe.inline.where import translate
from icefloe.metadata.table_state import TableState
from icefloe.settings import INLINE, INLINE_STORE

INLINE_FILE = "inline"  # what `_file` is for an inline row


class PointerMovedError(Exception):
    """The table was committed to between reading its metadata and its inline rows."""


@dataclass(frozen=True, slots=True)
class InlineFacts:
    """What the inline tier holds of a table."""

    rows: int
    bytes: int  # estimated from the newest rows
    oldest: datetime | None  # when the oldest row was inserted
    deletes: int = 0  # of rows in data files
    is_due: bool = False  # there are too many rows, or too old ones, by the table's properties


@dataclass(frozen=True, slots=True)
class Cut:
    """Inline rows of a table at the time of its metadata."""

    table: InlineTable
    schema: Schema
    rows: InlineRows
    is_exact: bool  # exactly the rows that the condition is TRUE for
    read_at: int | None = None  # the last change that it has, where numbers of changes tell

    def arrow(self) -> pa.Table:
        """The rows with the table's columns and types."""
        names = RowNames(self.table.full_name, self.rows.row_ids)
        return decode_rows(self.rows.values, self.schema, len(self.rows), names)


class InlineTier:
    """The inline tier of the tables of one catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._store: InlineStore | None = None
        self._lock = threading.Lock()

    @property
    def store(self) -> InlineStore:
        """The database of the tier; refuses catalogs that are not in a database of ours."""
        with self._lock:
            if self._store is None:
                if not isinstance(self._catalog, SqlCatalog):
                    raise UnsupportedTableError(
                        f"{INLINE} needs a catalog in SQLite or PostgreSQL, so that inline rows "
                        f"and table commits are one transaction; {self._catalog.name!r} is a "
                        f"{type(self._catalog).__name__}. Use append()."
                    )
                self._store = InlineStore.of_catalog(self._catalog)
            return self._store

    def close(self) -> None:
        """Close the connections to the database."""
        with self._lock:
            if self._store is not None:
                self._store.close()

    def cut(
        self,
        state: TableState,
        condition: BooleanExpression | None = None,
        schema: Schema | None = None,
        limit: int | None = None,
    ) -> Cut | None:
        """The inline rows of a table that a condition may be TRUE for; None if it has no tier.

        Args:
            state: The state of the table.
            condition: An expression as `FilePredicate.inclusive`; without it, every row.
            schema: The columns to read, a part of the table's schema.
            limit: How many rows are enough; applies to an exact cut alone.

        Raises:
            PointerMovedError: `state` is no longer the table's current state.
        """
        if not state.has_inline_tier:
            return None
        condition = AlwaysTrue() if condition is None else condition
        with self.store.reading() as connection:
            if pointer(connection, self.name_of(state)) != state.pointer:
                raise PointerMovedError
            table = self.find(connection, state)
            if table is None:
                return None
            schema = state.schema if schema is None else schema
            judged = translate(condition, state.schema, table.rows)
            enough = limit if judged.exact else None
            rows = select_rows(connection, table, inline_columns(schema), judged.where, enough)
            return Cut(table, schema, rows, judged.exact, last_change(connection))

    def count(self, state: TableState, condition: BooleanExpression) -> int | None:
        """How many inline rows a condition is TRUE for; None if only Spark can evaluate it.

        Raises:
            PointerMovedError: `state` is no longer the table's current state.
        """
        if not state.has_inline_tier:
            return 0
        with self.store.reading() as connection:
            if pointer(connection, self.name_of(state)) != state.pointer:
                raise PointerMovedError
            table = self.find(connection, state)
            if table is None:
                return 0
            rows = translate(condition, state.schema, table.rows)
            return count_rows(connection, table, rows.where) if rows.exact else None

    def find(self, connection: StoreConnection, state: TableState) -> InlineTable | None:
        """The table in the store; None if no row was ever inserted.

        Refuses a table whose rows are in another database: without them it would be incomplete.
        """
        stored_in = state.metadata.properties.get(INLINE_STORE)
        if stored_in is not None and stored_in != read_store_id(connection):
            raise UnsupportedTableError(
                f"The newest rows of {state.name} are in the inline store {stored_in}, which is "
                f"not in {self.store.database}. Open the lake through the catalog that wrote them."
            )
        return find_table(connection, self._catalog.name, str(state.metadata.table_uuid))

    def versions(self, state: TableState) -> tuple[InlineTable | None, list[RowVersion]]:
        """The versions of all inline rows of a table.

        Raises:
            PointerMovedError: `state` is no longer the table's current state.
        """
        if not state.has_inline_tier:
            return None, []
        with self.store.reading() as connection:
            if pointer(connection, self.name_of(state)) != state.pointer:
                raise PointerMovedError
            table = self.find(connection, state)
            return table, [] if table is None else select_versions(connection, table)

    def register(self, state: TableState) -> InlineTable:
        """The table in the store, which is created if no row was ever inserted."""
        with self.store.reading() as connection:
            table = self.find(connection, state)
        if table is not None:
            return table
        uuid, columns = str(state.metadata.table_uuid), inline_columns(state.schema)
        with self.store.writing() as connection:
            return register_table(connection, self.name_of(state), uuid, columns)

    def store_id(self) -> str:
        """The id of the database, which tables with inline rows carry as a property."""
        with self.store.writing() as connection:
            return str(read_store_id(connection))

    def forget(self, state: TableState) -> None:
        """Remove all rows of a table that was dropped."""
        with self.store.writing() as connection:
            table = self.find(connection, state)
            if table is not None:
                drop_table(connection, table)

    def remove_keys(self, state: TableState, older_than: datetime | None) -> None:
        """Remove idempotency keys that are older than snapshots which expire."""
        if not state.has_inline_tier:
            return
        age = timedelta(milliseconds=state.settings.max_snapshot_age_ms)
        before = older_than or datetime.now(UTC) - age
        with self.store.writing() as connection:
            table = self.find(connection, state)
            if table is not None:
                remove_keys(connection, table, int(before.timestamp() * 1000))

    def rename(self, state: TableState, name: str) -> None:
        """Note the new name of a table, for messages."""
        with self.store.writing() as connection:
            table = self.find(connection, state)
            if table is not None:
                rename_table(connection, table, self.name_of(replace(state, name=name)))

    def facts(self, state: TableState) -> InlineFacts | None:
        """What the tier holds of a table; None if the table has no tier."""
        if not state.has_inline_tier:
            return None
        with self.store.reading() as connection:
            table = self.find(connection, state)
            if table is None:
                return InlineFacts(0, 0, None)
            age = age_of_oldest(connection, table)
            oldest = None if age is None else datetime.now(UTC) - timedelta(milliseconds=age)
            rows, size = count_rows(connection, table), estimate_bytes(connection, table)
        limits = state.settings
        most = limits.inline_max_age_ms
        is_old = age is not None and most is not None and age > most
        is_due = is_old or rows >= limits.inline_row_limit
        return InlineFacts(rows, size, oldest, is_due=is_due)

    def name_of(self, state: TableState) -> CatalogTable:
        """The table's name as the catalog stores it."""
        namespace, _, name = state.name.rpartition(".")
        return CatalogTable(self._catalog.name, namespace, name)
