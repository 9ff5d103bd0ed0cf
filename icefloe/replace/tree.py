"""A predicate over partition columns as a small tree of values.

`parse` makes it with literals as they stand in the text, `bind` with values of the columns' own
types. IN and BETWEEN need no more than comparisons; IN stays one node because lists can be long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from icefloe.pruning.comparisons import Comparison

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Compare(Generic[V]):
    """`column <op> value`."""

    column: str
    comparison: Comparison
    value: V


@dataclass(frozen=True, slots=True)
class In(Generic[V]):
    """`column IN (…)`."""

    column: str
    values: tuple[V, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """`column IS NULL`."""

    column: str


@dataclass(frozen=True, slots=True)
class Constant:
    """TRUE, FALSE or NULL."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class And(Generic[V]):
    """All of the parts."""

    parts: tuple[Node[V], ...]


@dataclass(frozen=True, slots=True)
class Or(Generic[V]):
    """Any of the parts."""

    parts: tuple[Node[V], ...]


@dataclass(frozen=True, slots=True)
class Not(Generic[V]):
    """The opposite of the part; of NULL, NULL."""

    part: Node[V]


Leaf: TypeAlias = Compare[V] | In[V] | IsNull
Node: TypeAlias = Compare[V] | In[V] | IsNull | Constant | And[V] | Or[V] | Not[V]


def leaves_of(node: Node[V]) -> Iterator[Leaf[V]]:
    """Every test of a column, from left to right."""
    match node:
        case And(parts) | Or(parts):
            for part in parts:
                yield from leaves_of(part)
        case Not(part):
            yield from leaves_of(part)
        case Compare() | In() | IsNull():
            yield node
        case Constant():
            return
