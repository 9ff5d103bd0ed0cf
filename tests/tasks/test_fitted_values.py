"""Values in another type: PyArrow's cast ends the process for maps that were taken or filtered."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from icefloe.tasks.arrow import fitted

Change = Callable[[pa.ChunkedArray], pa.ChunkedArray]


def map_of(text: pa.DataType) -> pa.DataType:
    return pa.map_(text, pa.field("value", text, True))


ENTRIES = [[("a", "1")], None, [("b", None), ("c", "x")], [], [("d", "2")], None]
KINDS = {
    "a map": (map_of, ENTRIES),
    "a list of maps": (lambda text: pa.list_(map_of(text)), [[each] for each in ENTRIES]),
    "a struct with a map": (
        lambda text: pa.struct([("m", map_of(text)), ("s", text)]),
        [None, *({"m": each, "s": "s"} for each in ENTRIES[1:])],
    ),
    "a map of maps": (
        lambda text: pa.map_(pa.int32(), map_of(text)),
        [None if each is None else [(1, each), (2, None)] for each in ENTRIES],
    ),
}
CHANGES: dict[str, Change] = {
    "unchanged": lambda column: column,
    "taken": lambda column: column.take(pa.array([0, 1, 2, 4])),
    "taken in another order": lambda column: column.take(pa.array([4, 0, 2, 2])),
    "filtered": lambda column: column.filter(pa.array([True, True, False, True, True, False])),
    "sliced": lambda column: column.slice(2, 3),
    "sliced and taken": lambda column: column.slice(1, 4).take(pa.array([1, 3])),
    "taken and sliced": lambda column: column.take(pa.array([0, 2, 4, 1])).slice(1, 2),
    "none left": lambda column: column.slice(0, 0),
    "taken from chunks": lambda column: pa.chunked_array([*column.chunks, *column.chunks]).take(
        pa.array([0, 2, 6, 8])
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", KINDS)
def test_maps_keep_their_entries(name, change):
    kind, values = KINDS[name]
    column = CHANGES[change](pa.chunked_array([pa.array(values, kind(pa.large_string()))]))
    found = fitted(column, kind(pa.string()))
    assert found.type == kind(pa.string())
    found.validate(full=True)
    assert found.to_pylist() == column.to_pylist()
