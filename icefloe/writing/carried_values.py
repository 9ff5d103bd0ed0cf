"""Check that rows copied into new files have the values that the old files have.

Row counts alone do not reveal a reader that returned NULL for every value. Manifests have the NULL
count and the bounds of each column of the old files: the copied rows must agree with them.
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
    """Raise StorageError if columns of new files cannot be copies of the old files' columns.

    All rows of `new` but `added_rows` were read from `old`; columns in `assigned` have new values.
    """
    for field in schema.fields:
        if field.name in assigned or not isinstance(field.field_type, PrimitiveType):
            continue
        problem = _null_problem(field, old, new, added_rows)
        if problem is None and not added_rows:
            problem = _bound_problem(field, old, new)
        if problem is not None:
            raise _mismatch(field, problem, old)


def _null_problem(
    field: NestedField, old: Iterable[DataFile], new: Iterable[DataFile], added_rows: int
) -> str | None:
    """More NULLs than the old files and the added rows can have together."""
    read = _nulls(field.field_id, old)
    written = _nulls(field.field_id, new)
    if read is None or written is None or written <= read + added_rows:
        return None
    return f"{written} NULLs were written, but at most {read + added_rows} can have been read"


def _nulls(field_id: int, files: Iterable[DataFile]) -> int | None:
    """The NULLs of a column in all files; None if a file does not count them."""
    counts = [(file.null_value_counts or {}).get(field_id) for file in files]
    present = [count for count in counts if count is not None]
    return sum(present) if len(present) == len(counts) else None


def _bound_problem(
    field: NestedField, old: Iterable[DataFile], new: Iterable[DataFile]
) -> str | None:
    before, after = _range(field, old, needs_all=True), _range(field, new, needs_all=False)
    if before is None or after is None:
        return None
    if _is_below(after[0], before[0]):
        return f"the lowest value written is {after[0]!r}, the lowest value read is {before[0]!r}"
    if _is_above(after[1], before[1]):
        return f"the highest value written is {after[1]!r}, the highest value read is {before[1]!r}"
    return None


def _range(
    field: NestedField, files: Iterable[DataFile], *, needs_all: bool
) -> tuple[Any, Any] | None:
    """Bounds of a column over the files that have values in it; None if they are unknown.

    With `needs_all`, bounds are unknown if one of these files has none.
    """
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
        elif needs_all:
            return None
    if not lows or any(value != value for value in (*lows, *highs)):  # noqa: PLR0124 - NaN
        return None
    return min(lows), max(highs)


def _decoded(kind: PrimitiveType, bound: bytes) -> Any:
    """A bound; a file written before its column was promoted has it in the narrower type."""
    narrow = _NARROW.get(type(kind)) if len(bound) == _NARROW_BYTES else None
    return from_bytes(narrow or kind, bound)


def _is_below(written: Any, read: Any) -> bool:
    """Whether a lower bound is below another; strings may be truncated to fewer characters."""
    if isinstance(written, str | bytes):
        return bool(written < read[: len(written)])
    return bool(written < read)


def _is_above(written: Any, read: Any) -> bool:
    """Whether an upper bound is above another; truncation raises the last character."""
    if isinstance(written, str | bytes):
        return bool(written[:-1] > read)
    return bool(written > read)


def _mismatch(field: NestedField, problem: str, old: Sequence[DataFile]) -> StorageError:
    shown = ", ".join(file.file_path for file in old[:_SHOWN_FILES])
    more = f" and {len(old) - _SHOWN_FILES} more" if len(old) > _SHOWN_FILES else ""
    return StorageError(
        f"Column {field.name!r} of rewritten rows does not agree with the table's metadata: "
        f"{problem}. Nothing was published. Either the files were read incorrectly, or the "
        f"metadata of these files is wrong: {shown}{more}."
    )
