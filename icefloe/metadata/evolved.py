"""A table's metadata as it will be once a statement's new schema is published with its rows."""

from __future__ import annotations

from dataclasses import replace

from pyiceberg.schema import Schema
from pyiceberg.table.update import (
    AddSchemaUpdate,
    SetCurrentSchemaUpdate,
    TableUpdate,
    update_table_metadata,
)

from icefloe.metadata.state import TableState


def schema_updates(state: TableState, schema: Schema) -> tuple[TableUpdate, ...]:
    """The updates that make `schema` the table's current one, under an id of its own."""
    numbered = Schema(
        *schema.fields,
        schema_id=max(known.schema_id for known in state.metadata.schemas) + 1,
        identifier_field_ids=list(schema.identifier_field_ids),
    )
    return (AddSchemaUpdate(schema_=numbered), SetCurrentSchemaUpdate(schema_id=-1))


def with_updates(state: TableState, updates: tuple[TableUpdate, ...]) -> TableState:
    """The state as it is after the updates; nothing is published."""
    if not updates:
        return state
    metadata = update_table_metadata(state.metadata, updates)
    return replace(state, metadata=metadata, schema=metadata.schema())
