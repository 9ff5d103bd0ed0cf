"""The indexes of a table: table properties that define them, and where their sidecars are.

A definition is a property of the table, so every engine's maintenance keeps it. Whether an index
covers a data file is decided by the file's sidecar alone: there is no list that could disagree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField

from icefloe.indexes.kinds import KINDS, ON_WRITE
from icefloe.metadata.table_state import TableState
from icefloe.storage.files import delete_files, delete_files_of_statement, locate
from icefloe.tasks.index_codes import is_exact_type
from icefloe.tasks.index_files import BUILDERS
from icefloe.tasks.sidecars import IndexToWrite, sidecar_path

PREFIX = "icefloe.indexes."
VERSION = 1
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)


@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """One index of a table."""

    name: str
    index_id: str
    kind: str
    field_ids: tuple[int, ...]
    params: Mapping[str, object] = field(default_factory=dict)
    made: int = 0  # milliseconds since 1970

    @property
    def on_write(self) -> bool:
        """Whether tasks that write data files write their sidecars."""
        return bool(self.params.get(ON_WRITE, True))

    @property
    def property_name(self) -> str:
        """The table property that has the definition."""
        return PREFIX + self.name

    def as_json(self) -> str:
        """The value of the property."""
        return json.dumps(
            {
                "v": VERSION,
                "id": self.index_id,
                "kind": self.kind,
                "fields": list(self.field_ids),
                "params": dict(self.params),
                "made": self.made,
            }
        )

    def fields(self, schema: Schema) -> list[NestedField] | None:
        """The indexed columns; None if the table no longer has one of them."""
        by_id = {column.field_id: column for column in schema.fields}
        if any(field_id not in by_id for field_id in self.field_ids):
            return None
        return [by_id[field_id] for field_id in self.field_ids]

    def problem(self, schema: Schema) -> str | None:
        """Why the index is not used; None if it is."""
        if self.kind not in KINDS:
            return f"this version of icefloe has no index of kind {self.kind!r}"
        fields = self.fields(schema)
        if fields is None:
            return "the table no longer has an indexed column"
        return KINDS[self.kind].refusal(fields)


def is_name(name: str) -> bool:
    """Whether an index may have this name."""
    return _NAME.fullmatch(name) is not None


def codes_are_exact(definition: IndexDefinition, schema: Schema) -> bool:
    """Whether each code of the index stands for one value."""
    fields = definition.fields(schema) or []
    return len(fields) == 1 and is_exact_type(str(fields[0].field_type))


def definitions_of(metadata: TableMetadata) -> tuple[IndexDefinition, ...]:
    """The indexes of a table, by name; properties that are no definition are left out."""
    properties = metadata.properties
    found = (
        _parse(name.removeprefix(PREFIX), text)
        for name, text in sorted(properties.items())
        if name.startswith(PREFIX)
    )
    return tuple(definition for definition in found if definition is not None)


def _parse(name: str, text: str) -> IndexDefinition | None:
    try:
        parts = json.loads(text)
        definition = IndexDefinition(
            name,
            str(parts["id"]),
            str(parts["kind"]),
            tuple(int(field_id) for field_id in parts["fields"]),
            dict(parts.get("params") or {}),
            int(parts.get("made", 0)),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    # The id is the name of a folder.
    is_plain = is_name(name) and re.fullmatch(r"[0-9a-f]{8,32}", definition.index_id)
    return definition if is_plain and definition.field_ids else None


def usable(state: TableState) -> list[IndexDefinition]:
    """The indexes that can be used and kept up in this state of the table."""
    defined = definitions_of(state.metadata)
    return [definition for definition in defined if definition.problem(state.schema) is None]


def answering(state: TableState) -> list[IndexDefinition]:
    """The indexes that answer conditions."""
    return [each for each in usable(state) if not KINDS[each.kind].is_searched]


def folder_of(state: TableState, definition: IndexDefinition) -> str:
    """The folder of an index's sidecars."""
    return f"{state.index_location}/{definition.index_id}"


def sidecars_of(
    state: TableState,
    data_files: Iterable[str],
    definitions: Sequence[IndexDefinition] | None = None,
) -> list[str]:
    """Where the sidecars of data files are, whether they exist or not."""
    if definitions is None:
        definitions = definitions_of(state.metadata)
    folders = [folder_of(state, definition) for definition in definitions]
    return [sidecar_path(folder, location) for location in data_files for folder in folders]


def delete_data_files(state: TableState, locations: Sequence[str]) -> list[str]:
    """Delete data files that nothing refers to, and their sidecars; returns those still there."""
    left = delete_files(state.io, locations)
    gone = set(locations) - set(left)
    delete_files(state.io, sidecars_of(state, sorted(gone)))
    return left


def delete_written_files(state: TableState, statement_id: str) -> None:
    """Delete every file that a failed statement wrote, sidecars too, by the id in its name."""
    delete_files_of_statement(state.io, state.data_location, statement_id)
    if definitions_of(state.metadata):
        delete_files_of_statement(state.io, state.index_location, statement_id)


def to_write(
    state: TableState, definitions: Sequence[IndexDefinition] | None = None
) -> tuple[IndexToWrite, ...]:
    """Indexes as tasks need them; by default those that every write of data files keeps up."""
    if definitions is None:
        definitions = [each for each in usable(state) if each.on_write]
    prepared = []
    for definition in definitions:
        fields = definition.fields(state.schema)
        folder = locate(state.io, folder_of(state, definition))
        prepared.append(
            IndexToWrite(
                definition.index_id,
                definition.name,
                definition.kind,
                definition.field_ids,
                tuple(str(column.field_type) for column in fields or ()),
                dict(definition.params),
                folder.filesystem,
                folder.path,
                builder=BUILDERS[definition.kind],
            )
        )
    return tuple(prepared)
