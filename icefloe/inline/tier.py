"""The inline tier of a lake: rows in a database that are part of its tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from icefloe.errors import UnsupportedTableError
from icefloe.file_changes import RowVersion
from icefloe.inline.bookkeeping import (
    count_removed_intents,
    last_number,
    next_stamp,
    read_flushed,
    read_intent,
    remove_keys,
    stamp_above,
)
from icefloe.inline.cut import Cut, PointerMovedError
from icefloe.inline.deletes import read_deletes, read_facts, read_former_deletes
from icefloe.inline.intents import clean_up, wait_for_intents
from icefloe.inline.layout import InlineTable, inline_columns
from icefloe.inline.lookups import LookupIndexes
from icefloe.inline.many_rows import read_rows
from icefloe.inline.rows import (
    CurrentTable,
    InlineRows,
    count_rows,
    last_change,
    select_versions,
)
from icefloe.inline.store import (
    ChangeStamp,
    InlineStore,
    StoreConnection,
    read_store_id,
)
from icefloe.inline.tables import (
    CatalogTable,
    drop_table,
    dropped,
    find_stored,
    look_up,
    pointer,
    register_table,
    rename_table,
)
from icefloe.inline.where import SqlCondition, translate
from icefloe.metadata.table_state import InlineDeletes, TableState
from icefloe.redaction import scrubbed
from icefloe.settings import INLINE, INLINE_STORE, flushed_through


class InlineTier:
    """The inline tier of the tables of one catalog."""

    def __init__(self, catalog: Catalog, inline_uri: str | None = None) -> None:
        self._catalog = catalog
        # Whether inline rows are in the catalog's database, and commits are transactions of it.
        self.shares_database = inline_uri is None
        self._store = None if inline_uri is None else InlineStore.beside(catalog, inline_uri)
        self._lock = threading.Lock()
        self._deletes: dict[int, InlineDeletes] = {}  # as they were read last, by table
        self._lookups = LookupIndexes()
        self._tables: dict[str, InlineTable] = {}  # as they were found last, by uuid

    @property
    def store(self) -> InlineStore:
        """The database of the tier; refuses catalogs that need one of their own and have none."""
        with self._lock:
            if self._store is None:
                if not isinstance(self._catalog, SqlCatalog):
                    raise UnsupportedTableError(
                        f"{INLINE} needs a database for the inline rows, and the catalog "
                        f"{self._catalog.name!r} is a {type(self._catalog).__name__}. Pass one to "
                        "connect(), such as inline_uri='postgresql://user:password@host/database', "
                        "or set inline-uri in PyIceberg's configuration of the catalog. Or use "
                        "append()."
                    )
                self._store = InlineStore.of_catalog(self._catalog)
            return self._store

    def close(self) -> None:
        """Close the connections to the database."""
        with self._lock:
            if self._store is not None:
                self._store.close()

    def with_deletes(self, state: TableState) -> TableState:
        """The state with the rows of its files that are deleted in the database.

        Raises:
            PointerMovedError: `state` is no longer the table's current state.
        """
        if not state.has_inline_tier or not self.shares_database:
            return replace(state, inline_deletes=InlineDeletes())
        with self._reading(state) as (connection, table):
            deletes = InlineDeletes() if table is None else self.deletes(connection, table)
        return replace(state, inline_deletes=deletes)

    def deletes(self, connection: StoreConnection, table: InlineTable) -> InlineDeletes:
        """The deletes of rows in files, which are read again only if they have changed."""
        facts = read_facts(connection, table)
        if not facts.version:  # there never were any
            return InlineDeletes()
        known = self._deletes.get(table.id)
        if known is None or known.version != facts.version:
            read = read_deletes(connection, table) if facts.rows else {}
            former = read_former_deletes(connection, table)
            known = InlineDeletes(read, facts.version, facts.snapshot_id, former)
            self._deletes[table.id] = known
        return known

    def note_live_files(self, state: TableState) -> None:
        """Remember that all files with deletes are live in a state, which took time to find out."""
        for table_id, deletes in list(self._deletes.items()):
            if deletes is state.inline_deletes:
                self._deletes[table_id] = replace(deletes, live_in=state.snapshot_id)

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
        if state.inline_cut is not None:
            return state.inline_cut
        condition = AlwaysTrue() if condition is None else condition
        return self._cut(state, condition, schema=schema, limit=limit)

    def pin(self, state: TableState) -> TableState:
        """The state with all its inline rows, for a statement that reads the table twice.

        Raises:
            PointerMovedError: `state` is no longer the table's current state.
        """
        if not state.has_inline_tier:
            return state
        cut = self.cut(state) or self._no_rows(state)
        return replace(state, inline_cut=replace(cut, is_exact=False, is_pinned=True))

    def _no_rows(self, state: TableState) -> Cut:
        """The cut of a table that the store does not have yet: its first rows are later ones."""
        name, uuid = self.name_of(state), str(state.metadata.table_uuid)
        table = InlineTable(0, self._catalog_name, uuid, name.namespace, name.name, ())
        return Cut(table, state.schema, InlineRows([], [], {}), is_exact=False)

    def index_lookups(self, cut: Cut | None, condition: BooleanExpression) -> None:
        """Let the database find the rows of such conditions quickly, if there are many rows."""
        if cut is not None:
            self._lookups.add(self.store, cut.table, condition, cut.schema)

    def cut_to_flush(self, state: TableState, rows: int | None = None) -> Cut | None:
        """All inline rows of a table, or about so many of the oldest; None if it has no tier.

        Raises:
            PointerMovedError: `state` is no longer the table's current state.
        """
        if not state.has_inline_tier:
            return None
        if not self.shares_database:
            return self._cut(state, AlwaysTrue(), self._last_change(state, rows))
        cut = self._cut(state, AlwaysTrue())
        if cut is None or rows is None:
            return cut
        return replace(cut, rows=cut.rows.first(rows))

    def _cut(
        self,
        state: TableState,
        condition: BooleanExpression,
        through: int | None = None,
        schema: Schema | None = None,
        limit: int | None = None,
    ) -> Cut | None:
        with self._reading(state) as (connection, table):
            if table is None:
                return None
            self._refuse_other_deletes(connection, state, table)
            schema = state.schema if schema is None else schema
            judged = self._translate(connection, state, table, condition, through)
            enough = limit if judged.exact else None
            rows = read_rows(connection, table, inline_columns(schema), judged.where, enough)
            read_at = last_number(connection) if self.shares_database else None
            return Cut(table, schema, rows, judged.exact, read_at, through)

    def _refuse_other_deletes(
        self, connection: StoreConnection, state: TableState, table: InlineTable
    ) -> None:
        """Rows and deletes must be of one moment: an UPDATE of a row in a file changes both."""
        known = state.inline_deletes
        if known is None or not self.shares_database:
            return
        if read_facts(connection, table).version != known.version:
            raise PointerMovedError

    def _translate(
        self,
        connection: StoreConnection,
        state: TableState,
        table: InlineTable,
        condition: BooleanExpression,
        through: int | None = None,
    ) -> SqlCondition:
        """Rows that a condition may be TRUE for, without those that are in files already."""
        judged = translate(condition, state.schema, table.rows)
        unflushed = self.unflushed(connection, state, table, through)
        if unflushed is None:
            return judged
        return replace(judged, where=sa.and_(judged.where, unflushed))

    def count_matching(self, state: TableState, condition: BooleanExpression) -> int | None:
        """How many inline rows a condition is TRUE for; None if only Spark can evaluate it.

        Raises:
            PointerMovedError: `state` is no longer the table's current state.
        """
        if not state.has_inline_tier:
            return 0
        with self._reading(state) as (connection, table):
            if table is None:
                return 0
            self._refuse_other_deletes(connection, state, table)
            rows = self._translate(connection, state, table, condition)
            return count_rows(connection, table, rows.where) if rows.exact else None

    def find(self, connection: StoreConnection, state: TableState) -> InlineTable | None:
        """The table in the store; None if no row was ever inserted.

        Refuses a table whose rows are in another database: without them it would be incomplete.
        """
        uuid = str(state.metadata.table_uuid)
        store_id, table = find_stored(connection, self._catalog_name, uuid)
        self._refuse_other_store(state, store_id)
        return table

    def find_current(self, connection: StoreConnection, state: TableState) -> InlineTable | None:
        """What `find` returns, of a state that is current by the catalog's pointer.

        A catalog in another database has its pointer elsewhere.

        Raises:
            PointerMovedError: `state` is no longer the table's current state.
        """
        if not self.shares_database:
            return self.find(connection, state)
        name, uuid = self.name_of(state), str(state.metadata.table_uuid)
        if not connection.installed:
            if pointer(connection, name) != state.pointer:
                raise PointerMovedError
            return self.find(connection, state)
        found = look_up(connection, name, uuid)
        if found.pointer != state.pointer:
            raise PointerMovedError
        self._refuse_other_store(state, found.store_id)
        if found.table is not None:
            self._tables[uuid] = found.table
        return found.table

    def known_table(self, state: TableState) -> tuple[InlineTable, CurrentTable] | None:
        """A table as it was found in the catalog's database, and what is to be checked of it."""
        table = self._tables.get(str(state.metadata.table_uuid))
        if table is None or state.pointer is None:
            return None
        store_id = state.metadata.properties.get(INLINE_STORE)
        return table, CurrentTable(self.name_of(state), state.pointer, store_id)

    def forget_table(self, state: TableState) -> None:
        """Look the table up the next time."""
        self._tables.pop(str(state.metadata.table_uuid), None)

    def _refuse_other_store(self, state: TableState, store_id: str | None) -> None:
        stored_in = state.metadata.properties.get(INLINE_STORE)
        if stored_in is not None and stored_in != store_id:
            raise UnsupportedTableError(
                f"The newest rows of {state.name} are in the inline store {stored_in}, which is "
                f"not in {self.store.database}. Open the lake through the catalog that wrote them, "
                "or with inline_uri= of their database."
            )

    def versions(
        self, state: TableState
    ) -> tuple[InlineTable | None, list[RowVersion], int | None]:
        """The versions of all inline rows of a table, and the `through` of a cut of them.

        Raises:
            PointerMovedError: `state` is no longer the table's current state.
        """
        if not state.has_inline_tier:
            return None, [], None
        through = None if self.shares_database else self._last_change(state)
        with self._reading(state) as (connection, table):
            if table is None:
                return None, [], None
            self._refuse_other_deletes(connection, state, table)
            where = self.unflushed(connection, state, table, through)
            return table, select_versions(connection, table, where), through

    @contextmanager
    def changing(
        self, state: TableState, table: InlineTable, *, check_current: bool = False
    ) -> Iterator[StoreConnection]:
        """A transaction that changes rows of a table, while no commit is announced.

        Args:
            state: The state of the table.
            table: The table in the store.
            check_current: Whether commits that were announced must be part of the state. No
                transaction waits for another catalog: it is asked before, and the transaction finds
                out whether a commit was announced since.

        Raises:
            PointerMovedError: `state` is no longer the table's current state.
        """
        if self.shares_database:
            with self.store.writing(table) as connection:
                if check_current and not self.has_pointer(connection, state, keep=True):
                    raise PointerMovedError
                yield connection
            return
        while True:
            before = wait_for_intents(self.store, table, lambda: self._metadata(state, table))
            if check_current and not self._is_current_in_catalog(state):
                raise PointerMovedError
            with self.store.writing(table) as connection:
                announced = read_intent(connection, table) is not None
                if not announced and count_removed_intents(connection, table) == before:
                    yield connection
                    return

    def has_pointer(
        self, connection: StoreConnection, state: TableState, *, keep: bool = False
    ) -> bool:
        """Whether a state is current by the catalog's pointer, which is in the same database.

        With `keep`, nobody moves the pointer before the transaction ends.
        """
        return pointer(connection, self.name_of(state), keep=keep) == state.pointer

    def unflushed(
        self,
        connection: StoreConnection,
        state: TableState,
        table: InlineTable,
        through: int | None = None,
    ) -> sa.ColumnElement[bool] | None:
        """The condition of the rows that are not in files; None if all are.

        Args:
            connection: A transaction.
            state: The state of the table whose files are meant.
            table: The table in the store.
            through: Leaves out rows of later changes.
        """
        if self.shares_database:
            return None
        seq = table.rows.c.seq
        later = seq > self.flushed(connection, state, table)
        return later if through is None else sa.and_(later, seq <= through)

    def flushed(self, connection: StoreConnection, state: TableState, table: InlineTable) -> int:
        """The last change whose rows are in files; 0 where the transaction removes flushed rows."""
        if self.shares_database:
            return 0
        # Others may have removed the property, and the database may be an older backup.
        known = read_flushed(connection, table)
        return max(known, flushed_through(state.metadata.properties))

    def stamp(
        self, connection: StoreConnection, state: TableState, table: InlineTable
    ) -> ChangeStamp:
        """Number a change, so that its rows are not taken for flushed ones."""
        if self.shares_database:
            return next_stamp(connection)
        return stamp_above(connection, self.flushed(connection, state, table))

    def register(self, state: TableState) -> InlineTable:
        """The table in the store, which is created if no row was ever inserted.

        It may have been dropped since it was found: transactions look it up again.
        """
        if (known := self._tables.get(str(state.metadata.table_uuid))) is not None:
            return known
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

    def name_of(self, state: TableState) -> CatalogTable:
        """The table's name as the catalog stores it."""
        namespace, _, name = state.name.rpartition(".")
        return CatalogTable(self._catalog_name, namespace, name)

    # ---------------------------------------------------------------------------------------------

    @property
    def _catalog_name(self) -> str:
        """The catalog in the registry: other catalogs have names that each client chooses."""
        return self._catalog.name if self.shares_database else ""

    @contextmanager
    def _reading(self, state: TableState) -> Iterator[tuple[StoreConnection, InlineTable | None]]:
        """A transaction that reads rows of a state, which is current all the time."""
        with self.store.reading() as connection:
            yield connection, self.find_current(connection, state)
        if not self.shares_database and not self._is_current_in_catalog(state):
            raise PointerMovedError

    def _last_change(self, state: TableState, rows: int | None = None) -> int:
        """The last change to flush: all rows up to it can be read from now on.

        Inserts that have got their number and are not committed yet are waited for.
        """
        with self.store.reading() as connection:
            table = self.find(connection, state)
        if table is None:
            return 0
        clean_up(self.store, table, lambda: self._metadata(state, table))
        with self.store.writing(table) as connection:
            where = self.unflushed(connection, state, table)
            change = last_change(connection, table, where, rows)
            return self.flushed(connection, state, table) if change is None else change

    @scrubbed()
    def _is_current_in_catalog(self, state: TableState) -> bool:
        try:
            table = self._catalog.load_table(state.name)
        except NoSuchTableError:
            return False
        if not table.metadata_location:  # some REST catalogs do not show it
            return table.metadata == state.metadata
        return table.metadata_location == state.pointer

    @scrubbed()
    def _metadata(self, state: TableState, table: InlineTable) -> TableMetadata:
        try:
            metadata = self._catalog.load_table(state.name).metadata
        except NoSuchTableError as missing:
            raise dropped(table) from missing
        if metadata.table_uuid != state.metadata.table_uuid:
            raise dropped(table)
        return metadata
