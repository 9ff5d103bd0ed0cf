"""Copy-on-write takes over what it does not change as bytes: in tables, read by Spark."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType
from pyspark.errors import PySparkException

from icefloe.errors import StorageError, UnsupportedTableError
from icefloe.parquet.fields import File
from icefloe.parquet.footer import footer_bytes, open_buffer
from icefloe.parquet.thrift import ThriftType, changed
from support.foreign_files import adopted_file, publish
from support.parquet_check.check import problems
from support.random_parquet import READERS, by_spark
from support.tables import (
    data_files,
    delete_files,
    rows,
    scanned_rows,
    snapshots,
    stored_files,
    summary,
)

SCHEMA = "id BIGINT, n INT, x DOUBLE, s STRING, inner STRUCT<y: FLOAT, tags: ARRAY<STRING>>"
ROWS = [
    {
        "id": i,
        "n": i % 7 if i % 5 else None,
        "x": float("nan") if i % 10 == 0 else i / 4,
        "s": f"name {i % 6}",
        "inner": {"y": i / 2, "tags": [f"t{i % 3}"]} if i % 4 else None,
    }
    for i in range(100)
]
SMALL_GROUPS = {"write.parquet.row-group-limit": "20"}


@pytest.fixture
def table(table_of):
    """Five row groups in one file."""
    return table_of(SCHEMA, ROWS, mode="copy-on-write", properties=SMALL_GROUPS)


def path_of(table) -> Path:
    (file,) = data_files(table)
    return Path(file.path.removeprefix("file://").removeprefix("file:"))


def chunks(path: Path) -> dict[tuple[int, str], bytes]:
    """The bytes of every column chunk."""
    data, footer = path.read_bytes(), pq.read_metadata(path)
    chunks = {}
    for group in range(footer.num_row_groups):
        for leaf in range(footer.num_columns):
            chunk = footer.row_group(group).column(leaf)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            chunks[group, chunk.path_in_schema] = data[start : start + chunk.total_compressed_size]
    return chunks


def check(table, *, counts_nan: bool = True) -> None:
    """The file is sound, and the manifest's metrics are those of its rows."""
    (live,) = data_files(table)
    path = path_of(table)
    assert problems(str(path), pa.py_buffer(path.read_bytes())) == []
    content = pq.read_table(path)
    footer = pq.read_metadata(path)
    file = live.file
    assert file.record_count == content.num_rows
    assert len(file.split_offsets) == footer.num_row_groups
    for field in table.iceberg.schema().fields:
        values = content[field.name].to_pylist()
        if not field.field_type.is_primitive:
            continue
        assert file.value_counts[field.field_id] == len(values)
        assert file.null_value_counts[field.field_id] == values.count(None)
    x = table.iceberg.schema().find_field("x").field_id
    nans = sum(v is not None and math.isnan(v) for v in content["x"].to_pylist())
    assert file.nan_value_counts.get(x) == (nans if counts_nan else None)


@pytest.mark.requirement("T34")
def test_an_update_encodes_one_column_of_one_row_group(table):
    before = chunks(path_of(table))
    result = table.update().set("s", "'new'").where("id = 47").execute()
    after = chunks(path_of(table))
    assert {key for key in before if before[key] != after[key]} == {(2, "s")}
    assert result.bytes_copied >= sum(map(len, before.values())) - len(before[2, "s"])
    assert result.bytes_copied + result.bytes_encoded == path_of(table).stat().st_size
    assert (result.rows_copied, result.rows_updated) == (99, 1)
    assert result.row_groups_copied == 4
    assert summary(table)["icefloe.row-groups-copied"] == "4"
    assert rows(table, "s", where="id = 47") == [("new",)]
    assert len(rows(table, where="s = 'name 5'")) == 15  # 47 was one of them
    check(table)


@pytest.mark.parametrize(
    ("mode", "groups"),
    [("copy-on-write", [4, 2, 4, 4]), ("auto", [0, 2, 0, 0]), ("merge-on-read", [0, 0, 0, 0])],
)
def test_bytes_copied_and_encoded_are_all_that_data_files_have(table, mode, groups):
    """New rows are encoded too, and new versions that `auto` writes beside files."""
    copied = []
    source = [ROWS[3], {**ROWS[5], "id": 500}]
    for statement in (
        table.update().set("s", "'few'").where("id = 47"),
        table.update().set("s", "'many'").where("id < 60"),
        table.merge(source, on="target.id = source.id")
        .when_matched()
        .update_all()
        .when_not_matched()
        .insert_all(),
        table.replace_where("id BETWEEN 80 AND 90", [ROWS[81]]).with_options(scope="rows"),
    ):
        before = {file.path for file in data_files(table)}
        result = statement.with_options(mode=mode).execute()
        new = sum(file.size for file in data_files(table) if file.path not in before)
        copied.append(result.row_groups_copied)
        written = result.bytes_copied + result.bytes_encoded
        assert written == (0 if mode == "merge-on-read" else new)
    assert copied == groups


@pytest.mark.requirement("T34")
def test_a_delete_encodes_its_row_groups_alone(table):
    before = chunks(path_of(table))
    result = table.delete().where("id IN (30, 31) OR id BETWEEN 60 AND 79").execute()
    assert result.row_groups_copied == 3  # one is encoded, one is removed
    after = chunks(path_of(table))
    for old, new in ((0, 0), (2, 2), (4, 3)):
        for group, name in before:
            if group == old:
                assert after[new, name] == before[group, name]
    left = [i for i in range(100) if i not in (30, 31) and not 60 <= i < 80]
    assert rows(table, "id") == sorted(((i,) for i in left), key=repr)
    footer = pq.read_metadata(path_of(table))
    assert [footer.row_group(g).num_rows for g in range(4)] == [20, 18, 20, 20]
    assert problems("x", pa.py_buffer(path_of(table).read_bytes())) == []
    table.update().set("x", "1.0").where("x = 'NaN' AND id = 90").execute()
    assert rows(table, "id", where="isnan(x)") == sorted(
        ((i,) for i in left if i % 10 == 0 and i != 90), key=repr
    )


def test_rows_deleted_before_are_not_in_the_new_file(table):
    table.delete().where("id IN (5, 25)").with_options(mode="merge-on-read").execute()
    assert len(delete_files(table)) == 1
    table.update().set("n", "n + 100").where("id = 99").execute()
    assert delete_files(table) == []
    assert len(rows(table)) == 98
    assert rows(table, "n", where="id = 99") == [(101,)]
    check(table)


def test_evolved_tables_get_files_of_their_schema(table):
    """An added column, a promoted one, a renamed one; a dropped one leaves the file."""
    table.add_column("extra", "STRING").rename_column("s", "label").drop_column("inner")
    with table.iceberg.update_schema() as update:
        update.update_column("n", LongType())
    before = chunks(path_of(table))
    result = table.update().set("extra", "'e'").where("id < 3").execute()
    after = chunks(path_of(table))
    assert (result.bytes_copied > 0, result.row_groups_copied) == (True, 0)  # `extra` is in none
    for group in range(5):
        assert after[group, "label"] == before[group, "s"]
        assert after[group, "x"] == before[group, "x"]
    assert rows(table, "n", "label", "extra", where="id = 1") == [(1, "name 1", "e")]
    assert len(rows(table, where="extra IS NULL AND n IS NULL")) == 19
    assert pq.read_schema(path_of(table)).names == ["id", "n", "x", "label", "extra"]
    check(table)


def test_a_merge_updates_and_deletes_in_the_same_file(table, spark):
    source = spark.createDataFrame(
        [(1, "one", False), (2, "two", True), (50, "fifty", False)],
        "id BIGINT, s STRING, dead BOOLEAN",
    )
    before = chunks(path_of(table))
    (
        table.merge(source, on="target.id = source.id")
        .when_matched("source.dead")
        .delete()
        .when_matched()
        .update({"s": "source.s"})
        .execute()
    )
    after = chunks(path_of(table))
    assert after[1, "s"] == before[1, "s"]
    assert after[2, "id"] == before[2, "id"]
    assert rows(table, "id", "s", where="id IN (1, 2, 3, 50)") == [
        (1, "one"),
        (3, "name 3"),
        (50, "fifty"),
    ]
    check(table)


def test_every_reader_reads_the_spliced_file(table, tmp_path, spark):
    table.update().set("inner", "named_struct('y', 5.0, 'tags', array('z'))").where(
        "id % 9 = 0"
    ).execute()
    table.delete().where("id = 33").execute()
    expected = [
        {**row, "inner": {"y": 5.0, "tags": ["z"]}} if row["id"] % 9 == 0 else row
        for row in ROWS
        if row["id"] != 33
    ]
    path, plain = path_of(table), tmp_path / "plain.parquet"
    pq.write_table(pa.Table.from_pylist(expected, schema=pq.read_schema(path)), plain)
    for reader in READERS:
        assert reader(path) == reader(plain)
    assert by_spark(path, spark) == by_spark(plain, spark)
    check(table)


def as_others_hold_it(field: pa.Field) -> pa.Field:
    """A field with 32-bit offsets, as most writers have in memory."""
    kind = field.type
    if pa.types.is_large_string(kind):
        return field.with_type(pa.string())
    if pa.types.is_large_list(kind):
        return field.with_type(pa.list_(as_others_hold_it(kind.value_field)))
    if pa.types.is_map(kind):
        inner = [as_others_hold_it(f) for f in (kind.key_field, kind.item_field)]
        return field.with_type(pa.map_(*inner))
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([as_others_hold_it(f) for f in kind]))
    return field


@pytest.mark.parametrize("stores_schema", [True, False], ids=["like PyIceberg", "like Java"])
@pytest.mark.parametrize("statement", ["update", "delete", "merge"])
def test_nested_columns_of_files_that_others_wrote_are_copied(
    lake, table_of, statement, stores_schema
):
    """PyArrow's types of lists and strings in memory do not say how files store them."""
    some = [{**row, "m": {"k": [f"v{row['id']}", None]}} for row in ROWS]
    schema = f"{SCHEMA}, m MAP<STRING, ARRAY<STRING>>"
    table = table_of(schema, some, mode="copy-on-write", properties=SMALL_GROUPS)
    names = ("id", "n", "s", "inner", "m")  # no two NaN are the same
    before = rows(table, *names)
    content = pq.read_table(path_of(table))
    other = path_of(table).with_name("other.parquet")
    theirs = content.cast(pa.schema([as_others_hold_it(field) for field in content.schema]))
    pq.write_table(theirs, other, row_group_size=20, store_schema=stores_schema)
    table.truncate()
    publish(lake, table, data=[adopted_file(table, other, ())])
    assert rows(table, *names) == before

    old = chunks(other)
    match statement:
        case "update":
            result = table.update().set("n", "1000").where("id = 47").execute()
            changed_chunks = {(2, "n")}
        case "delete":
            result = table.delete().where("id = 47").execute()
            changed_chunks = {key for key in old if key[0] == 2}
        case "merge":
            merge = table.merge([{"id": 47, "n": 1000}], on="target.id = source.id")
            result = merge.when_matched().update({"n": "source.n"}).execute()
            changed_chunks = {(2, "n")}
    new = chunks(path_of(table))
    assert {key for key in old if old[key] != new[key]} == changed_chunks
    assert result.bytes_copied > 0
    assert rows(table, *names, where="id <> 47") == [row for row in before if row[0] != 47]
    row = rows(table, "n", "m", where="id = 47")
    assert row == ([] if statement == "delete" else [(1000, {"k": ["v47", None]})])
    check(table, counts_nan=False)  # the file came without


def test_a_file_of_which_little_is_copied_is_encoded_as_a_whole_and_the_log_says_why(table, caplog):
    with caplog.at_level("INFO", "icefloe"):
        result = table.delete().where("id % 2 = 0").execute()
    assert "is encoded again: the changes leave little of the file as it is" in caplog.text
    assert (result.bytes_copied, result.rows_copied) == (0, 50)
    check(table)


def test_explain_says_how_a_file_is_rewritten(table_of):
    table = table_of(SCHEMA, ROWS[:9], mode="copy-on-write", partition_by=("n",))
    assert "chunks without new values are copied" in str(table.update().set("x", "1.0").explain())
    assert "row groups that lose no row are copied" in str(table.delete().where("id = 1").explain())
    moved = str(table.update().set("n", "1").explain())
    assert "passes through Spark: new values of 'n' may move rows to other partitions" in moved
    table.set_properties({"schema.name-mapping.default": "[]"})
    by_name = str(table.delete().where("id = 1").explain())
    assert "row groups that lose no row are copied as bytes\n" in by_name
    table.set_properties({"write.target-file-size-bytes": "100"})
    large = "every row is encoded again: it is larger than the target file size"
    assert large in str(table.delete().where("id = 1").explain())


def test_explain_says_if_little_of_a_file_would_be_copied(table):
    little = "if rows of every row group change: the changes leave little of the file as it is"
    assert little not in str(table.update().set("s", "''").explain())
    every = table.update().set("id", "0").set("n", "0").set("x", "0.0").set("s", "''")
    text = str(every.set("inner", "NULL").explain())
    assert f"are copied as bytes; every row is encoded again {little}" in text
    assert little not in str(table.delete().where("id > 5").explain())


def test_explain_says_which_footers_it_did_not_read(table, monkeypatch):
    monkeypatch.setattr("icefloe.commands.plan._MOST_FILES", 0)
    text = str(table.update().set("s", "''").explain())
    assert "are copied as bytes; its footer was not read for this plan" in text


def test_explain_reports_a_file_that_cannot_be_read(table):
    path = path_of(table)
    path.write_bytes(path.read_bytes()[:-1])
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    text = table.delete().where("id = 1").explain().files[0].reason
    assert "it cannot be rewritten" in text
    assert f"{path} is damaged" in text


def test_files_outside_the_data_folder_are_rewritten_inside_and_failures_leave_none(
    table_of, tmp_path, monkeypatch
):
    """Files of failed statements are searched for there, in the partition's folder."""
    table = table_of(SCHEMA, ROWS[:9], mode="copy-on-write", partition_by=("n",))
    elsewhere = tmp_path / "elsewhere"
    table.set_properties({"write.data.path": f"file://{elsewhere}"})
    old = stored_files(table)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("after the files")

    with monkeypatch.context() as patch:
        patch.setattr("icefloe.writing.rewrite.build_data_file", fail)
        with pytest.raises(RuntimeError, match="after the files"):
            table.update().set("x", "5.0").where("id = 3").execute()
    assert stored_files(table) == old
    assert list(elsewhere.rglob("*.parquet")) == []
    table.update().set("x", "5.0").where("id = 3").execute()
    assert stored_files(table) == old
    assert [path.parent.name for path in elsewhere.rglob("*.parquet")] == ["n=3"]
    assert rows(table, "x", where="id = 3") == [(5.0,)]
    table.update().set("x", "6.0").where("id = 3").execute()
    assert {path.parent for path in elsewhere.rglob("*.parquet")} == {elsewhere / "n=3"}


def test_spark_rewrites_a_file_with_timestamps_of_96_bits(lake, table_of, caplog):
    table = table_of(
        "id BIGINT, t TIMESTAMP_NTZ, s STRING",
        [{"id": i, "t": datetime(2020, 1, 1), "s": "s"} for i in range(3)],
        mode="copy-on-write",
    )
    path = path_of(table)
    old = path.with_name("old.parquet")
    pq.write_table(pq.read_table(path), old, use_deprecated_int96_timestamps=True)
    table.truncate()
    publish(lake, table, data=[adopted_file(table, old, (), like=path)])
    through = "every row passes through Spark: the file has timestamps of 96 bits"
    update = table.update().set("s", "'new'").where("id = 1")
    for statement in (
        update,
        table.delete().where("id = 1"),
        table.upsert([{"id": 1, "t": None, "s": None}], on=["id"]),
        table.replace_where("id = 1", []).with_options(scope="rows"),
        table.replace_using("id", [{"id": 1, "t": None, "s": None}]),
    ):
        assert f"may hold matching rows; {through}" in str(statement.explain())
        decided = statement.with_options(mode="auto").explain().files[0].reason
        assert "rewritten above" in decided
        assert through in decided
        assert through not in str(statement.with_options(mode="merge-on-read").explain())
    with caplog.at_level("INFO", "icefloe"):
        update.execute()
    assert "timestamps of 96 bits" in caplog.text
    assert rows(table, "id", "t", "s") == [
        (i, datetime(2020, 1, 1), "new" if i == 1 else "s") for i in range(3)
    ]


def test_a_file_that_was_changed_in_place_is_reported(table_of):
    """Its size is not what the table's metadata says: its deletes may be wrong as well."""
    table = table_of("id BIGINT, s STRING", [{"id": i, "s": "s"} for i in range(3)])
    table.delete().where("id = 1").execute()
    path = path_of(table)
    pq.write_table(pq.read_table(path), path, compression="none", use_dictionary=False)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    with pytest.raises(PySparkException, match="another size than in the table metadata"):
        scanned_rows(table)


@pytest.mark.parametrize("damage", ["truncated", "page"])
def test_errors_for_damaged_files_have_the_path_and_nothing_is_published(table, damage):
    path, commits = path_of(table), len(snapshots(table))
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        data = data[: len(data) * 2 // 3]
    else:
        chunk = pq.read_metadata(path).row_group(0).column(1)
        data[chunk.dictionary_page_offset : chunk.data_page_offset + 8] = bytes(
            chunk.data_page_offset + 8 - chunk.dictionary_page_offset
        )
    path.write_bytes(bytes(data))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    with pytest.raises(StorageError, match=path.name):
        table.update().set("n", "0").where("id = 3").execute()
    assert len(snapshots(table)) == commits
    assert stored_files(table) == {str(path)}


def test_encrypted_files_are_refused(table):
    path = path_of(table)
    data = path.read_bytes()
    file = open_buffer("x", pa.py_buffer(data))
    algorithm = (ThriftType.STRUCT, {1: (ThriftType.STRUCT, {3: (ThriftType.TRUE, True)})})
    footer = changed(file.footer, {File.ENCRYPTION: algorithm})
    path.write_bytes(data[: file.footer_at] + footer_bytes(footer))
    with pytest.raises(UnsupportedTableError, match=f"{path.name} is an encrypted Parquet file"):
        table.update().set("n", "0").where("id = 3").execute()
    assert stored_files(table) == {str(path)}
