"""Rows of a table in the store: insert, select, replace and remove.

`(row_id, seq)` is one version of a row. Changes name the versions that they change, so a version
that was changed or removed since it was read is never touched. Values of many rows go to PostgreSQL
as one array per column, to SQLite through one prepared statement. In the SQL that is put together
here, all names are the store's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError

from icefloe.file_changes import RowVersion
from icefloe.inline.database import CLOCKS
from icefloe.inline.encode import array_text, names_of, number_array_text, unnested
from icefloe.inline.layout import (
    EARLIER_KINDS,
    POINTERS,
    SEQUENCE,
    STORE,
    TABLE,
    ColumnValues,
    InlineColumn,
    InlineTable,
    Value,
    rows_table,
)
from icefloe.inline.store import ChangeStamp, StoreConnection
from icefloe.inline.tables import CatalogTable, dropped

_FETCHED_ROWS = 500  # at a time: more do not fit the cache of a processor
_SEPARATE_ROWS = 500  # up to here rows are looked up by their ids, above by the range of the ids
_SAMPLED_ROWS = 1000
_ROW_OVERHEAD = 24  # bytes: row_id, seq, at
_UNDEFINED_TABLE = "42P01"


@dataclass(frozen=True, slots=True)
class InlineRows:
    """Rows as they were read, by row id; columns that the database does not have are missing."""

    row_ids: list[int]
    seqs: list[int]
    values: Mapping[str, ColumnValues]

    def __len__(self) -> int:
        return len(self.row_ids)

    def first(self, count: int) -> InlineRows:
        """The oldest rows."""
        values = {name: column[:count] for name, column in self.values.items()}
        return InlineRows(self.row_ids[:count], self.seqs[:count], values)

    @property
    def versions(self) -> list[RowVersion]:
        """The version of each row."""
        return list(zip(self.row_ids, self.seqs, strict=True))


@dataclass(frozen=True, slots=True)
class InsertedRows:
    """The ids of inserted rows; rows of a concurrent insert may have ids in between."""

    first: int
    last: int
    count: int
    oldest: int  # the first id that the table has

    @property
    def span(self) -> int:
        """An upper bound of the number of rows that the table has."""
        return self.last - self.oldest + 1


# -------------------------------------------------------------------------------------------------
# Insert


def insert_rows(
    connection: StoreConnection,
    table: InlineTable,
    columns: Sequence[InlineColumn],
    encoded: Sequence[Sequence[Value]],
    stamp: ChangeStamp,
) -> InsertedRows:
    """Insert rows by one statement; their ids ascend in the order of the rows.

    Args:
        connection: A write transaction.
        table: The table, which has all of the columns.
        columns: What the values are of.
        encoded: The values of each column, at least one row.
        stamp: Number and time of the change.

    Raises:
        TableNotFoundError: The table was dropped.
    """
    if connection.is_postgresql:
        return _insert_arrays(connection, table, columns, encoded, stamp)
    if connection.execute(_REGISTERED, {"table": table.id}).first() is None:
        raise dropped(table)
    rows = list(zip(repeat(stamp.seq), repeat(stamp.at), *encoded, strict=False))
    statement = _sqlite_insert(table.id, tuple(columns))
    connection.connection.exec_driver_sql(statement, rows)
    last, oldest = connection.execute(_inserted(table.rows)).one()
    return InsertedRows(last - len(rows) + 1, last, len(rows), oldest)


# Statements of every insert are built once, which is most of their time.
_REGISTERED = sa.select(TABLE.c.id).where(TABLE.c.id == sa.bindparam("table"))


@lru_cache(maxsize=1000)
def _inserted(rows: sa.Table) -> sa.Select[Any]:
    oldest = sa.select(sa.func.min(rows.c.row_id)).scalar_subquery()
    return sa.select(sa.func.last_insert_rowid(), oldest)


@lru_cache(maxsize=1000)
def _sqlite_insert(table_id: int, columns: tuple[InlineColumn, ...]) -> str:
    names = ["seq", "at", *(column.name for column in columns)]
    insert = rows_table(table_id, columns).insert()
    return str(insert.compile(dialect=sqlite.dialect(), column_keys=names))


def _insert_arrays(
    connection: StoreConnection,
    table: InlineTable,
    columns: Sequence[InlineColumn],
    encoded: Sequence[Sequence[Value]],
    stamp: ChangeStamp,
) -> InsertedRows:
    names = names_of(columns)
    rows = (
        f"SELECT %s::bigint, %s::bigint, {names} FROM {unnested(columns)} AS v({names}) "  # noqa: S608
        f"WHERE EXISTS (SELECT 1 FROM {TABLE.name} WHERE id = %s)"
    )
    statement = f"WITH {_inserting(table, names, rows)} SELECT {_ends(table)} FROM inserted"  # noqa: S608
    values = (stamp.seq, stamp.at, *map(array_text, encoded), table.id)
    inserted = _run(connection, table, statement, values)
    if not inserted[2]:
        raise dropped(table)
    return _inserted_rows(*inserted)


@dataclass(frozen=True, slots=True)
class CurrentTable:
    """What must still be so for rows to fit: the table's metadata, and the store of its rows."""

    name: CatalogTable
    pointer: str
    store_id: str | None  # None: any


def insert_if_current(
    connection: StoreConnection,
    table: InlineTable,
    columns: Sequence[InlineColumn],
    encoded: Sequence[Sequence[Value]],
    current: CurrentTable,
) -> tuple[InsertedRows, ChangeStamp] | None:
    """Number a change and insert its rows; None, without a change, if the table is not current.

    Raises:
        TableNotFoundError: The table was dropped; the transaction can do nothing else.
    """
    names = names_of(columns)
    rows = f"SELECT stamp.seq, stamp.at, {names} FROM stamp, {unnested(columns)} AS v({names})"  # noqa: S608
    statement = (
        f"WITH {_STAMP}, {_inserting(table, names, rows)} SELECT {_ends(table)}, "  # noqa: S608
        "(SELECT seq FROM stamp), (SELECT at FROM stamp) FROM inserted"
    )
    name = current.name
    where = (name.catalog, name.namespace, name.name, current.pointer, table.id)
    stores = (current.store_id, current.store_id)
    *ends, seq, at = _run(
        connection, table, statement, (*where, *stores, *map(array_text, encoded))
    )
    return None if seq is None else (_inserted_rows(*ends), ChangeStamp(seq, at))


_STAMP = (
    f"stamp AS (SELECT nextval('{SEQUENCE.name}') AS seq, {CLOCKS['postgresql']} AS at "  # noqa: S608
    f"FROM {POINTERS.name} AS p, {TABLE.name} AS t, {STORE.name} AS s "
    "WHERE p.catalog_name = %s AND p.table_namespace = %s AND p.table_name = %s "
    "AND p.metadata_location = %s AND t.id = %s AND (%s::text IS NULL OR s.store_id = %s))"
)


def _inserting(table: InlineTable, names: str, rows: str) -> str:
    return f"inserted AS (INSERT INTO {table.rows.name} (seq, at, {names}) {rows} RETURNING row_id)"


def _ends(table: InlineTable) -> str:
    # Rows that one statement inserts are not there yet for the rest of it.
    oldest = f"(SELECT min(row_id) FROM {table.rows.name})"  # noqa: S608
    return f"min(row_id), max(row_id), count(*), {oldest}"


def _run(
    connection: StoreConnection, table: InlineTable, statement: str, values: tuple[Any, ...]
) -> tuple[Any, ...]:
    try:
        return tuple(connection.connection.exec_driver_sql(statement, values).one())
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == _UNDEFINED_TABLE:
            raise dropped(table) from error
        raise


def _inserted_rows(first: int, last: int, count: int, oldest: int | None) -> InsertedRows:
    return InsertedRows(first, last, count, first if oldest is None else min(first, oldest))


# -------------------------------------------------------------------------------------------------
# Select


def select_rows(
    connection: StoreConnection,
    table: InlineTable,
    columns: Sequence[InlineColumn],
    where: sa.ColumnElement[bool] | None = None,
    limit: int | None = None,
) -> InlineRows:
    """Rows that satisfy a condition, in the order of their ids.

    Of each field of `columns` all columns are read that the database has, also those of the kind
    that it had before a promotion.
    """
    stored = [column.name for column in stored_columns(table, columns)]
    rows = table.rows
    selected = sa.select(rows.c.row_id, rows.c.seq, *(rows.c[name] for name in stored))
    result = connection.execute(_narrowed(selected, where).order_by(rows.c.row_id).limit(limit))
    read: list[list[Any]] = [[] for _ in range(2 + len(stored))]
    cursor = result.cursor  # the driver's tuples: SQLAlchemy's rows take twice the time
    while batch := cursor.fetchmany(_FETCHED_ROWS):
        for values, more in zip(read, zip(*batch, strict=True), strict=True):
            values.extend(more)
    result.close()
    return InlineRows(read[0], read[1], dict(zip(stored, read[2:], strict=True)))


def stored_columns(table: InlineTable, columns: Sequence[InlineColumn]) -> list[InlineColumn]:
    """The columns that the database has of the fields of `columns`, in any kind."""
    fields = {column.field_id for column in columns}
    return [column for column in table.columns if column.field_id in fields]


def select_versions(
    connection: StoreConnection, table: InlineTable, where: sa.ColumnElement[bool] | None = None
) -> list[RowVersion]:
    """The versions of rows that satisfy a condition, in the order of their ids."""
    return select_rows(connection, table, (), where).versions


def count_rows(
    connection: StoreConnection, table: InlineTable, where: sa.ColumnElement[bool] | None = None
) -> int:
    """How many rows satisfy a condition."""
    counted = sa.select(sa.func.count()).select_from(table.rows)
    return int(connection.execute(_narrowed(counted, where)).scalar_one())


def row_span(connection: StoreConnection, table: InlineTable) -> int:
    """An upper bound of the number of rows, by two look-ups in the index of ids."""
    first, last = connection.execute(_row_ends(table.rows)).one()
    return 0 if first is None else last - first + 1


@lru_cache(maxsize=1000)
def _row_ends(rows: sa.Table) -> sa.Select[Any]:
    ends = (sa.func.min(rows.c.row_id), sa.func.max(rows.c.row_id))
    return sa.select(*(sa.select(end).scalar_subquery() for end in ends))


def last_change(
    connection: StoreConnection,
    table: InlineTable,
    where: sa.ColumnElement[bool] | None = None,
    rows: int | None = None,
) -> int | None:
    """The newest change that wrote a row; with `rows`, the one that wrote the row of this number.

    None if no row satisfies the condition.
    """
    seq = table.rows.c.seq
    if rows is not None:
        numbered = _narrowed(sa.select(seq), where).order_by(seq).offset(rows - 1).limit(1)
        change: int | None = connection.execute(numbered).scalar_one_or_none()
        if change is not None:
            return change
    newest: int | None = connection.execute(_narrowed(sa.select(sa.func.max(seq)), where)).scalar()
    return newest


def age_of_oldest(
    connection: StoreConnection, table: InlineTable, where: sa.ColumnElement[bool] | None = None
) -> int | None:
    """Milliseconds since the oldest row was inserted; None if there is no row."""
    rows = table.rows
    oldest = _narrowed(sa.select(connection.clock - rows.c.at), where)
    age = connection.execute(oldest.order_by(rows.c.row_id).limit(1)).scalar_one_or_none()
    return None if age is None else max(0, int(age))


def estimate_bytes(
    connection: StoreConnection, table: InlineTable, where: sa.ColumnElement[bool] | None = None
) -> int:
    """About how many bytes the rows have, from their number and the newest of them."""
    rows = table.rows
    integers = sum(column.is_integer for column in table.columns)
    size: sa.ColumnElement[int] = sa.literal(_ROW_OVERHEAD + 8 * integers)
    for column in table.columns:
        if not column.is_integer:
            size += sa.func.coalesce(sa.func.length(rows.c[column.name]), 0)
    newest = _narrowed(sa.select(size.label("size")).select_from(rows), where)
    newest = newest.order_by(rows.c.row_id.desc()).limit(_SAMPLED_ROWS)
    mean = connection.execute(sa.select(sa.func.avg(newest.subquery().c.size))).scalar_one()
    return 0 if mean is None else int(mean * count_rows(connection, table, where))


def _narrowed(selected: sa.Select[Any], where: sa.ColumnElement[bool] | None) -> sa.Select[Any]:
    return selected if where is None else selected.where(where)


# -------------------------------------------------------------------------------------------------
# Change


def lock_inserts(connection: StoreConnection, table: InlineTable) -> None:
    """Let no other transaction insert rows before this one ends."""
    if connection.is_postgresql:  # on SQLite a write transaction is alone
        connection.connection.exec_driver_sql(f"LOCK TABLE {table.rows.name} IN SHARE MODE")


def missing_versions(
    connection: StoreConnection, table: InlineTable, versions: Sequence[RowVersion]
) -> list[RowVersion]:
    """Those versions that the table no longer has: they were changed or removed."""
    if not versions:
        return []
    row_id = table.rows.c.row_id
    ids = [row for row, _ in versions]
    few = len(ids) <= _SEPARATE_ROWS
    among = row_id.in_(ids) if few else row_id.between(min(ids), max(ids))
    present = set(select_versions(connection, table, among))
    return [version for version in versions if version not in present]


def remove_through(connection: StoreConnection, table: InlineTable, seq: int) -> int:
    """Remove the rows of changes up to this one; returns how many there were."""
    rows = table.rows
    return connection.execute(rows.delete().where(rows.c.seq <= seq)).rowcount


def remove_unchanged(connection: StoreConnection, table: InlineTable, seq: int, rows: int) -> bool:
    """Remove the rows of changes up to this one if there are so many, or else none.

    Where changes are numbered in the order of their transactions, rows that were read after change
    `seq` are the same if they are as many. That takes a tenth of the time of `remove_versions`.

    Returns:
        Whether the rows were removed; PostgreSQL's numbers do not tell.
    """
    if connection.is_postgresql or count_rows(connection, table, table.rows.c.seq <= seq) != rows:
        return False
    remove_through(connection, table, seq)
    return True


def remove_versions(
    connection: StoreConnection, table: InlineTable, versions: Sequence[RowVersion]
) -> int:
    """Remove rows; returns how many of the versions were there."""
    if not versions:
        return 0
    if connection.is_postgresql:
        return len(versions) - len(remove_and_compare(connection, table, versions))
    statement = f"DELETE FROM {table.rows.name} WHERE row_id = ? AND seq = ?"  # noqa: S608
    return connection.connection.exec_driver_sql(statement, list(versions)).rowcount


def remove_and_compare(
    connection: StoreConnection, table: InlineTable, versions: Sequence[RowVersion]
) -> list[RowVersion]:
    """Remove rows; returns those versions that were not there: they were changed or removed.

    In PostgreSQL it is one statement: Python would take longer, and its lock, for both.
    """
    if not connection.is_postgresql or not versions:
        missing = missing_versions(connection, table, versions)
        remove_versions(connection, table, versions)
        return missing
    statement = (
        f"WITH v AS (SELECT * FROM {unnested((), _VERSION)} AS v(row_id, seq)), "  # noqa: S608
        f"removed AS (DELETE FROM {table.rows.name} AS t USING v "
        "WHERE t.row_id = v.row_id AND t.seq = v.seq RETURNING t.row_id) "
        "SELECT row_id, seq FROM v "
        "WHERE NOT EXISTS (SELECT 1 FROM removed WHERE removed.row_id = v.row_id) ORDER BY row_id"
    )
    arrays = tuple(map(number_array_text, _columns(versions)))
    missing_rows = connection.connection.exec_driver_sql(statement, arrays)
    return [(row_id, seq) for row_id, seq in missing_rows]


def replace_rows(
    connection: StoreConnection,
    table: InlineTable,
    versions: Sequence[RowVersion],
    columns: Sequence[InlineColumn],
    encoded: Sequence[Sequence[Value]],
    seq: int,
) -> int:
    """Give rows new values and the number of this change; their ids stay.

    Returns:
        How many of the versions were there; others are not changed.
    """
    if not versions:
        return 0
    row_ids, seqs = _columns(versions)
    name, cleared = (
        table.rows.name,
        "".join(f", {each} = NULL" for each in _earlier(table, columns)),
    )
    if connection.is_postgresql:
        changes = ", ".join(f"{column.name} = v.{column.name}" for column in columns)
        statement = (
            f"UPDATE {name} AS t SET seq = %s::bigint, {changes}{cleared} "  # noqa: S608
            f"FROM {unnested(columns, _VERSION)} AS v(old_row_id, old_seq, {names_of(columns)}) "
            "WHERE t.row_id = v.old_row_id AND t.seq = v.old_seq"
        )
        parameters: Any = (seq, *map(array_text, (row_ids, seqs, *encoded)))
    else:
        changes = ", ".join(f"{column.name} = ?" for column in columns)
        statement = (
            f"UPDATE {name} SET seq = ?, {changes}{cleared} "  # noqa: S608
            "WHERE row_id = ? AND seq = ?"
        )
        parameters = list(zip(repeat(seq), *encoded, row_ids, seqs, strict=False))
    return connection.connection.exec_driver_sql(statement, parameters).rowcount


_VERSION = ("bigint[]", "bigint[]")


def _columns(versions: Sequence[RowVersion]) -> tuple[list[int], list[int]]:
    """Row ids and numbers of changes: `zip(*versions)` of many takes fifty times as long."""
    return [row_id for row_id, _ in versions], [seq for _, seq in versions]


def _earlier(table: InlineTable, columns: Sequence[InlineColumn]) -> Iterator[str]:
    """Columns that have values of before a promotion, which new values replace."""
    for column in columns:
        for kind in EARLIER_KINDS.get(column.kind, ()):
            earlier = InlineColumn(column.field_id, kind)
            if earlier in table.columns:
                yield earlier.name
