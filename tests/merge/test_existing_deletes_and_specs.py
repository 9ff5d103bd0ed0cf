"""MERGE on tables with a past: deletes of both kinds, evolved specs, rows that moved, branches."""

from __future__ import annotations

import pytest

from icefloe.errors import NullabilityError, UnsupportedTableError
from icefloe.settings import UpdateKind
from support.foreign_files import equality_delete, publish
from support.merge_rows import SCHEMA, in_order, row, triples
from support.tables import data_files, delete_files, live_files, rows, snapshots
from support.unreferenced_files import leftovers

TEN = [row(i, ("us", "eu", None)[i % 3], i) for i in range(10)]


def full_merge(table, source):
    """A MERGE with a clause of every kind."""
    return (
        table.merge(source, on=["id"])
        .when_matched("source.n < 0").delete()
        .when_matched().update_all()
        .when_not_matched().insert_all()
        .when_not_matched_by_source("target.n = 9").delete()
    )  # fmt: skip


@pytest.mark.requirement("X05")
def test_over_position_deletes(table_of, mode, partition_by):
    """Deleted rows do not match, are not orphans, and do not come back."""
    table = table_of(SCHEMA, TEN, mode=mode, partition_by=partition_by)
    table.delete().where("id IN (1, 4, 9)").with_options(mode="merge-on-read").execute()
    table.update().set("n", "50").where("id = 2").with_options(mode="merge-on-read").execute()

    result = full_merge(
        table, [row(1, "eu", 11), row(2, None, 22), row(3, "us", -1), row(12, "us", 12)]
    ).execute()

    assert result.clauses == (1, 1, 2, 0)
    assert triples(table) == in_order(
        [
            (0, "us", 0), (1, "eu", 11), (2, None, 22), (5, None, 5), (6, "us", 6),
            (7, "eu", 7), (8, None, 8), (12, "us", 12),
        ]
    )  # fmt: skip
    assert leftovers(table) == set()


@pytest.mark.requirement("X05", "D16")
def test_over_equality_deletes(table_of, lake, mode):
    """Rows that another engine deleted by value are not there, and stay so after a rewrite."""
    table = table_of(SCHEMA, TEN, mode=mode)
    publish(lake, table, deletes=[equality_delete(table, [{"id": 1}, {"id": 3}, {"id": 9}])])
    table.append([row(3, "us", 33)])

    result = full_merge(table, [row(1, "eu", 11), row(2, None, 22), row(3, "us", -3)]).execute()

    assert result.clauses == (1, 1, 1, 0)
    assert triples(table) == in_order(
        [
            (0, "us", 0), (1, "eu", 11), (2, None, 22), (4, "eu", 4), (5, None, 5), (6, "us", 6),
            (7, "eu", 7), (8, None, 8),
        ]
    )  # fmt: skip


@pytest.mark.requirement("D8")
def test_over_several_specs(table_of, mode):
    """New data goes under the current spec, deletes under that of their file."""
    table = table_of(SCHEMA, TEN[:4], mode=mode, partition_by=("region",))
    table.evolve_partitions(("bucket(2, id)",))
    table.append(TEN[4:7])
    table.evolve_partitions(("days(ts)", "region"))
    table.append(TEN[7:])
    old = {f.path: f.spec_id for f in data_files(table)}

    result = full_merge(
        table, [row(i, "us", -1 if i == 5 else 100) for i in (0, 5, 7, 20)]
    ).execute()

    assert result.clauses == (1, 2, 1, 1)
    kept = [(i, ("us", "eu", None)[i % 3], i) for i in (1, 2, 3, 4, 6, 8)]
    assert triples(table) == in_order([*kept, *((i, "us", 100) for i in (0, 7, 20))])
    new = [f for f in data_files(table) if f.path not in old]
    assert {f.spec_id for f in new} == {table.iceberg.spec().spec_id}
    deletes = {f.spec_id for f in delete_files(table)}
    assert deletes <= set(old.values())
    assert bool(deletes) == (mode == "merge-on-read")


def test_rows_that_moved_between_partitions_are_found_again(table_of, mode, partition_by):
    table = table_of(SCHEMA, TEN, mode=mode, partition_by=partition_by)
    table.update().set("region", "'ap'").where("id < 3").execute()

    for target in ("x", "y"):
        table.merge([row(1), row(8)], on=["id"]).when_matched().update(
            {"region": f"concat('{target}', target.region)", "n": "target.n + 1"}
        ).execute()

    found = {i: (region, n) for i, region, n in triples(table)}
    assert found[1] == ("yxap", 3)
    assert found[8] == (None, 10)
    assert len(found) == 10


@pytest.mark.requirement("T01", "T04", "T10")
@pytest.mark.parametrize("how", ["copy-on-write", "merge-on-read", "auto"])
def test_mode_comes_from_the_option_or_the_property_of_merge(table_of, how):
    """Not from the modes of UPDATE and DELETE; only merge-on-read leaves delete files."""
    others = {"write.delete.mode": "copy-on-write", "write.update.mode": "copy-on-write"}
    table = table_of(SCHEMA, TEN, properties={**others, "write.merge.mode": how})
    assert UpdateKind.MERGE.value == "merge"

    result = table.upsert([row(1, "eu", -1)], on=["id"]).execute()
    assert result.mode == how
    assert bool(delete_files(table)) == (how != "copy-on-write")
    assert result.rows_copied == (9 if how == "copy-on-write" else 0)

    result = (
        table.upsert([row(2, None, -2)], on=["id"]).with_options(mode="copy-on-write").execute()
    )
    assert (result.mode, result.rows_copied) == (
        "copy-on-write",
        8 if delete_files(table) or how != "copy-on-write" else 9,
    )
    assert [n for i, _, n in triples(table) if i in (1, 2)] == [-1, -2]


@pytest.mark.requirement("T37")
def test_auto_rewrites_a_file_that_loses_many_rows_and_marks_one_that_loses_few(table_of):
    """By icefloe.auto.rewrite-fraction, file by file."""
    table = table_of(SCHEMA, TEN, [row(20 + i, "us", i) for i in range(10)], mode="auto")
    first, second = sorted(data_files(table), key=lambda f: f.sequence_number)

    result = (
        table.merge([row(i) for i in (0, 1, 2, 3, 4, 25)], on=["id"])
        .when_matched()
        .delete()
        .execute()
    )

    assert (result.rows_deleted, result.rows_copied, result.mode) == (6, 5, "auto")
    left = {f.path for f in data_files(table)}
    assert first.path not in left
    assert second.path in left
    assert (result.data_files_removed, result.delete_files_added) == (1, 1)


@pytest.mark.requirement("T24")
def test_version_1_tables_are_rewritten_only(table_of):
    table = table_of(SCHEMA, TEN[:3], mode="copy-on-write", format_version=1)
    with pytest.raises(UnsupportedTableError, match="format version 2"):
        table.upsert([row(1)], on=["id"]).with_options(mode="merge-on-read").execute()

    result = table.upsert([row(1, "x", -1), row(5, "x", 5)], on=["id"]).execute()

    assert result.rows_copied == 2
    assert triples(table) == [(0, "us", 0), (1, "x", -1), (2, None, 2), (5, "x", 5)]


def test_required_columns_get_no_null(table_of, mode):
    """NULL from a clause, or by leaving a column out; nothing is left behind."""
    table = table_of("id INT NOT NULL, n INT NOT NULL", [{"id": 1, "n": 1}], mode=mode)
    before = live_files(table)
    merge = table.merge(
        table._lake.spark.createDataFrame([(1, None), (2, 2)], "id INT, n INT"), on=["id"]
    )

    with pytest.raises(NullabilityError, match="'n'"):
        merge.when_not_matched().insert({"id": "source.id"}).execute()
    with pytest.raises(NullabilityError, match="'n'"):
        merge.when_matched().update_all().execute()
    assert live_files(table) == before
    assert leftovers(table) == set()
    assert merge.when_not_matched().insert_all().execute().rows_inserted == 1
    assert rows(table) == [(1, 1), (2, 2)]


def test_columns_that_were_added_renamed_and_dropped(table_of, mode):
    table = table_of("id INT, a STRING, b INT", [{"id": 1, "a": "x", "b": 1}], mode=mode)
    table.add_column("c", "STRING").rename_column("a", "b2").drop_column("b").rename_column(
        "b2", "b"
    )
    table.append([{"id": 2, "b": "y", "c": "c"}])

    source = [{"id": 1, "b": "z", "c": None}, {"id": 3, "b": None, "c": "new"}]
    result = table.upsert(source, on=["id"]).execute()

    assert result.clauses == (1, 1)
    assert rows(table) == [(1, "z", None), (2, "y", "c"), (3, None, "new")]


def test_branch_gets_the_rows_and_main_does_not(table_of, mode, partition_by):
    table = table_of(SCHEMA, TEN[:3], mode=mode, partition_by=partition_by)
    table.iceberg.manage_snapshots().create_branch(table.snapshot_id, "audit").commit()
    before = table.snapshot_id

    for n in (-1, -2):
        merge = table.upsert([row(1, "eu", n), row(7, "eu", n)], on=["id"])
        result = merge.with_options(branch="audit").execute()

    assert table.snapshot_id == before
    assert (result.rows_updated, result.rows_inserted) == (2, 0)
    assert triples(table) == [(0, "us", 0), (1, "eu", 1), (2, None, 2)]
    assert triples(table, snapshot_id=result.snapshot_id) == [
        (0, "us", 0), (1, "eu", -2), (2, None, 2), (7, "eu", -2)
    ]  # fmt: skip


def test_idempotency_key_runs_a_statement_once(table_of, mode, partition_by):
    """Counts of the first run are given again, also those of the clauses."""
    table = table_of(SCHEMA, TEN[:3], mode=mode, partition_by=partition_by)
    merge = full_merge(table, [row(1, "eu", 11), row(5, "us", 5)]).with_options(
        idempotency_key="job 1"
    )

    first = merge.execute()
    made = len(snapshots(table))
    table.append([row(9, "us", 9)])
    again = merge.execute()

    assert first.clauses == again.clauses == (0, 1, 1, 0)
    for name in (
        "operation",
        "mode",
        "snapshot_id",
        "rows_updated",
        "rows_inserted",
        "rows_copied",
    ):
        assert getattr(again, name) == getattr(first, name)
    assert len(snapshots(table)) == made + 1
    assert triples(table)[-1] == (9, "us", 9)


@pytest.mark.requirement("X07")
def test_old_snapshots_stay_readable(table_of, mode, partition_by):
    table = table_of(SCHEMA, TEN[:3], mode=mode, partition_by=partition_by)
    before, old = table.snapshot_id, triples(table)

    full_merge(table, [row(0, "us", -1), row(1, "eu", 11), row(5)]).execute()

    assert triples(table) != old
    assert triples(table, snapshot_id=before) == old
