"""Whether rows that a statement carries into new files still have the values they were read with.

Row counts alone do not show that a reader returned NULL for every value. The manifests know how
many NULLs each column of the old files has and between which bounds its values are; what a
statement copies has to agree with that.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from icefloe.errors import StorageError

_ORDERED = (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)
_NARROW: dict[type[PrimitiveType], PrimitiveType] = {
    LongType: IntegerType(),
    DoubleType: FloatType(),
}
_NARROW_BYTES = 4
_SHOWN_FILES = 3


def check_carried_values(
    schema: Schema,
    old: Sequence[DataFile],
    new: Sequence[DataFile],
    *,
    assigned: Container[str] = (),
    added_rows: int = 0,
) -> None:
    """Raise StorageError where columns of new files cannot be copies of the old ones' columns.

    All rows of `new` but `added_rows` were read from `old`; columns in `assigned` have new values.
    """
    for field in schema.fields:
        if field.name in assigned or not isinstance(field.field_type, PrimitiveType):
            continue
        fault = _null_fault(field, old, new, added_rows)
        if fault is None and not added_rows:
            fault = _bound_fault(field, old, new)
        if fault is not None:
            raise _refused(field, fault, old)


def _null_fault(
    field: NestedField, old: Iterable[DataFile], new: Iterable[DataFile], added_rows: int
) -> str | None:
    """NULLs that were not there: more than the old files and the added rows can have together."""
    had = _nulls(field.field_id, old)
    has = _nulls(field.field_id, new)
    if had is None or has is None or has <= had + added_rows:
        return None
    return f"{has} NULLs were written, at most {had + added_rows} can have been read"


def _nulls(field_id: int, files: Iterable[DataFile]) -> int | None:
    """How many NULLs files have; None where one does not say."""
    counts = [(file.null_value_counts or {}).get(field_id) for file in files]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _bound_fault(
    field: NestedField, old: Iterable[DataFile], new: Iterable[DataFile]
) -> str | None:
    before, after = _range(field, old, all_of_them=True), _range(field, new, all_of_them=False)
    if before is None or after is None:
        return None
    if _is_below(after[0], before[0]):
        return f"the least value written is {after[0]!r}, the least that was read {before[0]!r}"
    if _is_above(after[1], before[1]):
        return f"the largest value written is {after[1]!r}, the largest read {before[1]!r}"
    return None


def _range(
    field: NestedField, files: Iterable[DataFile], *, all_of_them: bool
) -> tuple[Any, Any] | None:
    """Bounds of a column over files that have values in it; None where they are not known."""
    kind, i = field.field_type, field.field_id
    if not isinstance(kind, _ORDERED):
        return None
    lows, highs = [], []
    for file in files:
        if (file.null_value_counts or {}).get(i) == file.record_count:
            continue
        low, high = (file.lower_bounds or {}).get(i), (file.upper_bounds or {}).get(i)
        if low is not None and high is not None:
            lows.append(_decoded(kind, low))
            highs.append(_decoded(kind, high))
        elif all_of_them:
            return None
    if not lows or any(value != value for value in (*lows, *highs)):  # noqa: PLR0124 - NaN
        return None
    return min(lows), max(highs)


def _decoded(kind: PrimitiveType, bound: bytes) -> Any:
    """A bound; files from before a column was widened have it in the narrow type."""
    narrow = _NARROW.get(type(kind)) if len(bound) == _NARROW_BYTES else None
    return from_bytes(narrow or kind, bound)


def _is_below(written: Any, read: Any) -> bool:
    """Whether a lower bound is below another; texts may have been cut to fewer characters."""
    if isinstance(written, str | bytes):
        return bool(written < read[: len(written)])
    return bool(written < read)


def _is_above(written: Any, read: Any) -> bool:
    """The same of upper bounds; a text that was cut has one more in its last place."""
    if isinstance(written, str | bytes):
        return bool(written[:-1] > read)
    return bool(written > read)


def _refused(field: NestedField, fault: str, old: Sequence[DataFile]) -> StorageError:
    shown = ", ".join(file.file_path for file in old[:_SHOWN_FILES])
    more = f" and {len(old) - _SHOWN_FILES} more" if len(old) > _SHOWN_FILES else ""
    return StorageError(
        f"Column {field.name!r} of rewritten rows does not agree with the table's metadata: "
        f"{fault}. Nothing was published. Either the files were not read as they are, or the "
        f"metadata of these files is wrong: {shown}{more}."
    )
