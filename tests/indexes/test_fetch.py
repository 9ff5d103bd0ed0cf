"""Rows that tasks read by position, or by keys that they look up in sidecars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from icefloe.tasks.fetch import FetchPlan, FileToFetch, KeysToMatch, fetch_rows
from icefloe.tasks.messages import pack
from icefloe.tasks.sidecars import IndexedFile
from support.sidecar_files import SidecarFiles, schema_of

KEYS = [5, 3, None, 5, 1, 3, 9, None]
LONG = ("long",)
NAMES = ["a", "b", "c", None, "e", "f", "g", "h"]


@pytest.fixture
def made(tmp_path: Path) -> SidecarFiles:
    return SidecarFiles(tmp_path, ("long",))


def output_of(schema: pa.Schema) -> pa.Schema:
    """The columns as Spark takes them, then file and position."""
    columns = [pa.field(f"w{n}", field.type) for n, field in enumerate(schema)]
    return pa.schema([*columns, pa.field("file", pa.string()), pa.field("pos", pa.int64())])


def to_fetch(
    file: IndexedFile, *, at: Sequence[int] | None = None, deleted: Sequence[int] = ()
) -> FileToFetch:
    positions = None if at is None else pack(np.array(at, np.int64))
    gone = pack(np.array(deleted, np.int64)) if deleted else None
    return FileToFetch(
        LocalFileSystem(), file.path, f"uri of {Path(file.path).name}", file.rows, gone, positions
    )


def fetched(plan: FetchPlan) -> list[tuple[Any, ...]]:
    numbers = pa.array(range(len(plan.files)), pa.int64())
    batches = list(fetch_rows(plan)(iter([pa.RecordBatch.from_arrays([numbers], ["id"])])))
    assert all(batch.schema == plan.output for batch in batches)
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert rows == sorted(rows, key=lambda row: row[-2:])
    return rows


def plan_of(
    file: IndexedFile, schema: pa.Schema, *files: FileToFetch, keys: KeysToMatch | None = None
) -> FetchPlan:
    return FetchPlan(files or (to_fetch(file),), schema, output_of(schema), keys)


def stored_schema(file: IndexedFile, *names: str) -> pa.Schema:
    schema = pq.read_schema(file.path)
    return pa.schema([schema.field(name) for name in names])


@pytest.fixture
def file(made: SidecarFiles) -> IndexedFile:
    return made.data_file("a.parquet", pa.array(KEYS), pa.array(NAMES))


@pytest.mark.parametrize(
    ("at", "deleted", "expected"),
    [
        ([0], (), [0]),
        ([0, 3, 7], (), [0, 3, 7]),
        ([0, 3, 7], (3,), [0, 7]),
        ([3], (3,), []),
        ([], (), []),
        (range(8), (0, 7), range(1, 7)),
    ],
    ids=str,
)
def test_rows_at_positions_without_deleted_ones(file, at, deleted, expected):
    schema = stored_schema(file, "c2", "c1")
    plan = plan_of(file, schema, to_fetch(file, at=list(at), deleted=list(deleted)))
    assert fetched(plan) == [(NAMES[n], KEYS[n], "uri of a.parquet", n) for n in expected]


def test_columns_are_found_by_field_id_and_cast_and_missing_ones_are_null(file):
    def column(name: str, kind: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, kind, True, {"PARQUET:field_id": str(number)})

    schema = pa.schema(
        [
            column("renamed", pa.float64(), 1),
            column("new", pa.date32(), 9),
            column("c1", pa.string(), 2),
        ]
    )
    plan = plan_of(file, schema, to_fetch(file, at=[1, 2]))
    expected = [(3.0, None, "b", 1), (None, None, "c", 2)]
    assert [(*row[:3], row[-1]) for row in fetched(plan)] == expected


def test_several_row_groups_and_batches(made):
    """Batches of a row group have at most 65,536 rows."""
    rows = 150_000
    numbers = pa.array(range(rows))
    path = made.folder / "large.parquet"
    pq.write_table(pa.table([numbers], schema=schema_of([numbers])), path, row_group_size=70_000)
    file = IndexedFile(LocalFileSystem(), str(path), f"file://{path}", path.stat().st_size, rows)
    at = [0, 1, 65_535, 65_536, 69_999, 70_000, 135_536, 139_999, 140_000, 149_999]
    plan = plan_of(file, stored_schema(file, "c1"), to_fetch(file, at=at, deleted=[65_536]))
    assert [row[0] for row in fetched(plan)] == [n for n in at if n != 65_536]


def test_only_row_groups_with_rows_are_decoded(made):
    """The pages of the other row groups are overwritten with zeros."""
    numbers = pa.array(range(30))
    path = made.folder / "groups.parquet"
    pq.write_table(
        pa.table([numbers], schema=schema_of([numbers])),
        path,
        row_group_size=10,
        use_dictionary=False,
    )
    footer = pq.read_metadata(path)
    content = bytearray(path.read_bytes())
    for group in (0, 2):
        chunk = footer.row_group(group).column(0)
        start = chunk.data_page_offset
        content[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(content)
    file = IndexedFile(LocalFileSystem(), str(path), f"file://{path}", len(content), 30)
    plan = plan_of(file, stored_schema(file, "c1"), to_fetch(file, at=[10, 19]))
    assert [row[0] for row in fetched(plan)] == [10, 19]


def test_a_file_with_fewer_rows_than_the_table_says_is_an_error(file):
    plan = plan_of(file, stored_schema(file, "c1"), replace(to_fetch(file, at=[0]), rows=9))
    with pytest.raises(Exception, match=r"a\.parquet"):
        fetched(plan)


# -------------------------------------------------------------------------------------------------
# By keys


EXACT_TYPES = [
    ("long", pa.int64(), [5, -3, 2**63 - 1]),
    ("int", pa.int32(), [5, -3, 2**31 - 1]),
    ("double", pa.float64(), [0.5, -1.5, float("inf")]),
    ("float", pa.float32(), [0.5, -1.5, float("-inf")]),
    ("date", pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29)]),
    (
        "timestamp",
        pa.timestamp("us"),
        [datetime(1, 1, 1), datetime(2024, 1, 1), datetime(9999, 1, 1)],
    ),
    ("decimal(9, 2)", pa.decimal128(9, 2), [Decimal("-0.01"), Decimal("1.50"), Decimal("0.00")]),
    ("decimal(18, 2)", pa.decimal128(18, 2), [Decimal("-0.01"), Decimal("1.50"), Decimal("0.00")]),
]
OTHER_TYPES = [
    ("string", pa.string(), ["", "ab", "a longer text"]),
    ("string", pa.string(), ["same prefix a", "same prefix b", "same prefix "]),
    ("binary", pa.binary(), [b"", b"\0", b"abc"]),
    (
        "decimal(38, 2)",
        pa.decimal128(38, 2),
        [Decimal("-0.01"), Decimal(f"{10**30}.00"), Decimal("0.00")],
    ),
]


@pytest.mark.parametrize("state", ["whole", "missing", "damaged"])
@pytest.mark.parametrize(("declared", "kind", "values"), EXACT_TYPES + OTHER_TYPES, ids=str)
def test_rows_with_keys(tmp_path, state, declared, kind, values):
    """Without a sidecar every live row; the join that follows finds the same ones."""
    made = SidecarFiles(tmp_path, (declared,))
    first, second, third = values
    column = pa.array([first, None, second, first, third], kind)
    file = made.data_file("a.parquet", column)
    path = made.build(file)
    if state == "missing":
        path.unlink()
    elif state == "damaged":
        path.write_bytes(path.read_bytes()[:-9])
    keys = KeysToMatch([pa.array([first, third], kind)], (declared,), only_key=True)
    schema = stored_schema(file, "c1")
    source = replace(to_fetch(file, deleted=[3]), sidecar=made.place(file))
    found = fetched_keys(replace(plan_of(file, schema, source), keys=keys))
    everything = [(first, 0), (None, 1), (second, 2), (third, 4)]
    assert repr(found) == repr([(first, 0), (third, 4)] if state == "whole" else everything)


def fetched_keys(plan: FetchPlan) -> list[tuple[Any, int]]:
    numbers = pa.array(range(len(plan.files)), pa.int64())
    batches = fetch_rows(plan)(iter([pa.RecordBatch.from_arrays([numbers], ["id"])]))
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    return sorted(((row[0], row[-1]) for row in rows), key=lambda pair: pair[1])


def test_keys_alone_are_read_from_the_sidecar_where_codes_are_exact(made, file):
    """The data file is not opened: there is none."""
    made.build(file)
    Path(file.path).unlink()
    source = replace(to_fetch(file), sidecar=made.place(file))
    schema = pa.schema([schema_of([pa.array(KEYS)]).field("c1")])
    plan = plan_of(file, schema, source)
    keys = KeysToMatch([pa.array([5, 3, 77])], LONG, only_key=True)
    assert fetched_keys(replace(plan, keys=keys)) == [(5, 0), (3, 1), (5, 3), (3, 5)]
    with pytest.raises(FileNotFoundError):
        fetched_keys(replace(plan, keys=replace(keys, only_key=False)))


def test_no_key_is_in_the_file(made, file):
    made.build(file)
    source = replace(to_fetch(file), sidecar=made.place(file))
    plan = plan_of(file, stored_schema(file, "c1"), source)
    for values in ([2, 4, 2**62], []):
        keys = KeysToMatch([pa.array(values, pa.int64())], LONG)
        assert fetched_keys(replace(plan, keys=keys)) == []


def test_rows_with_keys_of_two_columns(tmp_path):
    made = SidecarFiles(tmp_path, ("long", "string"))
    file = made.data_file("a.parquet", pa.array([1, 1, None, 2]), pa.array(["a", "b", "a", "a"]))
    made.build(file)
    source = replace(to_fetch(file), sidecar=made.place(file))
    keys = KeysToMatch([pa.array([1, 2, 7]), pa.array(["b", "a", "a"])], ("int", "string"))
    plan = replace(plan_of(file, stored_schema(file, "c1", "c2"), source), keys=keys)
    assert fetched_keys(plan) == [(1, 1), (2, 3)]


def test_a_sidecar_with_codes_of_another_type_is_not_used(made, file):
    """Before the column was a long it was something else, which no engine should allow."""
    made.build(file)
    source = replace(to_fetch(file), sidecar=made.place(file))
    plan = plan_of(file, stored_schema(file, "c1"), source)
    keys = KeysToMatch([pa.array([3.0])], ("double",))
    assert len(fetched_keys(replace(plan, keys=keys))) == file.rows
