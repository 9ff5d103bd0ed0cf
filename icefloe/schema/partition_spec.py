"""Partition specs and sort orders: parsed from text, shown as text, and their source columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import (
    UNSORTED_SORT_ORDER,
    NullOrder,
    SortDirection,
    SortField,
    SortOrder,
)
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import NestedField, StructType

from icefloe.errors import ColumnNotFoundError, StatementError, UnsupportedTableError

AnyTransform = Transform[Any, Any]

_FORMS = "a column, bucket(n, column), truncate(n, column), years, months, days or hours(column)"
_MAX_WIDTH = 2**31 - 1

_PLAIN: dict[str, Callable[[], AnyTransform]] = {
    "identity": IdentityTransform,
    "void": VoidTransform,
    "year": YearTransform,
    "years": YearTransform,
    "month": MonthTransform,
    "months": MonthTransform,
    "day": DayTransform,
    "days": DayTransform,
    "date": DayTransform,
    "hour": HourTransform,
    "hours": HourTransform,
}
_WITH_WIDTH: dict[str, Callable[[int], AnyTransform]] = {
    "bucket": BucketTransform,
    "truncate": TruncateTransform,
}
_SUFFIXES: dict[type[AnyTransform], str] = {
    IdentityTransform: "",
    VoidTransform: "_null",
    BucketTransform: "_bucket",
    TruncateTransform: "_trunc",
    YearTransform: "_year",
    MonthTransform: "_month",
    DayTransform: "_day",
    HourTransform: "_hour",
}

_QUOTED = r"`(?:[^`]|``)+`"
_NAME = rf"(?:{_QUOTED}|[^\s`().,]+)"
_COLUMN = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_COLUMN_TEXT = re.compile(_COLUMN)
_CALL_TEXT = re.compile(rf"(\w+)\s*\(\s*({_COLUMN}|[-+]?\d+)\s*(?:,\s*({_COLUMN}|[-+]?\d+)\s*)?\)")
_NUMBER_TEXT = re.compile(r"[-+]?\d+")
_SORT_TEXT = re.compile(
    r"(?P<term>.+?)(?:\s+(?P<direction>ASC|DESC))?(?:\s+NULLS\s+(?P<nulls>FIRST|LAST))?",
    re.IGNORECASE | re.DOTALL,
)
_ITEM_TEXT = re.compile(rf"(?:{_QUOTED}|\((?:{_QUOTED}|[^)`])*\)|[^,])+")
_PLAIN_COLUMN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class _Term:
    """A transform of one column of the schema."""

    text: str
    transform: AnyTransform
    source: NestedField
    source_name: str  # full name, dots between levels


def parse_partition_by(items: Sequence[str] | str, schema: Schema) -> PartitionSpec:
    """The partition spec that `items` describe, with field ids from 1000.

    Each item is a column or a transform of one, such as "bucket(16, id)"; one string may hold
    several, with commas between. Fields are named as Iceberg's Java builder names them.
    """
    terms = [_parse_term(item, schema, "partition by") for item in _split(items)]
    fields: list[PartitionField] = []
    seen: dict[tuple[int, str], str] = {}
    names: dict[str, str] = {}
    for term in terms:
        # Two time transforms of one column are redundant: the finer one implies the coarser.
        key = (term.source.field_id, term.transform.dedup_name)
        name = term.source_name + _SUFFIXES[type(term.transform)]
        earlier = seen.get(key) or names.get(name)
        if earlier is not None:
            raise StatementError(
                f"Cannot partition by {term.text!r}: {earlier!r} already partitions by "
                f"{term.source_name!r} in that way. Remove one of them."
            )
        _check_field_name(term, name, schema)
        seen[key] = names[name] = term.text
        fields.append(
            PartitionField(
                source_id=term.source.field_id,
                field_id=PARTITION_FIELD_ID_START + len(fields),
                transform=term.transform,
                name=name,
            )
        )
    return PartitionSpec(*fields)


def parse_sort_by(items: Sequence[str] | str, schema: Schema) -> SortOrder:
    """The sort order that `items` describe: "ts", "ts DESC", "id ASC NULLS LAST", "bucket(16, id)".

    NULLs are first when ascending and last when descending, unless the item says otherwise.
    """
    fields: list[SortField] = []
    seen: dict[tuple[int, str], str] = {}
    for item in _split(items):
        match = _SORT_TEXT.fullmatch(item)
        term = _parse_term(match["term"] if match else item, schema, "sort by")
        key = (term.source.field_id, str(term.transform))
        if key in seen:
            raise StatementError(
                f"Cannot sort by {item!r}: {seen[key]!r} already sorts by that. Remove one of them."
            )
        seen[key] = item
        descending = match is not None and (match["direction"] or "").upper() == "DESC"
        nulls = (match["nulls"] if match else None) or ("LAST" if descending else "FIRST")
        fields.append(
            SortField(
                source_id=term.source.field_id,
                transform=term.transform,
                direction=SortDirection.DESC if descending else SortDirection.ASC,
                null_order=NullOrder.NULLS_FIRST
                if nulls.upper() == "FIRST"
                else NullOrder.NULLS_LAST,
            )
        )
    return SortOrder(*fields) if fields else UNSORTED_SORT_ORDER


def partition_by_text(spec: PartitionSpec, schema: Schema) -> list[str]:
    """The items from which `parse_partition_by` makes a spec of these fields.

    A field whose source column was dropped is shown by its own name.
    """
    return [_field_text(field, schema) for field in spec.fields]


def source_path(schema: Schema, field_id: int) -> tuple[str, ...] | None:
    """The names from the top-level column down to the field, through structs only.

    None when the field is not in the schema, or is inside a list or a map: such a field has no
    single value per row.
    """
    return _path_below(schema.fields, field_id)


def _path_below(fields: Iterable[NestedField], field_id: int) -> tuple[str, ...] | None:
    for field in fields:
        if field.field_id == field_id:
            return (field.name,)
        if isinstance(field.field_type, StructType):
            below = _path_below(field.field_type.fields, field_id)
            if below is not None:
                return (field.name, *below)
    return None


def _field_text(field: PartitionField, schema: Schema) -> str:
    column = _quote(schema.find_column_name(field.source_id) or field.name)
    match field.transform:
        case IdentityTransform():
            return column
        case BucketTransform():
            return f"bucket({field.transform.num_buckets}, {column})"
        case TruncateTransform():
            return f"truncate({field.transform.width}, {column})"
        case VoidTransform():
            return f"void({column})"
        case UnknownTransform():
            raise UnsupportedTableError(
                f"Partition field {field.name!r} uses the transform {str(field.transform)!r}, "
                "which this version does not support. Use another engine."
            )
        case _:
            return f"{field.transform}s({column})"


def _quote(column: str) -> str:
    if _PLAIN_COLUMN.fullmatch(column):
        return column
    return "`" + column.replace("`", "``") + "`"


def _split(items: Sequence[str] | str) -> list[str]:
    if isinstance(items, str):
        return [item.strip() for item in _ITEM_TEXT.findall(items) if item.strip()]
    return [item.strip() for item in items]


def _parse_term(text: str, schema: Schema, purpose: str) -> _Term:
    """The transform and the column of `text`; a column of exactly that name has precedence."""
    if text not in schema.column_names and (call := _CALL_TEXT.fullmatch(text)):
        transform, column = _parse_call(call, text, purpose)
    elif text in schema.column_names or _COLUMN_TEXT.fullmatch(text):
        transform, column = IdentityTransform(), text
    else:
        raise StatementError(f"Cannot {purpose} {text!r}: it is none of {_FORMS}.")
    source = _find_column(column, schema)
    name = schema.find_column_name(source.field_id) or source.name
    if not source.field_type.is_primitive or not transform.can_transform(source.field_type):
        raise StatementError(
            f"Cannot {purpose} {text!r}: {transform} does not apply to column {name!r} of type "
            f"{source.field_type}."
        )
    if source_path(schema, source.field_id) is None:
        raise StatementError(
            f"Cannot {purpose} {text!r}: column {name!r} is inside a list or a map and has no "
            "single value per row."
        )
    return _Term(text, transform, source, name)


def _parse_call(call: re.Match[str], text: str, purpose: str) -> tuple[AnyTransform, str]:
    name = call[1].lower()
    arguments = [argument for argument in (call[2], call[3]) if argument is not None]
    if name in _PLAIN and len(arguments) == 1:
        return _PLAIN[name](), arguments[0]
    if name not in _WITH_WIDTH:
        is_transform = name in _PLAIN
        reason = f"{name} takes one column" if is_transform else f"{name} is not a transform"
        raise StatementError(f"Cannot {purpose} {text!r}: {reason}. Use {_FORMS}.")
    widths = [argument for argument in arguments if _NUMBER_TEXT.fullmatch(argument)]
    if len(arguments) != 2 or len(widths) != 1:
        raise StatementError(
            f"Cannot {purpose} {text!r}: {name} takes a number and a column, as in {name}(16, id)."
        )
    width = int(widths[0])
    if not 1 <= width <= _MAX_WIDTH:
        raise StatementError(
            f"Cannot {purpose} {text!r}: {width} is not between 1 and {_MAX_WIDTH}."
        )
    column = arguments[1] if arguments[0] == widths[0] else arguments[0]
    return _WITH_WIDTH[name](width), column


def _find_column(text: str, schema: Schema) -> NestedField:
    """The field that `text` names: the exact name first, then the case-insensitive one."""
    names = [text] if text in schema.column_names else re.findall(_NAME, text)
    full_name = ".".join(
        name[1:-1].replace("``", "`") if name.startswith("`") else name for name in names
    )
    for case_sensitive in (True, False):
        try:
            return schema.find_field(full_name, case_sensitive=case_sensitive)
        except ValueError:
            continue
    raise ColumnNotFoundError(full_name, schema.column_names)


def _check_field_name(term: _Term, name: str, schema: Schema) -> None:
    """Refuse a partition field with the name of a column, unless it is its identity."""
    if isinstance(term.transform, IdentityTransform):
        return
    if name in schema.column_names:
        raise StatementError(
            f"Cannot partition by {term.text!r}: its field would be named {name!r}, which is a "
            "column of the table. Rename the column."
        )
