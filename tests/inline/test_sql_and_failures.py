"""SQL on tables with inline rows, and what happens when something fails or comes in between."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

import icefloe
from icefloe import Lake, Table
from icefloe.commands import background_flush
from icefloe.commands import run as commands
from icefloe.commit import handover
from icefloe.errors import (
    CommitStateUnknownError,
    ConflictError,
    StatementError,
    StorageError,
    UnsupportedTableError,
)
from icefloe.inline.store import InlineStore
from support.races import once_before_publish
from support.tables import row, rows, snapshots
from support.unreferenced_files import leftovers

SCHEMA = "id BIGINT, region STRING, n INT"
INLINE = {"icefloe.inline.enabled": "true"}


@pytest.fixture
def table(lake: Lake) -> Table:
    """Row 1 in a file, rows 2 and 3 inline."""
    table = lake.create_table("shop.t", SCHEMA, properties=INLINE)
    table.append([row(1)])
    table.insert([row(2, "eu", 2), row(3, None, 3)])
    return table


def ids(table: Table) -> list[Any]:
    return sorted(found for (found,) in rows(table, "id"))


# -------------------------------------------------------------------------------------------------
# SQL


def test_sql_changes_inline_rows_where_they_are(lake, table):
    before = table.snapshot_id
    assert lake.sql("UPDATE shop.t x SET n = x.n + 1 WHERE x.id = 2").mode == "inline"
    assert lake.sql("DELETE FROM shop.t WHERE shop.t.id = 3").mode == "inline"
    assert (table.snapshot_id, rows(table)) == (before, [(1, "us", 0), (2, "eu", 3)])


@pytest.mark.every_variant
@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_sql_statements_that_read_the_table_see_its_inline_rows(lake, table, isolation):
    table.set_properties(
        {f"write.{kind}.isolation-level": isolation for kind in ("merge", "update")}
    )
    merged = lake.sql(
        "MERGE INTO shop.t t USING (SELECT id + 1 AS id FROM shop.t) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET n = -1 WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, 4)"
    )
    assert merged.clauses == (2, 1)
    table.insert([row(5, n=5)])
    lake.sql("UPDATE shop.t SET n = (SELECT max(id) FROM shop.t) WHERE id IN (1, 5)")
    assert rows(table, "id", "n") == [(1, 5), (2, -1), (3, -1), (4, 4), (5, 5)]
    table.insert([row(6, "eu")])
    lake.sql("INSERT INTO shop.t REPLACE WHERE region = 'eu' SELECT 7, 'eu', max(n) FROM shop.t")
    assert ids(table) == [1, 3, 4, 5, 7]
    table.insert([row(8)])
    lake.sql(
        "WITH big AS (SELECT id FROM shop.t WHERE id > 4) DELETE FROM shop.t WHERE id IN (SELECT id FROM big)"
    )
    assert ids(table) == [1, 3, 4]


def test_sql_inserts_go_on_after_a_commit_in_between(lake, table, monkeypatch):
    """The rows were fitted to metadata that is no longer current."""
    fit, moved = commands.fit_few_rows, []

    def fit_late(*arguments: Any) -> Any:
        found = fit(*arguments)
        if not moved:
            moved.append(table.append([row(10)]))
        return found

    monkeypatch.setattr(commands, "fit_few_rows", fit_late)
    assert lake.sql("INSERT INTO shop.t VALUES (11, 'x', 1)").mode == "inline"
    assert ids(table) == [1, 2, 3, 10, 11]


def test_explain_changes_nothing(lake, table):
    before = table.snapshot_id, table.inline.rows
    assert "merge" in str(table.upsert([row(2)], ["id"]).explain())
    table.delete().where("id IN (SELECT id FROM shop.t)").explain()
    table.delete().where("id = 2").explain()
    lake.sql("EXPLAIN MERGE INTO shop.t t USING shop.t s ON t.id = s.id WHEN MATCHED THEN DELETE")
    assert (table.snapshot_id, table.inline.rows) == before


# -------------------------------------------------------------------------------------------------
# Failures


@pytest.mark.requirement("L03", "X10")
def test_an_error_in_the_transaction_changes_nothing(table, monkeypatch):
    def fail(*_arguments: Any) -> None:
        raise StorageError("no")

    before = table.snapshot_id
    with monkeypatch.context() as patched:
        patched.setattr(handover, "remove_versions", fail)
        patched.setattr(handover, "remove_unchanged", fail)  # of a flush that takes all rows
        for statement in (
            table.flush,
            table.delete().where("id = 2").execute,
            table.delete().where("id < 3").execute,
            table.truncate,
        ):
            with pytest.raises(StorageError):
                statement()
    assert (table.snapshot_id, ids(table), table.inline.rows) == (before, [1, 2, 3], 2)
    assert leftovers(table) == set()
    table.flush()
    assert ids(table) == [1, 2, 3]


@pytest.mark.every_variant
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_as_the_commit_returns_leaves_the_table_readable(table, monkeypatch, error):
    """The pointer has moved: the metadata file must stay."""
    swap = handover.InlineHandover._swap

    def interrupted(self: Any, staged: Any) -> None:
        swap(self, staged)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(handover.InlineHandover, "_swap", interrupted)
        with pytest.raises(CommitStateUnknownError):
            table.flush()
    assert (ids(table), table.inline.rows) == ([1, 2, 3], 0)


def test_an_insert_is_not_reported_as_failed_once_it_is_stored(table, monkeypatch):
    def fail(*_arguments: Any) -> None:
        raise StorageError("the database is gone")

    table.set_properties({"icefloe.inline.max-age-ms": "1"})
    table.insert([row(4)])
    monkeypatch.setattr(background_flush, "is_old", fail)
    assert table.insert([row(5)]).rows_inserted == 1


def test_far_too_many_rows_are_flushed_before_more_are_inserted(lake, monkeypatch):
    table = lake.create_table("t", SCHEMA, properties={**INLINE, "icefloe.inline.row-limit": "2"})
    monkeypatch.setattr(type(lake._flusher), "_wake", lambda *_arguments: None)  # it is broken
    for number in range(9):
        table.insert([row(number)])
    assert (table.inline.rows, len(snapshots(table))) == (1, 1)
    assert ids(table) == list(range(9))


def test_a_database_that_is_locked_is_a_storage_error(table, monkeypatch):
    monkeypatch.setattr("icefloe.inline.database.BUSY_SECONDS", 0.2)
    store = InlineStore.of_catalog(table._lake.catalog)
    with store.writing(), pytest.raises(StorageError, match="locked"):
        table.insert([row(4)])
    assert ids(table) == [1, 2, 3]


# -------------------------------------------------------------------------------------------------
# What comes in between


def test_columns_that_change_while_inline_rows_are_updated(table):
    once_before_publish(table._lake, lambda: table.add_column("extra", "STRING"))
    assert table.update().set("n", "n + 10").where("id = 2").execute().mode == "inline"
    once_before_publish(table._lake, lambda: table.rename_column("n", "m"))
    assert table.update().set("n", "n + 10").where("id = 2").execute().mode == "inline"
    assert rows(table, "id", "m", "extra") == [(1, 0, None), (2, 22, None), (3, 3, None)]


def test_a_handle_that_is_older_than_the_schema_inserts(table):
    table.add_column("extra", "STRING")
    table.insert([{**row(4), "extra": "x"}])
    with pytest.raises(StatementError):
        table.insert([row(5)])
    table.drop_column("n")
    table.insert([{"id": 6, "region": "us", "extra": None}])
    assert ids(table) == [1, 2, 3, 4, 6]


def test_rows_inserted_while_a_table_is_truncated_are_later_ones(table, monkeypatch):
    publish = handover.InlineHandover.publish_with

    def publish_late(self: Any, *arguments: Any) -> Any:
        table.insert([row(9)])
        return publish(self, *arguments)

    monkeypatch.setattr(handover.InlineHandover, "publish_with", publish_late)
    assert table.truncate().rows_deleted == 3
    assert ids(table) == [9]


def test_a_tier_that_vanished_is_a_conflict(table):
    def vanish() -> None:
        with table.iceberg.transaction() as transaction:
            transaction.remove_properties("icefloe.inline.enabled", "icefloe.inline.store")

    once_before_publish(table._lake, vanish)
    with pytest.raises(ConflictError, match="lost its inline tier"):
        table.delete().where("id = 2").execute()


def test_rows_stay_readable_when_other_engines_switch_the_tier_on_and_off(table_of):
    table = table_of(SCHEMA)
    for value in ("true", "false"):
        with table.iceberg.transaction() as transaction:
            transaction.set_properties({"icefloe.inline.enabled": value})
        if value == "true":
            assert table.insert([row(1)]).mode == "inline"
    assert ids(table) == [1]
    table.set_properties({"icefloe.inline.enabled": False})
    assert (ids(table), table.inline.rows) == ([1], 0)


def test_a_table_whose_inline_rows_are_in_another_database_is_refused(table):
    with table.iceberg.transaction() as transaction:
        transaction.set_properties({"icefloe.inline.store": "another"})
    for use in (table.count, table.flush, lambda: table.insert([row(4)])):
        with pytest.raises(UnsupportedTableError, match="another"):
            use()
    with pytest.raises(UnsupportedTableError, match="another"):
        table.set_properties(INLINE)


# -------------------------------------------------------------------------------------------------
# Values


def test_rows_that_no_partition_can_hold_are_refused_at_once(lake):
    table = lake.create_table("t", "n INT", partition_by="truncate(10, n)", properties=INLINE)
    with pytest.raises(StatementError, match="truncate"):
        table.insert([{"n": -(2**31)}])
    assert table.inline.rows == 0


def test_local_times_that_do_not_exist_are_read(lake, spark):
    table = lake.create_table("t", "at TIMESTAMP_NTZ", properties=INLINE)
    times = [datetime(2024, 3, 10, 2, 30), datetime(2024, 11, 3, 1, 30), None]
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        table.insert(pa.table({"at": pa.array(times, pa.timestamp("us"))}))
        assert {found for (found,) in rows(table)} == set(times)
        table.flush()
        assert {found for (found,) in rows(table)} == set(times)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_inline_uri_is_refused(tmp_path):
    with pytest.raises(StatementError, match="inline_uri"):
        icefloe.connect(tmp_path, inline_uri="sqlite:///x.db")
