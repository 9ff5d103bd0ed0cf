"""Codes of values: equal values have equal codes, exact codes are in Spark's order of the values."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from icefloe.tasks.btree import LAST_CODE
from icefloe.tasks.index_codes import (
    EXACT,
    HASH,
    ORDER,
    Coder,
    choose_coder,
    decode,
    encode,
    float_codes,
    is_stored_as,
)
from icefloe.tasks.sidecars import NotIndexableError

NAN, INF = float("nan"), float("inf")
LONGS = [-(2**63), -(2**63) + 1, -(2**32), -1, 0, 1, 255, 256, 2**31, 2**62, 2**63 - 1]
INTS = [-(2**31), -65537, -1, 0, 1, 127, 128, 2**31 - 1]
DOUBLES = [-INF, -1.7e308, -1.5, -5e-324, 0.0, 5e-324, 2.2e-308, 0.1, 1.5, 1.7e308, INF, NAN]
FLOATS = [-INF, -1.5, -1.401298464324817e-45, 0.0, 0.25, 1.5, 3.4028234663852886e38, INF, NAN]
DATES = [date(1, 1, 1), date(1582, 10, 4), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)]
INSTANTS = [
    datetime(1, 1, 1),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(1970, 1, 1),
    datetime(1970, 1, 1, 0, 0, 0, 1),
    datetime(2024, 2, 29, 12),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
]
TIMES = [time(0), time(0, 0, 0, 1), time(12), time(23, 59, 59, 999999)]
SMALL_DECIMALS = [Decimal(x) for x in ("-999.99", "-0.01", "0.00", "0.01", "1.50", "999.99")]
WIDE_DECIMALS = [
    Decimal(x) for x in ("-9999999999999999.99", "-1.00", "0.00", "9999999999999999.99")
]

# Ascending in Spark's order.
EXACT_TYPES = [
    (pa.int32(), INTS),
    (pa.int64(), LONGS),
    (pa.int8(), [-128, -1, 0, 127]),
    (pa.int16(), [-(2**15), 0, 2**15 - 1]),
    (pa.float32(), FLOATS),
    (pa.float64(), DOUBLES),
    (pa.date32(), DATES),
    (pa.time64("us"), TIMES),
    (pa.timestamp("us"), INSTANTS),
    (pa.timestamp("us", "UTC"), INSTANTS),
    (pa.timestamp("ms"), [i.replace(microsecond=0) for i in INSTANTS]),
    (pa.timestamp("s"), [i.replace(microsecond=0) for i in INSTANTS]),
    (pa.decimal128(5, 2), SMALL_DECIMALS),
    (pa.decimal128(18, 2), WIDE_DECIMALS),
    (pa.decimal128(1, 0), [Decimal(-9), Decimal(0), Decimal(9)]),
]


def codes_of(values: Sequence[Any], kind: pa.DataType, coder: Coder | None = None) -> list[int]:
    column = pa.array(values, kind)
    return [int(code) for code in encode([column], coder or choose_coder([column]))]


@pytest.mark.parametrize(("kind", "values"), EXACT_TYPES, ids=lambda v: str(v)[:24])
def test_numbers_dates_and_timestamps_have_exact_codes_in_their_order(kind, values):
    column = pa.array(values, kind)
    assert choose_coder([column]) == Coder(EXACT)
    codes = codes_of(values, kind)
    assert codes == sorted(codes)
    assert len(set(codes)) == len(set(column.to_pylist()))
    assert 0 <= codes[0] <= codes[-1] <= LAST_CODE


@pytest.mark.parametrize(("kind", "values"), EXACT_TYPES, ids=lambda v: str(v)[:24])
def test_exact_codes_become_the_values_again(kind, values):
    column = pa.array(values, kind)
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        kind = pa.timestamp("us")  # the unit that tables have
    decoded = decode(encode([column], Coder(EXACT)), kind)
    assert decoded.type == kind
    assert repr(decoded.to_pylist()) == repr(column.to_pylist())


@pytest.mark.parametrize(("kind", "values"), EXACT_TYPES, ids=lambda v: str(v)[:24])
def test_a_slice_has_the_codes_of_its_rows(kind, values):
    column = pa.array(values, kind)
    assert encode([column.slice(1, 2)], Coder(EXACT)).tolist() == codes_of(values, kind)[1:3]


def test_the_zeros_are_equal_and_every_nan_is_the_largest_value():
    [negative, zero, quiet, other, largest] = float_codes(
        np.array([-0.0, 0.0, NAN, struct.unpack("<d", b"\x01\0\0\0\0\0\xf0\xff")[0], INF])
    ).tolist()
    assert negative == zero
    assert quiet == other > largest
    assert math.isnan(decode(np.array([quiet], np.uint64), pa.float64())[0].as_py())
    assert str(decode(np.array([negative], np.uint64), pa.float64())[0].as_py()) == "0.0"


def test_codes_of_random_doubles_are_ordered_as_the_doubles():
    chosen = random.Random(5)
    bits = [chosen.getrandbits(64).to_bytes(8, "little") for _ in range(5000)]
    numbers = [n for n in (struct.unpack("<d", b)[0] for b in bits) if n == n]
    codes = codes_of(numbers, pa.float64())
    by_code = [n for _, n in sorted(zip(codes, numbers, strict=True))]
    assert by_code == sorted(numbers)


def test_promoted_types_keep_their_codes():
    assert codes_of(INTS, pa.int32()) == codes_of(INTS, pa.int64())
    assert codes_of(FLOATS, pa.float32()) == codes_of(FLOATS, pa.float64())
    for precision in (6, 17, 18):
        narrow = codes_of(SMALL_DECIMALS, pa.decimal128(5, 2))
        assert codes_of(SMALL_DECIMALS, pa.decimal128(precision, 2)) == narrow
    hashes = codes_of(SMALL_DECIMALS, pa.decimal128(19, 2))
    assert hashes == codes_of(SMALL_DECIMALS, pa.decimal128(38, 2))


def test_units_of_timestamps_have_the_codes_of_microseconds():
    whole = [i.replace(microsecond=0) for i in INSTANTS[1:5]]
    for unit in ("s", "ms", "us", "ns"):
        assert codes_of(whole, pa.timestamp(unit)) == codes_of(whole, pa.timestamp("us", "UTC"))
    noon = [time(12)]
    assert codes_of(noon, pa.time32("s")) == codes_of(noon, pa.time64("us"))
    assert codes_of(noon, pa.time64("ns")) == codes_of(noon, pa.time64("us"))
    days = [timedelta(days=20000) + datetime(1970, 1, 1)]
    assert codes_of(days, pa.date64()) == codes_of(days, pa.date32())


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1], pa.timestamp("ns")),
        pa.array([2**62], pa.timestamp("s")),
        pa.array([1], pa.time64("ns")),
    ],
    ids=str,
)
def test_timestamps_that_microseconds_do_not_have_are_refused(column):
    with pytest.raises(NotIndexableError):
        encode([column], Coder(EXACT))


# -------------------------------------------------------------------------------------------------
# Bytes

WORDS = ["", "\0", "\0\0", "a", "a\0", "ab", "abcdefgh", "abcdefghi", "b", "ß", "é", "😀", "\uffff"]
BYTES = [word.encode() for word in WORDS]
UUIDS = [UUID(int=0), UUID(int=1), UUID(int=2**127), UUID(int=2**128 - 1)]
KINDS_OF_BYTES = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]


@pytest.mark.parametrize("kind", KINDS_OF_BYTES, ids=str)
def test_order_codes_never_contradict_the_order_of_bytes(kind):
    values = [value.decode() if "string" in str(kind) else value for value in sorted(BYTES)]
    for first, second in pairwise(codes_of(values, kind, Coder(ORDER))):
        assert first <= second


def test_every_representation_of_the_same_bytes_has_the_same_codes():
    for coder in (Coder(ORDER), Coder(HASH)):
        codes = codes_of(WORDS, pa.string(), coder)
        assert all(codes_of(WORDS, kind, coder) == codes for kind in KINDS_OF_BYTES[:2])
        assert all(codes_of(BYTES, kind, coder) == codes for kind in KINDS_OF_BYTES[2:])
        fixed = [value.bytes for value in UUIDS]
        as_fixed = pa.array(fixed, pa.binary(16))
        as_uuid = pa.ExtensionArray.from_storage(pa.uuid(), as_fixed)
        assert encode([as_uuid], coder).tolist() == encode([as_fixed], coder).tolist()
        assert encode([as_fixed], coder).tolist() == codes_of(fixed, pa.binary(), coder)


def test_the_prefix_that_all_values_share_is_left_out():
    names = pa.array([f"customer-{number:09}" for number in range(1000)])
    coder = choose_coder([names])
    assert coder == Coder(ORDER, b"customer-000000")
    assert len(set(encode([names], coder).tolist())) == 1000


def test_a_prefix_may_end_within_a_character_or_be_a_whole_value():
    assert choose_coder([pa.array(["é", "è"])]).prefix == b"\xc3"
    assert choose_coder([pa.array(["ab", "abc", "abd"])]).prefix == b"ab"
    assert choose_coder([pa.array(["same", "same"])]) == Coder(ORDER, b"same")
    assert choose_coder([pa.array([""])]) == Coder(ORDER)
    assert choose_coder([pa.array([], pa.string())]) == Coder(ORDER)


def test_values_that_eight_bytes_do_not_tell_apart_have_hashes():
    alike = pa.array([f"{n % 2}/a long path/{n}" for n in range(1000)])
    assert choose_coder([alike]) == Coder(HASH)
    assert len(set(encode([alike], Coder(HASH)).tolist())) == 1000


def test_many_repeated_values_are_no_reason_for_hashes():
    assert choose_coder([pa.array(["us", "eu"] * 5000)]).kind == ORDER


def test_long_strings_and_empty_ones_among_them():
    values = ["", "x" * 5_000_000, "x" * 5_000_000 + "y", "", "y" * 4_194_304, "z"]
    codes = codes_of(values, pa.string(), Coder(HASH))
    assert len(set(codes)) == 5
    assert codes[0] == codes[3]
    # However many values are hashed at a time, each has its code.
    assert [codes_of([value], pa.string(), Coder(HASH))[0] for value in values] == codes


@pytest.mark.parametrize("coder", [Coder(ORDER), Coder(HASH)], ids=["order", "hash"])
def test_a_slice_of_strings_has_the_codes_of_its_rows(coder):
    whole = pa.array(WORDS)
    assert encode([whole.slice(3, 5)], coder).tolist() == encode([whole], coder).tolist()[3:8]
    assert encode([whole.slice(3, 0)], coder).tolist() == []


# -------------------------------------------------------------------------------------------------
# Hashes


def test_wide_decimals_have_hashes_that_any_precision_gives():
    values = [Decimal(10**37), Decimal(-(10**37)), Decimal(0), Decimal(1), Decimal(-1)]
    column = pa.array(values, pa.decimal128(38, 0))
    assert choose_coder([column]) == Coder(HASH)
    assert len(set(encode([column], Coder(HASH)).tolist())) == len(values)
    assert choose_coder([pa.array([Decimal(1)], pa.decimal128(19, 0))]) == Coder(HASH)


def test_columns_with_equal_concatenations_differ():
    first, second = pa.array(["ab", "a", "", "abc"]), pa.array(["c", "bc", "abc", ""])
    assert choose_coder([first, second]) == Coder(HASH)
    assert len(set(encode([first, second], Coder(HASH)).tolist())) == 4


def test_the_order_of_columns_matters():
    first, second = pa.array([1, 2]), pa.array([2, 1])
    [one, other] = encode([first, second], Coder(HASH)).tolist()
    assert one != other


def test_hashes_of_several_columns_outlive_promotions():
    def codes(kinds: Sequence[pa.DataType]) -> list[int]:
        columns = [pa.array([1, 2, 3]).cast(kinds[0]), pa.array([0.5, -0.0, NAN], kinds[1])]
        return encode([*columns, pa.array(["a", "", "b"], kinds[2])], Coder(HASH)).tolist()

    before = codes([pa.int32(), pa.float32(), pa.string()])
    assert before == codes([pa.int64(), pa.float64(), pa.large_string()])


def test_few_of_many_hashes_are_equal():
    chosen = random.Random(9)
    longs = pa.array([chosen.getrandbits(62) for _ in range(50_000)])
    texts = longs.cast(pa.string())
    assert len(set(encode([longs, texts], Coder(HASH)).tolist())) == len(set(longs.to_pylist()))


# -------------------------------------------------------------------------------------------------
# Types of files


@pytest.mark.parametrize(
    ("stored", "declared", "fits"),
    [
        (pa.int32(), "int", True),
        (pa.int32(), "long", True),
        (pa.int64(), "long", True),
        (pa.uint32(), "long", False),
        (pa.float64(), "long", False),
        (pa.string(), "long", False),
        (pa.float32(), "double", True),
        (pa.int64(), "double", False),
        (pa.decimal128(9, 2), "decimal(18, 2)", True),
        (pa.decimal128(9, 3), "decimal(18, 2)", False),
        (pa.int64(), "decimal(18, 2)", False),
        (pa.date32(), "date", True),
        (pa.timestamp("us"), "date", False),
        (pa.timestamp("us"), "timestamptz", True),
        (pa.int64(), "timestamp", False),
        (pa.time64("us"), "time", True),
        (pa.string(), "string", True),
        (pa.large_binary(), "binary", True),
        (pa.binary(16), "uuid", True),
        (pa.binary(4), "fixed[4]", True),
        (pa.int64(), "string", False),
        (pa.int64(), "uuid", False),
    ],
    ids=str,
)
def test_a_file_is_indexed_only_if_its_column_is_stored_as_the_type(stored, declared, fits):
    assert is_stored_as(stored, declared) is fits
