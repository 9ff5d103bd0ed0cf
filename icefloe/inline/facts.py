"""What the inline tier holds of a table: how many rows, how old, and whether they are due."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from icefloe.inline.deletes import age_of_deletes, read_facts
from icefloe.inline.layout import InlineTable
from icefloe.inline.rows import age_of_oldest, count_rows, estimate_bytes
from icefloe.inline.store import StoreConnection
from icefloe.inline.tier import InlineTier
from icefloe.metadata.table_state import TableState


@dataclass(frozen=True, slots=True)
class InlineFacts:
    """What the inline tier holds of a table.

    Attributes:
        rows: inline rows.
        bytes: their size, estimated from the newest rows.
        oldest: when the oldest row was inserted, or row of a file deleted.
        deletes: rows of data files that are deleted inline.
        is_due: whether they are too many, or too old, by the table's properties.
    """

    rows: int
    bytes: int
    oldest: datetime | None
    deletes: int = 0
    is_due: bool = False


def read_inline_facts(tier: InlineTier, state: TableState) -> InlineFacts | None:
    """What the tier holds of a table; None if the table has no tier."""
    if not state.has_inline_tier:
        return None
    with tier.store.reading() as connection:
        table = tier.find(connection, state)
        if table is None:
            return InlineFacts(0, 0, None)
        where = tier.unflushed(connection, state, table)
        age = _oldest(connection, table, where)
        rows = count_rows(connection, table, where)
        size = estimate_bytes(connection, table, where)
        deletes = read_facts(connection, table).rows
    oldest = None if age is None else datetime.now(UTC) - timedelta(milliseconds=age)
    is_due = _is_old(state, age) or rows + deletes >= state.settings.inline_row_limit
    return InlineFacts(rows, size, oldest, deletes, is_due)


def count_inline(tier: InlineTier, state: TableState) -> tuple[int, int]:
    """How many inline rows a table has, and how many rows of files are deleted inline."""
    with tier.store.reading() as connection:
        table = tier.find(connection, state)
        if table is None:
            return 0, 0
        rows = count_rows(connection, table, tier.unflushed(connection, state, table))
        return rows, read_facts(connection, table).rows


def is_old(tier: InlineTier, state: TableState) -> bool:
    """Whether the tier holds something of a table that is older than its properties allow."""
    if state.settings.inline_max_age_ms is None:
        return False
    with tier.store.reading() as connection:
        table = tier.find(connection, state)
        if table is None:
            return False
        where = tier.unflushed(connection, state, table)
        return _is_old(state, _oldest(connection, table, where))


def _oldest(
    connection: StoreConnection, table: InlineTable, where: sa.ColumnElement[bool] | None
) -> int | None:
    """The age in milliseconds of what is oldest in the tier; None if there is nothing."""
    ages = age_of_oldest(connection, table, where), age_of_deletes(connection, table)
    return max((age for age in ages if age is not None), default=None)


def _is_old(state: TableState, age: int | None) -> bool:
    most = state.settings.inline_max_age_ms
    return age is not None and most is not None and age > most
