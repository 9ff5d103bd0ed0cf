"""Iceberg's bucket and decimal truncate transforms over Arrow arrays, for Spark's Arrow UDFs.

The hash is murmur3 x86 32-bit with seed 0, computed for all rows of a batch at once.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]

_LONG_BYTES, _DECIMAL_BYTES = 8, 16


def bucket_bytes(num_buckets: int) -> Callable[[pa.Array], pa.Array]:
    """A function that buckets strings (their UTF-8 bytes) or binary values; NULL stays NULL."""

    def bucket(values: pa.Array) -> pa.Array:
        return _buckets(hash_binary(values), values, num_buckets)

    return bucket


def bucket_decimal(num_buckets: int) -> Callable[[pa.Array], pa.Array]:
    """A function that buckets decimals by their unscaled values; NULL stays NULL."""

    def bucket(values: pa.Array) -> pa.Array:
        return _buckets(hash_decimal(values), values, num_buckets)

    return bucket


def bucket_numbers(num_buckets: int) -> Callable[[pa.Array], pa.Array]:
    """A function that buckets 64-bit integers; NULL stays NULL."""

    def bucket(values: pa.Array) -> pa.Array:
        numbers = values.fill_null(0).to_numpy(zero_copy_only=False).astype("<i8")
        starts = np.arange(len(numbers), dtype=np.int64) * _LONG_BYTES
        lengths = np.full(len(numbers), _LONG_BYTES, np.int64)
        hashes = hash_slices(np.frombuffer(numbers.tobytes(), np.uint8), starts, lengths)
        return _buckets(hashes, values, num_buckets)

    return bucket


def truncate_decimal(width: int) -> Callable[[pa.Array], pa.Array]:
    """A function that rounds unscaled values down to multiples of `width`; NULL stays NULL.

    It raises OverflowError if a multiple has more digits than the type: no partition value exists.
    """

    def truncate(values: pa.Array) -> pa.Array:
        is_valid = values.is_valid()
        unscaled = _unscaled(values.fill_null(Decimal(0)))
        multiples = [number - number % width for number in unscaled]
        if min(multiples, default=0) <= -(10**values.type.precision):
            raise OverflowError(
                f"truncate({width}) gives {min(multiples)} as unscaled value, "
                f"which {values.type} cannot hold"
            )
        data = b"".join(n.to_bytes(_DECIMAL_BYTES, "little", signed=True) for n in multiples)
        result = pa.Array.from_buffers(values.type, len(values), [None, pa.py_buffer(data)])
        return pc.if_else(is_valid, result, pa.scalar(None, values.type))

    return truncate


def hash_binary(values: pa.Array) -> Words:
    """The hash of each string or binary value; undefined for NULLs."""
    binary = values.cast(pa.large_binary())
    if len(binary) == 0:
        return np.zeros(0, np.uint32)
    _, offsets_buffer, data_buffer = binary.buffers()
    first, end = binary.offset, binary.offset + len(binary) + 1
    offsets = np.frombuffer(offsets_buffer, np.int64)[first:end]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    return hash_slices(data, offsets[:-1], np.diff(offsets))


def hash_decimal(values: pa.Array) -> Words:
    """The hash of each decimal's unscaled value, as its shortest big-endian two's complement."""
    big_endian = _decimal_bytes(values)[:, ::-1]
    sign = np.where(big_endian[:, :1] >= 0x80, 0xFF, 0x00)
    # A leading byte is redundant if it only repeats the sign bit of the byte after it.
    repeats_sign = (big_endian[:, :-1] == sign) & ((big_endian[:, 1:] ^ sign) < 0x80)
    dropped = np.cumprod(repeats_sign, axis=1, dtype=np.int64).sum(axis=1)
    starts = np.arange(len(values), dtype=np.int64) * _DECIMAL_BYTES + dropped
    return hash_slices(np.ascontiguousarray(big_endian).ravel(), starts, _DECIMAL_BYTES - dropped)


def hash_slices(data: Bytes, starts: Offsets, lengths: Offsets) -> Words:
    """The hash of each slice `data[start : start + length]`.

    Rows are ordered by length, longest first, so the rows that still have a block are a prefix.
    """
    padded = np.concatenate([data, np.zeros(4, np.uint8)])
    hashes = np.zeros(len(starts), np.uint32)
    blocks = lengths // 4
    longest_first = np.argsort(-blocks, kind="stable")
    shortest_first_blocks = blocks[longest_first][::-1]
    for block in range(int(blocks.max(initial=0))):
        active = len(blocks) - int(np.searchsorted(shortest_first_blocks, block, side="right"))
        rows = longest_first[:active]
        key = _mixed_key(_words(padded, starts[rows] + 4 * block))
        hashes[rows] = _rotated(hashes[rows] ^ key, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    tail_masks = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
    tails = _words(padded, starts + 4 * blocks) & tail_masks[lengths % 4]
    return _finished(hashes ^ _mixed_key(tails) ^ lengths.astype(np.uint32))


def _buckets(hashes: Words, values: pa.Array, num_buckets: int) -> pa.Array:
    buckets = (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % num_buckets
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    return pa.array(buckets.astype(np.int32), pa.int32(), mask=is_null)


def _decimal_bytes(values: pa.Array) -> Bytes:
    """One row of 16 little-endian bytes per decimal."""
    if len(values) == 0:
        return np.zeros((0, _DECIMAL_BYTES), np.uint8)
    rows = np.frombuffer(values.buffers()[1], np.uint8)
    begin = values.offset * _DECIMAL_BYTES
    return rows[begin : begin + len(values) * _DECIMAL_BYTES].reshape(-1, _DECIMAL_BYTES)


def _unscaled(values: pa.Array) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little", signed=True) for row in _decimal_bytes(values)]


def _words(data: Bytes, starts: Offsets) -> Words:
    word = np.zeros(len(starts), np.uint32)
    for byte in range(4):
        word |= data[starts + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word


def _mixed_key(key: Words) -> Words:
    return _rotated(key * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotated(word: Words, bits: int) -> Words:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


def _finished(word: Words) -> Words:
    word = (word ^ (word >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    word = (word ^ (word >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return word ^ (word >> np.uint32(16))
