"""Values of a column as 64-bit codes, which an index keeps sorted.

Numbers, dates and timestamps have exact codes: one per value, in the order of the values. Text and
bytes have the 8 bytes after a prefix that all values of a file share, or a hash where these tell
too few values apart. Several values may then have one code: whoever looks one up reads the rows.

Tasks and the driver compute codes with the same functions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from icefloe.tasks.sidecars import NotIndexableError

EXACT, ORDER, HASH = "exact", "order", "hash"
CODE_BYTES = 8
_EXACT_DECIMAL_DIGITS = 18
_EXACT_TYPES = frozenset(
    ("int", "long", "float", "double", "date", "time", "timestamp", "timestamptz")
)
_DECIMAL = re.compile(r"decimal\((\d+), (\d+)\)")
_SIGN = np.uint64(1 << 63)
_SAMPLE = 65_536
_DISTINCT = 0.9  # of the values of a sample; with fewer order codes, hashes are better
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_CHUNK_BYTES = 4 * 2**20  # that are hashed at a time

Codes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Coder:
    """How the values of a file's indexed columns become codes."""

    kind: str
    prefix: bytes = b""  # that all values of the file begin with, for order codes

    @property
    def is_exact(self) -> bool:
        """Whether a code stands for one value."""
        return self.kind == EXACT


def choose_coder(columns: Sequence[pa.Array]) -> Coder:
    """The coder for columns without NULLs in them."""
    if len(columns) > 1:
        return Coder(HASH)
    [column] = columns
    if _is_exact(column.type):
        return Coder(EXACT)
    if pt.is_decimal(column.type):
        return Coder(HASH)
    values = _as_binary(column)
    prefix = _common_prefix(values)
    sample = values.slice(0, _SAMPLE)
    distinct = pc.count_distinct(sample).as_py()
    codes = _order_codes(sample, prefix)
    return Coder(ORDER, prefix) if len(np.unique(codes)) >= _DISTINCT * distinct else Coder(HASH)


def fits(columns: Sequence[pa.Array], coder: Coder) -> bool:
    """Whether a coder that was chosen for other values has codes for these too."""
    if coder.kind == ORDER:
        values = _as_binary(columns[0])
        return bool(pc.all(pc.starts_with(values, coder.prefix), min_count=0).as_py())
    return coder.kind != EXACT or (len(columns) == 1 and _is_exact(columns[0].type))


def encode(columns: Sequence[pa.Array], coder: Coder) -> Codes:
    """The codes of rows that have no NULL in the columns."""
    match coder.kind:
        case "exact":
            return _exact_codes(columns[0])
        case "order":
            return _order_codes(_as_binary(columns[0]), coder.prefix)
        case _:
            return _hash_codes(columns)


def decode(codes: Codes, kind: pa.DataType) -> pa.Array:
    """The values that exact codes stand for, as a column of a table has them."""
    if pt.is_floating(kind):
        bits = np.where(codes & _SIGN, codes ^ _SIGN, ~codes)
        return pa.array(bits.view(np.float64)).cast(kind)
    numbers = (codes ^ _SIGN).view(np.int64)
    if pt.is_decimal(kind):
        words = np.stack([numbers, numbers >> 63], axis=1)  # low and high halves
        buffers = [None, pa.py_buffer(np.ascontiguousarray(words).tobytes())]
        wide = pa.decimal128(38, kind.scale)
        return pa.Array.from_buffers(wide, len(numbers), buffers).cast(kind)
    if pt.is_date(kind):
        return pa.array(numbers.astype(np.int32)).view(pa.date32())
    if pt.is_time(kind) or pt.is_timestamp(kind):
        return pa.array(numbers).view(kind)
    return pa.array(numbers).cast(kind)


def is_stored_as(kind: pa.DataType, iceberg_type: str) -> bool:
    """Whether a file's column is of a type that has the codes of an Iceberg type."""
    name = iceberg_type.partition("(")[0].partition("[")[0]
    if name == "decimal":
        scale = int(iceberg_type.strip(")").split(",")[1])
        return bool(pt.is_decimal(kind) and kind.scale == scale)
    checks = {
        "int": pt.is_signed_integer,
        "long": pt.is_signed_integer,
        "float": pt.is_floating,
        "double": pt.is_floating,
        "date": pt.is_date,
        "time": pt.is_time,
        "timestamp": pt.is_timestamp,
        "timestamptz": pt.is_timestamp,
    }
    return bool(checks.get(name, _is_bytes)(kind))


def code_class(iceberg_type: str) -> str:
    """Types of one class have the same codes: a column may be promoted from one to another."""
    if iceberg_type in ("int", "long"):
        return "integer"
    if iceberg_type in ("float", "double"):
        return "float"
    if match := _DECIMAL.fullmatch(iceberg_type):
        return f"decimal with scale {match[2]}"
    return iceberg_type


def is_exact_type(iceberg_type: str) -> bool:
    """Whether a column of an Iceberg type has exact codes."""
    if match := _DECIMAL.fullmatch(iceberg_type):
        return int(match[1]) <= _EXACT_DECIMAL_DIGITS
    return iceberg_type in _EXACT_TYPES


# -------------------------------------------------------------------------------------------------
# Exact codes


def _is_exact(kind: pa.DataType) -> bool:
    if pt.is_decimal(kind):
        return bool(kind.precision <= _EXACT_DECIMAL_DIGITS)
    is_time = pt.is_date(kind) or pt.is_time(kind) or pt.is_timestamp(kind)
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or is_time)


def _exact_codes(column: pa.Array) -> Codes:
    kind = column.type
    if pt.is_floating(kind):
        return float_codes(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    if pt.is_decimal(kind):
        return integer_codes(_unscaled(column))
    if pt.is_timestamp(kind):
        column = _in_microseconds(column, pa.timestamp("us", kind.tz))
    elif pt.is_time(kind):
        column = _in_microseconds(column, pa.time64("us"))
    elif pt.is_date(kind):
        column = column.cast(pa.date32()).view(pa.int32())
    if column.type.bit_width == 64 and not pt.is_int64(column.type):
        column = column.view(pa.int64())
    return integer_codes(column.cast(pa.int64()).to_numpy(zero_copy_only=False))


def integer_codes(numbers: npt.NDArray[np.int64]) -> Codes:
    """Codes in the order of the numbers."""
    return numbers.astype(np.int64).view(np.uint64) ^ _SIGN


def float_codes(numbers: npt.NDArray[np.float64]) -> Codes:
    """Codes in Spark's order: NaN is the largest value, and the zeros are equal."""
    with np.errstate(invalid="ignore"):  # of signalling NaNs
        numbers = np.where(np.isnan(numbers), np.nan, numbers + 0.0)  # -0.0 + 0.0 is 0.0
    bits = np.ascontiguousarray(numbers, np.float64).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _unscaled(column: pa.Array) -> npt.NDArray[np.int64]:
    """The unscaled values of decimals that fit 64 bits."""
    wide = column.cast(pa.decimal128(38, column.type.scale))
    words = np.frombuffer(wide.buffers()[1], dtype="<i8")
    return words[2 * wide.offset : 2 * (wide.offset + len(wide)) : 2]


def _in_microseconds(column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise NotIndexableError(str(error)) from error


# -------------------------------------------------------------------------------------------------
# Bytes


def _is_bytes(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return bool(
        pt.is_string(kind)
        or pt.is_large_string(kind)
        or pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_fixed_size_binary(kind)
    )


def _as_binary(column: pa.Array) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return column.cast(pa.large_binary())


def _common_prefix(values: pa.Array) -> bytes:
    if not len(values):
        return b""
    ends = pc.min_max(values)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    length = 0
    while length < min(len(least), len(most)) and least[length] == most[length]:
        length += 1
    return bytes(least[:length])


def _order_codes(values: pa.Array, prefix: bytes) -> Codes:
    offsets, data = _offsets_and_data(values)
    starts = offsets[:-1] + len(prefix)
    places = starts[:, None] + np.arange(CODE_BYTES)
    inside = places < offsets[1:, None]
    padded = data if len(data) else np.zeros(1, np.uint8)
    first = np.where(inside, padded[np.where(inside, places, 0)], 0).astype(np.uint8)
    return first.view(">u8").reshape(-1).astype(np.uint64)


def _offsets_and_data(values: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return bounds, content


# -------------------------------------------------------------------------------------------------
# Hashes


def _hash_codes(columns: Sequence[pa.Array]) -> Codes:
    codes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        # Each column's code goes through the mixer with those before it: ('ab', 'c') and
        # ('a', 'bc') differ.
        codes = _mixed(codes * _MULTIPLIER + _column_hash(column))
    return codes


def _column_hash(column: pa.Array) -> Codes:
    if pt.is_decimal(column.type):  # of any precision alike: it may be widened
        wide = column.cast(pa.decimal128(38, column.type.scale))
        words = np.frombuffer(wide.buffers()[1], "<u8")
        words = words[2 * wide.offset : 2 * (wide.offset + len(wide))].reshape(-1, 2)
        return _mixed(_mixed(words[:, 0].astype(np.uint64)) + words[:, 1])
    if _is_exact(column.type):
        return _mixed(_exact_codes(column))
    return _bytes_hash(_as_binary(column))


def _bytes_hash(values: pa.Array) -> Codes:
    """A polynomial of each value's bytes, without a loop in Python over the values."""
    offsets, data = _offsets_and_data(values)
    lengths = np.diff(offsets)
    hashes = np.empty(len(lengths), np.uint64)
    rows = 0
    while rows < len(lengths):
        limit = offsets[rows] + _CHUNK_BYTES
        end = max(rows + 1, int(np.searchsorted(offsets, limit, side="right")) - 1)
        hashes[rows:end] = _hash_part(offsets[rows : end + 1], data)
        rows = end
    return _mixed(hashes + lengths.astype(np.uint64) * _MULTIPLIER)


def _hash_part(offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> Codes:
    lengths = np.diff(offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    places = np.arange(last - first) - np.repeat(offsets[:-1] - first, lengths)
    longest = int(lengths.max(initial=0))
    powers = np.cumprod(np.full(longest + 1, _MULTIPLIER, np.uint64))
    terms = (data[first:last].astype(np.uint64) + np.uint64(1)) * powers[places]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms)])
    bounds = offsets - first
    hashes: Codes = sums[bounds[1:]] - sums[bounds[:-1]]
    return hashes


def _mixed(codes: Codes) -> Codes:
    """Spread the bits of each code over all of them."""
    codes = codes ^ (codes >> np.uint64(32))
    codes = codes * np.uint64(0xD6E8FEB86659FD93)
    codes = codes ^ (codes >> np.uint64(32))
    codes = codes * np.uint64(0xD6E8FEB86659FD93)
    return codes ^ (codes >> np.uint64(32))
