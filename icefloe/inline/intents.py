"""Flushes into a catalog that is not in the store's database: announce, publish, conclude.

There is no transaction over both. A flush of the rows of all changes up to a cut goes

    F1  the cut, while no insert is under way, and its rows
    F2  data files
    F3  database: the rows are still the same; announce the cut and the snapshot: an intent
    F4  catalog: the snapshot and `icefloe.inline.flushed-through` = cut, in one commit
    F5  database: remove the rows up to the cut, and the intent

Readers leave out rows up to `flushed-through` of the metadata that they read, and look at the
metadata again after the rows. Whoever changes inline rows waits for an intent: between F3 and F5
the rows may be in files already. A flush that died after F3 leaves its intent behind. It is settled
by whoever meets it, once it is so old that no request of the dead process can still reach the
catalog. Other statements that change files announce their commits too, so that none of them misses
inline rows that were changed before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeAlias

from pyiceberg.table.metadata import TableMetadata

from icefloe.inline.bookkeeping import (
    FlushIntent,
    count_removed_intents,
    read_intent,
    remove_intent,
    write_flushed,
)
from icefloe.inline.layout import InlineTable
from icefloe.inline.rows import count_rows, remove_through
from icefloe.inline.store import InlineStore, StoreConnection
from icefloe.settings import flushed_through

log = logging.getLogger("icefloe")

ABANDONED_MS = 5 * 60 * 1000  # by the database's clock; longer than any request takes
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 1.0

LoadMetadata: TypeAlias = Callable[[], TableMetadata]


def wait_for_intents(store: InlineStore, table: InlineTable, load: LoadMetadata) -> int:
    """Wait until no commit is announced; one that was abandoned is settled.

    Args:
        store: The database of the inline rows.
        table: The table in it.
        load: Reads the table's current metadata from its catalog.

    Returns:
        How many announced commits there had been then.
    """
    wait = _FIRST_WAIT_S
    while True:
        with store.reading() as connection:
            intent = read_intent(connection, table)
            if intent is None:
                return count_removed_intents(connection, table)
        if intent.age > ABANDONED_MS:
            settle_intent(store, table, intent, load())
            continue
        if wait == _LONGEST_WAIT_S:
            log.info(
                "%s: waiting for a commit that was announced %.0f s ago",
                table.full_name,
                intent.age / 1000,
            )
        time.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT_S)


def settle_intent(
    store: InlineStore, table: InlineTable, intent: FlushIntent, metadata: TableMetadata
) -> None:
    """Conclude an abandoned flush if the catalog has it, and withdraw it otherwise."""
    has_landed = (
        metadata.snapshot_by_id(intent.snapshot_id) is not None
        or flushed_through(metadata.properties) >= intent.cut
    )
    log.warning(
        "%s: snapshot %s was announced %.0f s ago and not concluded. The catalog %s.",
        table.full_name,
        intent.snapshot_id,
        intent.age / 1000,
        "has it" if has_landed else "does not have it",
    )
    with store.writing(table) as connection:
        if has_landed:
            conclude(connection, table, intent.cut, intent.snapshot_id)
        else:
            remove_intent(connection, table, intent.snapshot_id)


def conclude(connection: StoreConnection, table: InlineTable, cut: int, snapshot_id: int) -> None:
    """Remove the rows that a published snapshot has in files, unless someone else did."""
    if remove_intent(connection, table, snapshot_id):
        _remove_rows(connection, table, cut)


def clean_up(store: InlineStore, table: InlineTable, load: LoadMetadata) -> None:
    """Settle an abandoned intent, and remove rows that are in files: of a restored database."""
    with store.reading() as connection:
        intent = read_intent(connection, table)
    if intent is not None:
        if intent.age > ABANDONED_MS:
            settle_intent(store, table, intent, load())
        return
    flushed = flushed_through(load().properties)
    with store.reading() as connection:
        if not count_rows(connection, table, table.rows.c.seq <= flushed):
            return
    with store.writing(table) as connection:
        if read_intent(connection, table) is None:
            _remove_rows(connection, table, flushed)


def _remove_rows(connection: StoreConnection, table: InlineTable, through: int) -> None:
    remove_through(connection, table, through)
    write_flushed(connection, table, through)
