"""Where the source column of a partition or sort field sits in the schema."""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StructType


def source_path(schema: Schema, field_id: int) -> tuple[str, ...] | None:
    """The names from the top-level column down to the field, through structs only.

    None when the field is not in the schema, or is inside a list or a map: such a field has no
    single value per row.
    """
    return _find(schema.fields, field_id)


def _find(fields: Iterable[NestedField], field_id: int) -> tuple[str, ...] | None:
    for field in fields:
        if field.field_id == field_id:
            return (field.name,)
        if isinstance(field.field_type, StructType):
            below = _find(field.field_type.fields, field_id)
            if below is not None:
                return (field.name, *below)
    return None
