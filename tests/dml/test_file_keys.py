"""Rows tell their file by a number on their way through a statement; files must not be mixed up."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from zlib import crc32

import pytest
from pyspark.sql import functions as F

from icefloe import Table
from icefloe.builders import Merge
from icefloe.errors import UnsupportedTableError
from icefloe.scan import file_keys
from icefloe.scan.file_keys import FileKeys, by_file
from icefloe.spark import columns
from support.foreign_files import adopted_file, publish
from support.tables import data_files, rows, scanned_rows

TWINS = ("plumless", "buckeroo")  # of the same CRC-32, and so are names that differ by them alone


def test_keys_are_numbers_unless_two_files_share_one():
    usual = FileKeys.of([SimpleNamespace(path=f"file:///data/{n}.parquet") for n in range(1000)])
    assert usual.are_numbers
    assert list(usual.files)[7] == crc32(b"file:/data/7.parquet")
    twins = [SimpleNamespace(path=f"file:///data/{name}.parquet") for name in TWINS]
    assert len({crc32(f"file:/data/{name}.parquet".encode()) for name in TWINS}) == 1
    keys = FileKeys.of(twins)
    assert not keys.are_numbers
    assert list(keys.files.values()) == twins
    assert keys.of_files(twins) == list(keys.files)


@pytest.fixture(params=["copy-on-write", "merge-on-read"])
def table(request, lake, table_of) -> Table:
    """Two files whose names have the same checksum, one of them with a deleted row."""
    batches = [[{"id": i, "n": i} for i in range(start, start + 4)] for start in (0, 10)]
    table = table_of("id BIGINT, n INT", *batches, mode=request.param)
    copies = []
    for file, name in zip(data_files(table), TWINS, strict=True):
        path = Path(file.path.removeprefix("file://").removeprefix("file:"))
        copies.append(shutil.copy(path, path.with_name(f"{name}.parquet")))
    table.truncate()
    publish(lake, table, data=[adopted_file(table, copy, ()) for copy in copies])
    table.delete().where("id = 2").with_options(mode="merge-on-read").execute()
    return table


BEFORE = {0: 0, 1: 1, 3: 3, 10: 10, 11: 11, 12: 12, 13: 13}
SOURCE = [{"id": 0, "n": -1}, {"id": 13, "n": -2}, {"id": 20, "n": -3}]


def merge_of(table: Table) -> Merge:
    return table.merge(SOURCE, on="target.id = source.id")


# Each with the ids that go and the values that are new; by every way in which rows are joined.
STATEMENTS = {
    "update": (lambda t: t.update().set("n", "-1").where("id IN (1, 10)"), [], {1: -1, 10: -1}),
    "delete": (lambda t: t.delete().where("id IN (3, 12)"), [3, 12], {}),
    "upsert": (
        lambda t: merge_of(t).when_matched().update_all().when_not_matched().insert_all(),
        [],
        {0: -1, 13: -2, 20: -3},
    ),
    "matched": (lambda t: merge_of(t).when_matched().update_all(), [], {0: -1, 13: -2}),
    "matched and not": (
        lambda t: (
            merge_of(t)
            .when_matched()
            .update_all()
            .when_not_matched_by_source("target.id IN (1, 11)")
            .delete()
        ),
        [1, 11],
        {0: -1, 13: -2},
    ),
    "not matched by source": (
        lambda t: merge_of(t).when_not_matched_by_source("target.id IN (1, 11)").delete(),
        [1, 11],
        {},
    ),
    "every clause": (
        lambda t: (
            merge_of(t)
            .when_matched()
            .update_all()
            .when_not_matched()
            .insert_all()
            .when_not_matched_by_source("target.id IN (1, 11)")
            .delete()
        ),
        [1, 11],
        {0: -1, 13: -2, 20: -3},
    ),
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_files_whose_names_have_the_same_checksum_are_distinguished(table, statement):
    build, gone, new = STATEMENTS[statement]
    build(table).execute()
    expected = {key: n for key, n in {**BEFORE, **new}.items() if key not in gone}
    assert dict(rows(table)) == expected


@pytest.mark.parametrize("statement", ["upsert", "matched and not"])
def test_a_shuffled_join_distinguishes_them_too(table, statement, spark):
    """Keys are made before the join."""
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        test_files_whose_names_have_the_same_checksum_are_distinguished(table, statement)
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


@pytest.mark.parametrize("path", ["file:///t/data/../../other/x.parquet", "/t/./x.parquet"])
def test_a_path_that_may_lead_elsewhere_is_refused(path):
    """Rows of such a file could not be found again, and the file may be another table's."""
    candidate = SimpleNamespace(path=path)
    with pytest.raises(UnsupportedTableError, match="may lead to another table's folder"):
        FileKeys.of([candidate])
    assert FileKeys.of([SimpleNamespace(path="file:///t/a..b/x.parquet")]).files


@pytest.mark.parametrize(("files", "most"), [(1, 200), (9, 200), (64, 200), (9, 4), (65, 200)])
@pytest.mark.parametrize("are_numbers", [True, False])
def test_rows_are_sent_to_the_task_of_their_file(spark, files, most, are_numbers):
    known = [SimpleNamespace(path=f"file:///a b/{n}-é,'.parquet") for n in range(files)]
    keys = FileKeys.of(known) if are_numbers else FileKeys({}, are_numbers=False)
    uris = keys.of_files(known)
    names = f"{columns.FILE} {keys.type}, day INT"
    rows = spark.createDataFrame([(uri, None) for uri in uris * 3], names)
    new = spark.createDataFrame([(None, day) for day in range(20)], names)
    placed = by_file(rows.union(new), known, keys, most, ["day"], 3)
    placed = placed.select("*", F.spark_partition_id())
    tasks_of = {}
    for uri, day, task in placed.collect():
        tasks_of.setdefault(uri or day, set()).add(task)
    assert all(len(tasks) == 1 for tasks in tasks_of.values())
    own = {task for uri in uris for task in tasks_of[uri]}
    if files <= min(64, most):
        assert len(own) == files
        assert not own & {task for day in range(20) for task in tasks_of[day]}
    assert placed.rdd.getNumPartitions() == min(files + 3, most)


@pytest.mark.parametrize("longer", ["", "a much longer name, for another size"])
def test_deleted_rows_are_those_of_their_file_whatever_the_sizes_are(table_of, longer):
    """Files are told apart by their sizes, or where two have the same by their paths."""
    kept = [{"id": 2, "name": "b"}, {"id": 3, "name": "c" + longer}]
    table = table_of(
        "id BIGINT, name STRING",
        [{"id": 1, "name": "a"}, kept[0]],
        [kept[1], {"id": 1, "name": "a"}],
        properties={"write.parquet.compression-codec": "uncompressed"},
    )
    sizes = {file.file.file_size_in_bytes for file in data_files(table)}
    assert len(sizes) == (2 if longer else 1)
    table.delete().where("id = 1").execute()
    assert rows(table) == [(row["id"], row["name"]) for row in kept]
    table.update().set("name", "'x'").where("id = 3").execute()
    assert rows(table) == [(2, "b"), (3, "x")]


def file_of(path: str, size: int, count: int) -> SimpleNamespace:
    return SimpleNamespace(path=path, live=SimpleNamespace(size=size, rows=count))


def test_few_large_files_of_one_size_are_read_in_turn():
    sizes = [5, 7, 5, 5, *[9] * 20]
    files = [file_of(f"{n}.parquet", size, 1_000_000) for n, size in enumerate(sizes)]
    turns = list(file_keys.turns(files).values())
    assert turns[:4] == [0, 0, 1, 2]
    assert set(turns[4:]) == {file_keys._MOST_TURNS}  # too many: their rows are found by path
    small = [file_of(file.path, file.live.size, 10) for file in files]
    assert set(file_keys.turns(small).values()) == {0}


@pytest.mark.parametrize("most_turns", [2, 8])
def test_files_that_are_read_in_turn_lose_their_own_rows(table_of, monkeypatch, most_turns):
    batches = [[{"id": 20 * i + n, "name": "a"} for i in range(3)] for n in range(1, 7)]
    longer = [{"id": 60, "name": "a much longer name, for another size"}]
    plain = {"write.parquet.compression-codec": "uncompressed"}
    table = table_of("id BIGINT, name STRING", *batches, longer, properties=plain)
    assert 3 <= max(Counter(file.size for file in data_files(table)).values()) <= 8
    table.delete().where("id DIV 20 = id % 20 % 3").execute()
    expected = rows(table)
    assert len(expected) == 13
    monkeypatch.setattr(file_keys, "_MANY_ROWS", 0)
    monkeypatch.setattr(file_keys, "_MOST_TURNS", most_turns)
    assert scanned_rows(table) == expected
    places = table.scan(["id", "_file", "_pos"]).collect()
    assert {pos for id_, _, pos in places if id_ < 60} == {0, 1, 2}
    assert all(pos == id_ // 20 % 3 for id_, _, pos in places)
    assert len({(file, pos) for _, file, pos in places}) == len(expected)
    table.update().set("name", "'x'").where("id < 20").execute()
    changed = {id_: "x" if id_ < 20 else name for id_, name in expected}
    assert dict(scanned_rows(table)) == changed
