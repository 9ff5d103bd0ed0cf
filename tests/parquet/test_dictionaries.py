"""Columns whose values repeat get a dictionary, the others none."""

from __future__ import annotations

import io
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icefloe.parquet.encode import encode, options_like
from icefloe.parquet.footer import open_buffer
from icefloe.parquet.schema import columns_of
from icefloe.tasks.write import columns_with_repeats
from support.parquet_check.check import problems

TWO = [1, 2] * 4
EIGHT = list(range(8))


def with_dictionary(data: bytes | pa.Buffer) -> set[str]:
    source = io.BytesIO(data.to_pybytes() if isinstance(data, pa.Buffer) else data)
    group = pq.read_metadata(source).row_group(0)
    chunks = [group.column(index) for index in range(group.num_columns)]
    return {chunk.path_in_schema for chunk in chunks if "RLE_DICTIONARY" in chunk.encodings}


@pytest.mark.parametrize(
    ("values", "paths"),
    [
        (pa.array(TWO), {"c"}),
        (pa.array(EIGHT), set()),
        (pa.array([str(n) for n in TWO]), {"c"}),
        (pa.array([str(n) for n in EIGHT]), set()),
        (pa.array([None] * 8, pa.int32()), {"c"}),
        (pa.array([1, 1, *[None] * 6]), {"c"}),
        (pa.array([1, 2, *[None] * 6]), set()),
        (pa.array([uuid.UUID(int=n).bytes for n in TWO], pa.uuid()), {"c"}),
        (pa.array([{"x": a, "y": b} for a, b in zip(TWO, EIGHT, strict=True)]), {"c.x"}),
        (pa.array([TWO] * 8), {"c.list.element"}),
        (pa.array([[n] for n in EIGHT]), set()),
        (
            pa.array([[(n, 7)] for n in EIGHT], pa.map_(pa.int32(), pa.int32())),
            {"c.key_value.value"},
        ),
        (pa.array([[{"x": n, "y": 7}] for n in EIGHT]), {"c.list.element.y"}),
    ],
)
def test_the_paths_are_those_of_the_file(values, paths):
    table = pa.table({"c": values})
    repeating = columns_with_repeats(table)
    assert set(repeating) == paths
    sink = io.BytesIO()
    pq.write_table(table, sink, use_dictionary=repeating or False)
    assert with_dictionary(sink.getvalue()) == paths


def test_rows_in_slices_and_chunks_are_looked_at_once():
    chunks = pa.chunked_array([pa.array(TWO), pa.array(EIGHT[:2])])
    assert columns_with_repeats(pa.table({"a": chunks, "b": chunks}).slice(3)) == ["a", "b"]
    assert columns_with_repeats(pa.table({"a": chunks}).slice(7)) == []


def test_a_dictionary_that_was_given_up_is_not_made_again():
    table = pa.table({"few": [n % 7 for n in range(20_000)], "many": list(range(20_000))})
    sink = io.BytesIO()
    pq.write_table(table, sink, dictionary_pagesize_limit=1024, data_page_size=1024)
    assert with_dictionary(sink.getvalue()) == {"few", "many"}
    file = open_buffer("old", pa.py_buffer(sink.getvalue()))
    columns = columns_of(file.footer)
    encoded = encode(table, options_like(file, [(c, c) for c in columns], {}))
    data = encoded.read(0, encoded.size)
    assert with_dictionary(data) == {"few"}
    assert pq.read_table(io.BytesIO(data)).equals(table)
    assert problems("new", pa.py_buffer(data)) == []
