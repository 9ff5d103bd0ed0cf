"""MERGE and replacements over both tiers: inline rows are changed where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from icefloe import Lake, Table
from icefloe.commands.plan import InlinePlan
from icefloe.errors import CardinalityError, ConflictError
from support.races import once_before_publish
from support.tables import row, rows, snapshots

SCHEMA = "id BIGINT, region STRING, n INT"

InlineOf = Callable[..., Table]


@pytest.fixture
def inline_of(table_of) -> InlineOf:
    """Makes a table with rows in files, one of them deleted, and rows inline."""

    def make(filed: list[dict[str, Any]], inline: list[dict[str, Any]], **options: Any) -> Table:
        table = table_of(SCHEMA, properties={"icefloe.inline.enabled": "true"}, **options)
        table.append([*filed, row(99)])
        table.delete().where("id = 99").execute()
        table.insert(inline)
        return table

    return make


def inline_ids(table: Table) -> list[Any]:
    """The ids of the inline rows."""
    found = table.scan(["id", "_file"]).where("_file = 'inline'").collect()
    return sorted((id for id, _ in found), key=lambda id: (id is not None, id))


@pytest.mark.requirement("L18")
def test_a_merge_changes_rows_of_both_tiers_in_one_snapshot(inline_of, mode, partition_by):
    table = inline_of(
        [row(1), row(2, "eu")],
        [row(3), row(4, "eu"), row(None), row(6)],
        mode=mode,
        partition_by=partition_by,
    )
    before = len(snapshots(table))
    source = [row(1, "us", 10), row(3, "us", 30), row(4, "us", 40), row(5, "eu", 50), row(None)]
    result = (
        table.merge(source, on="target.id = source.id")
        .when_matched("source.n = 30").delete()
        .when_matched().update({"n": "source.n + target.n", "region": "source.region"})
        .when_not_matched().insert_all()
        .when_not_matched_by_source("target.id IS NULL").update({"n": "-1"})
        .execute()
    )  # fmt: skip
    assert (result.clauses, result.snapshot_id) == ((1, 2, 2, 1), table.snapshot_id)
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (2, 3, 1)
    assert len(snapshots(table)) == before + 1
    assert rows(table) == [
        (None, "us", -1), (None, "us", 0), (1, "us", 10), (2, "eu", 0), (4, "us", 40),
        (5, "eu", 50), (6, "us", 0),
    ]  # fmt: skip
    assert inline_ids(table) == [None, 4, 6]


@pytest.mark.requirement("L23", "L25")
def test_a_merge_of_inline_rows_alone_makes_no_snapshot(inline_of):
    table = inline_of([row(1)], [row(11, n=1), row(12, n=2)])
    before = table.snapshot_id
    result = table.upsert([row(11, n=7), row(12, n=8)], ["id"]).execute()
    assert (result.mode, result.snapshot_id, result.rows_updated) == ("inline", None, 2)
    assert table.snapshot_id == before
    assert rows(table, "id", "n") == [(1, 0), (11, 7), (12, 8)]


def test_source_rows_that_match_an_inline_row_are_not_inserted(inline_of):
    """Also where several of them do, by a condition without keys, or where no clause applies."""
    table = inline_of([row(1)], [row(2), row(3)])
    source = [row(2, n=5), row(2, n=6), row(4, n=7), row(None)]
    merge = table.merge(source, on="target.id = source.id AND target.n < source.n")
    assert merge.when_not_matched().insert_all().execute().rows_inserted == 2
    assert rows(table, "id", "n") == [(None, 0), (1, 0), (2, 0), (3, 0), (4, 7)]
    unchanged = (
        table.merge([row(3, n=1), row(8, n=1)], on="target.id = source.id")
        .when_matched("target.n > 100").update_all()
        .when_not_matched().insert_all()
    )  # fmt: skip
    assert unchanged.execute().clauses == (0, 1)
    within = table.merge([row(5), row(9)], on="source.id BETWEEN target.id + 1 AND target.id + 2")
    assert within.when_not_matched().insert_all().execute().rows_inserted == 0
    assert [id for (id,) in rows(table, "id")] == [None, 1, 2, 3, 4, 8]
    assert inline_ids(table) == [2, 3]


@pytest.mark.requirement("M07")
def test_several_source_rows_for_one_inline_row(inline_of, mode):
    table = inline_of([row(1)], [row(2), row(3)], mode=mode)
    before = rows(table)
    source = [row(2, n=1), row(2, n=2), row(3, n=3)]
    with pytest.raises(CardinalityError, match=r"\b2\b"):
        table.upsert(source, ["id"]).execute()
    assert rows(table) == before
    first = table.upsert(source, ["id"]).with_options(duplicates="first").execute()
    assert (first.rows_updated, first.mode) == (2, "inline")
    assert rows(table, "id", "n") == [(1, 0), (2, 1), (3, 3)]


def test_a_merge_that_adds_columns_flushes_first(inline_of):
    table = inline_of([row(1)], [row(2)])
    source = [{**row(2, n=2), "note": "new"}, {**row(3), "note": "x"}]
    table.upsert(source, ["id"]).with_schema_evolution().execute()
    assert rows(table, "id", "note") == [(1, None), (2, "new"), (3, "x")]
    assert inline_ids(table) == []


# -------------------------------------------------------------------------------------------------
# Other writers


@pytest.mark.requirement("X02")
def test_a_matched_inline_row_that_another_writer_deleted_is_a_conflict(lake: Lake, inline_of):
    """The source row was not inserted because of it, whatever the clauses did."""
    table = inline_of([row(1)], [row(2), row(3)])
    merge = table.merge([row(2), row(1, n=1)], on="target.id = source.id").when_matched(
        "target.id = 1"
    )
    merge = merge.update_all().when_not_matched().insert_all()
    once_before_publish(lake, lambda: table.delete().where("id = 2").execute())
    with pytest.raises(ConflictError, match="inline rows"):
        merge.execute()
    assert rows(table, "id", "n") == [(1, 0), (3, 0)]
    assert merge.execute().clauses == (1, 1)
    assert rows(table, "id", "n") == [(1, 1), (2, 0), (3, 0)]


@pytest.mark.requirement("X02")
def test_an_inline_row_that_another_writer_inserted(lake: Lake, inline_of):
    """It conflicts where a source row may match it; a row of another key does not."""
    table = inline_of([row(1)], [row(2)])
    upsert = table.upsert([row(2, n=2), row(4, n=4)], ["id"])
    once_before_publish(lake, lambda: table.insert([row(9)]))
    assert upsert.execute().rows_inserted == 1
    upsert = table.upsert([row(2, n=3), row(6, n=6)], ["id"])
    once_before_publish(lake, lambda: table.insert([row(6)]))
    with pytest.raises(ConflictError, match="inserted"):
        upsert.execute()
    assert upsert.execute().rows_updated == 2
    assert rows(table, "id", "n") == [(1, 0), (2, 3), (4, 4), (6, 6), (9, 0)]


# -------------------------------------------------------------------------------------------------
# Replacements


def test_replace_where_removes_inline_rows_where_they_are(inline_of, mode):
    table = inline_of(
        [row(1), row(2, "eu")], [row(3), row(4, "eu"), row(5, None)],
        mode=mode, partition_by=("region",),
    )  # fmt: skip
    before = len(snapshots(table))
    result = table.replace_where("region = 'eu'", [row(6, "eu")]).execute()
    assert (result.rows_deleted, result.rows_inserted) == (2, 1)
    assert inline_ids(table) == [3, 5]
    by_rows = table.replace_where("id IN (1, 3)", [row(3, n=9)]).with_options(scope="rows")
    assert by_rows.execute().rows_deleted == 2
    assert (inline_ids(table), len(snapshots(table))) == ([5], before + 2)
    assert rows(table) == [(3, "us", 9), (5, None, 0), (6, "eu", 0)]
    nothing = table.replace_where("id = 5", []).with_options(scope="rows").execute()
    assert (nothing.mode, nothing.snapshot_id, nothing.rows_deleted) == ("inline", None, 1)


def test_replace_using_removes_inline_rows_with_the_same_keys(inline_of, mode):
    table = inline_of([row(1), row(2)], [row(2, "eu"), row(3), row(None)], mode=mode)
    result = table.replace_using("id", [row(2, n=5), row(None, n=6), row(7)]).execute()
    assert (result.rows_deleted, result.rows_inserted) == (3, 3)
    assert rows(table, "id", "n") == [(None, 6), (1, 0), (2, 5), (3, 0), (7, 0)]
    assert inline_ids(table) == [3]


def test_overwrite_partitions_removes_inline_rows_of_the_partitions(inline_of, partition_by):
    """Also below a spec that is older than some files."""
    table = inline_of([row(1), row(2, "eu")], [row(3), row(4, "eu")], partition_by=partition_by)
    if partition_by:
        table.evolve_partitions(("truncate(1, region)",))
        result = table.overwrite_partitions([row(5, "ue")])
        assert (result.rows_deleted, rows(table, "id")) == (2, [(2,), (4,), (5,)])
        assert inline_ids(table) == [4]
    assert table.overwrite_partitions([row(6, "eu")]).rows_deleted == (2 if partition_by else 4)
    assert inline_ids(table) == []


def test_sql_merges_and_replaces_inline_rows_where_they_are(lake: Lake):
    table = lake.create_table("t", SCHEMA, properties={"icefloe.inline.enabled": "true"})
    table.append([row(1)])
    table.insert([row(2), row(3), row(4)])
    merged = lake.sql(
        "MERGE INTO t USING (SELECT 2L AS id, 7 AS n) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET n = s.n WHEN NOT MATCHED THEN INSERT (id, n) VALUES (9, 9)"
    )
    assert (merged.mode, merged.clauses) == ("inline", (1, 0))
    replaced = lake.sql("INSERT INTO t REPLACE WHERE id = 3 SELECT 3L, 'eu', 8")
    assert (replaced.rows_deleted, inline_ids(table)) == (1, [2, 4])
    assert rows(table) == [(1, "us", 0), (2, "us", 7), (3, "eu", 8), (4, "us", 0)]


def test_explain_tells_what_happens_to_inline_rows(lake: Lake, inline_of):
    table = inline_of([row(1), row(2)], [row(3), row(4), row(None)])
    assert "inline 3 rows, of which 1 may match" in str(table.delete().where("id = 3").explain())
    merge = table.upsert([row(3), row(4), row(9)], ["id"]).explain()
    assert merge.inline is not None
    assert (merge.inline.rows, merge.inline.matches) == (3, 2)
    using = table.replace_using("id", [row(3)]).explain()
    assert using.inline == InlinePlan(3, 3)
    twice = table.update().set("n", "1").where("id = (SELECT max(id) FROM t0)").explain()
    assert "inline 3 rows, of which 3 may match" in str(twice)
    assert inline_ids(table) == [None, 3, 4]
    table.flush()
    assert table.delete().where("id = 3").explain().inline is None
    update = table.update().set("n", "1").where("id = 1").with_options(mode="merge-on-read")
    assert update.explain().estimated_bytes_written > 0
