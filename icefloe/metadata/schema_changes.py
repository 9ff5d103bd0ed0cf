"""Whether files written under one schema can be read under a later one."""

from __future__ import annotations

from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import Schema, promote
from pyiceberg.types import IcebergType, NestedField, PrimitiveType


def unreadable_columns(written: Schema, current: Schema) -> list[str]:
    """Columns of `current` that files of `written` cannot give: new and required, or retyped.

    Dropped, renamed, added optional and promoted columns are read by field id and do no harm.
    """
    if written.schema_id == current.schema_id:
        return []
    before = {field.field_id: field for field in written.fields}
    return [field.name for field in current.fields if not _fits(before.get(field.field_id), field)]


def _fits(before: NestedField | None, now: NestedField) -> bool:
    if before is None:
        return not now.required
    if now.required and not before.required:
        return False
    return _promotes(before.field_type, now.field_type)


def _promotes(before: IcebergType, now: IcebergType) -> bool:
    if before == now:
        return True
    if not isinstance(now, PrimitiveType):
        # Nested changes are by field id as well; a changed kind of nesting is a new column.
        return type(before) is type(now)
    try:
        promote(before, now)
    except ResolveError:
        return False
    return True
