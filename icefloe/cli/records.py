"""Rows to show: named columns, and rows that may be a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Records:
    """Named columns and rows, which may be a stream that can be read once."""

    names: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: Iterable[Sequence[object]]


def of_dicts(found: Sequence[Mapping[str, object]]) -> Records:
    """Records of dicts that have the same keys."""
    names = tuple(found[0]) if found else ()
    numeric = tuple(all(_is_number(row[name]) for row in found) for name in names)
    return Records(names, numeric, [tuple(row.values()) for row in found])


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
