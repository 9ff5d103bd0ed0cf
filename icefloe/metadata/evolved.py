"""A change of a table's schema that is published together with a statement's rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyiceberg.schema import Schema
from pyiceberg.table.update import (
    AddSchemaUpdate,
    SetCurrentSchemaUpdate,
    TableUpdate,
    update_table_metadata,
)

from icefloe.metadata.state import TableState


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A new current schema, and what the table must be like for it to be right."""

    updates: tuple[TableUpdate, ...]
    schema_id: int  # the current one before
    last_column_id: int

    @classmethod
    def of(cls, state: TableState, schema: Schema) -> SchemaChange:
        """Make `schema` the table's current one, under an id of its own."""
        metadata = state.metadata
        numbered = Schema(
            *schema.fields,
            schema_id=max(known.schema_id for known in metadata.schemas) + 1,
            identifier_field_ids=list(schema.identifier_field_ids),
        )
        updates = (AddSchemaUpdate(schema_=numbered), SetCurrentSchemaUpdate(schema_id=-1))
        return cls(updates, metadata.current_schema_id, metadata.last_column_id)

    def fits(self, state: TableState) -> bool:
        """Whether the table's schema is still the one that was changed."""
        metadata = state.metadata
        now = (metadata.current_schema_id, metadata.last_column_id)
        return now == (self.schema_id, self.last_column_id)

    def applied(self, state: TableState) -> TableState:
        """The state with the new schema; nothing is published."""
        metadata = update_table_metadata(state.metadata, self.updates)
        return replace(state, metadata=metadata, schema=metadata.schema())
