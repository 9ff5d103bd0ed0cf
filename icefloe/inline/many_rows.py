"""Many inline rows at once, as Arrow arrays.

Drivers make Python objects of every row, which takes Python's lock, and so waits for every thread
that inserts, and lets them wait. Here the database concatenates the values of a column, and one row
has all of them: numbers as text, bytes as they are, with their lengths as numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from pyarrow import csv

from icefloe.inline.layout import InlineColumn, InlineTable
from icefloe.inline.rows import InlineRows, row_span, select_rows, stored_columns
from icefloe.inline.store import StoreConnection

_MANY_ROWS = 5_000
_ROWS = 50_000  # of one part, and its bytes: a value has at most a billion in SQLite, less here
_BYTES = 200_000_000
_MAX_COLUMNS = 500  # SQLite has 2,000 columns per result, PostgreSQL 1,664


def read_rows(
    connection: StoreConnection,
    table: InlineTable,
    columns: Sequence[InlineColumn],
    where: sa.ColumnElement[bool],
    limit: int | None = None,
) -> InlineRows:
    """What `select_rows` returns; all rows of a table that has many are read by columns."""
    if isinstance(where, sa.True_) and limit is None and _has_many(connection, table):
        stored = stored_columns(table, columns)
        if len(stored) <= _MAX_COLUMNS:
            return _read_all(connection, table, stored)
    return select_rows(connection, table, columns, where, limit)


def _has_many(connection: StoreConnection, table: InlineTable) -> bool:
    if row_span(connection, table) < _MANY_ROWS:
        return False
    if connection.is_postgresql:
        return True
    # SQLite converts text of other encodings, and so the bytes that are concatenated.
    encoding: str = connection.connection.exec_driver_sql("PRAGMA encoding").scalar_one()
    return encoding == "UTF-8"


def _read_all(
    connection: StoreConnection, table: InlineTable, columns: Sequence[InlineColumn]
) -> InlineRows:
    numbers = ["row_id", "seq", *(c.name for c in columns if c.is_integer)]
    names = [c.name for c in columns if not c.is_integer]
    statement = _statement(connection, table.rows.name, numbers, names)
    parts: list[Mapping[str, pa.Array]] = []
    last = 0  # ids start at 1
    while (bounds := _part_after(connection, table, last, names)) is not None:
        values = connection.connection.exec_driver_sql(statement, bounds).one()
        parts.append(_arrays(values, numbers, names))
        _, last = bounds
    if not parts:
        return select_rows(connection, table, columns)
    read = {name: _joined([part[name] for part in parts]) for name in (*numbers, *names)}
    ids = read["row_id"].to_numpy()
    if np.any(ids[1:] < ids[:-1]):  # parallel workers of PostgreSQL aggregate parts of the rows
        order = pa.array(np.argsort(ids))
        read = {name: values.take(order) for name, values in read.items()}
    row_ids, seqs = (read.pop(name).to_numpy().tolist() for name in ("row_id", "seq"))
    return InlineRows(row_ids, seqs, read)


def _part_after(
    connection: StoreConnection, table: InlineTable, after: int, names: Sequence[str]
) -> tuple[int, int] | None:
    """The ids before the first and of the last row of the next part; None if there are no rows."""
    rows, most = table.rows, _ROWS
    sizes = (sa.func.coalesce(sa.func.length(rows.c[name]), 0) for name in names)
    size = sum(sizes, start=sa.literal(0))
    while True:
        part = sa.select(rows.c.row_id, size.label("size")).where(rows.c.row_id > after)
        part_rows = part.order_by(rows.c.row_id).limit(most).subquery()
        whole = sa.select(sa.func.max(part_rows.c.row_id), sa.func.sum(part_rows.c.size))
        last, total = connection.execute(whole).one()
        if last is None:
            return None
        if total <= _BYTES or most == 1:
            return after, last
        most = max(1, min(most // 2, int(most * _BYTES / total)))


def _joined(arrays: Sequence[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _statement(
    connection: StoreConnection, table: str, numbers: Sequence[str], names: Sequence[str]
) -> str:
    """One row: numbers as lines of text, lengths of bytes as such lines, and the bytes."""
    texts = [*numbers, *(f"length({name})" for name in names)]
    if connection.is_postgresql:
        lines = [f"string_agg(coalesce({text}::text, ''), E'\\n')" for text in texts]
        joined = [f"string_agg({name}, ''::bytea)" for name in names]
        rows = "row_id > %s AND row_id <= %s ORDER BY row_id"
        return f"SELECT {', '.join([*lines, *joined])} FROM (SELECT * FROM {table} WHERE {rows}) v"  # noqa: S608
    lines = [f"group_concat(coalesce({text}, ''), '\n')" for text in texts]
    joined = [f"CAST(group_concat({name}, '') AS BLOB)" for name in names]
    return (
        f"SELECT {', '.join([*lines, *joined])} FROM {table} "  # noqa: S608
        "WHERE row_id > ? AND row_id <= ?"
    )


def _arrays(
    values: Sequence[Any], numbers: Sequence[str], names: Sequence[str]
) -> dict[str, pa.Array]:
    count = len(numbers)
    arrays = {name: _integers(text) for name, text in zip(numbers, values, strict=False)}
    lengths, data = values[count : count + len(names)], values[count + len(names) :]
    for name, text, joined in zip(names, lengths, data, strict=True):
        arrays[name] = _binary(_integers(text), joined or b"")
    return arrays


def _integers(text: str) -> pa.Array:
    table = csv.read_csv(
        pa.BufferReader(f"{text}\n".encode()),
        csv.ReadOptions(column_names=["value"], use_threads=False),
        csv.ParseOptions(ignore_empty_lines=False),
        csv.ConvertOptions(column_types={"value": pa.int64()}, null_values=[""]),
    )
    return table["value"].combine_chunks()


def _binary(lengths: pa.Array, data: bytes) -> pa.Array:
    """Values of these lengths, NULL where there is none, that follow each other in `data`."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(pc.fill_null(lengths, 0).to_numpy(), out=offsets[1:])
    if offsets[-1] != len(data):
        raise ValueError(f"{len(data)} bytes, expected {offsets[-1]}")
    validity = pc.is_valid(lengths).buffers()[1] if lengths.null_count else None
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)
