from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal, Inexact

import pytest
from pyiceberg import types as ice
from pyiceberg.schema import Schema

from icefloe.schema.partition_spec import parse_partition_by
from icefloe.schema.partition_values import partition_path, to_record

SCHEMA = Schema(
    ice.NestedField(1, "d", ice.DateType()),
    ice.NestedField(2, "at", ice.TimestamptzType()),
    ice.NestedField(3, "local", ice.TimestampType()),
    ice.NestedField(4, "amount", ice.DecimalType(38, 2)),
    ice.NestedField(5, "raw", ice.BinaryType()),
    ice.NestedField(6, "s", ice.StringType()),
    ice.NestedField(7, "ok", ice.BooleanType()),
)
SPEC = parse_partition_by("d, at, local, amount, raw, s, ok, days(at)", SCHEMA)


def test_python_values_become_what_the_manifest_holds() -> None:
    east = timezone(timedelta(hours=2))
    values = [
        date(1969, 12, 31),
        datetime(1970, 1, 1, 2, tzinfo=east),
        datetime(1970, 1, 1, 0, 0, 1),
        Decimal("3"),
        bytearray(b"\x01"),
        "a b/c",
        True,
        date(1970, 1, 2),
    ]

    record = to_record(values, SPEC, SCHEMA)

    assert [record[i] for i in range(8)] == [
        -1,
        0,
        1_000_000,
        Decimal(3),
        b"\x01",
        "a b/c",
        True,
        1,
    ]
    assert record[3].as_tuple().exponent == -2
    assert type(record[4]) is bytes
    assert partition_path(record, SPEC, SCHEMA) == (
        "d=1969-12-31/at=1970-01-01T00%3A00%3A00%2B00%3A00/local=1970-01-01T00%3A00%3A01/"
        "amount=3.00/raw=AQ%3D%3D/s=a+b%2Fc/ok=true/at_day=1970-01-02"
    )


def test_numbers_of_days_and_micros_stay_and_null_is_null() -> None:
    record = to_record([-1, 5, None, None, None, None, None, 1], SPEC, SCHEMA)

    assert [record[i] for i in range(8)] == [-1, 5, None, None, None, None, None, 1]
    assert partition_path(record, SPEC, SCHEMA).startswith("d=1969-12-31/at=1970-01-01T")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("at", datetime(1970, 1, 1), "not a value of a timestamptz partition: it must have a time"),
        ("local", datetime(1970, 1, 1, tzinfo=UTC), "it must have no time zone"),
    ],
)
def test_a_datetime_of_the_other_kind_is_refused(
    column: str, value: datetime, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        to_record([value], parse_partition_by(column, SCHEMA), SCHEMA)


def test_decimals_are_never_rounded() -> None:
    spec = parse_partition_by("amount", SCHEMA)
    widest = Decimal("9" * 36 + ".99")

    assert to_record([widest], spec, SCHEMA)[0] == widest
    with pytest.raises(Inexact):
        to_record([Decimal("1.005")], spec, SCHEMA)
