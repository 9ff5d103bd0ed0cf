"""Spliced files as a Thrift library reads them, which shares no code with ours.

From the footer to every page: each number must be that of the bytes, and what PyArrow reads.
"""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
import pytest
import thriftpy2
from hypothesis import given
from pyspark.sql import SparkSession
from thriftpy2.protocol.compact import TCompactProtocol

from support.random_parquet import FEW, PLENTY, Case, cases, rewrite_partially, write

FOOTERS = thriftpy2.load(
    str(Path(__file__).parents[1] / "support" / "parquet_footer.thrift"), module_name="f_thrift"
)
DICTIONARY_PAGE = 2


def decoded(kind: Any, data: bytes) -> tuple[Any, int]:
    """A struct, and how many bytes it takes."""
    transport = io.BytesIO(data)
    struct = kind()
    TCompactProtocol(transport).read_struct(struct)
    return struct, transport.tell()


def footer_of(data: bytes) -> Any:
    assert data[:4] == data[-4:] == b"PAR1"
    length = int.from_bytes(data[-8:-4], "little")
    footer, used = decoded(FOOTERS.FileMetaData, data[-8 - length : -8])
    assert used == length
    return footer


def values_of(header: Any) -> int:
    data_header = header.data_page_header or header.data_page_header_v2
    return 0 if data_header is None else data_header.num_values


def check_chunk(data: bytes, chunk: Any) -> range:
    """Walk the pages of a chunk; gives the bytes it takes."""
    meta = chunk.meta_data
    start = meta.dictionary_page_offset or meta.data_page_offset
    place, values, uncompressed, offsets = start, 0, 0, []
    while place < start + meta.total_compressed_size:
        header, used = decoded(FOOTERS.PageHeader, data[place:])
        is_dictionary = header.type == DICTIONARY_PAGE
        assert is_dictionary == (place == meta.dictionary_page_offset)
        if not is_dictionary:
            offsets.append(place)
            values += values_of(header)
        uncompressed += used + header.uncompressed_page_size
        place += used + header.compressed_page_size
    assert place == start + meta.total_compressed_size
    assert (values, uncompressed) == (meta.num_values, meta.total_uncompressed_size)
    assert offsets[:1] == [meta.data_page_offset]
    if chunk.offset_index_offset is not None:
        index = data[chunk.offset_index_offset :][: chunk.offset_index_length]
        pages, used = decoded(FOOTERS.OffsetIndex, index)
        assert used == chunk.offset_index_length
        assert [page.offset for page in pages.page_locations] == offsets
    return range(start, place)


def check(case: Case, spark: SparkSession) -> None:
    with TemporaryDirectory() as folder:
        source, target = Path(folder, "old.parquet"), Path(folder, "new.parquet")
        write(case, source, spark)
        rewrite_partially(case, source, target)
        data = target.read_bytes()
        footer, arrow = footer_of(data), pq.read_metadata(target)
    assert footer.num_rows == arrow.num_rows == sum(g.num_rows for g in footer.row_groups)
    assert len(footer.row_groups) == arrow.num_row_groups
    ranges = []
    for number, group in enumerate(footer.row_groups):
        arrow_group = arrow.row_group(number)
        sizes = [c.meta_data.total_uncompressed_size for c in group.columns]
        assert (group.num_rows, group.total_byte_size) == (arrow_group.num_rows, sum(sizes))
        assert group.ordinal in (None, number)
        for leaf, chunk in enumerate(group.columns):
            meta, arrow_chunk = chunk.meta_data, arrow_group.column(leaf)
            assert ".".join(meta.path_in_schema) == arrow_chunk.path_in_schema
            assert (meta.num_values, meta.total_compressed_size, meta.data_page_offset) == (
                arrow_chunk.num_values,
                arrow_chunk.total_compressed_size,
                arrow_chunk.data_page_offset,
            )
            ranges.append(check_chunk(data, chunk))
    ranges.sort(key=lambda place: place.start)
    assert all(a.stop <= b.start for a, b in itertools.pairwise(ranges))


@FEW
@given(cases())
def test_every_number_is_that_of_the_bytes(spark, case):
    check(case, spark)


@pytest.mark.slow
@PLENTY
@given(cases())
def test_every_number_is_that_of_the_bytes_in_many_files(spark, case):
    check(case, spark)
