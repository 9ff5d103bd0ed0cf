"""Footers are read and written byte for byte; damaged files are refused by name."""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icefloe.parquet.fields import Chunk, File, Group, Meta, Sizes
from icefloe.parquet.footer import (
    DamagedFileError,
    EncryptedFileError,
    footer_bytes,
    open_buffer,
    open_parquet,
)
from icefloe.parquet.thrift import (
    Items,
    MalformedError,
    Pairs,
    ThriftType,
    changed,
    items,
    read_struct,
    value,
    write_struct,
)

ROWS = pa.table(
    {
        "id": pa.array(range(5000), pa.int64()),
        "name": [f"n{i % 50}" for i in range(5000)],
        "many": [[i, None] if i % 3 else None for i in range(5000)],
    }
)


def written(**options: object) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(ROWS, sink, row_group_size=2000, **options)
    return sink.getvalue()


def by_duckdb(folder: Path) -> pa.Buffer:
    path = folder / "duck.parquet"
    with duckdb.connect() as connection:
        connection.register("rows", ROWS)
        connection.execute(f"COPY (FROM rows) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)")
    return pa.py_buffer(path.read_bytes())


@pytest.mark.parametrize("writer", ["pyarrow", "pyarrow, pages indexed", "duckdb"])
def test_a_footer_is_written_as_it_was_read(writer, tmp_path):
    data = by_duckdb(tmp_path) if writer == "duckdb" else written(write_page_index="," in writer)
    file = open_buffer("f", data)
    assert footer_bytes(file.footer) == data.to_pybytes()[file.footer_at :]


def test_every_kind_of_value_is_written_as_it_was_read():
    deep = {1: (ThriftType.I64, -(2**63)), 40: (ThriftType.STRUCT, {1: (ThriftType.TRUE, False)})}
    struct = {
        1: (ThriftType.TRUE, True),
        2: (ThriftType.BYTE, -7),
        3: (ThriftType.I16, -300),
        4: (ThriftType.I32, 2**31 - 1),
        5: (ThriftType.DOUBLE, 2.5),
        6: (ThriftType.BINARY, b"x" * 300),
        200: (ThriftType.LIST, Items(ThriftType.I64, list(range(20)))),
        201: (ThriftType.SET, Items(ThriftType.TRUE, [True, False])),
        202: (ThriftType.MAP, Pairs(ThriftType.BINARY, ThriftType.STRUCT, [(b"k", deep)])),
        203: (ThriftType.MAP, Pairs(ThriftType.BYTE, ThriftType.BYTE, [])),
    }
    encoded = write_struct(struct)
    assert read_struct(b"__" + encoded + b"rest", 2) == (struct, len(encoded) + 2)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "truncated"),
        (b"\x15", "truncated"),
        (b"\x1d\x00", "no type 13"),
        (b"\x18\x7f", "beyond the end"),
        (b"\x19\xf5\xff\xff\x03", "more elements than there are bytes"),
        (b"\x16" + b"\xff" * 11, "more than 64 bits"),
        (b"\x1c" * 100 + b"\x00" * 100, "too deeply"),
    ],
)
def test_malformed_structures_have_distinct_errors(data, why):
    with pytest.raises(MalformedError, match=why):
        read_struct(data)


def test_an_empty_list_may_have_no_type():
    struct, end = read_struct(b"\x19\x00\x00")
    assert (struct[1][1].values, end) == ([], 3)
    with pytest.raises(MalformedError, match="no type 0"):
        read_struct(b"\x19\x10\x00")


@pytest.mark.parametrize("length", [0, 3, 11, 12, 500, -1, -4, -9, -200])
def test_a_truncated_file_is_refused_with_its_path(length):
    data = written().to_pybytes()[:length]
    with pytest.raises(DamagedFileError, match=r"bucket/a\.parquet is damaged: "):
        open_buffer("bucket/a.parquet", pa.py_buffer(data))


def test_a_storage_that_returns_fewer_bytes_is_detected():
    data = written().to_pybytes()
    with pytest.raises(DamagedFileError, match="it ends within the bytes"):
        open_parquet("x", len(data) + 10, lambda start, length: data[start : start + length])


def test_long_footers_take_a_second_read():
    wide = pa.table({f"column number {i}": [1] for i in range(1500)})
    sink = pa.BufferOutputStream()
    pq.write_table(wide, sink)
    data = sink.getvalue().to_pybytes()
    reads = []

    def read(start: int, length: int) -> bytes:
        reads.append(length)
        return data[start : start + length]

    assert len(open_parquet("wide", len(data), read).groups) == 1
    assert len(reads) == 2


def test_random_damage_to_a_footer_raises_only_errors_for_damaged_files():
    data = written().to_pybytes()
    begin = open_buffer("x", pa.py_buffer(data)).footer_at
    chance = random.Random(3)
    refused = 0
    for _ in range(1500):
        damaged = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(begin, len(data) - 8)] = chance.randrange(256)
        try:
            open_buffer("x", pa.py_buffer(bytes(damaged)))
        except (DamagedFileError, EncryptedFileError) as error:
            refused += 1
            assert "x is" in str(error)
    assert refused > 300


def test_encrypted_files_are_refused():
    data = written()
    file = open_buffer("x", data)
    whole = data.to_pybytes()
    with pytest.raises(EncryptedFileError, match=r"x is an encrypted Parquet file"):
        open_buffer("x", pa.py_buffer(whole[:-4] + b"PARE"))
    signed = changed(file.footer, {File.ENCRYPTION: (ThriftType.STRUCT, {})})
    with pytest.raises(EncryptedFileError):
        open_buffer("x", pa.py_buffer(whole[: file.footer_at] + footer_bytes(signed)))


def test_chunks_in_other_files_or_outside_the_data_are_refused():
    data = written()
    file = open_buffer("x", data)
    for field, wrong, why in (
        (
            Chunk.FILE_PATH,
            (ThriftType.BINARY, b"other.parquet"),
            "column 0 of row group 0 is in an",
        ),
        (Chunk.META, (ThriftType.STRUCT, {}), "lacks the fields"),
    ):
        group = file.groups[0]
        chunks = group[Group.COLUMNS][1].values
        first = changed(chunks[0], {field: wrong})
        columns = (ThriftType.LIST, Items(ThriftType.STRUCT, [first, *chunks[1:]]))
        groups = [changed(group, {Group.COLUMNS: columns}), *file.groups[1:]]
        footer = changed(
            file.footer, {File.GROUPS: (ThriftType.LIST, Items(ThriftType.STRUCT, groups))}
        )
        whole = data.to_pybytes()[: file.footer_at] + footer_bytes(footer)
        with pytest.raises(DamagedFileError, match=why):
            open_buffer("x", pa.py_buffer(whole))


@pytest.mark.parametrize(
    "wrong",
    [
        {Meta.TYPE: (ThriftType.I32, 5)},
        {
            Meta.SIZES: (
                ThriftType.STRUCT,
                {Sizes.DEFINITION: (ThriftType.LIST, Items(ThriftType.I64, [1, 2, 3]))},
            )
        },
        {
            Meta.SIZES: (
                ThriftType.STRUCT,
                {Sizes.REPETITION: (ThriftType.LIST, Items(ThriftType.I64, [1, 2]))},
            )
        },
    ],
)
def test_chunks_of_another_type_than_the_schema_says_are_refused(wrong):
    """PyArrow crashes the process that reads their statistics."""
    data = written()
    file = open_buffer("f", data)
    first, *others = items(file.groups[0], Group.COLUMNS)
    first = changed(
        first, {Chunk.META: (ThriftType.STRUCT, changed(value(first, Chunk.META), wrong))}
    )
    chunks = (ThriftType.LIST, Items(ThriftType.STRUCT, [first, *others]))
    groups = [changed(file.groups[0], {Group.COLUMNS: chunks}), *file.groups[1:]]
    footer = changed(
        file.footer, {File.GROUPS: (ThriftType.LIST, Items(ThriftType.STRUCT, groups))}
    )
    with pytest.raises(
        DamagedFileError, match="f is damaged: column 0 of row group 0 does not have the type"
    ):
        open_buffer("f", pa.py_buffer(data.to_pybytes()[: file.footer_at] + footer_bytes(footer)))
