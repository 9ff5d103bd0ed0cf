"""Columns as Parquet lays them out: for each leaf its entries, with a value or without, and levels.

An entry without a value stands for a NULL, or for a list that has no elements, at any level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a leaf column, or some of them that follow each other."""

    values: pa.Array  # one for each entry, NULL where it has none
    definition: Numbers
    repetition: Numbers
    elements_from: int  # the definition level from which on the innermost list has an element

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, length: int) -> Entries:
        """Some of the entries."""
        end = start + length
        return Entries(
            self.values.slice(start, length),
            self.definition[start:end],
            self.repetition[start:end],
            self.elements_from,
        )

    @property
    def rows(self) -> int:
        """How many rows begin here."""
        return int((self.repetition == 0).sum())

    @property
    def null_counts(self) -> set[int]:
        """How many NULLs there are: without lists that have no elements, or with them.

        Writers count in both ways.
        """
        present = len(self) - self.values.null_count
        elements = int((self.definition >= self.elements_from).sum())
        return {len(self) - present, elements - present}

    @property
    def bytes(self) -> int | None:
        """How many bytes texts have; None for other types."""
        kind = self.values.type
        if not (pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)) and not (
            pa.types.is_string(kind) or pa.types.is_binary(kind)
        ):
            return None
        return int(pc.sum(pc.binary_length(self.values)).as_py() or 0)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the entries of a column are in an array of it; -1 where they end further up."""

    index: Numbers
    definition: Numbers
    repetition: Numbers
    level: int = 0  # the definition level of what is there
    lists: int = 0
    elements_from: int = 0


def entries_of(column: pa.Array, *, nullable: bool) -> list[Entries]:
    """The entries of each leaf of a column, in the order of Parquet's leaves."""
    none = np.zeros(len(column), dtype=np.int64)
    return list(_leaves(column, _Places(np.arange(len(column)), none, none), nullable=nullable))


def _leaves(array: pa.Array, places: _Places, *, nullable: bool) -> Iterator[Entries]:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    kind = array.type
    there = places.index >= 0
    if array.null_count:
        there[there] = array.is_valid().to_numpy(zero_copy_only=False)[places.index[there]]
    places = replace(
        places,
        index=np.where(there, places.index, -1),
        definition=places.definition + (there & nullable),
        level=places.level + nullable,
    )
    if pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            yield from _leaves(array.field(i), places, nullable=kind.field(i).nullable)
    elif pa.types.is_map(kind):
        yield from _leaves(array.values, _elements(array, places), nullable=False)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        elements = _elements(array, places)
        yield from _leaves(array.values, elements, nullable=kind.value_field.nullable)
    else:
        index = pa.array(places.index, mask=places.index < 0)
        yield Entries(array.take(index), places.definition, places.repetition, places.elements_from)


def _elements(array: pa.Array, places: _Places) -> _Places:
    """The places of the elements of lists; one entry each for those that have none."""
    offsets = np.append(array.offsets.to_numpy(), 0).astype(np.int64)  # -2 and -1 have no length
    starts = offsets[places.index]
    lengths = np.where(places.index >= 0, offsets[places.index + 1] - starts, 0)
    counts = np.maximum(lengths, 1)
    whose = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(whose)) - np.repeat(np.cumsum(counts) - counts, counts)
    has = lengths[whose] > 0
    level, lists = places.level + 1, places.lists + 1
    return _Places(
        np.where(has, starts[whose] + within, -1),
        places.definition[whose] + has,
        np.where(within > 0, lists, places.repetition[whose]),
        level,
        lists,
        level,
    )
