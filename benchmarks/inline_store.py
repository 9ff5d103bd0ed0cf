"""Latency of the inline tier's store: inserts, reads and point look-ups, without Spark.

python benchmarks/inline_store.py sqlite:///inline.db
python benchmarks/inline_store.py postgresql+psycopg://user@localhost/db
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import uuid4

import pyarrow as pa
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from icefloe.inline.bookkeeping import next_stamp
from icefloe.inline.decode import decode_rows
from icefloe.inline.encode import encode_rows
from icefloe.inline.layout import InlineTable, inline_columns
from icefloe.inline.rows import insert_rows, missing_versions, remove_versions, select_rows
from icefloe.inline.store import InlineStore
from icefloe.inline.tables import CatalogTable, drop_table, register_table
from icefloe.inline.where import row_filter

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "price", DecimalType(18, 2)),
    NestedField(4, "weight", DoubleType()),
    NestedField(5, "at", TimestamptzType()),
    NestedField(6, "day", DateType()),
    NestedField(7, "ok", BooleanType()),
    NestedField(8, "data", BinaryType()),
    NestedField(9, "n", IntegerType()),
    NestedField(10, "tags", ListType(11, StringType(), element_required=False)),
)
COLUMNS = inline_columns(SCHEMA)


def rows_from(start: int, size: int) -> pa.Table:
    ids = range(start, start + size)
    columns = [
        list(ids),
        [f"customer {n}" for n in ids],
        [Decimal(n) / 100 for n in ids],
        [n * 1.5 for n in ids],
        [datetime(2026, 1, 1, tzinfo=UTC)] * size,
        [date(2026, 1, 1)] * size,
        [n % 2 == 0 for n in ids],
        [b"0123456789abcdef"] * size,
        [n % 1000 for n in ids],
        [["a", "b"]] * size,
    ]
    arrow = schema_to_pyarrow(SCHEMA, include_field_ids=False)
    arrays = [pa.array(v, field.type) for v, field in zip(columns, arrow, strict=True)]
    return pa.Table.from_arrays(arrays, schema=arrow)


def insert(store: InlineStore, table: InlineTable, rows: pa.Table) -> None:
    encoded = encode_rows(rows, SCHEMA)
    with store.writing() as connection:
        insert_rows(connection, table, COLUMNS, encoded, next_stamp(connection))


def timed(repeats: int, work: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1000)
    return times


def show(what: str, times: list[float]) -> None:
    p99 = f"p99 {statistics.quantiles(times, n=100)[98]:8.2f}  " if len(times) >= 100 else ""
    print(
        f"{what:32} min {min(times):8.2f}  p50 {statistics.median(times):8.2f}  "
        f"{p99}max {max(times):8.2f} ms  ({len(times)} runs)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uri")
    store = InlineStore.of_uri(parser.parse_args().uri)

    def new_table() -> InlineTable:
        with store.writing() as connection:
            name = CatalogTable("benchmark", "inline", "rows")
            return register_table(connection, name, uuid4().hex, COLUMNS)

    table = new_table()
    for size, repeats in ((1, 500), (100, 200), (10_000, 12)):
        rows = rows_from(0, size)
        insert(store, table, rows)
        show(f"insert {size:,} rows", timed(repeats, lambda rows=rows: insert(store, table, rows)))
    rows = rows_from(0, 10_000)
    show("  of which encode 10,000 rows", timed(10, lambda: encode_rows(rows, SCHEMA)))

    full = new_table()
    for start in range(0, 100_000, 10_000):
        insert(store, full, rows_from(start, 10_000))

    def read(narrow: bool) -> None:
        where = row_filter(EqualTo("id", 54_321), SCHEMA, full.rows) if narrow else None
        with store.reading() as connection:
            found = select_rows(connection, full, COLUMNS, where)
        assert decode_rows(found.values, SCHEMA, len(found)).num_rows == (1 if narrow else 100_000)

    show("read 100,000 rows as Arrow", timed(8, lambda: read(narrow=False)))
    show("id = k among 100,000", timed(100, lambda: read(narrow=True)))
    with store.reading() as connection:
        versions = select_rows(connection, full, ()).versions
        show(
            "100,000 versions present?",
            timed(5, lambda: missing_versions(connection, full, versions)),
        )
    with store.writing(lock=full) as connection:
        show(
            "remove 100,000 versions", timed(1, lambda: remove_versions(connection, full, versions))
        )
        for each in (table, full):
            drop_table(connection, each)
    store.close()


if __name__ == "__main__":
    main()
