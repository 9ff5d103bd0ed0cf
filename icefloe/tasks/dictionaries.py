"""Which columns of a new file get a dictionary.

A dictionary that holds nearly every value once makes a chunk larger, and slower to write and to
read; PyArrow's writer notices only when the dictionary is full, and keeps what it wrote until then.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

_SAMPLE = 16_384  # values


def columns_with_repeats(first: pa.Table) -> list[str]:
    """Leaf columns, by their paths in the file, whose first values come up twice on average."""
    sample = first.slice(0, _SAMPLE).combine_chunks()
    leaves = (
        leaf
        for name, column in zip(sample.column_names, sample.columns, strict=True)
        for chunk in column.chunks
        for leaf in _leaves(name, chunk)
    )
    return [path for path, values in leaves if _repeats(values.slice(0, _SAMPLE))]


def _leaves(path: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    if isinstance(array, pa.ExtensionArray):  # a UUID
        array = array.storage
    kind = array.type
    if pt.is_struct(kind):
        for index, child in enumerate(array.flatten()):
            yield from _leaves(f"{path}.{kind.field(index).name}", child)
    elif pt.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", array.keys)
        yield from _leaves(f"{path}.key_value.value", array.items)
    elif pt.is_list(kind) or pt.is_large_list(kind):
        yield from _leaves(f"{path}.list.element", array.values)
    else:
        yield path, array


def _repeats(values: pa.Array) -> bool:
    present = len(values) - values.null_count
    distinct: int = pc.count_distinct(values, mode="only_valid").as_py()
    return bool(2 * distinct <= present)
