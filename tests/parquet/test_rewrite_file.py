"""A partial rewrite of a data file gives the rows and metrics that encoding all of it gives."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)
from pyspark import cloudpickle

from icefloe.parquet.fields import Chunk, File, Group, Meta
from icefloe.parquet.footer import (
    DamagedFileError,
    EncryptedFileError,
    ParquetBytes,
    footer_bytes,
    group_rows,
    open_buffer,
)
from icefloe.parquet.splice import Splicer
from icefloe.parquet.thrift import Items, Struct, ThriftType, changed, items, value
from icefloe.tasks import rewrite
from icefloe.tasks.arrow import column_metrics
from icefloe.tasks.messages import (
    DeclinedFile,
    NullInRequiredError,
    RewrittenFile,
    WrittenFile,
    from_bytes,
    pack,
)
from icefloe.tasks.rewrite import (
    EditedFile,
    FileToRewrite,
    RewritePlan,
    rewrite_file,
    rewrite_files,
)
from icefloe.tasks.write import DataFileWriter, FileLayout
from icefloe.writing.manifest_entries import (
    EntryPlacement,
    InheritedMetrics,
    build_data_file,
    inherited_metrics,
    leaves,
)
from support.parquet_check.check import problems

LOCAL = pafs.LocalFileSystem()
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "n", IntegerType()),
    NestedField(3, "x", DoubleType()),
    NestedField(4, "s", StringType()),
    NestedField(
        5,
        "inner",
        StructType(NestedField(6, "y", FloatType()), NestedField(7, "t", StringType())),
    ),
    NestedField(8, "many", ListType(9, DoubleType())),
)
FLOATS = {3, 6, 9}
LARGER = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "number", LongType()),  # renamed and promoted
    NestedField(3, "x", DoubleType()),
    NestedField(10, "s", StringType()),  # another column of a name used before
    *SCHEMA.fields[4:],
)


def some_rows(count: int, seed: int) -> list[dict[str, Any]]:
    chance = np.random.default_rng(seed)

    def maybe(value: Any, share: float = 0.2) -> Any:
        return None if chance.random() < share else value

    def number() -> float:
        return float(chance.choice([float("nan"), -0.0, 1.5, 2.5, float(chance.integers(1000))]))

    return [
        {
            "id": i,
            "n": maybe(int(chance.integers(100))),
            "x": maybe(number()),
            "s": maybe(f"text {chance.integers(30)}"),
            "inner": maybe({"y": maybe(number()), "t": "t"}),
            "many": maybe([number() for _ in range(int(chance.integers(3)))]),
        }
        for i in range(count)
    ]


def layout_of(folder: Path, schema: Schema, group_rows: int = 20) -> FileLayout:
    return FileLayout(
        schema=schema_to_pyarrow(schema),
        filesystem=LOCAL,
        folder=str(folder),
        location=f"file://{folder}",
        statement_id="statement",
        target_file_bytes=10**9,
        row_group_bytes=10**8,
        row_group_rows=group_rows,
        parquet={
            "compression": "zstd",
            "store_decimal_as_integer": True,
            "coerce_timestamps": "us",
        },
    )


def metadata_of(schema: Schema) -> TableMetadata:
    return new_table_metadata(
        schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:///nowhere", {}
    )


def entry(
    written: WrittenFile, schema: Schema, inherited: InheritedMetrics | None = None
) -> DataFile:
    placement = EntryPlacement(Record(), spec_id=0, sort_order_id=None)
    return build_data_file(written, leaves(schema), metadata_of(schema), placement, inherited)


def first_file(folder: Path, rows: list[dict[str, Any]]) -> DataFile:
    writer = DataFileWriter(layout_of(folder, SCHEMA))
    writer.write(pa.Table.from_pylist(rows, schema=writer.layout.schema))
    writer.close()
    (written,) = writer.files
    return entry(written, SCHEMA)


def rewritten(
    folder: Path,
    old: DataFile,
    schema: Schema,
    changes: pa.Table,
    assigned: dict[str, str],
    deleted: list[int],
) -> tuple[DataFile | None, RewrittenFile]:
    path = old.file_path.removeprefix("file://")
    packed = pack(np.array(deleted, dtype=np.int64)) if deleted else None
    plan = RewritePlan(
        layout=layout_of(folder, schema),
        files={"uri": FileToRewrite(LOCAL, path, f"file://{folder}", old.record_count, packed)},
        file_column="file",
        pos_column="pos",
        assigned=assigned,
        delete_column="deletes",
    )
    result = rewrite_file(plan, "uri", changes)
    assert isinstance(result, RewrittenFile)
    if not result.replacements:
        return None, result
    (written,) = result.replacements
    return entry(written, schema, inherited_metrics(written, old, schema, assigned)), result


def read(file: DataFile | None) -> str:
    if file is None:
        return "[]"
    path = file.file_path.removeprefix("file://")
    assert problems(path, pa.py_buffer(Path(path).read_bytes())) == []
    return repr(pq.read_table(path).to_pylist())


@st.composite
def edits(draw: Any) -> tuple[int, int, Schema, pa.Table, dict[str, str], list[int]]:
    """Rows, a seed, a schema, changes, assignments, and rows deleted before."""
    count = draw(st.integers(1, 90))
    seed = draw(st.integers(0, 2**31))
    schema = draw(st.sampled_from([SCHEMA, SCHEMA, LARGER]))
    names = [f.name for f in schema.fields if f.name != "id"]
    assigned = sorted(draw(st.sets(st.sampled_from(names), max_size=3)))
    low = draw(st.integers(0, count - 1))
    span = draw(st.integers(1, count))
    chance = np.random.default_rng(seed)
    touched = sorted({int(i) for i in chance.integers(low, min(count, low + span), span)})
    earlier = draw(st.booleans())
    deleted = [
        int(i) for i in range(count) if earlier and chance.random() < 0.05 and i not in touched
    ]
    new = some_rows(len(touched), seed + 1)
    target = schema_to_pyarrow(schema)
    columns: dict[str, Any] = {"pos": pa.array(touched, pa.int64())}
    share = draw(st.sampled_from([0.0, 0.3, 1.0])) if assigned else 1.0
    columns["deletes"] = pa.array([bool(chance.random() < share) for _ in touched], pa.bool_())
    for name in assigned:
        source = {"number": "n"}.get(name, name)
        columns[f"new {name}"] = pa.array([row[source] for row in new], target.field(name).type)
    return count, seed, schema, pa.table(columns), {n: f"new {n}" for n in assigned}, deleted


FEW = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def compare(case: Any) -> None:
    count, seed, schema, changes, assigned, deleted = case
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        old = first_file(folder, some_rows(count, seed))
        cut, result = rewritten(folder, old, schema, changes, assigned, deleted)
        patch.setattr(EditedFile, "why_not_copied", lambda self: "to compare")
        whole, plain = rewritten(folder, old, schema, changes, assigned, deleted)
        assert counts_of(result) == counts_of(plain)
        assert read(cut) == read(whole)
        if cut is None or whole is None:
            assert cut is whole
            return
        assert cut.record_count == whole.record_count
        assert cut.value_counts == whole.value_counts
        assert cut.null_value_counts == whole.null_value_counts
        for field, nans in whole.nan_value_counts.items():
            assert cut.nan_value_counts.get(field, nans) == nans
        if not deleted and not any(changes["deletes"].to_pylist()):
            assert cut.nan_value_counts == whole.nan_value_counts
        for field, bound in whole.lower_bounds.items():
            if may_have_bounds(cut.lower_bounds, field):
                assert at_most(cut.lower_bounds[field], bound, field)
        for field, bound in whole.upper_bounds.items():
            if may_have_bounds(cut.upper_bounds, field):
                assert at_most(bound, cut.upper_bounds[field], field)
        footer = pq.read_metadata(cut.file_path.removeprefix("file://"))
        assert len(cut.split_offsets) == footer.num_row_groups
        assert cut.file_size_in_bytes == Path(cut.file_path.removeprefix("file://")).stat().st_size


def counts_of(result: RewrittenFile) -> tuple[int, int, int]:
    return result.rows_updated, result.rows_deleted, result.rows_copied


def may_have_bounds(bounds: dict[int, bytes], field: int) -> bool:
    """Bounds are required, except for numbers that are all NaN in one of the row groups."""
    return field in bounds or field not in FLOATS


def at_most(one: bytes, other: bytes, field: int) -> bool:
    kinds = {1: "<i8", 2: f"<i{len(one)}", 3: "<f8", 6: "<f4"}
    if field not in kinds:
        return one <= other
    return bool(np.frombuffer(one, kinds[field])[0] <= np.frombuffer(other, kinds[field])[0])


@FEW
@given(edits())
def test_a_partial_rewrite_gives_what_a_plain_rewrite_gives(case):
    compare(case)


@pytest.mark.slow
@settings(FEW, max_examples=500, derandomize=False)
@given(edits())
def test_a_partial_rewrite_gives_what_a_plain_rewrite_gives_many_times(case):
    compare(case)


def changes_at(positions: list[int], **columns: list[Any]) -> pa.Table:
    deletes = columns.pop("deletes", [False] * len(positions))
    return pa.table({"pos": positions, "deletes": deletes, **columns})


def chunks_of(path: str, leaf: int) -> list[bytes]:
    footer, data = pq.read_metadata(path), Path(path).read_bytes()
    chunks = [footer.row_group(group).column(leaf) for group in range(footer.num_row_groups)]
    starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    return [data[s:][: c.total_compressed_size] for s, c in zip(starts, chunks, strict=True)]


def test_an_update_copies_all_but_the_chunks_of_its_column(tmp_path):
    rows = some_rows(100, 1)
    old = first_file(tmp_path, rows)
    changes = changes_at([45, 47], v=[1000, None])
    new, result = rewritten(tmp_path, old, SCHEMA, changes, {"n": "v"}, [])
    assert (result.not_copied_because, counts_of(result)) == (None, (2, 0, 98))
    (written,) = result.replacements
    assert written.copied.whole == {"id", "x", "s", "inner", "many"}
    before, after = (chunks_of(f.file_path.removeprefix("file://"), 1) for f in (old, new))
    assert [g for g in range(5) if before[g] != after[g]] == [2]
    assert new.nan_value_counts == old.nan_value_counts
    assert new.upper_bounds[2] == (1000).to_bytes(4, "little")
    assert pq.read_table(new.file_path.removeprefix("file://"))["n"].to_pylist() == [
        1000 if i == 45 else None if i == 47 else row["n"] for i, row in enumerate(rows)
    ]


def test_a_delete_encodes_its_row_group_alone_and_counts_nan_exactly(tmp_path):
    rows = some_rows(100, 2)
    old = first_file(tmp_path, rows)
    nan_row = next(
        i for i, row in enumerate(rows) if i > 20 and row["x"] is not None and row["x"] != row["x"]
    )
    changes = changes_at([nan_row], deletes=[True])
    new, result = rewritten(tmp_path, old, SCHEMA, changes, {}, [99])
    assert result.not_copied_because is None
    left = [row["x"] for i, row in enumerate(rows) if i not in (nan_row, 99)]
    assert new.nan_value_counts[3] == sum(x is not None and x != x for x in left)
    ids = pq.read_table(new.file_path.removeprefix("file://"))["id"].to_pylist()
    assert ids == [i for i in range(100) if i not in (nan_row, 99)]


@pytest.mark.parametrize(
    ("positions", "assigned", "why"),
    [
        (range(100), ("n", "x", "s", "inner", "many"), "the changes leave little of the file"),
        (range(0, 100, 3), (), "the changes leave little of the file"),
    ],
)
def test_a_file_of_which_little_can_be_copied_is_encoded_as_a_whole(
    tmp_path, positions, assigned, why
):
    rows = some_rows(100, 3)
    old = first_file(tmp_path, rows)
    target = schema_to_pyarrow(SCHEMA)
    touched = list(positions)
    values = {
        f"new {n}": pa.array([rows[i][n] for i in touched], target.field(n).type) for n in assigned
    }
    changes = pa.table({"pos": touched, "deletes": [not assigned] * len(touched), **values})
    _, result = rewritten(tmp_path, old, SCHEMA, changes, {n: f"new {n}" for n in assigned}, [])
    assert why in result.not_copied_because


def test_a_null_in_a_required_column_stops_it_and_leaves_no_file(tmp_path):
    old = first_file(tmp_path, some_rows(100, 4))
    changes = changes_at([3], v=pa.array([None], pa.int64()))
    with pytest.raises(NullInRequiredError, match="id"):
        rewritten(tmp_path, old, SCHEMA, changes, {"id": "v"}, [])
    assert len(list(tmp_path.glob("*.parquet"))) == 1


@pytest.mark.parametrize("damage", ["truncated", "a page of the column", "no Parquet at all"])
def test_the_error_for_a_damaged_file_has_its_path_and_no_file_is_left(tmp_path, damage):
    old = first_file(tmp_path, some_rows(100, 5))
    path = Path(old.file_path.removeprefix("file://"))
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        data = data[: len(data) // 2]
    elif damage == "no Parquet at all":
        data = bytearray(b"hello, this is text\n" * 10)
    else:
        chunk = pq.read_metadata(path).row_group(0).column(1)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        data[start : start + 30] = bytes(30)
    path.write_bytes(bytes(data))
    changes = changes_at([3], v=pa.array([5], pa.int32()))
    with pytest.raises((OSError, DamagedFileError), match=path.name):
        rewritten(tmp_path, old, SCHEMA, changes, {"n": "v"}, [])
    assert list(tmp_path.glob("*.parquet")) == [path]


PLAIN = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "n", IntegerType()),
    NestedField(3, "s", StringType()),
)
TEXTS = [f"text {i}" for i in range(200)]
UNKNOWN: dict[str, Any] = {
    "record_count": 200,
    "lower_bounds": {},
    "upper_bounds": {},
    "nan_value_counts": {},
}


def plain_file(folder: Path, schema: Schema = PLAIN, **options: Any) -> Path:
    """Four row groups, written by PyArrow alone."""
    target = schema_to_pyarrow(schema)
    columns = [pa.array(TEXTS if f.name == "s" else range(200)) for f in target]
    rows = pa.table([c.cast(f.type) for c, f in zip(columns, target, strict=True)], schema=target)
    path = folder / "plain.parquet"
    pq.write_table(rows, path, row_group_size=50, **options)
    return path


def opened(path: Path) -> ParquetBytes:
    return open_buffer(str(path), pa.py_buffer(path.read_bytes()))


def with_footer(path: Path, footer: Struct) -> None:
    """The same file with another footer."""
    path.write_bytes(path.read_bytes()[: opened(path).footer_at] + footer_bytes(footer))


def updated(
    path: Path, schema: Schema = PLAIN, column: str = "n", **metrics: Any
) -> tuple[DataFile, RewrittenFile]:
    """The file with a new value in row 3."""
    old = DataFile.from_args(
        _table_format_version=3, file_path=f"file://{path}", **{**UNKNOWN, **metrics}
    )
    kind = schema_to_pyarrow(schema).field(column).type
    changes = changes_at([3], v=pa.array([7]).cast(kind))
    new, result = rewritten(path.parent, old, schema, changes, {column: "v"}, [])
    assert new is not None
    return new, result


def test_a_row_group_that_is_large_once_decoded_is_not_held(tmp_path, monkeypatch):
    """Texts in a dictionary take little space in the file."""
    monkeypatch.setattr(rewrite, "_MAX_DECODED_BYTES", 500)
    path = plain_file(tmp_path)
    new, result = updated(path, column="s")
    assert result.not_copied_because == "a row group to encode is too large to be decoded at once"
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    assert pq.read_table(new.file_path.removeprefix("file://"))["s"].to_pylist() == [
        "7" if i == 3 else text for i, text in enumerate(TEXTS)
    ]
    assert updated(path, column="n")[1].not_copied_because is None


def test_a_large_row_group_of_which_little_is_encoded_is_not_too_large(tmp_path, monkeypatch):
    path = plain_file(tmp_path, use_dictionary=False, compression="none")
    group = pq.read_metadata(path).row_group(0)
    sizes = [group.column(i).total_uncompressed_size for i in range(3)]
    assert sizes[1] < sizes[2] < group.total_byte_size
    monkeypatch.setattr(rewrite, "_MAX_GROUP_BYTES", sizes[1])
    assert updated(path, column="n")[1].not_copied_because is None
    assert updated(path, column="s")[1].not_copied_because == rewrite._TOO_LARGE


def test_row_groups_of_columns_that_cannot_stay_are_not_too_large_either(tmp_path, monkeypatch):
    monkeypatch.setattr(rewrite, "_MAX_GROUP_ROWS", 20)
    promoted = Schema(*(NestedField(f.field_id, f.name, LongType()) for f in PLAIN.fields[:2]))
    path = plain_file(tmp_path, Schema(*PLAIN.fields[:2]))
    old = DataFile.from_args(_table_format_version=3, file_path=f"file://{path}", **UNKNOWN)
    first = changes_at(list(range(50)), deletes=[True] * 50)
    _, result = rewritten(tmp_path, old, Schema(*PLAIN.fields[:2]), first, {}, [])
    assert result.not_copied_because is None
    _, result = rewritten(tmp_path, old, promoted, first, {}, [])
    assert "too large to be decoded at once" in result.not_copied_because


@pytest.mark.parametrize("zero", ["-0.0", "0.0"])
def test_bounds_at_zero_include_both_zeros(tmp_path, zero):
    """DuckDB uses the zero it reads as a bound."""
    path = tmp_path / "zeros.parquet"
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT i AS id, '{zero}'::DOUBLE AS x FROM range(4096) t(i)) "
            f"TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)"
        )
    _, metrics = column_metrics(pq.read_metadata(path))
    assert [math.copysign(1, bound) for bound in (metrics.lower, metrics.upper)] == [-1, 1]


def test_bounds_truncated_within_a_character_are_truncated_before_it(tmp_path):
    path = plain_file(tmp_path)
    file = opened(path)

    def cut(chunk: Struct) -> Struct:
        meta = value(chunk, Chunk.META)
        statistics = changed(
            value(meta, 12),
            {5: (ThriftType.BINARY, b"text \xc4"), 6: (ThriftType.BINARY, b"te\xc3")},
        )
        meta = changed(meta, {12: (ThriftType.STRUCT, statistics)})
        return changed(chunk, {Chunk.META: (ThriftType.STRUCT, meta)})

    groups = []
    for group in file.groups:
        *others, text = items(group, Group.COLUMNS)
        columns = (ThriftType.LIST, Items(ThriftType.STRUCT, [*others, cut(text)]))
        groups.append(changed(group, {Group.COLUMNS: columns}))
    with_footer(
        path,
        changed(file.footer, {File.GROUPS: (ThriftType.LIST, Items(ThriftType.STRUCT, groups))}),
    )
    new, result = updated(path)
    assert result.not_copied_because is None
    assert (new.lower_bounds[3], new.upper_bounds[3]) == (b"te", b"text!")


def test_nulls_that_the_footer_does_not_count_are_inherited_from_the_old_entry(tmp_path):
    path = plain_file(tmp_path, write_statistics=["id"])
    new, result = updated(path, null_value_counts={2: 0, 3: 5})
    assert result.not_copied_because is None
    assert new.null_value_counts == {1: 0, 3: 5}


@pytest.mark.parametrize("place", ["footer", "group", "both"])
def test_a_file_with_other_rows_than_the_table_says_is_damaged(tmp_path, place):
    """PyArrow reads as many rows of a group as its footer says: the others would be lost."""
    path = plain_file(tmp_path)
    footer = opened(path).footer
    first, *others = items(footer, File.GROUPS)
    if place != "group":
        footer = changed(footer, {File.ROWS: (ThriftType.I64, 199)})
    if place != "footer":
        groups = [changed(first, {Group.ROWS: (ThriftType.I64, group_rows(first) - 1)}), *others]
        footer = changed(footer, {File.GROUPS: (ThriftType.LIST, Items(ThriftType.STRUCT, groups))})
    with_footer(path, footer)
    with pytest.raises(DamagedFileError, match=r"plain\.parquet is damaged: .* 199"):
        updated(path)
    assert list(tmp_path.glob("*.parquet")) == [path]


def test_a_file_found_damaged_during_the_copy_leaves_no_new_file(tmp_path, monkeypatch):
    """For example one that is truncated while it is copied."""
    path = plain_file(tmp_path)

    def cut(*_: object) -> None:
        raise DamagedFileError(str(path), "it ends within the bytes 4 to 400")

    monkeypatch.setattr(Splicer, "finish", cut)
    with pytest.raises(DamagedFileError, match="it ends within"):
        updated(path)
    assert list(tmp_path.glob("*.parquet")) == [path]


def test_a_page_with_a_wrong_checksum_is_reported(tmp_path):
    path = plain_file(tmp_path, write_page_checksum=True, compression="none", use_dictionary=False)
    column = pq.read_metadata(path).row_group(0).column(1)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(OSError, match=r"plain\.parquet: .*CRC"):
        updated(path)
    assert list(tmp_path.glob("*.parquet")) == [path]


@pytest.mark.parametrize("seed", range(3))
def test_a_byte_that_was_changed_anywhere_loses_no_row(tmp_path, seed):
    """Either an error names the path, or the new file has all rows of the old one."""
    path = plain_file(tmp_path, write_page_index=True, sorting_columns=[pq.SortingColumn(0)])
    data, footer_at = path.read_bytes(), opened(path).footer_at
    chance = random.Random(seed)
    errors, same = 0, 0
    for _ in range(100):
        at = chance.randrange(footer_at if chance.random() < 0.8 else 4, len(data))
        path.write_bytes(data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :])
        try:
            new, result = updated(path)
        except (OSError, DamagedFileError, EncryptedFileError) as error:
            assert "plain.parquet" in str(error)
            assert list(tmp_path.glob("*.parquet")) == [path]
            errors += 1
            continue
        (other,) = (other for other in tmp_path.glob("*.parquet") if other != path)
        assert (new.record_count, result.rows_copied) == (200, 199)
        before = read_if_sound(path)
        if before is not None:
            before["n"][3] = 7
            assert read_if_sound(other) == before
            same += 1
        other.unlink()
    assert errors > 10
    assert same > 10


def read_if_sound(path: Path) -> dict[str, list[Any]] | None:
    """The rows of a file whose columns are unchanged; damage to copied chunks stays."""
    try:
        table = pq.read_table(path)
        ids = [int((f.metadata or {}).get(b"PARQUET:field_id", 0)) for f in table.schema]
        return (
            table.to_pydict()
            if ids == [1, 2, 3] and table.schema.names == ["id", "n", "s"]
            else None
        )
    except (OSError, ValueError):
        return None


def test_a_bloom_filter_outside_the_file_is_left_out(tmp_path):
    """PyArrow ignores Bloom filters, and readers do not need them."""
    path = plain_file(tmp_path)
    file = opened(path)
    first, *others = items(file.groups[2], Group.COLUMNS)
    places = {Meta.BLOOM: (ThriftType.I64, file.size - 5), Meta.BLOOM_LENGTH: (ThriftType.I32, 100)}
    meta = changed(value(first, Chunk.META), places)
    first = changed(first, {Chunk.META: (ThriftType.STRUCT, meta)})
    groups = list(file.groups)
    groups[2] = changed(
        groups[2], {Group.COLUMNS: (ThriftType.LIST, Items(ThriftType.STRUCT, [first, *others]))}
    )
    with_footer(
        path,
        changed(file.footer, {File.GROUPS: (ThriftType.LIST, Items(ThriftType.STRUCT, groups))}),
    )
    new, result = updated(path)
    assert (result.not_copied_because, new.record_count) == (None, 200)
    assert read(new) != "[]"


def why_declined(path: Path, schema: Schema) -> str:
    """Why a task does not rewrite a file of which a row gets a new value."""
    plan = RewritePlan(
        layout=layout_of(path.parent, schema),
        files={"uri": FileToRewrite(LOCAL, str(path), f"file://{path.parent}", 200)},
        file_column="file",
        pos_column="pos",
        assigned={"n": "v"},
    )
    result = rewrite_file(plan, "uri", changes_at([3], v=pa.array([7], pa.int32())))
    assert isinstance(result, DeclinedFile)
    return result.reason


def test_spark_rewrites_files_with_timestamps_of_96_bits(tmp_path):
    """PyArrow reads them as nanoseconds, and wraps those before 1677 and after 2262."""
    dated = Schema(*PLAIN.fields, NestedField(4, "t", TimestampType()))
    path = plain_file(tmp_path, dated, use_deprecated_int96_timestamps=True)
    assert "timestamps of 96 bits" in why_declined(path, dated)
    assert updated(path, PLAIN)[1].not_copied_because is None  # the table has dropped the column


def test_spark_rewrites_files_with_dates_of_the_old_calendar(tmp_path):
    """Only Spark shifts the old dates of files with this entry when it reads them."""
    path = plain_file(tmp_path)
    entry = {
        1: (ThriftType.BINARY, b"org.apache.spark.legacyDateTime"),
        2: (ThriftType.BINARY, b""),
    }
    footer = changed(
        opened(path).footer, {File.KEY_VALUES: (ThriftType.LIST, Items(ThriftType.STRUCT, [entry]))}
    )
    with_footer(path, footer)
    assert "a calendar that only Spark knows" in why_declined(path, PLAIN)


def test_the_error_for_a_value_that_does_not_fit_the_table_has_the_path(tmp_path):
    path = plain_file(tmp_path)
    narrow = Schema(NestedField(1, "id", LongType()), NestedField(3, "s", IntegerType()))
    with pytest.raises(OSError, match=r"plain\.parquet: .*'text \d+'"):
        updated(path, narrow, column="id")
    assert list(tmp_path.glob("*.parquet")) == [path]


def test_an_error_after_the_file_is_written_leaves_no_file(tmp_path, monkeypatch):
    path = plain_file(tmp_path)

    def fail(footer: Any) -> None:
        raise RuntimeError("after the file")

    monkeypatch.setattr(rewrite, "column_metrics", fail)
    with pytest.raises(RuntimeError, match="after the file"):
        updated(path)
    assert list(tmp_path.glob("*.parquet")) == [path]


def test_a_new_file_is_written_to_the_folder_in_the_plan(tmp_path):
    """The old one may be outside the table's data folder."""
    path, data = plain_file(tmp_path), tmp_path / "data"
    plan = RewritePlan(
        layout=layout_of(data, PLAIN),
        files={"uri": FileToRewrite(LOCAL, str(path), f"file://{data}/n=1", 200)},
        file_column="file",
        pos_column="pos",
    )
    changes = pa.table({"pos": [7]})
    result = rewrite_file(plan, "uri", changes)
    assert isinstance(result, RewrittenFile)
    (written,) = result.replacements
    (new,) = data.rglob("*.parquet")
    assert new.parent == data / "n=1"
    assert written.path == f"file://{new}"
    assert pq.read_metadata(new).num_rows == 199


def test_workers_need_nothing_of_ours(tmp_path):
    """The task is pickled by value: a worker has PyArrow, and no icefloe."""
    old = first_file(tmp_path, some_rows(100, 6))
    plan = RewritePlan(
        layout=layout_of(tmp_path, SCHEMA),
        files={
            "uri": FileToRewrite(
                LOCAL, old.file_path.removeprefix("file://"), f"file://{tmp_path}", 100
            )
        },
        file_column="file",
        pos_column="pos",
    )
    packed = tmp_path / "task.pickle"
    packed.write_bytes(cloudpickle.dumps(rewrite_files(plan)))
    script = (
        "import pathlib, pickle, sys\n"
        "import pyarrow as pa\n"
        "sys.modules['icefloe'] = None\n"
        f"task = pickle.loads(pathlib.Path({str(packed)!r}).read_bytes())\n"
        "batch = pa.record_batch({'file': ['uri'], 'pos': [7]})\n"
        "(out,) = task(iter([batch]))\n"
        "sys.stdout.buffer.write(out.column(0)[0].as_py())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, cwd=tmp_path, check=True
    )
    message = from_bytes(done.stdout)
    assert isinstance(message, RewrittenFile)
    (written,) = message.replacements
    assert written.copied.bytes > 1000
    assert entry(written, SCHEMA).record_count == 99
