"""UPDATE and DELETE of few rows of data files, which are stored in the database like inline rows."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from icefloe import Table
from icefloe.commands import flush as flush_command
from icefloe.commit.snapshot import SnapshotDraft
from icefloe.errors import ConflictError
from support.foreign_files import equality_delete, publish, rewrite
from support.foreign_readers import disagreements
from support.pyiceberg_tables import later
from support.races import once_before_publish
from support.tables import data_files, delete_files, row, rows, snapshots

SCHEMA = "id BIGINT, region STRING, n INT"
INLINE = {"icefloe.inline.enabled": "true"}
FILED = [row(1), row(2, "eu"), row(3, None), row(4, "eu", None), row(5), row(None, "eu", 7)]

Meanwhile = Callable[[Callable[[], object]], None]


@pytest.fixture
def filed(table_of) -> Callable[..., Table]:
    """Makes a table with rows in a file of two, one of them with a deleted row, and one inline."""

    def make(**options: Any) -> Table:
        properties = options.pop("properties", {})
        table = table_of(SCHEMA, [*FILED[:3], row(99)], FILED[3:], **options)
        one = table.delete().where("id = 99")
        (one.with_options(mode="merge-on-read") if options.get("mode") == "auto" else one).execute()
        table.set_properties({**INLINE, **properties})
        table.insert([row(6, "us", 6)])
        return table

    return make


def facts(table: Table) -> tuple[int, int]:
    """How many rows are inline, and how many rows of files are deleted inline."""
    assert table.inline is not None
    return table.inline.rows, table.inline.deletes


def contents(table: Table) -> dict[str, str]:
    """A hash of every file in the table's data folder."""
    folder = Path(urlparse(table.location).path) / "data"
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*.parquet")}


def ids(table: Table) -> list[int | None]:
    return sorted((value for (value,) in rows(table, "id")), key=lambda value: value or 0)


# -------------------------------------------------------------------------------------------------
# Changes


@pytest.mark.requirement("L18", "L20", "L23", "L24", "L25")
@pytest.mark.parametrize("how", ["merge-on-read", "auto"])
def test_few_rows_of_files_change_without_a_file_or_a_snapshot(filed, how, partition_by, jobs):
    table = filed(mode=how, partition_by=partition_by)
    before, count = contents(table), len(snapshots(table))
    ran = jobs()
    literal = table.update().set("n", 5).where("id = 2").execute()
    exact = table.delete().where("id IN (1, 6)").execute()
    assert jobs() == ran
    computed = table.update().set("n", "n + id").set("region", "'ap'").where("id > 3").execute()
    judged = table.delete().where("id % 5 = 3 OR n = 7").execute()
    results = [literal, exact, computed, judged]
    assert {(result.mode, result.snapshot_id) for result in results} == {("inline", None)}
    assert [result.rows_updated for result in results] == [1, 0, 2, 0]
    assert [result.rows_deleted for result in results] == [0, 2, 0, 2]
    assert rows(table) == [(2, "eu", 5), (4, "ap", None), (5, "ap", 5)]
    assert {file for (file,) in rows(table, "_file")} == {"inline"}
    assert (facts(table), table.count(), len(snapshots(table))) == ((3, 6), 3, count)
    assert contents(table) == before
    assert table.to_arrow(where="id = 4").to_pylist() == [row(4, "ap", None)]


@pytest.mark.requirement("L19", "T01")
def test_what_is_not_stored_inline(filed, lake, mode):
    table = filed(mode=mode)
    keeps = table.update().set("n", "n + 1").where("id = 1").with_options(mode="copy-on-write")
    assert keeps.execute().mode == "copy-on-write"
    table.set_properties({"icefloe.inline.deletes": "false"})
    assert table.delete().where("id = 2").execute().mode == mode
    table.set_properties({"icefloe.inline.deletes": "true"})
    table.append([row(1000 + n, "xx") for n in range(1001)])
    many = table.update().set("n", "n + 1").where("id >= 1000").execute()
    assert (many.mode, many.rows_updated) == (mode, 1001)
    on_branch = table.delete().where("id = 1002").with_options(branch="side").execute()
    assert on_branch.mode == mode
    assert facts(table)[1] == 0
    assert (table.count("id >= 1000 AND n = 1"), table.count("id = 1 AND n = 1")) == (1001, 1)


def test_the_same_row_updated_five_times_is_flushed_once(filed, mode):
    table = filed()
    for number in range(5):
        table.update().set("n", number).where("id = 2").execute()
        table.update().set("n", "n + 10").where("id = 1").execute()
    assert facts(table) == (3, 2)
    done = table.flush()
    assert (done.rows_copied, done.delete_files_added, facts(table)) == (3, 1, (0, 0))
    assert rows(table, "id", "n")[1:4] == [(1, 50), (2, 4), (3, 0)]
    table.update().set("n", 1).where("id = 2").with_options(mode=mode).execute()
    assert rows(table, "id", "n")[2] == (2, 1)


@pytest.mark.requirement("X05", "X06", "T33")
def test_a_flush_writes_delete_files_that_other_engines_read(filed, lake, partition_by):
    table = filed(partition_by=partition_by)
    table.update().set("n", "n + 1").where("region = 'eu'").execute()
    table.delete().where("id = 1").execute()
    before = rows(table)
    done = table.flush()
    assert done.snapshot_id == table.snapshot_id
    assert rows(table) == before
    assert not disagreements(table, before)
    assert facts(table) == (0, 0)


def test_a_file_that_lost_all_rows_is_removed_by_the_flush(filed):
    table = filed(partition_by=("region",))
    table.delete().where("n IS NULL OR n = 7").execute()
    assert facts(table) == (1, 2)
    done = table.flush()
    assert (done.data_files_removed, done.data_files_added) == (1, 1)
    assert (ids(table), len(delete_files(table))) == ([1, 2, 3, 5, 6], 1)


@pytest.mark.requirement("X05", "T33")
def test_rows_of_a_file_with_position_and_equality_deletes(filed, lake, mode):
    table = filed(mode=mode)
    publish(lake, table, deletes=[equality_delete(table, [{"id": 2}])])
    update = table.update().set("n", "n + 1").where("id < 4").with_options(mode="merge-on-read")
    assert update.execute().rows_updated == 2
    assert table.delete().where("id = 2").execute().rows_deleted == 0
    assert rows(table, "id", "n")[1:3] == [(1, 1), (3, 1)]
    table.flush()
    assert rows(table, "id", "n")[1:3] == [(1, 1), (3, 1)]
    table.compact()
    assert rows(table, "id", "n")[1:3] == [(1, 1), (3, 1)]


@pytest.mark.requirement("L22", "T01", "X05")
def test_statements_consume_the_deletes_of_files_that_they_rewrite(filed, mode, partition_by):
    table = filed(partition_by=partition_by)
    few = {"mode": "merge-on-read"}
    table.update().set("n", 40).where("id = 4").with_options(**few).execute()
    table.delete().where("id % 7 = 2").with_options(**few).execute()
    assert facts(table) == (2, 2)
    table.update().set("n", "n + 1").with_options(mode="copy-on-write").execute()
    assert rows(table, "id", "n") == [(None, 8), (1, 1), (3, 1), (4, 41), (5, 1), (6, 7)]
    # A file without live rows has nothing to rewrite: it stays until a flush removes it.
    assert facts(table) == (2, 1 if partition_by else 0)
    table.delete().where("id = 5").execute()
    source = [row(1, "us", 100), row(4, "eu", 400), row(7, "us", 700)]
    table.upsert(source, ["id"]).with_options(mode=mode).execute()
    expected = [(None, 8), (1, 100), (3, 1), (4, 400), (6, 7), (7, 700)]
    assert rows(table, "id", "n") == expected
    table.delete().where("id = 3").execute()
    table.compact(target_file_bytes=2**30)
    assert (rows(table, "id", "n"), facts(table)[1]) == (expected[:2] + expected[3:], 0)
    table.delete().where("id = 7").execute()
    table.replace_where("id < 5", [row(2, "eu", 2)]).with_options(scope="rows").execute()
    assert ids(table) == [None, 2, 6]
    table.update().set("n", 3).where("id = 2").execute()
    table.overwrite([row(9)])
    assert (rows(table), facts(table)) == ([(9, "us", 0)], (0, 0))
    table.delete().where("id = 9").execute()
    table.truncate()
    assert (rows(table), facts(table)) == ([], (0, 0))


def test_time_travel_and_branches_see_the_files_alone(filed):
    table = filed()
    table.delete().where("id = 1").execute()
    assert rows(table, "id", snapshot_id=table.snapshot_id)[1:2] == [(1,)]
    table.append([row(8)])
    update = table.update().set("n", 9).where("id = 1").with_options(branch="side").execute()
    assert update.rows_updated == 1
    assert ids(table) == [None, 2, 3, 4, 5, 6, 8]


def test_a_rollback_and_switching_off_flush_the_deletes_first(filed):
    table = filed()
    first = table.snapshot_id
    table.delete().where("id = 1").execute()
    table.rollback(first)
    assert ids(table) == [None, 1, 2, 3, 4, 5]
    table.delete().where("id = 2").execute()
    table.set_properties({"icefloe.inline.enabled": "false"})
    assert (facts(table), len(table.iceberg.scan().to_arrow())) == ((0, 0), 5)
    assert ids(table) == [None, 1, 3, 4, 5]


def test_subqueries_and_sql_see_the_deletes(filed, lake):
    table = filed()
    table.delete().where("id IN (1, 2)").execute()
    assert lake.sql("SELECT count(*) AS n FROM t0 WHERE id < 4").first().n == 1
    lake.sql("UPDATE t0 SET n = (SELECT count(*) FROM t0) WHERE id = 3")
    assert lake.sql("SELECT n FROM t0 WHERE id = 3").first().n == 5


# -------------------------------------------------------------------------------------------------
# Concurrent writers


@pytest.mark.requirement("U13", "M25")
def test_the_same_row_of_a_file_changed_concurrently_is_a_conflict(filed, lake, other):
    table = filed()
    theirs = other.table("t0")
    once_before_publish(lake, lambda: theirs.update().set("n", 1).where("id = 2").execute())
    update = table.update().set("n", 2).where("id = 2").with_options(isolation="snapshot")
    with pytest.raises(ConflictError, match="another writer changed 1 rows of files"):
        update.execute()
    once_before_publish(lake, lambda: theirs.delete().where("id = 1").execute())
    with pytest.raises(ConflictError):
        table.delete().where("id + 0 = 1").execute()
    once_before_publish(lake, lambda: theirs.delete().where("id = 3").execute())
    table.update().set("n", "n + 2").where("id = 5").execute()
    assert rows(table, "id", "n") == [(None, 7), (2, 1), (4, None), (5, 2), (6, 6)]


@pytest.mark.requirement("U13")
@pytest.mark.parametrize(
    ("how", "where", "conflicts"),
    [
        ("copy-on-write", "id = 1", True),
        ("copy-on-write", "id = 4", False),
        ("merge-on-read", "id = 2", True),
        ("merge-on-read", "id = 1", False),
    ],
)
def test_a_row_deleted_inline_while_a_statement_changes_its_file(
    filed, lake, other, how, where, conflicts
):
    """The statement on files rewrites the first file, or writes a new version of row 2."""
    table = filed(properties={"icefloe.inline.deletes": "false"})
    theirs = other.table("t0")

    def delete_inline() -> None:
        theirs.set_properties({"icefloe.inline.deletes": "true"})
        assert theirs.delete().where(where).execute().mode == "inline"

    once_before_publish(lake, delete_inline)
    update = table.update().set("n", "n + 2").where("id = 2").with_options(mode=how)
    if conflicts:
        with pytest.raises(ConflictError):
            update.execute()
        assert 2 not in [n for (n,) in rows(table, "n")]
    else:
        update.execute()
        assert (2, 2) in rows(table, "id", "n")
    assert table.count(where) == 0


@pytest.mark.requirement("M25", "U13")
def test_a_compaction_beside_an_inlined_delete(filed, lake, other):
    table = filed()
    theirs = other.table("t0")
    once_before_publish(lake, lambda: theirs.delete().where("id = 2").execute())
    with pytest.raises(ConflictError, match="another writer deleted rows"):
        table.compact()
    assert ids(table) == [None, 1, 3, 4, 5, 6]
    once_before_publish(lake, lambda: theirs.compact())
    with pytest.raises(ConflictError, match="removed by another writer"):
        table.update().set("n", 1).where("id = 1").execute()
    once_before_publish(lake, lambda: theirs.compact())
    again = table.delete().where("id = 1").with_options(retries=1)
    theirs.append([row(8)])
    assert again.execute().rows_deleted == 1
    assert ids(table) == [None, 3, 4, 5, 6, 8]


@pytest.mark.requirement("U13")
def test_a_row_deleted_inline_and_flushed_is_not_deleted_again(filed, lake, other):
    table = filed()
    theirs = other.table("t0")

    def delete_and_flush() -> None:
        assert theirs.delete().where("id = 1").execute().rows_deleted == 1
        theirs.flush()

    once_before_publish(lake, delete_and_flush)
    delete = table.delete().where("id IN (1, 3)")
    assert delete.execute().rows_deleted == 1  # a flush makes the statement run again

    def delete_in_files() -> None:
        theirs.set_properties({"icefloe.inline.deletes": "false"})
        assert theirs.delete().where("id = 4").execute().delete_files_added == 1
        theirs.set_properties({"icefloe.inline.deletes": "true"})

    once_before_publish(lake, delete_in_files)
    with pytest.raises(ConflictError, match="carries forward"):
        table.delete().where("id = 4 OR id = 5").execute()
    assert ids(table) == [None, 2, 5, 6]


@pytest.mark.requirement("U13")
def test_a_row_deleted_inline_of_a_file_that_a_statement_removes(filed, lake, other):
    table = filed(partition_by=("region",))
    theirs = other.table("t0")
    once_before_publish(lake, lambda: theirs.delete().where("id = 4").execute())
    with pytest.raises(ConflictError, match="files that this statement removes"):
        table.delete().where("region = 'eu'").execute()
    assert table.delete().where("region = 'eu'").execute().rows_deleted == 2
    assert (ids(table), facts(table)) == ([1, 3, 5, 6], (1, 0))


def test_a_merge_whose_matched_row_is_deleted_inline_is_a_conflict(filed, lake, other, mode):
    table = filed()
    theirs = other.table("t0")
    once_before_publish(lake, lambda: theirs.delete().where("id = 1").execute())
    insert = table.merge([row(1), row(7)], ["id"]).when_not_matched().insert_all()
    with pytest.raises(ConflictError):
        insert.with_options(mode=mode).execute()
    assert ids(table) == [None, 2, 3, 4, 5, 6]


@pytest.mark.requirement("M25")
def test_truncate_and_overwrites_beside_an_update_of_a_row_of_a_file(
    filed, lake, other, monkeypatch
):
    """The update is first: the new version goes too; or it is last, and a conflict."""
    table = filed()
    theirs = other.table("t0")
    finish, pending = SnapshotDraft.finish, [lambda: update(theirs, 1)]

    def update(changed: Table, key: int) -> None:
        assert changed.update().set("n", 5).where(f"id = {key}").execute().mode == "inline"

    def updating(*arguments: Any) -> Any:
        if pending:
            pending.pop()()
        return finish(*arguments)

    monkeypatch.setattr(SnapshotDraft, "finish", updating)
    table.truncate()
    assert (rows(table), facts(table)) == ([], (0, 0))
    table.append([row(2), row(3)])
    pending.append(lambda: update(theirs, 2))
    table.overwrite([row(7)])
    assert (ids(table), facts(table)) == ([7], (0, 0))


@pytest.mark.requirement("M25")
def test_replaced_partitions_beside_an_update_of_a_row_of_a_file(filed, lake, other):
    table = filed(partition_by=("region",))
    theirs = other.table("t0")
    once_before_publish(lake, lambda: theirs.update().set("n", 5).where("id = 4").execute())
    with pytest.raises(ConflictError, match="files that this statement removes"):
        table.overwrite_partitions([row(9, "eu")])
    assert (4, 5) in rows(table, "id", "n")


@pytest.mark.requirement("U13")
def test_a_delete_in_files_of_a_row_that_was_updated_inline(filed, lake, other):
    table = filed(properties={"icefloe.inline.deletes": "false"})
    theirs = other.table("t0")

    def update() -> None:
        theirs.set_properties({"icefloe.inline.deletes": "true"})
        theirs.update().set("n", 5).where("id = 2").execute()

    once_before_publish(lake, update)
    delete = table.delete().where("id = 2").with_options(isolation="snapshot")
    with pytest.raises(ConflictError, match="changed 1 rows that this statement deletes"):
        delete.execute()
    assert delete.execute().rows_deleted == 1


def test_a_matching_row_that_moved_inline_is_a_conflict(filed, lake, other):
    table = filed()
    theirs = other.table("t0")
    once_before_publish(lake, lambda: theirs.update().set("n", 33).where("id = 5").execute())
    delete = table.delete().where("n = 33 OR id = 4")
    with pytest.raises(ConflictError, match="inserted 1 inline rows"):
        delete.execute()
    assert delete.execute().rows_deleted == 2


@pytest.mark.requirement("L27")
def test_rows_changed_while_a_flush_writes_do_not_start_it_again(filed, lake, other, partition_by):
    table = filed(partition_by=partition_by)
    table.insert([row(10 + n, "us" if n % 2 else "eu", n) for n in range(20)])
    theirs = other.table("t0")
    runs: list[int] = []

    def change() -> None:
        runs.append(1)
        theirs.update().set("n", 1000).where("id IN (11, 14)").execute()
        theirs.delete().where("id = 12").execute()
        theirs.update().set("n", 500).where("id = 1").execute()

    once_before_publish(lake, change)
    done = table.flush()
    assert (done.rows_copied, runs, facts(table)) == (21, [1], (3, 4))
    expected = rows(table)
    assert [found for found in expected if found[0] in (1, 11, 12, 14)] == [
        (1, "us", 500),
        (11, "us", 1000),
        (14, "eu", 1000),
    ]
    assert len(expected) == 26
    table.flush()
    assert (rows(table), facts(table)) == (expected, (0, 0))
    assert not disagreements(table, expected)


def test_a_flush_most_of_whose_rows_changed_starts_again(filed, lake, other, monkeypatch):
    table = filed()
    table.insert([row(1000 + n) for n in range(300)])
    theirs = other.table("t0")
    written: list[int] = []
    write = flush_command.write_local_rows

    def counting(state: Any, arrow: Any, statement_id: str) -> Any:
        written.append(arrow.num_rows)
        return write(state, arrow, statement_id)

    monkeypatch.setattr(flush_command, "write_local_rows", counting)
    once_before_publish(lake, lambda: theirs.delete().where("id >= 1000").execute())
    assert table.flush().rows_copied == 1
    assert (written, facts(table)) == ([301, 1], (0, 0))


# -------------------------------------------------------------------------------------------------
# Files that another engine replaced


@pytest.mark.requirement("X05", "X06")
@pytest.mark.parametrize("compacts", [True, False])
def test_deletes_follow_rows_that_another_engine_rewrote(filed, lake, compacts):
    table = filed()
    table.append([row(1), row(1), row(8)])
    assert table.delete().where("id = 8").execute().rows_deleted == 1
    table.update().set("n", 20).where("id = 2").execute()
    assert table.delete().where("id = 1").execute().rows_deleted == 3
    table.insert([row(1, "us", 1)])
    expected = rows(table)
    rewrite(lake, table, compacts=compacts)
    assert rows(table) == expected
    assert facts(table) == (3, 5)
    rewrite(lake, table, compacts=compacts)
    assert table.update().set("n", "n + 1").where("id = 3").execute().rows_updated == 1
    expected = rows(table)
    table.flush()
    assert (rows(table), facts(table)) == (expected, (0, 0))


def test_a_row_that_the_other_engine_deleted_too(filed, lake):
    table = filed()
    table.delete().where("id IN (1, 2)").execute()
    rewrite(lake, table, drop=[1])
    assert (ids(table), facts(table)) == ([None, 3, 4, 5, 6], (1, 1))


def test_deleted_rows_that_cannot_be_found_are_never_back_silently(filed, lake):
    table = filed()
    table.delete().where("id IN (1, 2)").execute()
    [old] = [f.path for f in data_files(table) if f.rows == 4]
    rewrite(lake, table)
    Path(urlparse(old).path).unlink()
    for use in (
        table.count,
        table.scan,
        table.to_arrow,
        table.flush,
        table.compact,
        table.delete().where("id = 3").execute,
        table.delete().where("id = 3").explain,
        lambda: lake.sql("SELECT * FROM t0"),
    ):
        with pytest.raises(ConflictError, match="discard_lost_deletes") as refused:
            use()
        assert old in str(refused.value)
    table.flush(discard_lost_deletes=True)
    assert (ids(table), facts(table)) == ([None, 1, 2, 3, 4, 5, 6], (0, 0))


def test_another_engine_rolled_the_table_back(filed, lake):
    table = filed()
    first = table.snapshot_id
    table.append([row(8), row(9)])
    table.delete().where("id IN (1, 8)").execute()
    with table.iceberg.manage_snapshots() as manage:
        manage.rollback_to_snapshot(first)
    assert (ids(table), facts(table)) == ([None, 2, 3, 4, 5, 6], (1, 1))


def test_appends_and_deletes_of_other_engines_leave_the_deletes_where_they_are(filed, lake):
    table = filed()
    table.delete().where("id = 1").execute()
    table.iceberg.append(table.iceberg.scan(row_filter="id = 2").to_arrow())
    publish(lake, table, deletes=[equality_delete(table, [{"id": 5}])])
    assert (ids(table), facts(table)) == ([None, 2, 2, 3, 4, 6], (1, 1))


@pytest.mark.parametrize(("count", "noted"), [(20, False), (21, True)])
def test_many_snapshots_of_other_engines_are_followed_once(filed, other, count, noted):
    table = filed()
    table.delete().where("id = 1").execute()
    one = table.iceberg.scan(row_filter="id = 2").to_arrow()
    for _ in range(count):
        table.iceberg.append(one)
    assert table.count("id = 1") == 0
    deletes = other.tier.with_deletes(other.table(table.name)._state()).inline_deletes
    assert (deletes.live_in == table.snapshot_id, deletes.rows) == (noted, 1)


def test_rows_that_the_other_engine_deleted_and_inserted_again(filed, lake):
    table = filed()
    table.delete().where("id IN (1, 3)").execute()
    publish(lake, table, deletes=[equality_delete(table, [{"id": 1}])])
    table.append([row(1)])
    rewrite(lake, table, has_equality_deletes=True)
    assert (ids(table), facts(table)) == ([None, 1, 2, 4, 5, 6], (1, 1))


def test_a_file_that_is_removed_and_added_again(filed, lake):
    table = filed()
    table.delete().where("id = 1").execute()
    [live] = [f for f in data_files(table) if f.rows == 4]
    publish(lake, table, removed=[live])
    publish(lake, table, data=[live.file])
    assert 1 not in ids(table)
    table.append([row(8)])
    assert (1 not in ids(table), facts(table)) == (True, (1, 1))


def test_an_overwrite_in_two_snapshots_is_not_taken_for_a_rewrite_or_for_new_rows(filed, lake):
    # PyIceberg warns if it finds the property that makes the statements write deletes.
    table = filed(properties={"write.delete.mode": "copy-on-write"})
    delete = table.delete().where("id = 1").with_options(mode="merge-on-read")
    delete.execute()
    table.iceberg.overwrite(table.iceberg.scan().to_arrow())
    with pytest.raises(ConflictError, match="next snapshot added equal rows"):
        table.count()
    table.flush(discard_lost_deletes=True)
    assert ids(table) == [None, 1, 2, 3, 4, 5, 6]
    delete.execute()
    table.iceberg.overwrite(table.iceberg.scan(row_filter="id > 1").to_arrow())
    assert (ids(table), facts(table)) == ([2, 3, 4, 5, 6], (0, 0))


@pytest.mark.requirement("X07")
@pytest.mark.parametrize("tagged", [False, True])
def test_deleted_rows_are_followed_before_snapshots_expire(filed, lake, tagged):
    table = filed()
    if tagged:
        with table.iceberg.manage_snapshots() as manage:
            manage.create_tag(table.snapshot_id, "kept")
    table.append([row(8)])
    table.delete().where("id = 1").execute()
    rewrite(lake, table)
    table.expire_snapshots(older_than=later())
    assert (ids(table), facts(table)) == ([None, 2, 3, 4, 5, 6, 8], (1, 1))


def test_a_tag_does_not_make_an_expired_rewrite_a_rollback(filed, lake):
    table = filed()
    with table.iceberg.manage_snapshots() as manage:
        manage.create_tag(table.snapshot_id, "kept")
    table.append([row(8)])
    table.delete().where("id = 1").execute()
    rewrite(lake, table)
    with table.iceberg.maintenance.expire_snapshots() as expiry:
        expiry.older_than(later())
    with pytest.raises(ConflictError, match="snapshots that the table has left"):
        table.count()


# -------------------------------------------------------------------------------------------------
# When deletes are flushed


def test_deletes_are_due_like_rows(filed):
    table = filed(properties={"icefloe.inline.row-limit": "3"})
    assert not table.inline.is_due
    table.delete().where("id = 1").execute()
    assert (table.inline.is_due, table.inline.deletes) == (False, 1)
    table.delete().where("id = 2").execute()
    assert table.inline.is_due


def test_many_deletes_wake_the_background_flush(filed, lake):
    table = filed(properties={"icefloe.inline.row-limit": "2"})
    table.delete().where("id IN (1, 2, 3)").execute()
    until = time.monotonic() + 30
    while facts(table) != (0, 0) and time.monotonic() < until:
        time.sleep(0.05)
    assert (facts(table), ids(table)) == ((0, 0), [None, 4, 5, 6])


def test_other_engines_never_see_half_an_update(filed, lake):
    table = filed(properties={"icefloe.inline.row-limit": "3"})
    table.update().set("n", 5).where("id = 1").execute()
    table.delete().where("id IN (2, 3)").execute()
    until = time.monotonic() + 30
    while facts(table)[1] and time.monotonic() < until:
        time.sleep(0.05)
    found = table.iceberg.scan(row_filter="id = 1").to_arrow().to_pylist()
    assert (found, facts(table)) == ([row(1, n=5)], (0, 0))


def test_explain_reports_that_few_rows_of_files_change_inline(filed):
    table = filed()
    text = str(table.delete().where("id = 1").explain())
    assert "up to 1,000 rows of files change in the database" in text
    table.set_properties({"icefloe.inline.deletes": "false"})
    assert "rows of files change" not in str(table.delete().where("id = 1").explain())
