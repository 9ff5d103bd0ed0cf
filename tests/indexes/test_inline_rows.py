"""Tables that have indexes and an inline tier: rows of the database and of files are both found."""

from __future__ import annotations

from typing import Any

import pytest

from icefloe import Table
from support.indexed_tables import stored_sidecars
from support.tables import data_files, delete_files, scanned_rows, snapshots

DDL = "id BIGINT, region STRING, n INT"
INLINE = {"icefloe.inline.enabled": "true"}


def some(*ids: int, n: int = 0) -> list[dict[str, Any]]:
    return [{"id": i, "region": "us" if i % 2 else "eu", "n": n} for i in ids]


@pytest.fixture
def table(table_of, mode, partition_by) -> Table:
    """Rows 0 to 99 in covered files, 100 to 104 inline; 5 is in both."""
    table = table_of(DDL, mode=mode, partition_by=partition_by)
    table.create_index("by_id", "btree", "id")
    table.append(some(*range(100)))
    table.set_properties(INLINE)
    table.insert(some(*range(100, 105), 5, n=1))
    return table


def ids_of(table: Table, where: str) -> list[int]:
    found = sorted(row.id for row in table.scan(["id"], where).collect())
    assert sorted(table.to_arrow(["id"], where).column("id").to_pylist()) == found
    assert table.count(where) == len(found)
    return found


@pytest.mark.requirement("X03", "L11")
def test_a_condition_finds_the_same_rows_in_both_tiers(table, always_by_position):
    assert ids_of(table, "id IN (4, 5, 103, 999)") == [4, 5, 5, 103]
    assert ids_of(table, "id > 97 AND id <= 101") == [98, 99, 100, 101]
    assert ids_of(table, "id = 5 AND n = 1") == [5]
    files = len(data_files(table))
    table.flush()
    assert len(stored_sidecars(table)) == len(data_files(table)) > files
    assert ids_of(table, "id IN (4, 5, 103, 999)") == [4, 5, 5, 103]
    assert ids_of(table, "id = 5 AND n = 1") == [5]


@pytest.mark.requirement("L12")
def test_deleted_rows_do_not_come_back(table, always_by_position):
    """Few rows are deleted in the database; the sidecars still have them."""
    where = "id IN (4, 5, 50, 103)"
    before = len(snapshots(table))
    assert table.delete().where(where).execute().rows_deleted == 5
    inline = len(snapshots(table)) == before
    assert inline is (delete_files(table) == [] and table.inline.deletes == 3)
    assert ids_of(table, where) == []
    assert ids_of(table, "id BETWEEN 3 AND 6") == [3, 6]
    assert table.delete().where(where).execute().rows_deleted == 0
    assert table.delete().where("id BETWEEN 3 AND 6").execute().rows_deleted == 2
    assert ids_of(table, "id < 8") == [0, 1, 2, 7]
    table.flush()
    assert ids_of(table, where) == []
    assert ids_of(table, "id < 8") == [0, 1, 2, 7]
    assert len(scanned_rows(table)) == 99
    table.compact()
    assert ids_of(table, where) == []
    assert ids_of(table, "id IN (2, 3, 7, 102)") == [2, 7, 102]


@pytest.mark.requirement("L19")
def test_a_delete_by_key_with_the_tier_runs_no_job(table, jobs, mode):
    before = jobs()
    result = table.delete().where("id IN (7, 8, 101)").execute()
    assert result.rows_deleted == 3
    if mode == "merge-on-read":
        assert jobs() == before
        assert result.files_scanned == 0
    assert ids_of(table, "id IN (6, 7, 8, 9, 101, 102)") == [6, 9, 102]


def test_more_rows_than_the_tier_takes_are_deleted_in_files(table, monkeypatch):
    monkeypatch.setattr("icefloe.commands.row_changes.MOST_INLINE_ROWS", 10)
    monkeypatch.setattr("icefloe.commands.update_delete.MOST_INLINE_ROWS", 10)
    assert table.delete().where("id < 30").execute().rows_deleted == 31
    assert table.inline.deletes == 0
    assert ids_of(table, "id < 32") == [30, 31]
    assert table.delete().where("id < 32").execute().rows_deleted == 2
    assert ids_of(table, "id < 33") == [32]


def test_every_row_of_a_file(table):
    assert table.delete().where("id >= 0 AND id < 100 AND n = 0").execute().rows_deleted == 100
    assert ids_of(table, "id < 103") == [5, 100, 101, 102]
    assert len(scanned_rows(table)) == 6


def test_updated_rows_are_found_by_their_new_keys(table, always_by_position):
    assert table.update().set("id", "id + 1000").where("id IN (5, 6, 104)").execute()
    assert ids_of(table, "id IN (5, 6, 104)") == []
    assert ids_of(table, "id > 1000") == [1005, 1005, 1006, 1104]
    assert table.update().set("n", "n + 1").where("id = 1005").execute().rows_updated == 2
    table.flush()
    assert ids_of(table, "id = 1005 AND n = 2") == [1005]
    assert ids_of(table, "id = 1005") == [1005, 1005]
    assert len(scanned_rows(table)) == 106


def test_merges_match_rows_of_both_tiers(table, lake, always_by_position):
    source = lake.spark.createDataFrame(some(5, 6, 103, 200, n=7), DDL)
    upsert = table.upsert(source, ["id"])
    result = upsert.execute()
    assert (result.rows_updated, result.rows_inserted) == (4, 1)
    assert ids_of(table, "n = 7") == [5, 5, 6, 103, 200]
    assert ids_of(table, "id IN (5, 6, 103, 200)") == [5, 5, 6, 103, 200]
    table.delete().where("id IN (6, 200)").execute()
    again = table.upsert(source, ["id"]).execute()
    assert (again.rows_updated, again.rows_inserted) == (3, 2)
    table.flush()
    assert ids_of(table, "id IN (5, 6, 103, 200)") == [5, 5, 6, 103, 200]


def test_the_tier_is_switched_off(table):
    table.delete().where("id IN (4, 5)").execute()
    table.set_properties({"icefloe.inline.enabled": "false"})
    assert ids_of(table, "id IN (4, 5, 6, 103)") == [6, 103]
    assert table.delete().where("id IN (6, 103)").execute().rows_deleted == 2
    assert ids_of(table, "id IN (4, 5, 6, 103)") == []
    assert len(stored_sidecars(table)) >= len(data_files(table))
