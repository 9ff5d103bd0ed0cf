"""Compare bounds and other statistics of chunks or pages with their values."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from icefloe.parquet.fields import Sizes, Statistics
from icefloe.parquet.thrift import Struct, items, value
from support.parquet_check.entries import Entries

_INT32, _INT64, _INT96 = 1, 2, 3
_FLOATS = {pa.float16(): "<e", pa.float32(): "<f", pa.float64(): "<d"}


def wrong_statistics(statistics: Struct, entries: Entries, physical: int) -> Iterator[str]:
    """Problems of the statistics of a chunk or a page."""
    nulls = value(statistics, Statistics.NULLS)
    if nulls is not None and nulls not in entries.null_counts:
        yield f"it has {max(entries.null_counts)} NULLs, its statistics say {nulls}"
    distinct = value(statistics, Statistics.DISTINCT)
    if distinct is not None:
        values = pc.count_distinct(entries.values, mode="only_valid").as_py()
        if values != distinct:
            yield f"it has {values} distinct values, its statistics say {distinct}"
    low, high = value(statistics, Statistics.LEAST), value(statistics, Statistics.MOST)
    exact = (
        value(statistics, Statistics.LEAST_IS_EXACT),
        value(statistics, Statistics.MOST_IS_EXACT),
    )
    yield from wrong_bounds((low, high), entries, physical, exact)
    if _is_signed(entries.values.type):
        low, high = value(statistics, Statistics.OLD_LEAST), value(statistics, Statistics.OLD_MOST)
        yield from wrong_bounds((low, high), entries, physical)


def wrong_bounds(
    stored: tuple[bytes | None, bytes | None],
    entries: Entries,
    physical: int,
    exact: tuple[bool | None, bool | None] = (None, None),
) -> Iterator[str]:
    """Problems of bounds; those of strings may be truncated unless `exact`."""
    if stored == (None, None) or physical == _INT96:
        return
    kind = entries.values.type
    low, high = (None if data is None else as_bound(data, kind, physical) for data in stored)
    if any(isinstance(bound, float) and math.isnan(bound) for bound in (low, high)):
        return  # as parquet-mr writes them: readers ignore such bounds
    least, most = _extremes(entries.values)
    if least is None and pa.types.is_floating(kind) and entries.values.null_count < len(entries):
        return  # NaN is not ordered, and some writers use it as a bound nevertheless
    if least is None:
        yield f"it has the bounds {low!r} and {high!r} without values"
    elif not (low in (None, least) or (not exact[0] and _cut_below(low, least))) or not (
        high in (None, most) or (not exact[1] and _cut_above(high, most))
    ):
        yield f"its values are from {least!r} to {most!r}, its bounds are {low!r} to {high!r}"


def wrong_levels(statistics: Struct, entries: Entries) -> Iterator[str]:
    """Problems of a chunk's size statistics."""
    size = value(statistics, Sizes.BYTES)
    if size is not None and entries.bytes not in (None, size):
        yield f"its values have {entries.bytes} bytes, its statistics say {size}"
    for which, levels in (
        (Sizes.REPETITION, entries.repetition),
        (Sizes.DEFINITION, entries.definition),
    ):
        counts = list(items(statistics, which))
        if counts and counts != histogram(levels, len(counts)):
            yield f"its levels are {histogram(levels, len(counts))}, its statistics say {counts}"


def histogram(levels: Any, size: int) -> list[int]:
    """How many entries have each level."""
    return [int((levels == level).sum()) for level in range(size)]


def as_bound(data: bytes, kind: pa.DataType, physical: int) -> Any:
    """A stored bound as a value that compares like its column's values."""
    if kind in _FLOATS:
        return struct.unpack(_FLOATS[kind], data)[0]
    if pa.types.is_boolean(kind):
        return data != b"\0"
    if pa.types.is_decimal(kind):
        number = data if physical in (_INT32, _INT64) else data[::-1]
        return int.from_bytes(number, "little", signed=True)
    if physical in (_INT32, _INT64):
        return int.from_bytes(data, "little", signed=not pa.types.is_unsigned_integer(kind))
    return data


def _extremes(values: pa.Array) -> tuple[Any, Any]:
    """The lowest and the highest value, for comparison with bounds; NaN is neither."""
    kind = values.type
    if pa.types.is_float16(kind):
        values = values.cast(pa.float32())
    if pa.types.is_fixed_size_binary(kind):
        values = values.cast(pa.binary())
    if pa.types.is_floating(kind):
        values = values.filter(pc.invert(pc.is_nan(values)))
    extremes = pc.min_max(values)
    return _plain(extremes["min"]), _plain(extremes["max"])


def _plain(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    if pa.types.is_decimal(scalar.type):
        sign, digits, _ = scalar.as_py().as_tuple()
        number = int("".join(map(str, digits)))
        return -number if sign else number
    if pa.types.is_temporal(scalar.type):
        return scalar.value
    plain = scalar.as_py()
    return plain.encode() if isinstance(plain, str) else plain


def _is_signed(kind: pa.DataType) -> bool:
    """Whether values are ordered as the deprecated bounds are."""
    signed = pa.types.is_signed_integer(kind) or pa.types.is_floating(kind)
    decided = pa.types.is_decimal(kind) or pa.types.is_boolean(kind)
    return bool(signed or decided or pa.types.is_temporal(kind))


def _cut_below(low: Any, least: Any) -> bool:
    """Whether a bound is a prefix of the lowest string."""
    return isinstance(least, bytes) and bool(low) and least.startswith(low)


def _cut_above(high: Any, most: Any) -> bool:
    """Whether a bound is a prefix of the highest string, its last byte or character incremented."""
    if not isinstance(most, bytes) or not high or len(high) > len(most):
        return False
    start = most[: len(high)]
    if int.from_bytes(high, "big") == int.from_bytes(start, "big") + 1:
        return True
    try:
        bound, text = high.decode(), most.decode()
    except UnicodeDecodeError:
        return False
    prefix = text[: len(bound)]
    return bound[:-1] == prefix[:-1] and ord(bound[-1]) == ord(prefix[-1]) + 1
