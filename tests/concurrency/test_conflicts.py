"""What happens to a statement when another writer publishes while it runs."""

from __future__ import annotations

import pytest
from pyiceberg.types import IntegerType

from icefloe.errors import ConflictError, TableNotFoundError
from support.tables import data_files, delete_files, row, rows, snapshots, summary
from support.unreferenced_files import leftovers

pytestmark = pytest.mark.requirement("D6")

SCHEMA = "id BIGINT, region STRING, n INT"
THREE = [
    {"id": 1, "region": "us", "n": 0},
    {"id": 2, "region": "us", "n": 0},
    {"id": 3, "region": "us", "n": 0},
]
COW, MOR = "copy-on-write", "merge-on-read"


@pytest.mark.requirement("U13", "M25")
def test_second_writer_on_the_same_file_is_a_conflict_that_names_it(
    table_of, other, meanwhile, mode, partition_by
):
    """Table, both snapshots and the file are told; nothing is published or left.

    Merge-on-read compares row by row, so there the second writer takes the same row.
    """
    table = table_of(SCHEMA, THREE, mode=mode, partition_by=partition_by)
    base, file = table.snapshot_id, data_files(table)[0].path
    theirs = other.table(table.name)
    taken = 2 if mode == COW else 1
    meanwhile(lambda: theirs.update().set("n", "10").where(f"id = {taken}").execute())
    reason = "removed by another writer" if mode == COW else "deleted rows that this statement"

    with pytest.raises(ConflictError, match=reason) as caught:
        table.update().set("n", "n + 1").where("id = 1").execute()

    lost = caught.value
    named = file if mode == COW else delete_files(table)[0].path
    assert (lost.table, lost.base_snapshot_id) == (table.name, base)
    assert lost.current_snapshot_id == theirs.snapshot_id
    assert lost.files == (named,)
    for told in (table.name, str(base), str(theirs.snapshot_id), named, "retries"):
        assert told in str(lost)
    assert rows(table) == [(i, "us", 10 if i == taken else 0) for i in (1, 2, 3)]
    assert leftovers(table) == set()


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_append_of_matching_rows_conflicts_under_serializable_only(
    table_of, other, before_commit, mode, isolation
):
    """A row the statement would have changed had it come later."""
    table = table_of(SCHEMA, THREE, mode=mode)
    before_commit(lambda: other.table(table.name).append([row(1)]))
    statement = table.update().set("n", "n + 1").where("id = 1").with_options(isolation=isolation)

    if isolation == "serializable":
        with pytest.raises(
            ConflictError, match="added rows that this statement would have changed"
        ) as caught:
            statement.execute()
        assert len(caught.value.files) == 1
        assert rows(table, "id", "n") == [(1, 0), (1, 0), (2, 0), (3, 0)]
    else:
        assert statement.execute().rows_updated == 1
        assert rows(table, "id", "n") == [(1, 0), (1, 1), (2, 0), (3, 0)]
    assert leftovers(table) == set()


def test_append_of_rows_that_cannot_match_is_no_conflict(table_of, other, meanwhile, mode):
    """Validation is by predicate and file bounds, never by snapshot id alone."""
    table = table_of(SCHEMA, THREE, mode=mode)
    meanwhile(lambda: other.table(table.name).append([row(9)]))

    result = table.delete().where("id = 1").execute()

    assert result.rows_deleted == 1
    assert rows(table, "id") == [(2,), (3,), (9,)]


def test_writers_of_different_partitions_do_not_block_each_other(
    table_of, other, before_commit, mode
):
    """The same condition on other partitions, no retry of the statement."""
    table = table_of(SCHEMA, [row(1, "us"), row(2, "eu")], mode=mode, partition_by=("region",))
    theirs = other.table(table.name).update().set("n", "7").where("region = 'eu'")
    before_commit(theirs.execute)

    table.update().set("n", "5").where("region = 'us'").execute()

    assert rows(table) == [(1, "us", 5), (2, "eu", 7)]


def test_append_in_the_statements_partition_conflicts_in_another_it_does_not(
    table_of, other, before_commit
):
    table = table_of(SCHEMA, [row(1, "us"), row(2, "eu")], partition_by=("region",))
    theirs = other.table(table.name)
    before_commit(lambda: theirs.append([row(3, "eu")]))
    assert table.delete().where("region = 'us' AND n = 0").execute().rows_deleted == 1

    before_commit(lambda: theirs.append([row(4, "eu")]))
    with pytest.raises(ConflictError):
        table.delete().where("region = 'eu' AND n = 0").execute()
    assert rows(table, "id") == [(2,), (3,), (4,)]


def test_subquery_makes_every_appended_row_a_conflict(table_of, other, before_commit):
    """A statement that reads other rows cannot tell which of them matter."""
    table = table_of(SCHEMA, THREE)
    before_commit(lambda: other.table(table.name).append([row(9)]))

    with pytest.raises(ConflictError):
        table.delete().where(f"id = (SELECT max(id) FROM {table.name})").execute()
    assert rows(table, "id") == [(1,), (2,), (3,), (9,)]


@pytest.mark.parametrize("change", ["update", "delete"])
def test_merge_on_read_update_conflicts_with_a_change_of_the_same_row(
    table_of, other, meanwhile, change
):
    """The row was copied forward, so a delete that landed meanwhile would be undone."""
    table = table_of(SCHEMA, THREE)
    theirs = other.table(table.name)
    statement = theirs.delete() if change == "delete" else theirs.update().set("n", "10")
    meanwhile(statement.where("id = 1").with_options(isolation="snapshot").execute)

    with pytest.raises(ConflictError, match="deleted rows that this statement carries forward"):
        table.update().set("n", "n + 1").where("id = 1").with_options(
            isolation="snapshot"
        ).execute()

    assert rows(table, "id", "n") == [(1, 10), (2, 0), (3, 0)][change == "delete" :]
    assert leftovers(table) == set()


def test_merge_on_read_changes_of_other_rows_of_one_file_both_land(table_of, other, meanwhile):
    """Position deletes are compared row by row."""
    table = table_of(SCHEMA, THREE)
    meanwhile(other.table(table.name).delete().where("id = 2").execute)

    table.update().set("n", "n + 1").where("id = 1").execute()

    assert rows(table, "id", "n") == [(1, 1), (3, 0)]


def test_deleting_a_row_twice_is_harmless(table_of, other, before_commit):
    table = table_of(SCHEMA, THREE)
    before_commit(other.table(table.name).delete().where("id = 1").execute)

    table.delete().where("id = 1").execute()

    assert rows(table, "id") == [(2,), (3,)]


def test_rewrite_does_not_bring_back_a_row_deleted_several_commits_ago(table_of, other, meanwhile):
    """PyIceberg compares with the head's sequence number and loses this delete."""
    table = table_of(SCHEMA, THREE)
    theirs = other.table(table.name)

    def delete_then_append() -> None:
        theirs.delete().where("id = 2").execute()
        theirs.append([row(9)])

    meanwhile(delete_then_append)

    with pytest.raises(
        ConflictError, match="deleted rows that this statement carries forward"
    ) as caught:
        table.update().set("n", "5").where("id = 1").with_options(
            mode=COW, isolation="snapshot"
        ).execute()

    assert caught.value.files == tuple(file.path for file in delete_files(table))
    assert rows(table, "id", "n") == [(1, 0), (3, 0), (9, 0)]
    assert leftovers(table) == set()


def test_rewrite_is_not_stopped_by_deletes_in_another_file(table_of, other, before_commit):
    table = table_of(SCHEMA, THREE, [row(4), row(5)])
    before_commit(other.table(table.name).delete().where("id = 4").execute)

    table.delete().where("id = 1").with_options(mode=COW).execute()

    assert rows(table, "id") == [(2,), (3,), (5,)]


@pytest.mark.parametrize("writer", ["icefloe", "pyiceberg"])
def test_merge_on_read_delete_conflicts_with_a_rewrite_of_its_file(
    table_of, other, meanwhile, writer
):
    """The deletes would name positions of a file that is gone."""
    table = table_of(SCHEMA, THREE)
    file = data_files(table)[0].path
    theirs = other.table(table.name)
    if writer == "icefloe":
        meanwhile(theirs.update().set("n", "5").where("id = 2").with_options(mode=COW).execute)
    else:
        table.set_properties({"write.delete.mode": COW})
        meanwhile(lambda: theirs.iceberg.delete("id = 2"))

    with pytest.raises(ConflictError, match="deletes rows of were removed") as caught:
        table.delete().where("id = 1").with_options(mode=MOR, isolation="snapshot").execute()

    assert caught.value.files == (file,)
    assert (1, "us", 0) in rows(table)
    assert leftovers(table) == set()


@pytest.mark.requirement("D15")
def test_dropping_a_whole_file_conflicts_with_a_rewrite_of_it(table_of, other, before_commit):
    """A metadata-only delete needs the very file it read."""
    table = table_of(SCHEMA, THREE)
    theirs = other.table(table.name).update().set("n", "5").where("id = 2")
    before_commit(theirs.with_options(mode=COW).execute)

    with pytest.raises(ConflictError):
        table.delete().with_options(isolation="snapshot").execute()
    assert rows(table, "id", "n") == [(1, 0), (2, 5), (3, 0)]


def test_isolation_level_comes_from_the_property_of_the_statements_kind(
    table_of, other, before_commit
):
    """`write.update.isolation-level` is not `write.delete.isolation-level`."""
    table = table_of(SCHEMA, THREE, properties={"write.update.isolation-level": "snapshot"})
    theirs = other.table(table.name)

    before_commit(lambda: theirs.append([row(1)]))
    assert table.update().set("n", "1").where("id = 1").execute().rows_updated == 1

    before_commit(lambda: theirs.append([row(1)]))
    with pytest.raises(ConflictError):
        table.delete().where("id = 1").execute()

    before_commit(lambda: theirs.append([row(1)]))
    strict = table.update().set("n", "1").where("id = 1").with_options(isolation="serializable")
    with pytest.raises(ConflictError):
        strict.execute()


def test_added_optional_column_is_no_conflict(table_of, other, meanwhile, mode):
    table = table_of(SCHEMA, THREE, mode=mode)
    meanwhile(lambda: other.table(table.name).add_column("note", "STRING"))

    table.update().set("n", "5").where("id = 1").execute()

    assert rows(table) == [(1, "us", 5, None), (2, "us", 0, None), (3, "us", 0, None)]


@pytest.mark.parametrize("change", ["added", "made required"])
def test_column_that_new_files_lack_is_a_conflict(table_of, other, meanwhile, change):
    """Files written under the old schema could not be read under the new one."""
    table = table_of(SCHEMA, THREE)

    def evolve() -> None:
        with other.table(table.name).iceberg.update_schema(
            allow_incompatible_changes=True
        ) as update:
            if change == "added":
                update.add_column("must", IntegerType(), required=True)
            else:
                update.update_column("n", required=True)

    meanwhile(evolve)
    name = "must" if change == "added" else "n"
    with pytest.raises(ConflictError, match=f"schema changed .*{name}"):
        table.update().set("n", "5").where("id = 1").execute()
    assert len(snapshots(table)) == 1
    assert leftovers(table) == set()


def test_a_table_dropped_concurrently_is_reported(table_of, other, before_commit, lake):
    table = table_of(SCHEMA, THREE)
    before_commit(lambda: other.drop_table(table.name))

    with pytest.raises(TableNotFoundError, match="no longer exists"):
        table.append([row(4)])
    with pytest.raises(TableNotFoundError, match="does not exist"):
        lake.table(table.name)


def test_table_dropped_and_created_again_gets_no_rows_of_the_old_one(
    table_of, other, before_commit
):
    table = table_of(SCHEMA, THREE)

    def replace_table() -> None:
        other.drop_table(table.name)
        other.create_table(table.name, SCHEMA).append([row(7)])

    before_commit(replace_table)
    with pytest.raises(TableNotFoundError, match="is another table now"):
        table.append([row(4)])
    assert rows(table, "id") == [(7,)]


def test_a_concurrent_rollback_is_a_conflict(table_of, other, before_commit):
    table = table_of(SCHEMA, THREE, [row(4)])
    first = snapshots(table)[0].snapshot_id
    before_commit(lambda: other.table(table.name).rollback(first))

    with pytest.raises(ConflictError, match="rolled back"):
        table.delete().where("id = 4").execute()
    assert rows(table, "id") == [(1,), (2,), (3,)]


def test_two_appends_both_land(table_of, other, meanwhile):
    table = table_of(SCHEMA)
    meanwhile(lambda: other.table(table.name).append([row(2)]))

    table.append([row(1)])

    assert rows(table, "id") == [(1,), (2,)]
    assert summary(table)["total-records"] == "2"


@pytest.mark.requirement("T31")
def test_retries_run_the_whole_statement_again(table_of, other, meanwhile, mode):
    """Both increments count, where one attempt would have lost."""
    table = table_of(SCHEMA, THREE, mode=mode)
    meanwhile(other.table(table.name).update().set("n", "n + 1").execute)

    result = table.update().set("n", "n + 1").with_options(retries=1).execute()

    assert result.rows_updated == 3
    assert rows(table, "id", "n") == [(1, 2), (2, 2), (3, 2)]
    assert leftovers(table) == set()


def test_conflict_on_every_run_is_raised_once_retries_are_used_up(
    table_of, other, lake, monkeypatch
):
    table = table_of(SCHEMA, THREE, mode=COW)
    theirs = other.table(table.name).update().set("n", "n + 1")
    commit_table, runs = lake.catalog.commit_table, []

    def always_late(*arguments):
        runs.append(theirs.execute())
        return commit_table(*arguments)

    monkeypatch.setattr(lake.catalog, "commit_table", always_late)
    with pytest.raises(ConflictError):
        table.update().set("n", "100").with_options(retries=1).execute()
    assert len(runs) == 2
    assert rows(table, "n") == [(2,), (2,), (2,)]
    assert leftovers(table) == set()


@pytest.mark.parametrize("other_mode", ["copy-on-write", "merge-on-read"])
def test_subquery_makes_every_removed_row_a_conflict(table_of, other, before_commit, other_mode):
    """The largest n is gone by the time the statement lands: its answer would be another."""
    table = table_of(
        "id BIGINT, n INT", [{"id": 1, "n": 1}], [{"id": 2, "n": 9}, {"id": 3, "n": 2}]
    )
    theirs = other.table(table.name).delete().where("id = 2").with_options(mode=other_mode)
    largest = f"(SELECT max(n) FROM {table.name})"
    before_commit(theirs.execute)

    with pytest.raises(ConflictError, match="another writer"):
        table.update().set("n", largest).where("id = 1").execute()

    before_commit(lambda: None)
    assert table.update().set("n", largest).where("id = 1").execute().rows_updated == 1
    assert rows(table) == [(1, 2), (3, 2)]
