"""What a store has beside rows and deletes: keys, leases, intents, numbers of changes.

All times are the database's, in milliseconds since 1970. Functions take the transaction they are
part of, so what they write becomes visible together with the rows of the same transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from icefloe.errors import StorageError
from icefloe.inline.database import CLOCKS
from icefloe.inline.layout import (
    DELETE,
    FILE,
    FLUSHED,
    INTENT,
    KEY,
    LEASE,
    SEQUENCE,
    STORE,
    InlineTable,
)
from icefloe.inline.store import ChangeStamp, StoreConnection

_MOST_SKIPPED = 10_000_000  # numbers of changes: a database that misses more is not an older backup


def upsert(connection: StoreConnection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that can have ON CONFLICT, which both databases write alike, and is counted."""
    insert = postgresql.insert(table) if connection.is_postgresql else sqlite.insert(table)
    return insert.execution_options(preserve_rowcount=True)


# -------------------------------------------------------------------------------------------------
# Idempotency keys


def claim_key(
    connection: StoreConnection, table: InlineTable, key: str, result: str, stamp: ChangeStamp
) -> str | None:
    """Note that a statement with this key is done; None, or the result of the one that was first.

    A concurrent transaction with the same key is waited for.
    """
    row = {
        "table_id": table.id,
        "key": _digest(key),
        "result": result,
        "seq": stamp.seq,
        "at": stamp.at,
    }
    added = connection.execute(upsert(connection, KEY).values(row).on_conflict_do_nothing())
    return None if added.rowcount else read_key(connection, table, key)


def read_key(connection: StoreConnection, table: InlineTable, key: str) -> str | None:
    """The result of the statement that had this key; None if there was none."""
    result = connection.execute(
        sa.select(KEY.c.result).where(KEY.c.table_id == table.id, KEY.c.key == _digest(key))
    ).scalar_one_or_none()
    return None if result is None else str(result)


def find_seq(connection: StoreConnection, table: InlineTable, seq: int) -> bool:
    """Whether a row, a delete or a key has the number of a change: the change was committed."""
    rows = table.rows
    files = sa.select(FILE.c.id).where(FILE.c.table_id == table.id)
    looks = (
        sa.select(rows.c.seq).where(rows.c.seq == seq),
        sa.select(KEY.c.seq).where(KEY.c.table_id == table.id, KEY.c.seq == seq),
        sa.select(DELETE.c.seq).where(DELETE.c.file_id.in_(files), DELETE.c.seq == seq),
    )
    return any(connection.execute(look.limit(1)).first() is not None for look in looks)


def remove_keys(connection: StoreConnection, table: InlineTable, before: int) -> int:
    """Remove the keys of statements before a time; returns how many there were."""
    removed = KEY.delete().where(KEY.c.table_id == table.id, KEY.c.at < before)
    return connection.execute(removed).rowcount


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


# -------------------------------------------------------------------------------------------------
# Leases


def acquire_lease(
    connection: StoreConnection, table: InlineTable, owner: str, milliseconds: int
) -> bool:
    """Take or renew the table's lease, unless another owner has it and it has not expired.

    One that lasts for longer than a lease does is of before the clock was set back.
    """
    until = connection.clock + milliseconds
    row = {"table_id": table.id, "owner": owner, "until": until}
    expired = sa.or_(LEASE.c.until <= connection.clock, LEASE.c.until > until)
    free = sa.or_(LEASE.c.owner == owner, expired)
    taken = (
        upsert(connection, LEASE)
        .values(row)
        .on_conflict_do_update(
            index_elements=[LEASE.c.table_id], set_={"owner": owner, "until": until}, where=free
        )
    )
    return connection.execute(taken).rowcount == 1


def renew_lease(
    connection: StoreConnection, table: InlineTable, owner: str, milliseconds: int
) -> bool:
    """Prolong a lease; False if another owner has taken it since it expired."""
    renewed = LEASE.update().where(LEASE.c.table_id == table.id, LEASE.c.owner == owner)
    until = connection.clock + milliseconds
    return connection.execute(renewed.values(until=until)).rowcount == 1


def release_lease(connection: StoreConnection, table: InlineTable, owner: str) -> None:
    """Give up a lease; one of another owner stays."""
    connection.execute(LEASE.delete().where(LEASE.c.table_id == table.id, LEASE.c.owner == owner))


# -------------------------------------------------------------------------------------------------
# Catalogs that are not in this database: intents of flushes, and how far rows are flushed


@dataclass(frozen=True, slots=True)
class FlushIntent:
    """Rows up to `cut` are being published by a snapshot; `age` is in milliseconds."""

    cut: int
    snapshot_id: int
    age: int


def write_intent(
    connection: StoreConnection, table: InlineTable, cut: int, snapshot_id: int
) -> bool:
    """Announce a flush; False if another one is announced."""
    row: dict[str, Any] = {
        "table_id": table.id,
        "cut": cut,
        "snapshot_id": snapshot_id,
        "started": connection.clock,
    }
    written = upsert(connection, INTENT).values(row).on_conflict_do_nothing()
    return connection.execute(written).rowcount == 1


def read_intent(connection: StoreConnection, table: InlineTable) -> FlushIntent | None:
    """The announced flush of a table, if there is one."""
    age = connection.clock - INTENT.c.started
    selected = sa.select(INTENT.c.cut, INTENT.c.snapshot_id, age)
    row = connection.execute(selected.where(INTENT.c.table_id == table.id)).first()
    return None if row is None else FlushIntent(*row)


def remove_intent(connection: StoreConnection, table: InlineTable, snapshot_id: int) -> bool:
    """Remove the announcement of this snapshot; False if it is gone or another's."""
    found = INTENT.c.table_id == table.id, INTENT.c.snapshot_id == snapshot_id
    if connection.execute(INTENT.delete().where(*found)).rowcount != 1:
        return False
    counted = (
        upsert(connection, FLUSHED)
        .values(table_id=table.id, through=0, intents=1)
        .on_conflict_do_update(
            index_elements=[FLUSHED.c.table_id], set_={"intents": FLUSHED.c.intents + 1}
        )
    )
    connection.execute(counted)
    return True


def count_removed_intents(connection: StoreConnection, table: InlineTable) -> int:
    """How many intents of a table were removed: more tell of a commit in between."""
    selected = sa.select(FLUSHED.c.intents).where(FLUSHED.c.table_id == table.id)
    return int(connection.execute(selected).scalar_one_or_none() or 0)


def read_flushed(connection: StoreConnection, table: InlineTable) -> int:
    """The last change whose rows are known to be in files; 0 if none is."""
    selected = sa.select(FLUSHED.c.through).where(FLUSHED.c.table_id == table.id)
    return int(connection.execute(selected).scalar_one_or_none() or 0)


def write_flushed(connection: StoreConnection, table: InlineTable, through: int) -> None:
    """Note that rows of changes up to this one are in files; an earlier change is not noted."""
    written = (
        upsert(connection, FLUSHED)
        .values(table_id=table.id, through=through, intents=0)
        .on_conflict_do_update(
            index_elements=[FLUSHED.c.table_id],
            set_={"through": through},
            where=FLUSHED.c.through < through,
        )
    )
    connection.execute(written)


def stamp_above(connection: StoreConnection, seq: int) -> ChangeStamp:
    """Number a change of this write transaction higher than `seq`.

    Numbers ascend by themselves, except in a database that was restored from an older backup.
    """
    stamp = next_stamp(connection)
    if stamp.seq > seq:
        return stamp
    skipped = seq - stamp.seq
    if skipped > _MOST_SKIPPED:
        raise StorageError(
            f"The inline store has numbered {stamp.seq} changes, and change {seq} is flushed. The "
            "database is not a backup of the one that the rows were flushed from. Nothing was "
            "changed."
        )
    if connection.is_postgresql:
        numbers = sa.func.generate_series(1, skipped).table_valued()
        connection.execute(sa.select(sa.func.max(SEQUENCE.next_value())).select_from(numbers))
    else:
        connection.execute(STORE.update().where(STORE.c.seq < seq).values(seq=seq))
    return next_stamp(connection)


# -------------------------------------------------------------------------------------------------
# Numbers of changes

# Statements of every insert are built once, which is most of their time.
_COUNT_UP = STORE.update().values(seq=STORE.c.seq + 1)
_LAST = sa.select(STORE.c.seq)
_LAST_AND_TIME = sa.select(STORE.c.seq, sa.literal_column(CLOCKS["sqlite"], sa.BigInteger))


def next_stamp(connection: StoreConnection) -> ChangeStamp:
    """Number a change of this write transaction."""
    if connection.is_postgresql:
        number = sa.select(SEQUENCE.next_value(), connection.clock)
        seq, at = connection.execute(number).one()
        return ChangeStamp(seq, at)
    connection.execute(_COUNT_UP)
    seq, at = connection.execute(_LAST_AND_TIME).one()
    return ChangeStamp(seq, at)


def last_number(connection: StoreConnection) -> int | None:
    """The number of the last change that the transaction sees; None where numbers do not tell.

    On SQLite changes are numbered in the order of their commits: if the next one has the next
    number, there was none in between. PostgreSQL's sequence is in no such order.
    """
    if connection.is_postgresql:
        return None
    return int(connection.execute(_LAST).scalar_one())
