"""Every reader reads a file assembled from bytes of other files as if it were written by PyArrow."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from pyspark.sql import SparkSession

from icefloe.parquet.fields import Chunk, File, Group, Meta
from icefloe.parquet.footer import (
    ParquetBytes,
    footer_bytes,
    group_rows,
    open_buffer,
    open_parquet,
)
from icefloe.parquet.partial_rewrite import GroupChange, PartialRewrite, cannot_copy
from icefloe.parquet.thrift import Items, Struct, ThriftType, changed, items, value
from support.parquet_check.check import problems
from support.random_parquet import (
    FEW,
    PLENTY,
    READERS,
    Case,
    by_polars,
    by_pyarrow,
    by_spark,
    cases,
    open_file,
    polars_reads,
    rewrite_partially,
    write,
)

OPTIONS = {"compression": "zstd"}


def wrong_with(path: Path) -> list[str]:
    return problems(str(path), pa.py_buffer(path.read_bytes()))


def check(case: Case, spark: SparkSession) -> None:
    with TemporaryDirectory() as folder:
        source, target, plain = (Path(folder, f"{n}.parquet") for n in ("old", "new", "plain"))
        write(case, source, spark)
        spliced, expected = rewrite_partially(case, source, target)

        data = pa.py_buffer(target.read_bytes())
        assert spliced.size == len(data)
        assert wrong_with(target) == []
        pq.write_table(expected, plain)
        assert by_pyarrow(target) == repr(expected.to_pylist())
        for reader in READERS:
            if reader is not by_polars or polars_reads(source):
                assert reader(target) == reader(plain), reader.__name__
        assert by_spark(target, spark) == by_spark(plain, spark)


@FEW
@given(cases())
def test_random_changes(spark, case):
    check(case, spark)


@pytest.mark.slow
@settings(FEW, max_examples=12)
@given(cases(("spark",)))
def test_random_changes_to_files_that_spark_wrote(spark, case):
    check(case, spark)


@pytest.mark.slow
@PLENTY
@given(cases(("pyarrow", "pyarrow", "duckdb", "spark")))
def test_many_random_changes(spark, case):
    check(case, spark)


def source_of(rows: pa.Table, **options: object) -> ParquetBytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, row_group_size=100, **options)
    return open_buffer("source", sink.getvalue())


def spliced_of(
    file: ParquetBytes,
    schema: pa.Schema,
    changes: list[GroupChange],
    rows: pa.Table,
    names: dict[str, str] | None = None,
) -> tuple[pa.Buffer, PartialRewrite]:
    """The file after a partial rewrite; `rows` are its new rows, in full row groups but for the last."""
    starts = [0, *accumulate(change.rows for change in changes)]
    rewrite = PartialRewrite.plan(file, schema, names or {n: n for n in schema.names}, OPTIONS)
    sink = pa.BufferOutputStream()
    rewrite.run(
        sink,
        changes,
        lambda group, names: rows.slice(starts[group], changes[group].rows).select(names),
    )
    return sink.getvalue(), rewrite


def chunk_of(data: pa.Buffer, group: int, leaf: int) -> pq.ColumnChunkMetaData:
    return pq.read_metadata(pa.BufferReader(data)).row_group(group).column(leaf)


NUMBERS = pa.table(
    {
        "id": pa.array(range(300), pa.int64()),
        "n": pa.array([i % 5 for i in range(300)], pa.int64()),
        "s": [f"text {i % 9}" for i in range(300)],
    }
)


@pytest.mark.parametrize("indexed", [False, True])
def test_adjacent_ranges_are_read_at_once(indexed):
    source = source_of(NUMBERS, write_page_index=indexed)
    reads: list[tuple[int, int]] = []

    def read(start: int, length: int) -> bytes:
        reads.append((start, length))
        return source.read(start, length)

    watched = open_parquet("source", source.size, read)
    reads.clear()
    changes = [GroupChange(100), GroupChange(100, frozenset({"n"})), GroupChange(100)]
    data, rewrite = spliced_of(watched, NUMBERS.schema, changes, NUMBERS)
    # A whole row group, the columns beside `n`, a whole row group; all page indexes.
    assert len(reads) == 4 + indexed
    if not indexed:
        assert sum(length for _, length in reads) == rewrite.bytes_to_copy(changes)
    assert problems("new", data) == []


def test_untouched_chunks_are_the_same_bytes_and_touched_ones_keep_codec_and_encoding():
    source = source_of(
        NUMBERS,
        compression={"id": "snappy", "n": "gzip", "s": "none"},
        use_dictionary=["s"],
        column_encoding={"n": "DELTA_BINARY_PACKED"},
        data_page_version="2.0",
    )
    rows = NUMBERS.set_column(1, "n", pa.array([7] * 300, pa.int64()))
    changes = [GroupChange(100), GroupChange(100, frozenset({"n"})), GroupChange(100)]
    data, rewrite = spliced_of(source, NUMBERS.schema, changes, rows)
    old = source.read(0, source.size)
    for group, leaf in ((0, 0), (0, 1), (1, 0), (1, 2), (2, 2)):
        before, after = (chunk_of(pa.py_buffer(d), group, leaf) for d in (old, data.to_pybytes()))
        size = before.total_compressed_size
        assert after.total_compressed_size == size
        starts = [c.dictionary_page_offset or c.data_page_offset for c in (before, after)]
        assert old[starts[0] :][:size] == data.to_pybytes()[starts[1] :][:size]
    touched = chunk_of(data, 1, 1)
    assert (touched.compression, touched.statistics.min) == ("GZIP", 7)
    assert "DELTA_BINARY_PACKED" in touched.encodings
    assert not touched.has_dictionary_page
    assert rewrite.copied_columns(changes) == [{"id", "n", "s"}, {"id", "s"}, {"id", "n", "s"}]


def test_page_indexes_move_with_their_chunks():
    """The check compares every location in an index with the pages that are there."""
    source = source_of(NUMBERS, write_page_index=True, data_page_size=100)
    changes = [GroupChange(0), GroupChange(100, frozenset({"id"})), GroupChange(100)]
    data, _ = spliced_of(source, NUMBERS.schema, changes, NUMBERS.slice(100))
    assert problems("new", data) == []
    footer = pq.read_metadata(pa.BufferReader(data))
    chunks = [footer.row_group(g).column(c) for g in range(2) for c in range(3)]
    assert all(chunk.has_offset_index and chunk.has_column_index for chunk in chunks)


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("column", ["added", "promoted"])
def test_columns_that_are_encoded_again_have_page_indexes_if_the_others_do(column, indexed):
    """arrow-rs does not open a file that has offset indexes of some chunks only."""
    narrow = NUMBERS.set_column(1, "n", NUMBERS["n"].cast(pa.int32()))
    old = narrow if column == "promoted" else NUMBERS.drop_columns("n")
    source = source_of(old, write_page_index=indexed)
    names = {name: name for name in old.column_names}
    changes = [GroupChange(100), GroupChange(100, frozenset({"s"})), GroupChange(100)]
    data, rewrite = spliced_of(source, NUMBERS.schema, changes, NUMBERS, names)
    assert problems("new", data) == []
    assert pq.read_table(pa.BufferReader(data)).equals(NUMBERS)
    assert rewrite.copied_columns(changes)[0] == {"id", "s"}
    footer = pq.read_metadata(pa.BufferReader(data))
    chunks = [footer.row_group(g).column(c) for g in range(3) for c in range(3)]
    assert {chunk.has_offset_index for chunk in chunks} == {indexed}


def test_bloom_filters_move_with_their_chunks(tmp_path):
    """DuckDB writes them, and skips row groups by them."""
    path, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    rows = pa.table({"k": [f"key {i % 200 * 3}" for i in range(8192)], "n": [1] * 8192})
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        connection.execute(f"COPY (FROM rows) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)")
        file = open_file(path)
        schema = pq.read_schema(path)
        changes = [GroupChange(2048, frozenset({"n"}))] * 3 + [GroupChange(0)]
        rewrite = PartialRewrite.plan(file, schema, {"k": "k", "n": "n"}, OPTIONS)
        with new.open("wb") as sink:
            rewrite.run(sink, changes, lambda group, names: rows.slice(0, 2048).select(names))
        filters = connection.sql(f"FROM parquet_metadata('{new}') WHERE bloom_filter_offset > 0")
        assert len(filters.fetchall()) == 3
        for key, times in (("key 3", 31), ("key 4", 0), ("key 597", 30)):
            (count,) = connection.sql(f"SELECT count(*) FROM '{new}' WHERE k = '{key}'").fetchone()
            assert count == times
            probes = connection.sql(f"FROM parquet_bloom_probe('{new}', 'k', '{key}')").fetchall()
            assert all(excluded for *_, excluded in probes) == (times == 0)
    assert wrong_with(new) == []


def test_rows_stay_sorted_by_columns_that_keep_their_values():
    order = [pq.SortingColumn(0), pq.SortingColumn(1), pq.SortingColumn(2)]
    source = source_of(NUMBERS, sorting_columns=order)
    schema = NUMBERS.schema
    moved = pa.schema([schema.field("s"), schema.field("id"), schema.field("n")])
    changes = [GroupChange(100), GroupChange(100, frozenset({"n"})), GroupChange(50)]
    data, _ = spliced_of(source, moved, changes, NUMBERS)
    footer = pq.read_metadata(pa.BufferReader(data))
    sorted_by = [
        [column.column_index for column in footer.row_group(group).sorting_columns]
        for group in range(3)
    ]
    assert sorted_by == [[1, 2, 0], [1], [1, 2, 0]]


def test_key_values_and_writer_are_kept_and_copies_of_the_schema_only_while_right():
    facts = {
        b"owner": b"me",
        **dict.fromkeys((b"pandas", b"iceberg.schema", b"avro.schema"), b"{}"),
        **dict.fromkeys((b"parquet.avro.schema", b"geo"), b"{}"),
    }
    source = source_of(NUMBERS.replace_schema_metadata(facts))
    changes = [GroupChange(100, frozenset({"n"}))] * 3
    same, _ = spliced_of(source, NUMBERS.schema, changes, NUMBERS)
    before = pq.read_metadata(pa.BufferReader(source.read(0, source.size)))
    after = pq.read_metadata(pa.BufferReader(same))
    assert after.metadata == before.metadata
    assert after.created_by == before.created_by
    renamed = NUMBERS.rename_columns(["id", "n", "t"])
    names = {"id": "id", "n": "n", "t": "s"}
    other, _ = spliced_of(source, renamed.schema, changes, renamed, names)
    assert set(pq.read_metadata(pa.BufferReader(other)).metadata) == {b"owner", b"ARROW:schema"}
    assert pq.read_table(pa.BufferReader(other)).equals(renamed)


@pytest.mark.parametrize(
    ("updated", "kept"), [("id", True), ("shape", False), ("point", False), (None, True)]
)
def test_geo_metadata_is_kept_until_geometries_may_have_changed(updated, kept):
    rows = pa.table(
        {"id": range(200), "shape": [b"POINT"] * 200, "point": [{"x": 1.0, "y": 2.0}] * 200}
    )
    source = source_of(rows.replace_schema_metadata({b"geo": b"{}"}))
    names = frozenset({updated} if updated else ())
    data, _ = spliced_of(source, rows.schema, [GroupChange(100, names), GroupChange(99)], rows)
    assert (b"geo" in pq.read_metadata(pa.BufferReader(data)).metadata) == kept


@pytest.mark.parametrize(
    ("before", "after", "copied"),
    [
        (pa.int32(), pa.int32(), True),
        (pa.int32(), pa.int64(), False),
        (pa.float32(), pa.float64(), False),
        (pa.decimal128(9, 2), pa.decimal128(12, 2), False),
        (pa.timestamp("ms"), pa.timestamp("us"), False),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
        (pa.large_string(), pa.string(), True),
        (pa.binary(), pa.string(), False),
        (pa.list_(pa.int32()), pa.list_(pa.int32()), True),
        (pa.list_(pa.int32()), pa.list_(pa.field("element", pa.int32(), nullable=False)), False),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32())]), False),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int32())]), True),
    ],
)
def test_chunks_stay_only_where_the_column_is_the_same(before, after, copied):
    schema = pa.schema([pa.field("c", before)])
    file = source_of(schema.empty_table())
    rewrite = PartialRewrite.plan(file, pa.schema([pa.field("c", after)]), {"c": "c"}, OPTIONS)
    assert (rewrite.columns[0].source is not None) == copied


def test_a_required_column_is_another_one_than_an_optional_one():
    file = source_of(pa.schema([pa.field("c", pa.int32(), nullable=False)]).empty_table())
    rewrite = PartialRewrite.plan(file, pa.schema([pa.field("c", pa.int32())]), {"c": "c"}, OPTIONS)
    assert rewrite.columns[0].source is None


def test_a_column_whose_bounds_have_another_order_is_encoded_again():
    file = source_of(NUMBERS)
    orders = list(items(file.footer, File.ORDERS))
    orders[1] = {2: (ThriftType.STRUCT, {})}
    footer = changed(
        file.footer, {File.ORDERS: (ThriftType.LIST, Items(ThriftType.STRUCT, orders))}
    )
    names = {name: name for name in NUMBERS.schema.names}
    rewrite = PartialRewrite.plan(replace(file, footer=footer), NUMBERS.schema, names, OPTIONS)
    assert [planned.source is None for planned in rewrite.columns] == [False, True, False]


@pytest.mark.parametrize(
    ("writer", "wrong"),
    [
        ("parquet-mr", True),
        ("parquet-mr version 0.9.0", True),
        ("parquet-mr version 1.0.0-t2", True),
        ("parquet-mr version 1.2.8 (build x)", True),
        ("parquet-mr version 1.2.8-SNAPSHOT", True),
        ("parquet-mr version 1.2.9", False),
        ("parquet-mr version 1.2.10", False),
        ("parquet-mr version 1.10.1 (build x)", False),
        ("parquet-mr version 1.13.1", False),
        ("parquet-mr compatible", False),
        ("parquet-cpp version 1.2.8", False),
    ],
)
def test_old_files_with_wrong_chunk_lengths_are_not_copied(writer, wrong):
    file = source_of(NUMBERS)
    assert cannot_copy(file) is None
    old = changed(file.footer, {File.CREATED_BY: (ThriftType.BINARY, writer.encode())})
    assert ("wrong lengths" in str(cannot_copy(replace(file, footer=old)))) == wrong


@pytest.mark.parametrize("damage", ["its bytes", "its offset", "its locations"])
def test_a_file_with_a_damaged_page_index_has_none_afterwards(damage):
    file = source_of(NUMBERS, write_page_index=True)
    data = bytearray(file.read(0, file.size))
    chunks = items(file.groups[0], Group.COLUMNS)
    start = value(chunks[0], Chunk.OFFSET_INDEX)
    if damage == "its bytes":
        data[start : start + 4] = b"\xff\xff\xff\xff"
    else:
        at = value(chunks[1], Chunk.OFFSET_INDEX) if damage == "its locations" else file.size
        moved = changed(chunks[0], {Chunk.OFFSET_INDEX: (ThriftType.I64, at)})
        data[file.footer_at :] = footer_bytes(with_chunks(file, 0, [moved, *chunks[1:]]))
    damaged = open_buffer("x", pa.py_buffer(bytes(data)))
    new, _ = spliced_of(damaged, NUMBERS.schema, [GroupChange(100)] * 3, NUMBERS)
    assert problems("new", new) == []
    footer = pq.read_metadata(pa.BufferReader(new))
    chunks = [footer.row_group(group).column(leaf) for group in range(3) for leaf in range(3)]
    assert not any(chunk.has_offset_index or chunk.has_column_index for chunk in chunks)


@pytest.mark.parametrize(
    "place",
    [(4, -5), (4, 10**6), (-3, 10), (0, 10), (b"4", 5), (4, b"5")],
    ids=["length below 0", "too long", "before the file", "in the magic", "text", "length as text"],
)
def test_a_bloom_filter_without_a_valid_offset_is_left_out(place):
    file = source_of(NUMBERS)
    first, *others = items(file.groups[0], Group.COLUMNS)
    start, length = (
        (ThriftType.BINARY if isinstance(n, bytes) else ThriftType.I64, n) for n in place
    )
    meta = changed(value(first, Chunk.META), {Meta.BLOOM: start, Meta.BLOOM_LENGTH: length})
    odd_chunk = changed(first, {Chunk.META: (ThriftType.STRUCT, meta)})
    odd = replace(file, footer=with_chunks(file, 0, [odd_chunk, *others]))
    new, _ = spliced_of(odd, NUMBERS.schema, [GroupChange(100)] * 3, NUMBERS)
    assert problems("new", new) == []
    assert pq.read_table(pa.BufferReader(new)).equals(NUMBERS)
    written = items(open_buffer("new", new).groups[0], Group.COLUMNS)[0]
    assert Meta.BLOOM not in value(written, Chunk.META)


@pytest.mark.parametrize(
    "place",
    [
        {Chunk.OFFSET_INDEX: (ThriftType.BINARY, b"here")},
        {Chunk.OFFSET_INDEX_LENGTH: (ThriftType.I32, -5)},
        {Chunk.COLUMN_INDEX_LENGTH: (ThriftType.I32, -5)},
    ],
)
def test_a_page_index_without_a_valid_offset_is_left_out(place):
    file = source_of(NUMBERS, write_page_index=True)
    first, *others = items(file.groups[0], Group.COLUMNS)
    odd_chunk = changed(first, place)
    odd = replace(file, footer=with_chunks(file, 0, [odd_chunk, *others]))
    new, _ = spliced_of(odd, NUMBERS.schema, [GroupChange(100)] * 3, NUMBERS)
    assert problems("new", new) == []
    assert pq.read_table(pa.BufferReader(new)).equals(NUMBERS)


def with_chunks(file: ParquetBytes, group: int, chunks: list[Struct]) -> Struct:
    """The footer with other chunks in a row group."""
    groups = list(file.groups)
    columns = (ThriftType.LIST, Items(ThriftType.STRUCT, chunks))
    groups[group] = changed(groups[group], {Group.COLUMNS: columns})
    return changed(file.footer, {File.GROUPS: (ThriftType.LIST, Items(ThriftType.STRUCT, groups))})


def test_a_first_row_group_without_rows_does_not_decide_encodings():
    file = source_of(NUMBERS, compression="gzip")
    bare: Struct = {Chunk.FILE_OFFSET: (ThriftType.I64, 0)}
    empty = changed(
        file.groups[0],
        {
            Group.ROWS: (ThriftType.I64, 0),
            Group.BYTES: (ThriftType.I64, 0),
            Group.COLUMNS: (ThriftType.LIST, Items(ThriftType.STRUCT, [bare] * 3)),
        },
    )
    groups = (ThriftType.LIST, Items(ThriftType.STRUCT, [empty, *file.groups]))
    odd = replace(file, footer=changed(file.footer, {File.GROUPS: groups}))
    changes = [GroupChange(0), *[GroupChange(100, frozenset({"n"}))] * 3]
    data, rewrite = spliced_of(odd, NUMBERS.schema, changes, NUMBERS)
    assert rewrite.bytes_to_copy(changes) > 0
    assert chunk_of(data, 0, 1).compression == "GZIP"
    assert pq.read_table(pa.BufferReader(data)).equals(NUMBERS)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "uncompressed"])
def test_files_that_spark_wrote(spark, tmp_path, codec, version):
    """Page indexes, Spark's own copy of the schema, several row groups; read again by Spark."""
    frame = spark.range(6000).selectExpr(
        "id",
        "cast(id % 10 AS INT) AS n",
        "concat('k', id % 40) AS s",
        "if(id % 7 = 0, NULL, id / 3) AS x",
        "cast(id AS DECIMAL(12, 2)) AS d",
        "timestamp_micros(id) AS t",
        "array(id, NULL) AS many",
        "named_struct('a', id, 'b', map('k', id)) AS inner",
    )
    options = {
        "compression": codec,
        "parquet.writer.version": version,
        "parquet.block.row.count.limit": "2000",
        "parquet.page.row.count.limit": "300",
        "parquet.bloom.filter.enabled#s": "true",
    }
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    frame.coalesce(1).write.options(**options).parquet(str(tmp_path / "written"))
    spark.conf.unset("spark.sql.parquet.outputTimestampType")
    (source,) = (tmp_path / "written").glob("*.parquet")
    rows = pq.read_table(source)
    file = open_file(source)
    counts = [group_rows(group) for group in file.groups]
    assert len(counts) > 2
    changes = [GroupChange(count, frozenset({"n"})) for count in counts]
    changes[-1] = GroupChange(counts[-1] - 1)
    new = rows.set_column(1, rows.schema.field("n"), pa.array([77] * 6000, pa.int32()))
    starts = [0, *accumulate(counts)]
    target = tmp_path / "new.parquet"
    rewrite = PartialRewrite.plan(file, rows.schema, {n: n for n in rows.schema.names}, OPTIONS)
    kept = {planned.name for planned in rewrite.columns if planned.source}
    assert kept >= {"id", "n", "s", "x", "t"}
    with target.open("wb") as sink:
        rewrite.run(
            sink,
            changes,
            lambda group, names: new.slice(starts[group], changes[group].rows).select(names),
        )
    assert wrong_with(target) == []
    expected = new.slice(0, 5999)
    plain = tmp_path / "plain.parquet"
    pq.write_table(expected, plain)
    for reader in READERS:
        assert reader(target) == reader(plain), reader.__name__
    for condition in ("id BETWEEN 2100 AND 2110", "s = 'k7'", "n = 77 AND x > 1500", "s = 'none'"):
        results = [
            sorted(map(str, spark.read.parquet(str(path)).where(condition).collect()))
            for path in (target, plain)
        ]
        assert results[0] == results[1], condition


def test_byte_counts_of_strings_are_left_out_where_pyarrow_counts_wrongly():
    """With DELTA_BYTE_ARRAY it counts only the bytes that differ from the value before."""
    rows = pa.table({"s": [f"a long text {i // 7}" for i in range(300)], "n": range(300)})
    options = {"column_encoding": {"s": "DELTA_BYTE_ARRAY"}, "use_dictionary": False}
    source = source_of(rows, write_page_index=True, **options)
    updated = GroupChange(100, frozenset({"s"}))
    data, _ = spliced_of(source, rows.schema, [GroupChange(100), updated, updated], rows)
    assert problems("new", data) == []
    assert problems("source", pa.py_buffer(source.take(0, source.size))) != []
    assert {*chunk_of(data, 0, 0).encodings} == {*chunk_of(data, 1, 0).encodings}
