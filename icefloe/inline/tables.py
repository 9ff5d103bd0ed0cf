"""Iceberg tables in the store: their registry rows, their rows tables, and their pointers.

A table is known by its catalog and its uuid: renaming it changes nothing, and a table that is
dropped and created again is another one. Functions take the transaction they are part of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import sqlalchemy as sa

from icefloe.errors import TableNotFoundError
from icefloe.inline.layout import (
    BY_TABLE,
    DELETE,
    FILE,
    POINTERS,
    STORE,
    TABLE,
    InlineColumn,
    InlineTable,
    database_type,
)
from icefloe.inline.store import AnyRows, StoreConnection


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """The name of a table in its catalog; the namespace is one text with dots."""

    catalog: str
    namespace: str
    name: str


def find_table(
    connection: StoreConnection, catalog_name: str, table_uuid: str
) -> InlineTable | None:
    """The table of a uuid; None if the store does not have it."""
    if not connection.installed:
        return None
    named = {"catalog": catalog_name, "uuid": table_uuid}
    found = _tables(connection.execute(_BY_UUID, named))
    return found[0] if found else None


def tables_of(connection: StoreConnection, catalog_name: str) -> list[InlineTable]:
    """All tables of a catalog, in the order of their registration."""
    return _select(connection, TABLE.c.catalog_name == catalog_name)


def register_table(
    connection: StoreConnection,
    name: CatalogTable,
    table_uuid: str,
    columns: Sequence[InlineColumn],
) -> InlineTable:
    """The table of a uuid, with all of these columns; what is missing is created."""
    connection.lock_store()
    table = find_table(connection, name.catalog, table_uuid)
    if table is not None:
        return add_missing_columns(connection, table, columns)
    values = {
        "catalog_name": name.catalog,
        "table_uuid": table_uuid,
        "namespace": name.namespace,
        "name": name.name,
        "columns": _joined(columns),
    }
    connection.execute(TABLE.insert().values(values))
    [table] = _select(connection, *_has_uuid(name.catalog, table_uuid))
    table.rows.create(connection.connection)
    return table


def add_missing_columns(
    connection: StoreConnection, table: InlineTable, columns: Sequence[InlineColumn]
) -> InlineTable:
    """The table with all of these columns; in rows of before, a new column is NULL."""
    if set(columns) <= set(table.columns):
        return table
    connection.lock_store()
    current = find_table(connection, table.catalog_name, table.table_uuid)
    if current is None:
        raise dropped(table)
    missing = [column for column in columns if column not in current.columns]
    for column in missing:
        kind = database_type(column).compile(connection.connection.dialect)
        added = f"ALTER TABLE {current.rows.name} ADD COLUMN {column.name} {kind}"
        connection.connection.exec_driver_sql(added)
    extended = replace(current, columns=(*current.columns, *missing))
    connection.execute(
        TABLE.update().where(TABLE.c.id == table.id).values(columns=_joined(extended.columns))
    )
    return extended


def rename_table(connection: StoreConnection, table: InlineTable, name: CatalogTable) -> None:
    """Note the new name of a table, for messages and clean-up."""
    connection.execute(
        TABLE.update()
        .where(TABLE.c.id == table.id)
        .values(namespace=name.namespace, name=name.name)
    )


def drop_table(connection: StoreConnection, table: InlineTable) -> None:
    """Remove the table's rows and all that the store knows of it."""
    connection.lock_store()
    connection.connection.exec_driver_sql(f"DROP TABLE IF EXISTS {table.rows.name}")
    files = sa.select(FILE.c.id).where(FILE.c.table_id == table.id)
    connection.execute(DELETE.delete().where(DELETE.c.file_id.in_(files)))
    for part in (FILE, *BY_TABLE):
        connection.execute(part.delete().where(part.c.table_id == table.id))
    connection.execute(TABLE.delete().where(TABLE.c.id == table.id))


def dropped(table: InlineTable) -> TableNotFoundError:
    """The error for a table that was dropped since it was looked up."""
    return TableNotFoundError(f"Table {table.full_name} was dropped. Nothing was changed.")


def _select(connection: StoreConnection, *conditions: sa.ColumnElement[bool]) -> list[InlineTable]:
    if not connection.installed:
        return []
    return _tables(connection.execute(_SELECTED.where(*conditions)))


@dataclass(frozen=True, slots=True)
class FoundTable:
    """What one look at the catalog and the store says of a table, both in one database."""

    pointer: str | None  # the location of its current metadata; None: the catalog has no such table
    store_id: str
    table: InlineTable | None


def look_up(connection: StoreConnection, name: CatalogTable, table_uuid: str) -> FoundTable:
    """Pointer, store and table by one statement: most of an insert's time is statements."""
    named = {
        "catalog": name.catalog,
        "namespace": name.namespace,
        "name": name.name,
        "uuid": table_uuid,
    }
    location, store_id, *row = connection.execute(_LOOKED_UP, named).one()
    return FoundTable(location, store_id, None if row[0] is None else _table(*row))


def find_stored(
    connection: StoreConnection, catalog_name: str, table_uuid: str
) -> tuple[str | None, InlineTable | None]:
    """The id of the store and its table of a uuid, by one statement; None for what there is not."""
    if not connection.installed:
        return None, None
    named = {"catalog": catalog_name, "uuid": table_uuid}
    store_id, *row = connection.execute(_STORED, named).one()
    return str(store_id), None if row[0] is None else _table(*row)


# Statements of every insert are built once, which is most of their time.
_SELECTED = sa.select(
    TABLE.c.id,
    TABLE.c.catalog_name,
    TABLE.c.table_uuid,
    TABLE.c.namespace,
    TABLE.c.name,
    TABLE.c.columns,
).order_by(TABLE.c.id)
_BY_UUID = _SELECTED.where(
    TABLE.c.catalog_name == sa.bindparam("catalog"), TABLE.c.table_uuid == sa.bindparam("uuid")
)


def _tables(rows: AnyRows) -> list[InlineTable]:
    return [_table(*row) for row in rows]


def _table(
    table_id: int, catalog: str, uuid: str, namespace: str, name: str, columns: str
) -> InlineTable:
    return InlineTable(table_id, catalog, uuid, namespace, name, _split(columns))


def _has_uuid(catalog_name: str, table_uuid: str) -> tuple[sa.ColumnElement[bool], ...]:
    return TABLE.c.catalog_name == catalog_name, TABLE.c.table_uuid == table_uuid


def _joined(columns: Sequence[InlineColumn]) -> str:
    return ",".join(column.name for column in columns)


@lru_cache(maxsize=1000)
def _split(names: str) -> tuple[InlineColumn, ...]:
    return tuple(InlineColumn.of_name(name) for name in names.split(",") if name)


# -------------------------------------------------------------------------------------------------
# The pointer of PyIceberg's SqlCatalog, where catalog and store are in one database


def pointer(connection: StoreConnection, name: CatalogTable, *, keep: bool = False) -> str | None:
    """The location of the table's current metadata; None if the catalog has no such table.

    With `keep`, it stays the same until the transaction ends.
    """
    named = {"catalog": name.catalog, "namespace": name.namespace, "name": name.name}
    # On SQLite a write transaction is alone.
    selected = _POINTER_KEPT if keep and connection.is_postgresql else _POINTER
    location = connection.execute(selected, named).scalar_one_or_none()
    return None if location is None else str(location)


def pointers(connection: StoreConnection, catalog_name: str) -> list[str]:
    """The locations of the current metadata of all tables of a catalog."""
    named = POINTERS.c.catalog_name == catalog_name
    selected = sa.select(POINTERS.c.metadata_location).where(named)
    return [str(location) for (location,) in connection.execute(selected)]


_POINTER = sa.select(POINTERS.c.metadata_location).where(
    POINTERS.c.catalog_name == sa.bindparam("catalog"),
    POINTERS.c.table_namespace == sa.bindparam("namespace"),
    POINTERS.c.table_name == sa.bindparam("name"),
)


_POINTER_KEPT = _POINTER.with_for_update(read=True)
_STORE_AND_TABLE = STORE.outerjoin(
    TABLE,
    sa.and_(
        TABLE.c.catalog_name == sa.bindparam("catalog"),
        TABLE.c.table_uuid == sa.bindparam("uuid"),
    ),
)
_STORED = sa.select(STORE.c.store_id, *_SELECTED.selected_columns).select_from(_STORE_AND_TABLE)
_LOOKED_UP = sa.select(
    _POINTER.scalar_subquery(), STORE.c.store_id, *_SELECTED.selected_columns
).select_from(_STORE_AND_TABLE)


def swap_pointer(connection: StoreConnection, name: CatalogTable, old: str, new: str) -> bool:
    """Publish new metadata, as PyIceberg's `commit_table` does; False if `old` is not current."""
    swapped = connection.execute(
        sa.update(POINTERS)
        .where(*_has_name(name), POINTERS.c.metadata_location == old)
        .values(metadata_location=new, previous_metadata_location=old)
    )
    return swapped.rowcount == 1


def _has_name(name: CatalogTable) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        POINTERS.c.catalog_name == name.catalog,
        POINTERS.c.table_namespace == name.namespace,
        POINTERS.c.table_name == name.name,
    )
