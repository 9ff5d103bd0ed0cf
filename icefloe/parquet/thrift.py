"""Thrift's compact protocol, without an IDL: the encoding of Parquet's footers.

The protocol encodes every field's type, so a structure is read as a tree of numbered fields and
written back byte for byte, including fields that newer versions of the format add.
"""

from __future__ import annotations

import struct as packing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class ThriftType(IntEnum):
    """The protocol's types, by number."""

    TRUE = 1
    FALSE = 2
    BYTE = 3
    I16 = 4
    I32 = 5
    I64 = 6
    DOUBLE = 7
    BINARY = 8
    LIST = 9
    SET = 10
    MAP = 11
    STRUCT = 12


@dataclass(frozen=True, slots=True)
class Items:
    """The elements of a list or a set, all of one type."""

    kind: ThriftType
    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Pairs:
    """The entries of a map."""

    key_kind: ThriftType
    value_kind: ThriftType
    values: Sequence[tuple[Any, Any]]


Struct = Mapping[int, tuple[ThriftType, Any]]  # field id -> type and value

_STOP = 0
_DOUBLE = "<d"
_MAX_DEPTH = 64
_KINDS = {kind.value: kind for kind in ThriftType}
_TRUE, _FALSE = ThriftType.TRUE, ThriftType.FALSE


class MalformedError(ValueError):
    """The bytes are not a structure of the compact protocol."""


def read_struct(data: bytes | memoryview, start: int = 0) -> tuple[Struct, int]:
    """The structure that starts at `start`, and the offset of its end."""
    reader = _Reader(memoryview(data).cast("B"), start)
    try:
        return reader.struct(), reader.at
    except (IndexError, packing.error) as error:
        raise MalformedError("the structure is truncated") from error


def write_struct(struct: Struct) -> bytes:
    """The structure's bytes, with fields in ascending order."""
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


def value(struct: Struct, field: int, default: Any = None) -> Any:
    """A field's value; `default` if it is absent."""
    entry = struct.get(field)
    return default if entry is None else entry[1]


def items(struct: Struct, field: int) -> Sequence[Any]:
    """The elements of a list field; none if it is absent."""
    entry = struct.get(field)
    return entry[1].values if entry else ()


def changed(struct: Struct, fields: Mapping[int, tuple[ThriftType, Any] | None]) -> Struct:
    """The structure with some fields replaced, and those that are None removed."""
    merged = {**struct, **fields}
    return {number: field for number, field in merged.items() if field is not None}


class _Reader:
    def __init__(self, data: memoryview, start: int) -> None:
        self._data = data
        self._depth = 0
        self.at = start

    def struct(self) -> Struct:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise MalformedError("structures are nested too deeply")
        fields: dict[int, tuple[ThriftType, Any]] = {}
        number = 0
        while head := self._byte():
            delta = head >> 4
            number = number + delta if delta else self._signed()
            kind = self._kind(head & 0x0F)
            if kind <= _FALSE:
                fields[number] = (_TRUE, kind == _TRUE)
            else:
                fields[number] = (kind, _READ[kind](self))
        self._depth -= 1
        return fields

    def _binary(self) -> bytes:
        return self._take(self._unsigned())

    def _boolean(self) -> bool:
        return self._byte() == _TRUE  # as an element; a field has it in its header

    def _small(self) -> int:
        return int.from_bytes(self._take(1), signed=True)

    def _double(self) -> float:
        number: float = packing.unpack(_DOUBLE, self._take(8))[0]
        return number

    def _items(self) -> Items:
        head = self._byte()
        count = head >> 4
        if count == 0x0F:
            count = self._unsigned()
        self._check_count(count)
        if not count:
            return Items(
                _KINDS.get(head & 0x0F, ThriftType.BYTE), []
            )  # some writers encode no type for it
        kind = self._kind(head & 0x0F)
        read = _READ[kind]
        return Items(kind, [read(self) for _ in range(count)])

    def _pairs(self) -> Pairs:
        count = self._unsigned()
        if not count:
            return Pairs(ThriftType.BYTE, ThriftType.BYTE, [])
        self._check_count(count)
        kinds = self._byte()
        key, item = self._kind(kinds >> 4), self._kind(kinds & 0x0F)
        read_key, read_item = _READ[key], _READ[item]
        return Pairs(key, item, [(read_key(self), read_item(self)) for _ in range(count)])

    def _check_count(self, count: int) -> None:
        if count > len(self._data) - self.at:
            raise MalformedError("a list has more elements than there are bytes")

    def _kind(self, number: int) -> ThriftType:
        try:
            return _KINDS[number]
        except KeyError:
            raise MalformedError(f"there is no type {number}") from None

    def _byte(self) -> int:
        byte = self._data[self.at]
        self.at += 1
        return byte

    def _take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self._data):
            raise MalformedError("a value reaches beyond the end")
        data = bytes(self._data[self.at : end])
        self.at = end
        return data

    def _unsigned(self) -> int:
        byte = self._byte()
        number, shift = byte & 0x7F, 7
        while byte >= 0x80:
            if shift > 63:
                raise MalformedError("a number has more than 64 bits")
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            shift += 7
        return number

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)


# By the number of the type: a tuple lookup is many times as fast as `match`.
_READ: tuple[Callable[[_Reader], Any], ...] = (
    _Reader.struct,  # unused: 0 ends a structure
    _Reader._boolean,
    _Reader._boolean,
    _Reader._small,
    _Reader._signed,
    _Reader._signed,
    _Reader._signed,
    _Reader._double,
    _Reader._binary,
    _Reader._items,
    _Reader._items,
    _Reader._pairs,
    _Reader.struct,
)


def _write_struct(out: bytearray, struct: Struct) -> None:
    last = 0
    for number in sorted(struct):
        kind, content = struct[number]
        encoded_kind = (
            (ThriftType.TRUE if content else ThriftType.FALSE) if kind == ThriftType.TRUE else kind
        )
        if 0 < number - last <= 0x0F:
            out.append((number - last) << 4 | encoded_kind)
        else:
            out.append(encoded_kind)
            _write_signed(out, number)
        if kind != ThriftType.TRUE:
            _write_value(out, kind, content)
        last = number
    out.append(_STOP)


def _write_value(out: bytearray, kind: ThriftType, content: Any) -> None:
    match kind:
        case ThriftType.I64 | ThriftType.I32 | ThriftType.I16:
            _write_signed(out, content)
        case ThriftType.BINARY:
            _write_unsigned(out, len(content))
            out += content
        case ThriftType.STRUCT:
            _write_struct(out, content)
        case ThriftType.LIST | ThriftType.SET:
            _write_items(out, content)
        case ThriftType.TRUE | ThriftType.FALSE:
            out.append(ThriftType.TRUE if content else ThriftType.FALSE)
        case ThriftType.BYTE:
            out += content.to_bytes(1, signed=True)
        case ThriftType.DOUBLE:
            out += packing.pack(_DOUBLE, content)
        case ThriftType.MAP:
            _write_pairs(out, content)


def _write_items(out: bytearray, listed: Items) -> None:
    count = len(listed.values)
    if count < 0x0F:
        out.append(count << 4 | listed.kind)
    else:
        out.append(0xF0 | listed.kind)
        _write_unsigned(out, count)
    for element in listed.values:
        _write_value(out, listed.kind, element)


def _write_pairs(out: bytearray, pairs: Pairs) -> None:
    _write_unsigned(out, len(pairs.values))
    if pairs.values:
        out.append(pairs.key_kind << 4 | pairs.value_kind)
    for key, content in pairs.values:
        _write_value(out, pairs.key_kind, key)
        _write_value(out, pairs.value_kind, content)


def _write_signed(out: bytearray, number: int) -> None:
    _write_unsigned(out, (number << 1) ^ (number >> 63))


def _write_unsigned(out: bytearray, number: int) -> None:
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
