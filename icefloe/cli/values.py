"""One value: as JSON, as text in a cell, as a field of CSV."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal

_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 0x0A}


def to_json(value: object) -> object:
    """What JSON has for a value: times as ISO text, decimals as text, bytes as base64."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else _unbounded(value)
        case Decimal():
            return format(value, "f")
        case datetime() | date() | time():
            return value.isoformat()
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case Mapping():
            return {_key(key): to_json(each) for key, each in value.items()}
        case Sequence():
            return [to_json(each) for each in value]
        case _:
            return str(value)


def json_text(value: object) -> str:
    """A value as one line of JSON."""
    return json.dumps(to_json(value), ensure_ascii=False)


def cell_text(value: object) -> str:
    """A value as a person reads it; control characters are spelled out, lines are kept."""
    match value:
        case bool():
            text = str(value).lower()
        case float():
            text = str(value) if math.isfinite(value) else _unbounded(value)
        case datetime():
            text = value.isoformat(sep=" ")
        case bytes() | bytearray():
            text = f"X'{value.hex().upper()}'"
        case Mapping():
            text = json_text(value)
        case Sequence() if not isinstance(value, str):
            text = json_text(value)
        case _:
            text = _scalar(value)
    return text.translate(_ESCAPED)


def csv_field(value: object) -> str:
    """A field of CSV; NULL is empty, an empty text is quoted."""
    if value is None:
        return ""
    if isinstance(value, Mapping) or (
        isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
    ):
        text = json_text(value)
    else:
        text = _scalar(to_json(value))
    if text and not any(mark in text for mark in '",\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _key(key: object) -> str:
    return key if isinstance(key, str) else _scalar(to_json(key))


def _unbounded(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
