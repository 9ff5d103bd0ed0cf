"""Short forms for tests of the inline store: a transaction per call."""

from __future__ import annotations

from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from icefloe.inline.bookkeeping import next_stamp
from icefloe.inline.layout import InlineTable
from icefloe.inline.rows import InsertedRows, insert_rows, select_rows
from icefloe.inline.store import InlineStore, StoreConnection
from icefloe.inline.tables import CatalogTable

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
NAME = CatalogTable("lake", "shop", "orders")


def insert(store: InlineStore, table: InlineTable, *ids: int) -> InsertedRows:
    with store.writing() as connection:
        return insert_in(connection, table, *ids)


def insert_in(connection: StoreConnection, table: InlineTable, *ids: int) -> InsertedRows:
    """Rows with an id and a name."""
    encoded = [list(ids), [f"name {n}".encode() for n in ids]]
    return insert_rows(connection, table, table.columns[:2], encoded, next_stamp(connection))


def stored_ids(store: InlineStore, table: InlineTable) -> list[int]:
    with store.reading() as connection:
        return select_rows(connection, table, table.columns).values["c1_i"]
