"""Manifests rewritten, and tables that ask for an inline tier."""

from __future__ import annotations

import pytest
from pyiceberg.manifest import ManifestEntryStatus

from icefloe.metadata.manifests import list_manifests, read_entries
from support.foreign_readers import icefloe_rows, read_duckdb
from support.tables import delete_files, live_files, rows, snapshots, summary
from support.unreferenced_files import leftovers

SCHEMA = "id BIGINT, region STRING"


def row(number, region="us"):
    return {"id": number, "region": region}


def facts(table):
    """What must not change: each file, its partition, and its place in history."""
    return {
        (f.path, f.partition_key, f.snapshot_id, f.sequence_number, f.file_sequence_number)
        for f in live_files(table)
    }


def manifests(table):
    iceberg = table.iceberg
    return list_manifests(iceberg.io, iceberg.current_snapshot())


def entries(table):
    return [e for m in manifests(table) for e in read_entries(table.iceberg.io, m)]


@pytest.mark.parametrize("partition_by", [pytest.param((), marks=pytest.mark.slow), ("region",)])
def test_manifests_are_merged_and_files_stay(table_of, partition_by):
    table = table_of(
        SCHEMA, [row(1), row(5), row(2, "eu")], [row(3), row(4, None)], partition_by=partition_by
    )
    table.delete().where("id = 1").execute()
    before, known = rows(table), facts(table)
    count = len(manifests(table))

    result = table.rewrite_manifests()

    assert (result.manifests_before, result.manifests_after) == (count, 2)
    assert (result.manifests_removed, result.manifests_added) == (2, 1)
    assert result.entries_rewritten == len(known) - len(delete_files(table))
    assert result.bytes_written > 0
    assert len(manifests(table)) == 2
    data = [e for e in entries(table) if e.data_file.content == 0]
    assert {e.status for e in data} == {ManifestEntryStatus.EXISTING}
    assert (facts(table), rows(table)) == (known, before)
    told = summary(table)
    assert (told["operation"], told["icefloe.operation"]) == ("replace", "rewrite_manifests")
    assert (told["total-records"], told["manifests-created"]) == ("5", "1")
    assert read_duckdb(table) == icefloe_rows(table)
    assert leftovers(table) == set()

    again = table.rewrite_manifests()
    assert (again.snapshot_id, again.manifests_before, again.manifests_after) == (None, 2, 2)
    assert len(snapshots(table)) == 4


def test_files_of_one_partition_come_together(table_of):
    """With room for about two entries, each manifest has one partition."""
    table = table_of(SCHEMA, partition_by=("region",))
    for number in range(3):
        table.append([row(number), row(10 + number, "eu")])
    (first, *_) = manifests(table)
    table.set_properties(
        {"commit.manifest.target-size-bytes": int(first.manifest_length / 2 * 3 + 10)}
    )

    table.rewrite_manifests()

    found = [
        {e.data_file.partition[0] for e in read_entries(table.iceberg.io, m)}
        for m in manifests(table)
    ]
    assert sorted(found, key=str) == [{"eu"}, {"us"}]
    assert table.rewrite_manifests().snapshot_id is None


def test_evolved_specs_have_manifests_of_their_own(table_of):
    table = table_of(SCHEMA, [row(1)], [row(2)])
    table.evolve_partitions(["region"])
    table.append([row(3, "eu")])
    table.append([row(4)])
    known = facts(table)
    assert table.rewrite_manifests().manifests_after == 2
    assert facts(table) == known
    assert rows(table, "id") == [(1,), (2,), (3,), (4,)]


def test_a_writer_that_comes_between_is_not_lost(table_of, other, before_swap):
    table = table_of(SCHEMA, [row(1)], [row(2)])
    before_swap(lambda: other.table(table.name).delete().where("id = 1").execute())
    result = table.rewrite_manifests()
    assert result.attempts == 2
    assert rows(table, "id") == [(2,)]
    assert leftovers(table) == set()


@pytest.mark.slow
def test_a_statement_lands_after_manifests_were_rewritten(table_of, other, before_commit, mode):
    table = table_of(SCHEMA, [row(1)], [row(2)], mode=mode)
    before_commit(other.table(table.name).rewrite_manifests)
    table.update().set("id", "id + 10").where("id = 1").execute()
    assert rows(table, "id") == [(11,), (2,)]


def test_flush_has_nothing_to_move(table_of):
    table = table_of(SCHEMA, [row(1)])
    result = table.flush()
    assert (result.operation, result.snapshot_id, result.total_affected) == ("flush", None, 0)
    assert len(snapshots(table)) == 1
    assert table.insert([row(2)]).rows_inserted == 1
