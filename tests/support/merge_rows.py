"""Rows of the tables that MERGE is tested on, and what a statement left of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from icefloe import Table
from support.tables import rows

SCHEMA = "id BIGINT, region STRING, n INT, ts TIMESTAMP"
Plain = tuple[Any, ...]


def row(number: int | None, region: str | None = "us", n: int | None = 0, **others: Any) -> dict:
    """A row of SCHEMA; its day follows from its id."""
    day = 1 + (0 if number is None else number % 3)
    return {"id": number, "region": region, "n": n, "ts": datetime(2024, 1, day, 12), **others}


def triples(table: Table, **options: Any) -> list[Plain]:
    """(id, region, n) of every live row, numbers in their order; `ts` must be what `row` gave."""
    found = rows(table, "id", "region", "n", "ts", **options)
    assert [r for r in found if r[3] != row(r[0])["ts"]] == []
    return in_order(r[:3] for r in found)


def in_order(found: Any) -> list[Plain]:
    return sorted(found, key=lambda r: [(v is not None, v if v is not None else 0) for v in r])
