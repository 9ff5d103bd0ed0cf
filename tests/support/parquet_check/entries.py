"""Columns as Parquet stores them: the entries of each leaf, with or without a value, and levels.

An entry without a value is a NULL or an empty list, at any level.
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
    """The entries of a leaf column, or a range of them."""

    values: pa.Array  # one for each entry, NULL where it has none
    definition: Numbers
    repetition: Numbers
    elements_from: int  # the lowest definition level at which the innermost list has an element

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
        """How many rows start here."""
        return int((self.repetition == 0).sum())

    @property
    def null_counts(self) -> set[int]:
        """The number of NULLs, with and without empty lists: writers count both ways."""
        present = len(self) - self.values.null_count
        elements = int((self.definition >= self.elements_from).sum())
        return {len(self) - present, elements - present}

    @property
    def bytes(self) -> int | None:
        """The bytes of strings and binaries; None for other types."""
        kind = self.values.type
        if not (pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)) and not (
            pa.types.is_string(kind) or pa.types.is_binary(kind)
        ):
            return None
        return int(pc.sum(pc.binary_length(self.values)).as_py() or 0)


@dataclass(frozen=True, slots=True)
class _Indices:
    """Indices of a column's entries in an array of it; -1 for entries that end at an outer level."""

    index: Numbers
    definition: Numbers
    repetition: Numbers
    level: int = 0  # the definition level of present values
    lists: int = 0
    elements_from: int = 0


def entries_of(column: pa.Array, *, nullable: bool) -> list[Entries]:
    """The entries of each leaf of a column, in the order of Parquet's leaves."""
    none = np.zeros(len(column), dtype=np.int64)
    return list(_leaves(column, _Indices(np.arange(len(column)), none, none), nullable=nullable))


def _leaves(array: pa.Array, indices: _Indices, *, nullable: bool) -> Iterator[Entries]:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    kind = array.type
    is_present = indices.index >= 0
    if array.null_count:
        is_present[is_present] = array.is_valid().to_numpy(zero_copy_only=False)[
            indices.index[is_present]
        ]
    indices = replace(
        indices,
        index=np.where(is_present, indices.index, -1),
        definition=indices.definition + (is_present & nullable),
        level=indices.level + nullable,
    )
    if pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            yield from _leaves(array.field(i), indices, nullable=kind.field(i).nullable)
    elif pa.types.is_map(kind):
        yield from _leaves(array.values, _elements(array, indices), nullable=False)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        elements = _elements(array, indices)
        yield from _leaves(array.values, elements, nullable=kind.value_field.nullable)
    else:
        index = pa.array(indices.index, mask=indices.index < 0)
        yield Entries(
            array.take(index), indices.definition, indices.repetition, indices.elements_from
        )


def _elements(array: pa.Array, indices: _Indices) -> _Indices:
    """The indices of the elements of lists; an empty list has one entry."""
    offsets = np.append(array.offsets.to_numpy(), 0).astype(np.int64)  # -2 and -1 have no length
    starts = offsets[indices.index]
    lengths = np.where(indices.index >= 0, offsets[indices.index + 1] - starts, 0)
    counts = np.maximum(lengths, 1)
    parent = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(parent)) - np.repeat(np.cumsum(counts) - counts, counts)
    has = lengths[parent] > 0
    level, lists = indices.level + 1, indices.lists + 1
    return _Indices(
        np.where(has, starts[parent] + within, -1),
        indices.definition[parent] + has,
        np.where(within > 0, lists, indices.repetition[parent]),
        level,
        lists,
        level,
    )
