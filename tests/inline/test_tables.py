"""Tables with an inline tier: every read and every statement sees both tiers as one table."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlparse

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog

import icefloe
from icefloe import Lake, Table
from icefloe.errors import (
    ConflictError,
    NullabilityError,
    SchemaMismatchError,
    StatementError,
    TableNotFoundError,
    TypeMismatchError,
    UnsupportedTableError,
)
from support.foreign_readers import disagreements
from support.races import once_before_publish
from support.tables import data_files, row, rows, snapshots, stored_files

SCHEMA = "id BIGINT, region STRING, n INT"
INLINE = {"icefloe.inline.enabled": "true"}

InlineOf = Callable[..., Table]


@pytest.fixture
def inline_of(table_of) -> InlineOf:
    """Makes a table with the tier: rows in files, a deleted row, and rows inline."""

    def make(filed: list[dict[str, Any]], inline: list[dict[str, Any]], **options: Any) -> Table:
        table = table_of(SCHEMA, properties=options.pop("properties", {}), **options)
        if filed:
            table.append([*filed, row(99)])
            table.delete().where("id = 99").execute()
        table.set_properties(INLINE)
        if inline:
            table.insert(inline)
        return table

    return make


def filed_ids(table: Table) -> list[int]:
    """The ids of rows in files, which is what other engines see."""
    found = table.iceberg.scan(selected_fields=("id",)).to_arrow()
    return sorted(found["id"].to_pylist())


def inline_rows(table: Table) -> int:
    facts = table.inline
    assert facts is not None
    return facts.rows


# -------------------------------------------------------------------------------------------------
# Insert


@pytest.mark.requirement("L01", "L05", "X09")
def test_insert_writes_no_file_and_makes_no_snapshot(inline_of, jobs):
    table = inline_of([], [])
    before = jobs()
    result = table.insert([row(1), row(2, None, None)])
    assert jobs() == before
    assert (result.operation, result.mode, result.snapshot_id) == ("insert", "inline", None)
    assert result.rows_inserted == 2
    assert (snapshots(table), stored_files(table)) == ([], set())
    assert (inline_rows(table), table.inline.deletes) == (2, 0)
    assert table.inline.oldest is not None
    assert table.inline.bytes > 0
    assert rows(table, "id", "region", "n", "_file", "_pos") == [
        (1, "us", 0, "inline", 1),
        (2, None, None, "inline", 2),
    ]


@pytest.mark.every_variant
@pytest.mark.requirement("L02")
@pytest.mark.parametrize("kind", ["dicts", "arrow", "batch", "pandas", "frame", "other types"])
def test_rows_of_every_kind(inline_of, spark, kind):
    arrow = pa.table({"id": [1, 2], "n": pa.array([3, None], pa.int32()), "region": ["us", None]})
    new: dict[str, Any] = {
        "dicts": arrow.to_pylist(),
        "arrow": arrow,
        "batch": arrow.to_batches()[0],
        "pandas": pd.DataFrame(
            {"id": [1, 2], "n": pd.array([3, None], "Int32"), "region": ["us", None]}
        ),
        "frame": spark.createDataFrame([(1, "us", 3), (2, None, None)], SCHEMA),
        "other types": arrow.set_column(0, "id", pa.array([1, 2], pa.int16())),
    }
    table = inline_of([], [])
    assert table.insert(new[kind]).mode == "inline"
    assert rows(table) == [(1, "us", 3), (2, None, None)]


def test_rows_that_do_not_fit_are_refused_and_nothing_is_stored(lake):
    table = lake.create_table("t", "id BIGINT NOT NULL, n INT", properties=INLINE)
    with pytest.raises(NullabilityError, match="'id'"):
        table.insert([{"id": 1, "n": 1}, {"id": None, "n": 2}])
    with pytest.raises(SchemaMismatchError):
        table.insert([{"id": 1}])
    with pytest.raises(TypeMismatchError):
        table.insert([{"id": 1, "n": "x"}])
    with pytest.raises(TypeMismatchError):
        table.insert(pa.table({"id": [1], "n": pa.array([2**40], pa.int64())}))
    assert (inline_rows(table), table.count()) == (0, 0)


def test_many_rows_are_appended(inline_of):
    table = inline_of([], [])
    new = pa.table(
        {"id": range(10_001), "region": ["us"] * 10_001, "n": pa.array([0] * 10_001, pa.int32())}
    )
    assert table.insert(new).operation == "append"
    assert (inline_rows(table), len(data_files(table))) == (0, 1)
    assert table.insert([]) == icefloe.DmlResult("insert", "inline")


def test_rows_of_many_bytes_are_appended(inline_of):
    table = inline_of([], [])
    text = "x" * 2**20
    assert table.insert([row(n, text) for n in range(9)]).operation == "append"
    assert table.insert([row(9, text)]).mode == "inline"
    assert (inline_rows(table), table.count()) == (1, 10)


@pytest.mark.requirement("L05")
def test_a_join_with_files_loses_only_inline_rows(inline_of, lake):
    table = inline_of([row(1)], [row(2)])
    files = table.files().select("file_path")
    placed = table.scan(["id", "_file", "_pos"])
    joined = placed.join(files, placed["_file"] == files["file_path"], "left")
    known = sorted((r.id, r.file_path is not None, r._file == "inline") for r in joined.collect())
    assert known == [(1, True, False), (2, False, True)]


def test_a_table_without_the_tier_appends(table_of):
    table = table_of(SCHEMA)
    assert table.insert([row(1)]).operation == "append"
    assert table.inline is None
    assert table.flush().snapshot_id is None
    assert rows(table, "id") == [(1,)]


@pytest.mark.requirement("L04")
def test_row_ids_ascend_and_are_not_reused(inline_of):
    table = inline_of([], [row(1), row(2)])
    table.delete().where("id = 2").execute()
    table.insert([row(3)])
    assert rows(table, "id", "_pos") == [(1, 1), (3, 3)]


@pytest.mark.every_variant
@pytest.mark.parametrize("flushed", [False, True])
def test_a_key_inserts_once(inline_of, flushed):
    table = inline_of([], [])
    first = table.insert([row(1)], idempotency_key="k")
    if flushed:
        table.flush()
    again = table.insert([row(1)], idempotency_key="k")
    assert (again.rows_inserted, again.mode) == (first.rows_inserted, "inline")
    assert rows(table, "id") == [(1,)]
    table.append([row(2)], idempotency_key="a")
    assert table.append([row(2)], idempotency_key="a").rows_inserted == 1
    assert rows(table, "id") == [(1,), (2,)]


def test_a_key_is_the_same_for_inserts_and_appends(inline_of):
    table = inline_of([], [])
    table.append([row(1)], idempotency_key="a")
    assert table.insert([row(2)], idempotency_key="a").rows_inserted == 1
    table.insert([row(3)], idempotency_key="b")
    assert table.append([row(4)], idempotency_key="b").mode == "inline"
    table.flush()
    table.insert([row(5)], idempotency_key="b")
    assert rows(table, "id") == [(1,), (3,)]


def test_sql_inserts_values_inline_and_appends_queries(lake):
    lake.sql("CREATE TABLE t (id BIGINT, n INT) TBLPROPERTIES ('icefloe.inline.enabled' = 'true')")
    assert lake.sql("INSERT INTO t VALUES (1, 10), (2, NULL)").mode == "inline"
    assert lake.sql("INSERT INTO t SELECT 3, 30").operation == "append"
    assert "inline" in lake.sql("EXPLAIN INSERT INTO t VALUES (5, 5)").collect()[0][0]
    found = lake.sql("SELECT id, (SELECT count(*) FROM t) FROM t a WHERE n IS NULL OR n = 30")
    assert sorted(map(tuple, found.collect())) == [(2, 3), (3, 3)]


# -------------------------------------------------------------------------------------------------
# Reads


@pytest.mark.requirement("L10", "L16", "X03")
def test_reads_see_both_tiers(inline_of, partition_by):
    table = inline_of(
        [row(1), row(2, "eu")], [row(3, "eu", 5), row(4, None, None)], partition_by=partition_by
    )
    assert rows(table, "id") == [(1,), (2,), (3,), (4,)]
    assert rows(table, "id", where="region = 'eu'") == [(2,), (3,)]
    assert rows(table, "id", where="n IS NULL OR id % 2 = 0") == [(2,), (4,)]
    assert rows(table, "n", where="upper(region) = 'EU' AND n > 1") == [(5,)]
    assert table.scan(limit=3).count() == 3
    assert (table.count(), table.to_arrow(["id"], "id > 3").to_pylist()) == (4, [{"id": 4}])
    assert list(table.to_pandas(["id"], where="id < 2")["id"]) == [1]


def test_a_scan_is_of_the_time_it_was_made(inline_of):
    table = inline_of([row(1)], [row(2)])
    before = table.scan(["id"])
    table.insert([row(3)])
    table.flush()
    assert sorted(r.id for r in before.collect()) == [1, 2]
    assert rows(table, "id") == [(1,), (2,), (3,)]


def test_time_travel_reads_files_alone(inline_of):
    table = inline_of([row(1)], [row(2)])
    assert rows(table, "id", snapshot_id=table.snapshot_id) == [(1,)]


@pytest.mark.requirement("L14")
def test_a_condition_is_judged_in_the_database_where_it_can_be(inline_of, monkeypatch):
    table = inline_of([], [row(i) for i in range(50)])
    read: list[int] = []
    cut = type(table._lake.tier).cut

    def counting(*arguments: Any) -> Any:
        found = cut(*arguments)
        read.append(len(found.rows))
        return found

    monkeypatch.setattr(type(table._lake.tier), "cut", counting)
    assert rows(table, "id", where="id = 7") == [(7,)]
    assert rows(table, "id", where="id + 1 = 8") == [(7,)]
    assert read == [1, 50]


# -------------------------------------------------------------------------------------------------
# Changes


@pytest.mark.requirement("L17", "L21", "L23", "L24", "L25")
def test_changes_of_inline_rows_alone_make_no_snapshot(inline_of, mode, partition_by):
    table = inline_of(
        [row(1)], [row(2), row(3), row(4, None)], mode=mode, partition_by=partition_by
    )
    before = table.snapshot_id
    updated = table.update().set("n", "n + id").set("region", "'ap'").where("id = 2").execute()
    deleted = table.delete().where("id >= 3 AND n = 0 AND region IS NOT NULL").execute()
    assert (updated.mode, updated.rows_updated, updated.snapshot_id) == ("inline", 1, None)
    assert (deleted.mode, deleted.rows_deleted, deleted.snapshot_id) == ("inline", 1, None)
    assert table.snapshot_id == before
    assert rows(table, "id", "region", "n", "_pos")[1:] == [(2, "ap", 2, 1), (4, None, 0, 3)]
    assert table.delete().where("id = 77").execute().total_affected == 0


@pytest.mark.requirement("U17", "U38")
def test_values_are_swapped_and_rows_change_their_partition(table_of):
    table = table_of(
        "id BIGINT, region STRING, other STRING",
        partition_by=("region",),
        sort_by=("id DESC",),
        properties=INLINE,
    )
    table.insert([{"id": n, "region": "us", "other": "eu" if n % 2 else None} for n in range(6)])
    table.update().set("region", "other").set("other", "region").where("id > 1").execute()
    assert table.flush().data_files_added == 3
    assert rows(table) == [
        (0, "us", None),
        (1, "us", "eu"),
        (2, None, "us"),
        (3, "eu", "us"),
        (4, None, "us"),
        (5, "eu", "us"),
    ]
    for file in data_files(table):
        arrow = pq.read_table(urlparse(file.path).path)
        assert arrow["id"].to_pylist() == sorted(arrow["id"].to_pylist(), reverse=True)
        assert set(arrow["region"].to_pylist()) == {file.file.partition[0]}
        assert file.file.lower_bounds


@pytest.mark.requirement("L18")
@pytest.mark.parametrize("how", ["copy-on-write", "merge-on-read", "auto"])
def test_changes_of_both_tiers_are_one_snapshot(inline_of, how, partition_by):
    table = inline_of(
        [row(1), row(2, "eu"), row(3)],
        [row(4), row(5, "eu")],
        partition_by=partition_by,
        mode=how,
        properties={"icefloe.inline.deletes": "false"},
    )
    count = len(snapshots(table))
    updated = table.update().set("n", "n + 1").where("region = 'eu'").execute()
    assert (updated.rows_updated, updated.mode) == (2, how)
    deleted = table.delete().where("id IN (3, 4)").execute()
    assert (deleted.rows_deleted, len(snapshots(table))) == (2, count + 2)
    assert rows(table) == [(1, "us", 0), (2, "eu", 1), (5, "eu", 1)]
    assert (inline_rows(table), filed_ids(table)) == (1, [1, 2])


@pytest.mark.requirement("X07")
def test_statements_that_read_the_table_twice_change_inline_rows(inline_of, mode):
    table = inline_of([row(1, n=1), row(2, n=2)], [row(3, n=3), row(4, n=4)], mode=mode)
    table.update().set("n", "n + (SELECT max(n) FROM t0)").where("id IN (1, 3)").execute()
    assert rows(table, "id", "n") == [(1, 5), (2, 2), (3, 7), (4, 4)]
    assert filed_ids(table) == [1, 2]
    assert inline_rows(table) == (
        2 if mode == "copy-on-write" else 3
    )  # few rows of files go inline


def test_merge_matches_rows_of_both_tiers(inline_of, mode, partition_by):
    table = inline_of(
        [row(1), row(2)], [row(3), row(4, "eu"), row(None)], mode=mode, partition_by=partition_by
    )
    source = [row(1, "us", 10), row(3, "us", 30), row(5, "eu", 50), row(None, "us", 1)]
    result = (
        table.merge(source, on="target.id = source.id")
        .when_matched("source.n = 30").delete()
        .when_matched().update({"n": "source.n + target.n"})
        .when_not_matched().insert_all()
        .when_not_matched_by_source("target.id = 4").update({"n": "-1"})
        .execute()
    )  # fmt: skip
    assert result.clauses == (1, 1, 2, 1)
    assert rows(table) == [
        (None, "us", 0), (None, "us", 1), (1, "us", 10), (2, "us", 0), (4, "eu", -1), (5, "eu", 50)
    ]  # fmt: skip


def test_replacements_see_inline_rows(inline_of, mode):
    table = inline_of(
        [row(1), row(2, "eu")], [row(3), row(4, "eu")], mode=mode, partition_by=("region",)
    )
    table.replace_where("region = 'eu'", [row(5, "eu")]).execute()
    assert rows(table, "id") == [(1,), (3,), (5,)]
    table.insert([row(6, "eu")])
    table.replace_using("id", [row(3, n=7), row(6, "eu", 7)]).execute()
    assert rows(table, "id", "n") == [(1, 0), (3, 7), (5, 0), (6, 7)]
    table.insert([row(7), row(8, "ap")])
    table.overwrite_partitions([row(9)])
    assert rows(table, "id") == [(5,), (6,), (8,), (9,)]


def test_overwrite_and_truncate_remove_inline_rows(inline_of):
    table = inline_of([row(1)], [row(2), row(3)])
    assert table.overwrite([row(4)]).rows_deleted == 3
    assert rows(table, "id") == [(4,)]
    table.insert([row(5)])
    assert table.truncate().rows_deleted == 2
    assert (rows(table), inline_rows(table)) == ([], 0)
    table.insert([row(6)])
    only_inline = table.truncate()
    assert (only_inline.rows_deleted, only_inline.snapshot_id) == (1, None)
    assert rows(table) == []


# -------------------------------------------------------------------------------------------------
# Flush


@pytest.mark.requirement("X06")
def test_flush_moves_rows_to_files_that_other_engines_read(inline_of, partition_by):
    table = inline_of(
        [row(1), row(2, "eu")],
        [row(3), row(4, None, None), row(5, "eu")],
        partition_by=partition_by,
    )
    before = rows(table)
    assert filed_ids(table) == [1, 2]
    result = table.flush()
    assert (result.operation, result.rows_copied) == ("flush", 3)
    assert (rows(table), inline_rows(table)) == (before, 0)
    assert filed_ids(table) == [1, 2, 3, 4, 5]
    assert disagreements(table) == {}
    assert table.flush().snapshot_id is None


@pytest.mark.requirement("L08", "L09")
def test_the_background_flushes_multiples_of_the_limit(inline_of):
    table = inline_of([], [], properties={"icefloe.inline.row-limit": "3"})
    table.insert([row(i) for i in range(4)])
    flusher = table._lake._flusher
    wait_for(lambda: inline_rows(table) == 1)
    assert [file.rows for file in data_files(table)] == [3]
    assert rows(table, "id") == [(0,), (1,), (2,), (3,)]
    assert flusher._thread is not None


def test_old_rows_are_flushed(inline_of):
    table = inline_of([], [], properties={"icefloe.inline.max-age-ms": "0"})
    table.insert([row(1)])
    wait_for(lambda: table.insert([row(2)]) and len(snapshots(table)) > 0)


def wait_for(condition: Callable[[], object]) -> None:
    """Wait up to ten seconds."""
    done = threading.Event()
    for _ in range(200):
        if condition():
            return
        done.wait(0.05)
    raise AssertionError("not within ten seconds")


# -------------------------------------------------------------------------------------------------
# Other writers


@pytest.mark.requirement("L27")
def test_a_row_changed_while_a_flush_writes_is_flushed_with_its_new_value(inline_of):
    table = inline_of([], [row(1), row(2), row(3)])

    def change() -> None:
        table.update().set("n", "7").where("id = 1").execute()
        table.delete().where("id = 2").execute()
        table.insert([row(4)])

    once_before_publish(table._lake, change)
    table.flush()
    assert rows(table, "id", "n") == [(1, 7), (3, 0), (4, 0)]
    table.flush()
    assert (rows(table, "id", "n"), filed_ids(table)) == ([(1, 7), (3, 0), (4, 0)], [1, 3, 4])


@pytest.mark.every_variant
@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_a_matching_row_inserted_concurrently_is_a_conflict(inline_of, isolation):
    table = inline_of([row(1)], [row(2)])
    statement = (
        table.update().set("n", "n + 1").where("region = 'us'").with_options(isolation=isolation)
    )
    once_before_publish(table._lake, lambda: table.insert([row(3, "eu")]))
    assert statement.execute().rows_updated == 2
    once_before_publish(table._lake, lambda: table.insert([row(4)]))
    if isolation == "snapshot":
        assert statement.execute().rows_updated == 2
        assert rows(table, "id", "n") == [(1, 2), (2, 2), (3, 0), (4, 0)]
    else:
        with pytest.raises(ConflictError, match="inserted 1 inline rows"):
            statement.execute()
        assert rows(table, "id", "n") == [(1, 1), (2, 1), (3, 0), (4, 0)]


def test_the_same_inline_row_changed_concurrently_is_a_conflict(inline_of):
    table = inline_of([], [row(1), row(2)])
    statement = table.update().set("n", "n + 1").where("id = 1")
    once_before_publish(
        table._lake, lambda: table.update().set("n", "n + 10").where("id = 1").execute()
    )
    with pytest.raises(ConflictError, match="inline rows that this statement read"):
        statement.execute()
    once_before_publish(
        table._lake, lambda: table.update().set("n", "n + 10").where("id = 1").execute()
    )
    assert statement.with_options(retries=1).execute().rows_updated == 1
    once_before_publish(table._lake, lambda: table.update().set("n", "5").where("id = 2").execute())
    assert statement.execute().rows_updated == 1
    assert rows(table, "id", "n") == [(1, 22), (2, 5)]


def test_rows_flushed_while_a_statement_runs(inline_of, mode):
    table = inline_of([row(1)], [row(2)], mode=mode)
    once_before_publish(table._lake, table.flush)
    assert table.update().set("n", "n + 1").execute().rows_updated == 2
    assert rows(table, "id", "n") == [(1, 1), (2, 1)]
    table.insert([row(3)])
    once_before_publish(table._lake, table.flush)
    statement = table.delete().where("id = 3").with_options(isolation="snapshot")
    assert (statement.execute().rows_deleted, table.inline.rows) == (1, 0)
    table.insert([row(4)])

    def flush_and_change() -> None:
        table.flush()
        table.update().set("n", "5").where("id = 4").execute()

    once_before_publish(table._lake, flush_and_change)
    assert table.update().set("n", "n + 1").where("id = 4").execute().rows_updated == 1
    assert rows(table, "id", "n") == [(1, 1), (2, 1), (4, 6)]
    table.delete().where("id = 4").execute()
    once_before_publish(table._lake, table.flush)
    assert table.truncate().rows_deleted == 2
    assert rows(table) == []


# -------------------------------------------------------------------------------------------------
# Everything else a table does


def test_columns_and_partitions_evolve_above_inline_rows(inline_of):
    table = inline_of([row(1)], [row(2)])
    table.add_column("extra", "STRING").rename_column("n", "m").evolve_partitions("region")
    table.insert([{"id": 3, "region": "eu", "m": 3, "extra": "x"}])
    table.drop_column("m")
    expected = [(1, "us", None), (2, "us", None), (3, "eu", "x")]
    assert rows(table) == expected
    table.add_column("m", "STRING")
    assert rows(table, "id", "m") == [(1, None), (2, None), (3, None)]
    table.flush()
    assert rows(table, "id", "region", "extra") == expected
    assert disagreements(table) == {}


def test_rollback_flushes_first_and_can_go_forward_again(inline_of):
    table = inline_of([row(1)], [row(2)])
    before = table.snapshot_id
    table.rollback(before)
    assert (rows(table, "id"), inline_rows(table)) == ([(1,)], 0)
    newest = max(snapshots(table), key=lambda snapshot: snapshot.timestamp_ms)
    table.rollback(newest.snapshot_id)
    assert rows(table, "id") == [(1,), (2,)]


def test_renamed_tables_keep_their_rows_and_dropped_ones_lose_them(lake):
    table = lake.create_table("a.t", SCHEMA, properties=INLINE)
    table.insert([row(1)])
    lake.rename_table("a.t", "b.u")
    moved = lake.table("b.u")
    moved.insert([row(2)])
    assert rows(moved, "id") == [(1,), (2,)]
    with pytest.raises(TableNotFoundError):
        table.insert([row(3)])
    lake.drop_table("b.u")
    again = lake.create_table("b.u", SCHEMA, properties=INLINE)
    assert (rows(again), inline_rows(again)) == ([], 0)


def test_switching_the_tier_on_and_off(table_of):
    table = table_of(SCHEMA, [row(1)])
    table.set_properties(INLINE)
    assert table.insert([row(2)]).mode == "inline"
    table.set_properties({"icefloe.inline.enabled": False})
    assert (rows(table, "id"), filed_ids(table)) == ([(1,), (2,)], [1, 2])
    assert table.insert([row(3)]).operation == "append"
    table.set_properties(INLINE)
    table.set_properties({"icefloe.inline.enabled": "false"})
    assert table.properties["icefloe.inline.enabled"] == "false"
    with pytest.raises(StatementError, match=r"icefloe\.inline\.store"):
        table.set_properties({"icefloe.inline.store": "x"})


def test_rows_are_read_and_changed_after_another_engine_switched_the_tier(inline_of):
    table = inline_of([], [row(1), row(2)])
    with table.iceberg.transaction() as transaction:
        transaction.set_properties({"icefloe.inline.enabled": "false"})
    assert rows(table, "id") == [(1,), (2,)]
    assert table.delete().where("id = 1").execute().mode == "inline"
    table.flush()
    assert filed_ids(table) == [2]


def test_a_tier_that_another_engine_switched_on(table_of):
    table = table_of(SCHEMA, [row(1)])
    with table.iceberg.transaction() as transaction:
        transaction.set_properties(INLINE)
    assert rows(table, "id") == [(1,)]
    assert table.insert([row(2)]).mode == "inline"
    assert rows(table, "id") == [(1,), (2,)]


def test_catalogs_that_cannot_have_the_tier_are_refused(spark, tmp_path):
    catalog = InMemoryCatalog("memory", warehouse=f"file://{tmp_path}")
    with icefloe.connect(catalog=catalog, spark=spark) as lake:
        with pytest.raises(UnsupportedTableError):
            lake.create_table("t", SCHEMA, properties=INLINE)
        plain = lake.create_table("t", SCHEMA)
        with pytest.raises(UnsupportedTableError):
            plain.set_properties(INLINE)
        assert plain.insert([row(1)]).operation == "append"


def test_a_table_without_the_tier_asks_the_database_nothing_more(table_of, monkeypatch):
    table = table_of(SCHEMA, [row(1)])
    monkeypatch.setattr(type(table._lake.tier), "store", property(fail))
    assert rows(table, "id") == [(1,)]
    table.update().set("n", "1").execute()
    table.truncate()


def fail(_self: object) -> None:
    raise AssertionError("the store was opened")


def test_branches_do_not_see_inline_rows(inline_of):
    table = inline_of([row(1)], [row(2)])
    table.update().set("n", "9").with_options(branch="b").execute()
    assert rows(table, "id", "n") == [(1, 0), (2, 0)]
    branch = table.iceberg.metadata.refs["b"].snapshot_id
    assert rows(table, "id", "n", snapshot_id=branch) == [(1, 9)]


def test_two_lakes_insert_and_flush_at_once(lake: Lake, spark, tmp_path):
    table = lake.create_table("t", SCHEMA, properties={**INLINE, "icefloe.inline.row-limit": "20"})
    with icefloe.connect(tmp_path / "lake", spark=spark) as other:
        tables = [table, other.table("t")]
        failures: list[BaseException] = []

        def write(number: int) -> None:
            try:
                for i in range(20):
                    tables[number % 2].insert([row(100 * number + i)])
            except BaseException as error:  # noqa: BLE001 - shown by the test
                failures.append(error)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        tables[1].flush()
        for thread in threads:
            thread.join()
        assert failures == []
        expected = sorted(100 * number + i for number in range(4) for i in range(20))
        assert sorted(r.id for r in table.scan(["id"]).collect()) == expected
        table.flush()
        assert filed_ids(table) == expected
