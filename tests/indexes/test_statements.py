"""Statements and reads on tables with btree indexes: which rows, and what is read for them."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from icefloe import Table
from icefloe.errors import StorageError
from support.indexed_tables import sidecar_of, stored_sidecars, warnings_of_icefloe
from support.sidecar_counts import destroy_row_groups, local, opened_files, remove_sidecars
from support.tables import data_files, rows, scanned_rows, snapshots

SCHEMA = "id BIGINT, v INT, s STRING, g INT"
FILES, ROWS_OF_FILE = 8, 250


def shuffled(seed: int = 1) -> list[dict[str, Any]]:
    """Rows whose ids no file's bounds tell apart, with the number of the file that they go to."""
    ids = list(range(FILES * ROWS_OF_FILE))
    random.Random(seed).shuffle(ids)
    return [
        {"id": i, "v": i % 10, "s": f"name {i}", "g": place % FILES} for place, i in enumerate(ids)
    ]


ROWS = shuffled()
BY_ID = {row["id"]: row for row in ROWS}


@pytest.fixture
def eight(table_of, mode) -> Table:
    """Eight files with an index on `id`, as one append makes them."""
    table = table_of(SCHEMA, mode=mode, partition_by=("g",))
    table.create_index("by_id", "btree", "id")
    table.append(pa.Table.from_pylist(ROWS))
    assert len(data_files(table)) == len(stored_sidecars(table)) == FILES
    return table


def expected(*gone: int, **new: Any) -> list[tuple[Any, ...]]:
    left = [tuple(row.values()) for row in ROWS if row["id"] not in gone]
    return sorted(left, key=lambda row: [(True, repr(value)) for value in row])


def ids_of(table: Table, where: str) -> list[int]:
    return sorted(row.id for row in table.scan(["id"], where).collect())


# -------------------------------------------------------------------------------------------------
# What is read


@pytest.mark.requirement("L12", "L19")
@pytest.mark.parametrize("mode", ["merge-on-read"])
def test_a_delete_of_many_keys_reads_no_data_and_runs_no_job(eight, jobs):
    keys = random.Random(2).sample(range(2000), 100)
    where = f"id IN ({', '.join(map(str, keys))})"
    before = jobs()
    with opened_files() as opened:
        plan = eight.delete().where(where).explain()
        result = eight.delete().where(where).execute()
    assert jobs() == before
    assert opened.data == []
    assert len(opened.sidecars) == 2 * FILES
    assert (result.rows_deleted, result.files_scanned) == (100, 0)
    assert (result.data_files_added, result.data_files_removed) == (0, 0)
    assert "positions are known from the index: no data file is read" in plan.reasons
    assert plan.estimated_bytes_read == 0
    assert f"index by_id: 0 files skipped, 100 rows in {FILES} files" in str(plan)
    assert rows(eight) == expected(*keys)
    with opened_files() as opened:
        assert eight.count(where) == 0
        assert eight.count("id < 50") == len(set(range(50)) - set(keys))
    assert opened.data == []
    assert jobs() == before
    # The same rows again: nothing is left to delete, and no snapshot is made.
    assert eight.delete().where(where).execute().snapshot_id is None


def test_a_delete_by_the_key_and_another_column(eight):
    keys = [13, 14, 1999]
    result = eight.delete().where("id IN (13, 14, 1999) AND v > 3").execute()
    assert result.rows_deleted == 2
    assert result.files_scanned <= 3
    assert rows(eight) == expected(*(k for k in keys if k % 10 > 3))


@pytest.mark.requirement("L12")
def test_only_files_with_the_key_are_read(eight):
    plan = eight.update().set("v", "0").where("id = 77").explain()
    assert (len(plan.files), plan.files_skipped) == (1, FILES - 1)
    assert {skipped.reason for skipped in plan.skipped} == {"index by_id"}
    [live] = [f for f in data_files(eight) if f.path != plan.files[0].path][:1]
    local(live).write_bytes(bytes(live.size))  # would be an error if it were read
    assert ids_of(eight, "id = 77") == [77]
    assert eight.to_arrow(["s"], "id = 77").to_pylist() == [{"s": "name 77"}]
    assert eight.count("id = 77") == 1
    assert eight.update().set("v", "-1").where("id = 77").execute().rows_updated == 1
    assert eight.to_arrow(["v"], "id = 77").to_pylist() == [{"v": -1}]


@pytest.mark.requirement("L12")
def test_row_groups_without_the_key_are_not_read(table_of, mode):
    """All others are destroyed: whoever read them would fail."""
    table = table_of(SCHEMA, mode=mode, properties={"write.parquet.row-group-limit": "100"})
    table.create_index("by_id", "btree", "id")
    table.append(pa.Table.from_pylist(ROWS[:1000]).combine_chunks())
    [live] = data_files(table)
    position = next(n for n, row in enumerate(ROWS[:1000]) if row["v"] == 3)
    key = ROWS[position]["id"]
    assert table.to_arrow(["_pos"], f"id = {key}").to_pylist() == [{"_pos": position}]
    destroy_row_groups(live, {position // 100})
    assert table.scan(where=f"id = {key}").collect()[0].s == f"name {key}"
    assert table.count(f"id = {key} AND v = 3") == 1
    if mode == "merge-on-read":
        updated = table.update().set("v", "v + 1").where(f"id = {key} AND v = 3").execute()
        assert updated.rows_updated == 1
    with pytest.raises(Py4JJavaError):
        table.scan().collect()


# -------------------------------------------------------------------------------------------------
# Acceptance scenarios


VALUES = [(1, 100), (2, 50), (3, 75), (4, 25), (5, 90), (6, 75)]
FRUIT = ["apple", "banana", "cherry", "date", "elder", "cherry"]


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("value = 75", [3, 6]),
        ("value BETWEEN 50 AND 90", [2, 3, 5, 6]),
        ("name = 'cherry'", [3, 6]),
        ("name BETWEEN 'banana' AND 'date'", [2, 3, 4, 6]),
        ("name LIKE 'ch%'", [3, 6]),
        ("name LIKE 'ch%' AND value > 75", []),
    ],
)
@pytest.mark.every_variant
def test_values_and_names(fruit, always_by_position, where, ids):
    assert ids_of(fruit, where) == ids
    assert sorted(fruit.to_arrow(["id"], where).column("id").to_pylist()) == ids
    assert fruit.count(where) == len(ids)
    plan = fruit.delete().where(where).explain()
    assert sum(file.rows for file in plan.files) == len(ids)
    assert plan.files_skipped == len(VALUES) - len(ids)


@pytest.fixture(scope="module")
def fruit(shared_lake) -> Table:
    """Six files of one row each; the values of both columns overlap the bounds of no file."""
    table = shared_lake.create_table("fruit", "id INT, value INT, name STRING", partition_by=["id"])
    table.create_index("by_value", "btree", ["value"])
    table.create_index("by_name", "btree", ["name"])
    data = zip(VALUES, FRUIT, strict=True)
    table.append([{"id": i, "value": value, "name": name} for (i, value), name in data])
    return table


def test_an_updated_key_is_found_by_its_new_value_alone(eight):
    moved = eight.update().set("id", "id + 5000").where("id IN (5, 6)").execute()
    assert moved.rows_updated == 2
    assert ids_of(eight, "id IN (5, 6)") == []
    assert ids_of(eight, "id IN (5005, 5006, 5)") == [5005, 5006]
    assert eight.count("id = 5005") == 1
    assert eight.count("id = 5") == 0
    assert eight.delete().where("id = 5005").execute().rows_deleted == 1
    assert ids_of(eight, "id > 4000") == [5006]
    assert len(rows(eight)) == 1999


def test_rows_behind_deleted_ones_keep_their_place(eight):
    """A copy-on-write file is rewritten, and its rows move."""
    in_order = [row for row in ROWS if row["g"] == 0]
    first, second, last = in_order[0]["id"], in_order[1]["id"], in_order[-1]["id"]
    assert eight.delete().where(f"id = {first}").execute().rows_deleted == 1
    assert eight.delete().where(f"id = {second}").execute().rows_deleted == 1
    assert ids_of(eight, f"id IN ({first}, {second}, {last})") == [last]
    assert eight.delete().where(f"id = {last}").execute().rows_deleted == 1
    assert rows(eight) == expected(first, second, last)


@pytest.mark.requirement("L13")
def test_half_of_the_files_without_sidecars(eight):
    without = data_files(eight)[: FILES // 2]
    assert remove_sidecars(eight, "by_id", without) == FILES // 2
    [listed] = eight.indexes().collect()
    assert (listed.files, listed.files_covered, listed.rows_covered) == (8, 4, 1000)
    keys = list(range(1000, 1009))  # within the bounds of every file
    where = f"id IN ({', '.join(map(str, keys))})"
    plan = eight.delete().where(where).explain()
    uncovered = {f.path for f in without}
    assert uncovered <= {file.path for file in plan.files}
    assert f"index by_id not used for {FILES // 2} files: they have no sidecar" in str(plan)
    assert ids_of(eight, where) == keys
    assert eight.count(where) == 9
    assert eight.delete().where(where).execute().rows_deleted == 9
    assert rows(eight) == expected(*keys)
    built = eight.create_index("by_id", "btree", "id")
    assert built.files_covered == built.files == len(data_files(eight))
    assert built.files_skipped == {}


@pytest.mark.requirement("L13")
def test_where_most_rows_match_the_files_are_read(eight):
    where = "id >= 300"
    plan = eight.delete().where(where).explain()
    assert "index by_id not used to read rows: 1700 of 2000 rows may match" in str(plan)
    assert eight.scan(where=where).count() == 1700
    assert eight.update().set("v", "-5").where(where).execute().rows_updated == 1700
    assert eight.count("v = -5") == 1700


def test_damaged_sidecars_lose_no_row(eight):
    chosen = random.Random(6)
    for live in data_files(eight)[:4]:
        path = sidecar_of(eight, "by_id", live)
        content = bytearray(path.read_bytes())
        for place in chosen.sample(range(len(content)), 200):
            content[place] ^= 255
        path.write_bytes(content)
    with warnings_of_icefloe() as warnings:
        assert ids_of(eight, "id IN (10, 20, 30, 40, 50)") == [10, 20, 30, 40, 50]
        assert eight.delete().where("id IN (10, 20, 30)").execute().rows_deleted == 3
    assert len(warnings) >= 8
    assert rows(eight) == expected(10, 20, 30)
    [listed] = eight.indexes().collect()
    assert listed.files - listed.files_covered == (4 if listed.files == 8 else 0) or (
        listed.files_covered >= 4
    )
    again = eight.create_index("by_id", "btree", "id")
    assert again.files_covered == again.files
    with warnings_of_icefloe() as warnings:
        assert ids_of(eight, "id IN (10, 40, 50)") == [40, 50]
    assert warnings == []


@pytest.mark.parametrize("size", ["the same size", "another size"])
def test_a_data_file_that_was_damaged_in_place_is_an_error_as_without_an_index(eight, size):
    [live] = [file for file in data_files(eight) if has_key(eight, file, 77)]
    content = local(live).read_bytes()
    local(live).write_bytes(content[:-1] if size == "another size" else content[:-1] + b"?")
    with pytest.raises((PySparkException, Py4JJavaError), match=local(live).name):
        eight.scan(where="id = 77").collect()
    with pytest.raises(StorageError, match=local(live).name):
        eight.update().set("v", "1").where("id = 77 AND v >= 0").execute()


def has_key(table: Table, live: Any, key: int) -> bool:
    return any(
        file.path == live.path for file in table.delete().where(f"id = {key}").explain().files
    )


# -------------------------------------------------------------------------------------------------
# States of the table


def test_compaction_covers_every_file(eight):
    remove_sidecars(eight, "by_id", data_files(eight)[:3])
    eight.delete().where("id = 3").with_options(mode="merge-on-read").execute()
    eight.evolve_partitions(())
    eight.compact()
    [live] = data_files(eight)
    assert sidecar_of(eight, "by_id", live).exists()
    [listed] = eight.indexes().collect()
    assert (listed.files, listed.files_covered, listed.rows_covered) == (1, 1, 1999)
    assert eight.count("id IN (2, 3, 4)") == 2
    assert eight.delete().where("id IN (2, 3, 4)").execute().rows_deleted == 2
    assert rows(eight) == expected(2, 3, 4)


def test_earlier_snapshots_and_rollback(eight):
    whole = eight.snapshot_id
    eight.update().set("id", "9000").where("id = 9").execute()
    eight.delete().where("id = 10").execute()
    where = "id IN (9, 10, 11, 9000)"
    assert ids_of(eight, where) == [11, 9000]
    then = eight.scan(["id"], where, snapshot_id=whole)
    assert sorted(row.id for row in then.collect()) == [9, 10, 11]
    eight.rollback(whole)
    assert ids_of(eight, where) == [9, 10, 11]
    assert eight.count(where) == 3
    assert eight.delete().where(where).execute().rows_deleted == 3
    assert rows(eight) == expected(9, 10, 11)


def test_statements_on_a_branch(eight):
    on_branch = {"branch": "audit"}
    result = eight.delete().where("id IN (1, 2)").with_options(**on_branch).execute()
    assert result.rows_deleted == 2
    again = eight.delete().where("id IN (2, 3)").with_options(**on_branch).execute()
    assert again.rows_deleted == 1
    moved = eight.update().set("id", "7000").where("id = 4").with_options(**on_branch).execute()
    assert moved.rows_updated == 1
    gone = eight.delete().where("id IN (4, 7000)").with_options(**on_branch).execute()
    assert gone.rows_deleted == 1
    assert ids_of(eight, "id IN (1, 2, 3, 4, 7000)") == [1, 2, 3, 4]
    # Files of the branch count as files of the table.
    built = eight.create_index("by_id", "btree", "id")
    assert built.files == built.files_covered >= FILES


def test_without_snapshots_and_without_rows(table_of, mode):
    table = table_of(SCHEMA, mode=mode)
    built = table.create_index("by_id", "btree", "id")
    assert (built.files, built.files_covered, built.rows, built.bytes) == (0, 0, 0, 0)
    assert table.count("id = 1") == 0
    assert table.delete().where("id = 1").execute().rows_deleted == 0
    assert scanned_rows(table, where="id = 1") == []
    table.append([{"id": None, "v": None, "s": None, "g": None}])
    assert table.count("id IS NULL") == 1
    assert table.count("id = 1") == 0
    assert table.delete().where("id IS NULL").execute().rows_deleted == 1
    assert table.count() == 0
    assert len(snapshots(table)) == 2
