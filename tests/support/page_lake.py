"""A lake with something to see on every view of the page."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.serializers import ToOutputFile
from pyspark.sql import SparkSession

import icefloe
from icefloe import Lake, Table
from icefloe.commit import snapshot

_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("region", pa.string()),
        ("day", pa.date32()),
        ("status", pa.string()),
        ("amount", pa.decimal128(10, 2)),
    ]
)
_REGIONS = ["eu", "us", "apac", "latam"]
ORDERS = 34_700


def build(folder: Path, spark: SparkSession) -> None:
    with icefloe.connect(folder, spark=spark) as lake:
        _orders(lake)
        _clicks(lake)
        _ledger(lake)
        lake.create_table("finance.budget", "account STRING, year INT, cents BIGINT")


def _made_days_ago(lake: Lake, name: str, days: int) -> Table:
    """A new table, registered again as an older one, so that its snapshots can be older."""
    table = lake.table(name).iceberg
    made = table.metadata.last_updated_ms - days * 86_400_000
    older = table.metadata.model_copy(update={"last_updated_ms": made})
    location = table.metadata_location.replace("/00000-", "/00000-older-")
    ToOutputFile.table_metadata(older, table.io.new_output(location))
    lake.catalog.drop_table(name)
    lake.catalog.register_table(name, location)
    return lake.table(name)


@contextmanager
def _days_ago(days: float) -> Iterator[None]:
    """Snapshots are committed with an earlier timestamp."""

    class Earlier:
        @staticmethod
        def time() -> float:
            return time.time() - days * 86_400

    snapshot.time, before = Earlier, snapshot.time  # type: ignore[attr-defined]
    try:
        yield
    finally:
        snapshot.time = before  # type: ignore[attr-defined]


def _orders(lake: Lake) -> None:
    chance = random.Random(7)
    table = lake.create_table(
        "shop.orders",
        "id BIGINT NOT NULL, region STRING, day DATE, status STRING, amount DECIMAL(10,2)",
        partition_by=["region", "month(day)"],
        properties={"write.target-file-size-bytes": 26_000},
    )
    first = 1
    for month, sizes in ((1, (9000, 2500, 400)), (2, (8000, 2000)), (3, (9500, 3000, 300))):
        for size in sizes:
            rows = _some_orders(chance, range(first, first + size), month)
            table.append(pa.Table.from_pylist(rows, _SCHEMA))
            first += size
    assert first == ORDERS + 1
    table.update().set("status", "'paid'").where("id < 400").execute()
    table.delete().where("region = 'latam' AND status = 'new'").execute()
    table.add_column("coupon", "STRING")
    table.rename_column("amount", "total")
    table.update().set("coupon", "'SPRING'").where("day >= DATE'2026-03-20'").execute()
    table.delete().where("id BETWEEN 5000 AND 5600").execute()
    new = {"region": "eu", "day": date(2026, 3, 4), "status": "new", "total": Decimal(99)}
    table.upsert(
        [{"id": i, "coupon": None, **new} for i in (ORDERS + 1, ORDERS + 2)], ["id"]
    ).execute()
    table.create_index("by_id", "btree", ["id"])


def _some_orders(chance: random.Random, ids: range, month: int) -> list[dict[str, Any]]:
    return [
        {
            "id": i,
            "region": chance.choices(_REGIONS, [5, 4, 2, 1])[0],
            "day": date(2026, month, chance.randint(1, 28)),
            "status": chance.choice(["new", "paid", "sent"]),
            "amount": Decimal(chance.randint(100, 90_000)) / 100,
        }
        for i in ids
    ]


def _clicks(lake: Lake) -> None:
    table = lake.create_table(
        "shop.clicks",
        "id BIGINT, page STRING, at TIMESTAMP",
        properties={"icefloe.inline.enabled": "true", "icefloe.inline.row-limit": "200"},
    )
    pages = ["home", "cart", "help"]
    for hour in range(20):
        at = [datetime(2026, 11, 1, hour, minute) for minute in range(10)]
        ids = range(hour * 10, hour * 10 + 10)
        table.insert(
            [{"id": i, "page": pages[i % 3], "at": t} for i, t in zip(ids, at, strict=True)]
        )
        if hour == 7:
            table.flush()


def _ledger(lake: Lake) -> None:
    """Months of statements, most of them old enough to expire."""
    lake.create_table(
        "finance.ledger",
        "account STRING, booked DATE, cents BIGINT",
        properties={"write.delete.mode": "copy-on-write", "write.update.mode": "copy-on-write"},
    )
    table = _made_days_ago(lake, "finance.ledger", 61)
    start = date(2026, 1, 1)
    for week in range(24):
        count = 300 + 40 * week
        rows = pa.table(
            {
                "account": [f"A{i % 50:03d}" for i in range(count)],
                "booked": [start + timedelta(days=7 * week + i % 7) for i in range(count)],
                "cents": pa.array(range(count), pa.int64()),
            }
        )
        with _days_ago(60 - 2.5 * week):
            table.append(rows)
            if week % 6 == 5:
                table.delete().where(f"account = 'A{week:03d}'").execute()
            if week % 8 == 7:
                table.update().set("cents", "cents + 1").where("account < 'A020'").execute()
