"""A footer's schema as columns: what has to agree for a chunk to be put in another's place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from icefloe.parquet.fields import Element, File
from icefloe.parquet.thrift import Items, Kind, Struct, changed, items, value

_INT32, _INT64, _FIXED = 1, 2, 7
_REQUIRED, _REPEATED = 0, 2
_MILLIS, _MICROS = ((1, ()),), ((2, ()),)
_DECIMAL, _INTEGER = 5, 10
# What the older annotations mean in terms of the newer ones.
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
class Leaf:
    """A column that has values of its own."""

    path: tuple[bytes, ...]
    type: int | None  # the physical one
    repetition: int = 0  # the highest level
    definition: int = 0


@dataclass(frozen=True, slots=True)
class Column:
    """A top-level column: its part of the schema, and which leaf columns it has."""

    name: str
    elements: tuple[Struct, ...]
    first_leaf: int
    values: tuple[Leaf, ...]

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
        found: int | None = value(self.elements[0], Element.FIELD_ID)
        return found

    def named(self, name: str) -> Column:
        """The same column under another name."""
        top = name.encode()
        first = changed(self.elements[0], {Element.NAME: (Kind.BINARY, top)})
        values = tuple(replace(leaf, path=(top, *leaf.path[1:])) for leaf in self.values)
        return Column(name, (first, *self.elements[1:]), self.first_leaf, values)


def columns_of(footer: Struct) -> list[Column]:
    """The top-level columns, in their order."""
    elements = items(footer, File.SCHEMA)
    found: list[Column] = []
    at, leaf = 1, 0
    while at < len(elements):
        end, values = _walk(elements, at, Leaf((), None))
        name = value(elements[at], Element.NAME).decode()
        found.append(Column(name, tuple(elements[at:end]), leaf, tuple(values)))
        at, leaf = end, leaf + len(values)
    return found


def schema_of(root: Struct, columns: Sequence[Column]) -> Items:
    """The schema of a file with these columns."""
    top = changed(root, {Element.CHILDREN: (Kind.I32, len(columns))})
    return Items(Kind.STRUCT, [top, *(element for c in columns for element in c.elements)])


def same_shape(one: Column, other: Column) -> bool:
    """Whether chunks of one column can stand where chunks of the other are.

    The columns' own names and field ids may differ, nothing else: neither the physical types, nor
    what may be NULL or repeated at any level, nor what the values mean.
    """
    return len(one.elements) == len(other.elements) and all(
        _shape(a) == _shape(b) and (at == 0 or a[Element.NAME] == b[Element.NAME])
        for at, (a, b) in enumerate(zip(one.elements, other.elements, strict=True))
    )


def _walk(elements: Sequence[Struct], at: int, above: Leaf) -> tuple[int, list[Leaf]]:
    """Where the subtree at `at` ends, and its leaves."""
    element = elements[at]
    repetition = value(element, Element.REPETITION, 0)
    found = Leaf(
        (*above.path, value(element, Element.NAME)),
        value(element, Element.TYPE),
        above.repetition + (repetition == _REPEATED),
        above.definition + (repetition != _REQUIRED),
    )
    children = value(element, Element.CHILDREN, 0)
    if not children:
        return at + 1, [found]
    leaves: list[Leaf] = []
    at += 1
    for _ in range(children):
        at, below = _walk(elements, at, found)
        leaves += below
    return at, leaves


def _shape(element: Struct) -> tuple[Any, ...]:
    physical = value(element, Element.TYPE)
    length = value(element, Element.LENGTH) if physical == _FIXED else None
    repetition = value(element, Element.REPETITION, 0)
    children = value(element, Element.CHILDREN, 0)
    meaning = None if children else _meaning(element)
    if (physical, meaning) in _PLAIN_INTEGERS:
        meaning = None
    return physical, length, repetition, children, meaning


def _meaning(element: Struct) -> Any:
    """A leaf's logical type, however it is annotated."""
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
    """A structure as nested tuples, to be compared."""
    return tuple(
        (number, _plain(content) if kind == Kind.STRUCT else content)
        for number, (kind, content) in sorted(struct.items())
    )
