"""Rows to print, and how each value is written. Imports nothing of Spark or Arrow."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Records:
    """Named columns and their rows, which may be an iterator that can be read once."""

    names: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: Iterable[Sequence[object]]


def of_dicts(rows: Sequence[Mapping[str, object]]) -> Records:
    """Records of dicts that have the same keys."""
    names = tuple(rows[0]) if rows else ()
    numeric = tuple(all(_is_number(row[name]) for row in rows) for name in names)
    return Records(names, numeric, [tuple(row.values()) for row in rows])


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


# -------------------------------------------------------------------------------------------------
# One value: as JSON, as text of a table cell, as a CSV field

_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 0x0A}


def to_json(value: object) -> object:
    """A value that JSON can hold: times as ISO text, decimals as text, bytes as base64."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else _non_finite(value)
        case Decimal():
            return format(value, "f")
        case datetime() | date() | time():
            return value.isoformat()
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case Mapping():
            return {_json_key(key): to_json(item) for key, item in value.items()}
        case Sequence():
            return [to_json(item) for item in value]
        case _:
            return str(value)


def json_text(value: object) -> str:
    """A value as one line of JSON."""
    return json.dumps(to_json(value), ensure_ascii=False)


def cell_text(value: object) -> str:
    """A value as text for people; control characters except newlines are escaped."""
    match value:
        case bool():
            text = str(value).lower()
        case float():
            text = str(value) if math.isfinite(value) else _non_finite(value)
        case datetime():
            text = value.isoformat(sep=" ")
        case bytes() | bytearray():
            text = f"X'{value.hex().upper()}'"
        case Mapping():
            text = json_text(value)
        case Sequence() if not isinstance(value, str):
            text = json_text(value)
        case _:
            text = _scalar_text(value)
    return text.translate(_ESCAPED)


def csv_field(value: object) -> str:
    """A CSV field; NULL is empty, an empty string is quoted."""
    if value is None:
        return ""
    if isinstance(value, Mapping) or (
        isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
    ):
        text = json_text(value)
    else:
        text = _scalar_text(to_json(value))
    if text and not any(character in text for character in '",\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


def _scalar_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _json_key(key: object) -> str:
    return key if isinstance(key, str) else _scalar_text(to_json(key))


def _non_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
