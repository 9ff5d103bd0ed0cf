"""The flush in the background: writers do not wait for it, nor for one that died."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from icefloe import Lake, Table
from icefloe.commands import background_flush
from icefloe.errors import StorageError
from icefloe.inline.bookkeeping import acquire_lease
from support.inline_lakes import INLINE, SCHEMA, everything, open_place, row


@pytest.fixture
def lake(place: str) -> Iterator[Lake]:
    with open_place(place) as lake:
        yield lake


def table_of(lake: Lake, **properties: str) -> Table:
    named = {
        f"icefloe.inline.{name.replace('_', '-')}": value for name, value in properties.items()
    }
    return lake.create_table("shop.t", SCHEMA, properties={**INLINE, **named})


def ids(table: Table) -> list[int]:
    return [number for number, _ in everything(table)]


def inline_rows(table: Table) -> int:
    facts = table.inline
    assert facts is not None
    return facts.rows


def wait_for(condition: Callable[[], object]) -> None:
    """Wait up to ten seconds."""
    pause = threading.Event()
    for _ in range(400):
        if condition():
            return
        pause.wait(0.025)
    raise AssertionError("not within ten seconds")


@pytest.mark.requirement("L08", "L09")
def test_inserts_return_while_the_flush_is_held(lake):
    table, writing, go_on = table_of(lake, row_limit="3"), threading.Event(), threading.Event()

    def hold() -> None:
        writing.set()
        assert go_on.wait(30)

    lake.before_publish = hold
    table.insert([row(number) for number in range(4)])
    assert writing.wait(10)
    table.insert([row(4)])
    assert (inline_rows(table), table.snapshot_id, ids(table)) == (5, None, [0, 1, 2, 3, 4])
    go_on.set()
    wait_for(lambda: inline_rows(table) == 2)
    assert (len(table.iceberg.scan().to_arrow()), ids(table)) == (3, [0, 1, 2, 3, 4])


def test_two_inserts_with_one_key_at_once_are_one(lake, place):
    table_of(lake)
    together = threading.Barrier(2)

    def insert(mine: Lake) -> int:
        table = mine.table("shop.t")
        together.wait(10)
        return table.insert([row(1), row(2)], idempotency_key="k").rows_inserted

    with open_place(place) as other, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(insert, [lake, other])) == [2, 2]
    assert ids(lake.table("shop.t")) == [1, 2]


@pytest.mark.requirement("L08")
def test_a_flush_that_died_is_not_waited_for_longer_than_its_lease(lake):
    table = table_of(lake, row_limit="3")
    table.insert([row(0)])
    tier = lake.tier
    with tier.store.writing() as connection:
        stored = tier.find(connection, table._state())
        assert stored is not None
        assert acquire_lease(connection, stored, "a process that was killed", 1500)
    table.insert([row(number) for number in range(1, 4)])
    pause = threading.Event()
    pause.wait(0.5)
    assert (inline_rows(table), table.snapshot_id) == (4, None)  # two would only waste work
    pause.wait(1.2)
    table.insert([row(4)])
    wait_for(lambda: inline_rows(table) == 2)
    assert ids(table) == [0, 1, 2, 3, 4]


@pytest.mark.requirement("L08")
def test_an_insert_raises_what_a_flush_that_always_fails_raises(lake, caplog):
    table, failures = table_of(lake, row_limit="2"), []

    def fail() -> None:
        failures.append(threading.current_thread().name)
        raise StorageError("the disk is gone")

    lake.before_publish = fail
    for number in range(8):
        table.insert([row(number)])
    wait_for(lambda: "the disk is gone" in caplog.text)
    assert set(failures) == {"icefloe-flush"}
    for _ in range(2):
        with pytest.raises(StorageError, match="the disk is gone"):
            table.insert([row(8)])
    assert (ids(table), table.snapshot_id) == ([*range(8)], None)
    lake.before_publish = lambda: None
    table.insert([row(8)])
    assert ids(table) == [*range(9)]
    assert len(table.iceberg.scan().to_arrow()) >= 8


@pytest.mark.requirement("L08")
@pytest.mark.parametrize("read", [Table.count, Table.to_arrow])
def test_reading_flushes_rows_that_are_old(lake, monkeypatch, read):
    table, is_old = table_of(lake, max_age_ms="600000"), [False]
    monkeypatch.setattr(background_flush, "is_old", lambda *_: is_old[0])
    table.insert([row(1)])
    read(table)
    assert table.snapshot_id is None
    is_old[0] = True
    read(table)
    wait_for(lambda: inline_rows(table) == 0)
    assert ids(table) == [1]


FIELDS = {
    "flag": BooleanType(),
    "i": IntegerType(),
    "l": LongType(),
    "f": FloatType(),
    "d": DoubleType(),
    "amount": DecimalType(38, 10),
    "small": DecimalType(9, 2),
    "s": StringType(),
    "b": BinaryType(),
    "day": DateType(),
    "local": TimestampType(),
    "at": TimestamptzType(),
}
DEEP = StructType(
    NestedField(101, "list", ListType(102, DoubleType(), element_required=False)),
    NestedField(
        103,
        "map",
        MapType(
            104,
            StringType(),
            105,
            StructType(NestedField(106, "amount", DecimalType(38, 10))),
            value_required=False,
        ),
    ),
)
EVERY_TYPE = Schema(
    *(NestedField(n, name, kind) for n, (name, kind) in enumerate(FIELDS.items(), 1)),
    NestedField(100, "deep", DEEP),
)
LARGEST = Decimal("9999999999999999999999999999.9999999999")
FIRST, LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)
# fmt: off
VALUES: dict[str, list[object]] = {
    "flag": [True, False],
    "i": [2**31 - 1, -(2**31)],
    "l": [2**63 - 1, -(2**63)],
    "f": [float("nan"), -0.0, float("inf"), float("-inf"), 1.17549435e-38],
    "d": [float("nan"), -0.0, 0.0, float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308],
    "amount": [LARGEST, LARGEST.copy_negate(), Decimal(0), Decimal("0.0000000001")],
    "small": [Decimal("9999999.99"), Decimal("-0.01")],
    "s": ["", "\0", "a\0b", "😀", "'; DROP TABLE iceberg_tables; --", "é" * 300],
    "b": [b"", b"\0\xff", bytes(range(256))],
    "day": [date(1, 1, 1), date(9999, 12, 31), date(1969, 12, 31)],
    "local": [FIRST, LAST, datetime(1969, 12, 31, 23, 59, 59, 999999)],
    "at": [FIRST.replace(tzinfo=UTC), LAST.replace(tzinfo=UTC) - timedelta(days=1)],
    "deep": [
        {"list": [float("nan"), None, -0.0], "map": [("", {"amount": LARGEST}), ("\0", None)]},
        {"list": [], "map": []},
        {"list": None, "map": None},
    ],
}
# fmt: on


def test_values_of_every_type_are_the_same_before_and_after_a_flush(lake):
    count = 1 + max(map(len, VALUES.values()))  # the last row has NULLs alone
    padded = {name: values + [None] * (count - len(values)) for name, values in VALUES.items()}
    schema = schema_to_pyarrow(EVERY_TYPE, include_field_ids=False)
    new = pa.table(
        [pa.array(padded[field.name], field.type) for field in schema],
        schema=pa.schema([field.with_nullable(True) for field in schema]),
    )
    table = lake.create_table("shop.t", EVERY_TYPE, properties=INLINE)
    assert table.insert(new).mode == "inline"
    cut = lake.tier.cut(lake.tier.with_deletes(table._state()))
    assert cut is not None
    for name in new.column_names:
        assert repr(cut.arrow().column(name).to_pylist()) == repr(new[name].to_pylist()), name
    table.flush()
    assert inline_rows(table) == 0
    [file] = table.iceberg.scan().plan_files()
    filed = pq.read_table(urlparse(file.file.file_path).path)  # PyIceberg reads NULL maps as empty
    for name in new.column_names:
        assert repr(filed.column(name).to_pylist()) == repr(new[name].to_pylist()), name
