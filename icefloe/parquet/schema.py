"""A footer's schema as columns, and whether chunks of one can replace chunks of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from icefloe.parquet.fields import Element, File
from icefloe.parquet.thrift import Items, Struct, ThriftType, changed, items, value

_INT32, _INT64, _FIXED = 1, 2, 7
_REQUIRED, _REPEATED = 0, 2
_MILLIS, _MICROS = ((1, ()),), ((2, ()),)
_DECIMAL, _INTEGER = 5, 10
# Converted types (the older annotations) as logical types (the newer ones).
_CONVERTED: dict[int, tuple[Any, ...]] = {
    0: (1, ()),
    1: (2, ()),
    2: (2, ()),
    3: (3, ()),
    4: (4, ()),
    6: (6, ()),
    7: (7, ((1, True), (2, _MILLIS))),
    8: (7, ((1, True), (2, _MICROS))),
    9: (8, ((1, True), (2, _MILLIS))),
    10: (8, ((1, True), (2, _MICROS))),
    **{11 + n: (_INTEGER, ((1, 8 << n), (2, False))) for n in range(4)},
    **{15 + n: (_INTEGER, ((1, 8 << n), (2, True))) for n in range(4)},
    19: (12, ()),
    20: (13, ()),
    21: ("interval",),
}
_PLAIN_INTEGERS = {
    (_INT32, (_INTEGER, ((1, 32), (2, True)))),
    (_INT64, (_INTEGER, ((1, 64), (2, True)))),
}


@dataclass(frozen=True, slots=True)
class LeafColumn:
    """A column that holds values."""

    path: tuple[bytes, ...]
    type: int | None  # the physical type
    repetition: int = 0  # the maximum level
    definition: int = 0


@dataclass(frozen=True, slots=True)
class SchemaColumn:
    """A top-level column: its part of the schema, and its leaf columns."""

    name: str
    elements: tuple[Struct, ...]
    first_leaf: int
    values: tuple[LeafColumn, ...]

    @property
    def leaves(self) -> range:
        """The numbers of its leaf columns in a row group."""
        return range(self.first_leaf, self.first_leaf + len(self.values))

    @property
    def paths(self) -> tuple[tuple[bytes, ...], ...]:
        """The paths of its leaf columns."""
        return tuple(leaf.path for leaf in self.values)

    @property
    def field_id(self) -> int | None:
        """The field id of the column."""
        number: int | None = value(self.elements[0], Element.FIELD_ID)
        return number

    def named(self, name: str) -> SchemaColumn:
        """The same column under another name."""
        top = name.encode()
        first = changed(self.elements[0], {Element.NAME: (ThriftType.BINARY, top)})
        values = tuple(replace(leaf, path=(top, *leaf.path[1:])) for leaf in self.values)
        return SchemaColumn(name, (first, *self.elements[1:]), self.first_leaf, values)


def columns_of(footer: Struct) -> list[SchemaColumn]:
    """The top-level columns, in order."""
    elements = items(footer, File.SCHEMA)
    columns: list[SchemaColumn] = []
    at, leaf = 1, 0
    while at < len(elements):
        end, values = _walk(elements, at, LeafColumn((), None))
        name = value(elements[at], Element.NAME).decode()
        columns.append(SchemaColumn(name, tuple(elements[at:end]), leaf, tuple(values)))
        at, leaf = end, leaf + len(values)
    return columns


def schema_of(root: Struct, columns: Sequence[SchemaColumn]) -> Items:
    """The schema of a file with these columns."""
    top = changed(root, {Element.CHILDREN: (ThriftType.I32, len(columns))})
    return Items(ThriftType.STRUCT, [top, *(element for c in columns for element in c.elements)])


def same_shape(one: SchemaColumn, other: SchemaColumn) -> bool:
    """Whether chunks of one column can replace chunks of the other.

    Only the columns' own names and field ids may differ: neither the physical types, nor what may
    be NULL or repeated at any level, nor the logical types.
    """
    return len(one.elements) == len(other.elements) and all(
        _shape(a) == _shape(b) and (at == 0 or a[Element.NAME] == b[Element.NAME])
        for at, (a, b) in enumerate(zip(one.elements, other.elements, strict=True))
    )


def _walk(elements: Sequence[Struct], at: int, above: LeafColumn) -> tuple[int, list[LeafColumn]]:
    """The end of the subtree at `at`, and its leaf columns."""
    element = elements[at]
    repetition = value(element, Element.REPETITION, 0)
    node = LeafColumn(
        (*above.path, value(element, Element.NAME)),
        value(element, Element.TYPE),
        above.repetition + (repetition == _REPEATED),
        above.definition + (repetition != _REQUIRED),
    )
    children = value(element, Element.CHILDREN, 0)
    if not children:
        return at + 1, [node]
    leaves: list[LeafColumn] = []
    at += 1
    for _ in range(children):
        at, below = _walk(elements, at, node)
        leaves += below
    return at, leaves


def _shape(element: Struct) -> tuple[Any, ...]:
    physical = value(element, Element.TYPE)
    length = value(element, Element.LENGTH) if physical == _FIXED else None
    repetition = value(element, Element.REPETITION, 0)
    children = value(element, Element.CHILDREN, 0)
    logical = None if children else _logical_type(element)
    if (physical, logical) in _PLAIN_INTEGERS:
        logical = None
    return physical, length, repetition, children, logical


def _logical_type(element: Struct) -> Any:
    """A leaf's logical type, from either annotation."""
    logical = value(element, Element.LOGICAL)
    if logical:
        ((branch, (_, details)),) = logical.items()
        return branch, _plain(details)
    converted = value(element, Element.CONVERTED)
    if converted == _DECIMAL:
        scale, precision = value(element, Element.SCALE, 0), value(element, Element.PRECISION)
        return _DECIMAL, ((1, scale), (2, precision))
    return None if converted is None else _CONVERTED.get(converted, ("converted", converted))


def _plain(struct: Struct) -> tuple[Any, ...]:
    """A structure as nested tuples, for comparison."""
    return tuple(
        (number, _plain(content) if kind == ThriftType.STRUCT else content)
        for number, (kind, content) in sorted(struct.items())
    )
