"""Replacements while other writers publish: by partition, key and predicate, not by snapshot."""

from __future__ import annotations

import pytest

from icefloe.errors import ConflictError
from support.tables import delete_files, row, rows
from support.unreferenced_files import leftovers

pytestmark = pytest.mark.requirement("D6")

SCHEMA = "id BIGINT, region STRING, n INT"


@pytest.fixture
def table(table_of):
    return table_of(SCHEMA, [row(1), row(2, "eu")], partition_by=("region",))


def where(table, **options):
    builder = table.replace_where("region = 'us'", [row(9, "us", 1)])
    return builder.with_options(**options)


def test_an_append_into_the_replaced_partition_is_a_conflict(table, other, meanwhile):
    theirs = other.table(table.name)
    meanwhile(lambda: theirs.append([row(3)]))
    with pytest.raises(ConflictError, match="added rows") as caught:
        where(table).execute()
    assert len(caught.value.files) == 1
    assert rows(table, "id") == [(1,), (2,), (3,)]
    assert leftovers(table) == set()


def test_an_append_into_another_partition_is_none(table, other, meanwhile):
    theirs = other.table(table.name)
    meanwhile(lambda: theirs.append([row(3, "eu"), row(4, None)]))
    assert where(table).execute().rows_deleted == 1
    assert rows(table, "id") == [(2,), (3,), (4,), (9,)]


def test_snapshot_isolation_lets_the_append_stay(table, other, before_commit):
    before_commit(lambda: other.table(table.name).append([row(3)]))
    assert where(table, isolation="snapshot").execute().rows_deleted == 1
    assert rows(table, "id") == [(2,), (3,), (9,)]


def test_retries_run_the_statement_again(table, other, before_commit):
    before_commit(lambda: other.table(table.name).append([row(3)]))
    assert where(table, retries=1).execute().rows_deleted == 2
    assert rows(table, "id") == [(2,), (9,)]


def test_two_replacements_of_one_partition_conflict_of_two_they_do_not(table, other, before_commit):
    theirs = other.table(table.name)
    before_commit(theirs.replace_where("region = 'us'", [row(7)]).execute)
    with pytest.raises(ConflictError):
        where(table).execute()
    before_commit(theirs.replace_where("region = 'eu'", [row(8, "eu")]).execute)
    where(table).execute()
    assert rows(table, "id") == [(8,), (9,)]
    assert leftovers(table) == set()


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_rows_conflict_by_what_their_files_may_hold(table_of, other, before_commit, mode):
    table = table_of(SCHEMA, [row(1), row(2), row(3)], mode=mode)
    builder = table.replace_where("id = 1", [row(1, "us", 1)]).with_options(scope="rows")
    before_commit(lambda: other.table(table.name).append([row(50)]))
    assert builder.execute().rows_deleted == 1
    before_commit(lambda: other.table(table.name).append([row(1)]))
    with pytest.raises(ConflictError):
        builder.execute()
    assert leftovers(table) == set()


def test_keys_conflict_by_partition_and_bounds(table_of, other, before_commit):
    table = table_of(SCHEMA, [row(i) for i in range(8)], partition_by=("bucket(8, id)",))
    theirs = other.table(table.name)
    before_commit(lambda: theirs.append([row(1), row(2), row(4)]))
    builder = table.replace_using(["id"], [row(3, "us", 1)])
    assert builder.execute().rows_deleted == 1
    before_commit(lambda: theirs.append([row(3)]))
    with pytest.raises(ConflictError, match="added rows"):
        builder.execute()
    assert leftovers(table) == set()


def test_overwritten_partitions_of_several_specs_conflict_where_they_meet(
    table_of, other, before_commit
):
    table = table_of(SCHEMA, [row(1), row(2, "eu")])
    table.evolve_partitions(("region",))
    theirs = other.table(table.name)
    before_commit(lambda: theirs.append([row(3, "eu")]))
    assert table.overwrite_partitions([row(9)]).rows_deleted == 1
    before_commit(lambda: theirs.append([row(4)]))
    with pytest.raises(ConflictError):
        table.overwrite_partitions([row(10)])
    assert rows(table, "id") == [(2,), (3,), (4,), (9,)]
    assert leftovers(table) == set()


def test_a_delete_in_the_replaced_partition_is_not_undone(table, other, before_commit):
    """Rows of the partition are not carried forward; where that is in doubt it is a conflict."""
    before_commit(other.table(table.name).delete().where("id = 1").execute)
    with pytest.raises(ConflictError):
        where(table).execute()
    assert rows(table, "id") == [(2,)]
    assert delete_files(table) == []
