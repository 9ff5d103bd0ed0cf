"""Deletes of rows in data files that are in the store: one row per data file and position.

All deletes of a table share one version, the number of the change that added or removed some last.
Whoever read them finds out by it whether they are still the same. Functions take the transaction
they are part of; those that change deletes need the table's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from pyroaring import BitMap64

from icefloe.inline.bookkeeping import upsert
from icefloe.inline.layout import DELETE, DELETED, FILE, FORMER, InlineTable
from icefloe.inline.store import ChangeStamp, StoreConnection

_CHUNK = 500  # positions, or files, per statement


@dataclass(frozen=True, slots=True)
class DeleteFacts:
    """What is known of all deletes of a table."""

    version: int = 0  # the last change that added or removed some
    rows: int = 0
    since: int | None = None  # when there were none last, by the database's clock
    snapshot_id: int | None = None  # in which all of their files were live


def read_facts(connection: StoreConnection, table: InlineTable) -> DeleteFacts:
    """Version and number of the deletes, by one look-up."""
    row = connection.execute(_FACTS, {"table": table.id}).first()
    return DeleteFacts() if row is None else DeleteFacts(*row)


_FACTS = sa.select(DELETED.c.version, DELETED.c.rows, DELETED.c.since, DELETED.c.snapshot_id).where(
    DELETED.c.table_id == sa.bindparam("table")
)


def read_deletes(connection: StoreConnection, table: InlineTable) -> dict[str, BitMap64]:
    """The deleted positions of each data file that has any."""
    selected = (
        sa.select(FILE.c.path, DELETE.c.pos)
        .join(DELETE, DELETE.c.file_id == FILE.c.id)
        .where(FILE.c.table_id == table.id)
        .order_by(FILE.c.path)
    )
    return _by_file(connection.execute(selected))


def read_former_deletes(connection: StoreConnection, table: InlineTable) -> dict[str, BitMap64]:
    """The positions that were deleted in data files which left the table since the last flush."""
    selected = sa.select(FORMER.c.path, FORMER.c.pos).where(FORMER.c.table_id == table.id)
    return _by_file(connection.execute(selected))


def _by_file(rows: Iterable[Any]) -> dict[str, BitMap64]:
    deleted: dict[str, list[int]] = {}
    for path, pos in rows:
        deleted.setdefault(path, []).append(pos)
    return {path: BitMap64(np.array(rows, np.uint64)) for path, rows in deleted.items()}


def age_of_deletes(connection: StoreConnection, table: InlineTable) -> int | None:
    """Milliseconds since the table had no deletes; None if it has none."""
    selected = sa.select(connection.clock - DELETED.c.since).where(DELETED.c.table_id == table.id)
    age = connection.execute(selected).scalar_one_or_none()
    return None if age is None else max(0, int(age))


def add_deletes(
    connection: StoreConnection,
    table: InlineTable,
    positions: Mapping[str, Iterable[int]],
    stamp: ChangeStamp,
) -> int:
    """Delete rows of data files by position; returns how many were not deleted before."""
    added = 0
    for path, deleted in positions.items():
        chunks = list(_chunks(deleted))
        file_id = _file_id(connection, table, path) if chunks else 0
        for chunk in chunks:
            rows = [{"file_id": file_id, "pos": pos, "seq": stamp.seq} for pos in chunk]
            insert = upsert(connection, DELETE).values(rows).on_conflict_do_nothing()
            added += connection.execute(insert).rowcount
    return added


def remove_deletes(
    connection: StoreConnection, table: InlineTable, positions: Mapping[str, Iterable[int]]
) -> int:
    """Remove deletes that the table's files have now; returns how many there were."""
    removed = 0
    for path, deleted in positions.items():
        file_id = sa.select(FILE.c.id).where(FILE.c.table_id == table.id, FILE.c.path == path)
        for chunk in _chunks(deleted):
            those = DELETE.c.file_id == file_id.scalar_subquery(), DELETE.c.pos.in_(chunk)
            removed += connection.execute(DELETE.delete().where(*those)).rowcount
    unused = ~sa.exists().where(DELETE.c.file_id == FILE.c.id)
    connection.execute(FILE.delete().where(FILE.c.table_id == table.id, unused))
    return removed


def remove_deletes_of_files(
    connection: StoreConnection, table: InlineTable, paths: Iterable[str]
) -> int:
    """Remove all deletes of data files that leave the table; returns how many."""
    removed, remaining = 0, list(paths)
    while remaining:
        chunk, remaining = remaining[:_CHUNK], remaining[_CHUNK:]
        files = sa.select(FILE.c.id).where(FILE.c.table_id == table.id, FILE.c.path.in_(chunk))
        removed += connection.execute(DELETE.delete().where(DELETE.c.file_id.in_(files))).rowcount
        connection.execute(FILE.delete().where(FILE.c.id.in_(files)))
    return removed


def keep_former_deletes(
    connection: StoreConnection, table: InlineTable, paths: Iterable[str]
) -> None:
    """Remember the deletes of data files that leave the table, in case they are brought back."""
    remaining = list(paths)
    while remaining:
        chunk, remaining = remaining[:_CHUNK], remaining[_CHUNK:]
        selected = (
            sa.select(FILE.c.table_id, FILE.c.path, DELETE.c.pos)
            .join(DELETE, DELETE.c.file_id == FILE.c.id)
            .where(FILE.c.table_id == table.id, FILE.c.path.in_(chunk))
        )
        insert = upsert(connection, FORMER).from_select(["table_id", "path", "pos"], selected)
        connection.execute(insert.on_conflict_do_nothing())


def remove_former_deletes(connection: StoreConnection, table: InlineTable) -> int:
    """Forget the deletes of data files that left the table; returns how many there were."""
    return connection.execute(FORMER.delete().where(FORMER.c.table_id == table.id)).rowcount


def write_former_deletes(
    connection: StoreConnection, table: InlineTable, positions: Mapping[str, Iterable[int]]
) -> None:
    """Remember these deletes of data files that left the table, and no others."""
    remove_former_deletes(connection, table)
    for path, deleted in positions.items():
        for chunk in _chunks(deleted):
            rows = [{"table_id": table.id, "path": path, "pos": pos} for pos in chunk]
            connection.execute(FORMER.insert().values(rows))


def write_facts(connection: StoreConnection, table: InlineTable, facts: DeleteFacts) -> None:
    """Store what is known of the deletes, after a change of them."""
    values = {
        "version": facts.version,
        "rows": facts.rows,
        "since": facts.since if facts.rows else None,
        "snapshot_id": facts.snapshot_id,
    }
    written = (
        upsert(connection, DELETED)
        .values(table_id=table.id, **values)
        .on_conflict_do_update(index_elements=[DELETED.c.table_id], set_=values)
    )
    connection.execute(written)


def _file_id(connection: StoreConnection, table: InlineTable, path: str) -> int:
    row = {"table_id": table.id, "path": path}
    connection.execute(upsert(connection, FILE).values(row).on_conflict_do_nothing())
    stored = sa.select(FILE.c.id).where(FILE.c.table_id == table.id, FILE.c.path == path)
    return int(connection.execute(stored).scalar_one())


def _chunks(positions: Iterable[int]) -> Iterator[Sequence[int]]:
    ordered = sorted(positions)
    for start in range(0, len(ordered), _CHUNK):
        yield ordered[start : start + _CHUNK]
