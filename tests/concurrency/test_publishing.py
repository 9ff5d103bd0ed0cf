"""Publishing a snapshot: lost races, lost answers, idempotency keys, branches, summaries."""

from __future__ import annotations

import errno
import ssl

import pytest
import requests
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from icefloe.errors import (
    CommitStateUnknownError,
    ConflictError,
    StatementError,
    StorageError,
    UnsupportedTableError,
)
from support.tables import data_files, rows, snapshots, stored_files, summary
from support.unreferenced_files import leftovers

SCHEMA = "id BIGINT, n INT"
ROWS = [{"id": 1, "n": 0}, {"id": 2, "n": 0}]
QUICK = {"commit.retry.min-wait-ms": "1", "commit.retry.num-retries": "2"}


@pytest.fixture
def catalog_that(lake, monkeypatch):
    """Makes the catalog raise the given errors, one per call, before or after it commits."""

    def arrange(*errors, landing=False):
        commit_table, pending, calls = lake.catalog.commit_table, list(errors), []

        def commit(*arguments):
            calls.append(arguments)
            if not pending:
                return commit_table(*arguments)
            if landing:
                commit_table(*arguments)
            raise pending.pop(0)

        monkeypatch.setattr(lake.catalog, "commit_table", commit)
        return calls

    return arrange


@pytest.mark.requirement("D6", "M27")
def test_lost_race_is_tried_again_with_the_same_files(table_of, catalog_that, mode):
    """The statement runs once, the commit three times."""
    table = table_of(SCHEMA, ROWS, mode=mode, properties=QUICK)
    catalog_that(CommitFailedException("moved"), CommitFailedException("moved"))

    result = table.update().set("n", "5").where("id = 1").execute()

    assert result.attempts == 3
    assert rows(table) == [(1, 5), (2, 0)]
    assert leftovers(table) == set()


@pytest.mark.requirement("D6")
def test_race_lost_every_time_is_a_conflict_and_leaves_no_files(table_of, catalog_that, mode):
    """`commit.retry.num-retries` bounds the attempts."""
    table = table_of(SCHEMA, ROWS, mode=mode, properties=QUICK)
    calls = catalog_that(*[CommitFailedException("moved")] * 9)

    with pytest.raises(ConflictError, match="failed after 3 attempts") as caught:
        table.update().set("n", "5").where("id = 1").execute()

    assert len(calls) == 3
    assert isinstance(caught.value.__cause__.__cause__, CommitFailedException)
    assert (caught.value.table, caught.value.base_snapshot_id) == (table.name, table.snapshot_id)
    assert rows(table) == [(1, 0), (2, 0)]
    assert leftovers(table) == set()


def test_commit_whose_answer_is_lost_counts_as_published(table_of, catalog_that):
    """The snapshot is found in the table: rows are neither lost nor added twice."""
    table = table_of(SCHEMA, ROWS, properties=QUICK)
    catalog_that(CommitStateUnknownException("502"), landing=True)

    result = table.append([{"id": 3, "n": 0}])

    assert result.snapshot_id == table.snapshot_id
    assert rows(table, "id") == [(1,), (2,), (3,)]


def test_commit_refused_by_its_own_first_request_counts_as_published(table_of, catalog_that):
    """The refusal is not a lost race: nothing is tried again, and no file is removed."""
    table = table_of(SCHEMA, ROWS, properties=QUICK)
    catalog_that(CommitFailedException("409"), landing=True)

    result = table.update().set("n", "n + 1").execute()

    assert (result.attempts, result.snapshot_id) == (1, table.snapshot_id)
    assert rows(table) == [(1, 1), (2, 1)]


@pytest.mark.parametrize(
    "error",
    [
        CommitStateUnknownException("502"),
        RuntimeError("?"),
        requests.exceptions.ReadTimeout("no answer"),
        ConnectionResetError("gone"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_commit_of_unknown_outcome_keeps_its_files(table_of, catalog_that, error):
    """Files are deleted only when the commit surely failed: this one may land yet."""
    table = table_of(SCHEMA, ROWS, properties=QUICK)
    catalog_that(error)

    with pytest.raises(CommitStateUnknownError, match="No file was deleted") as caught:
        table.append([{"id": 3, "n": 0}])

    assert caught.value.__cause__ is error
    kept = leftovers(table)
    assert {path.rpartition(".")[2] for path in kept} == {"parquet", "avro"}
    assert len(kept) == 3  # a data file, its manifest and the manifest list
    assert rows(table) == [(1, 0), (2, 0)]


def test_same_idempotency_key_does_nothing_the_second_time(table_of, mode):
    """api.md: the first result's counts come back."""
    table = table_of(SCHEMA, ROWS, mode=mode)
    statement = table.update().set("n", "n + 1").with_options(idempotency_key="load-7")

    first = statement.execute()
    second = statement.execute()

    assert rows(table, "n") == [(1,), (1,)]
    assert (first.rows_updated, second.rows_updated) == (2, 2)
    assert second.snapshot_id == first.snapshot_id
    counts = (
        "operation",
        "mode",
        "rows_copied",
        "data_files_added",
        "data_files_removed",
        "bytes_written",
    )
    assert [getattr(second, name) for name in counts] == [getattr(first, name) for name in counts]
    other_key = table.update().set("n", "n + 1").with_options(idempotency_key="load-8")
    assert other_key.execute().snapshot_id != first.snapshot_id
    assert rows(table, "n") == [(2,), (2,)]


def test_idempotency_key_that_lands_concurrently_is_not_applied_twice(table_of, other, meanwhile):
    table = table_of(SCHEMA, ROWS)
    firsts = []

    def same_statement() -> None:
        theirs = other.table(table.name).update().set("n", "n + 1")
        firsts.append(theirs.with_options(idempotency_key="load-7").execute())

    meanwhile(same_statement)
    second = table.update().set("n", "n + 1").with_options(idempotency_key="load-7").execute()

    assert second.snapshot_id == firsts[0].snapshot_id == table.snapshot_id
    assert second.rows_updated == 2
    assert rows(table, "n") == [(1,), (1,)]
    assert leftovers(table) == set()


def test_branch_begins_at_main_and_leaves_main_alone(table_of, mode):
    table = table_of(SCHEMA, ROWS, mode=mode)
    main = table.snapshot_id

    result = table.delete().where("id = 1").with_options(branch="dev").execute()
    again = table.update().set("n", "9").where("id = 2").with_options(branch="dev").execute()

    assert table.snapshot_id == main
    assert rows(table) == [(1, 0), (2, 0)]
    assert rows(table, snapshot_id=result.snapshot_id) == [(2, 0)]
    assert rows(table, snapshot_id=again.snapshot_id) == [(2, 9)]
    refs = table.iceberg.metadata.refs
    assert {name: ref.snapshot_id for name, ref in refs.items()} == {
        "main": main,
        "dev": again.snapshot_id,
    }


def test_writers_of_two_branches_do_not_conflict(table_of, other, meanwhile):
    """The same row on two branches; only the sequence number is raced for."""
    table = table_of(SCHEMA, ROWS)
    table.delete().where("id = 2").with_options(branch="dev").execute()
    theirs = other.table(table.name).update().set("n", "7").where("id = 1")
    meanwhile(theirs.with_options(branch="dev").execute)

    table.update().set("n", "5").where("id = 1").execute()

    assert rows(table) == [(1, 5), (2, 0)]
    dev = table.iceberg.metadata.refs["dev"].snapshot_id
    assert rows(table, snapshot_id=dev) == [(1, 7)]
    numbers = [snapshot.sequence_number for snapshot in snapshots(table)]
    assert numbers == sorted(set(numbers))


def test_two_writers_that_make_the_same_branch_both_land(table_of, other, meanwhile):
    table = table_of(SCHEMA, ROWS)
    theirs = other.table(table.name).delete().where("id = 2").with_options(branch="dev")
    meanwhile(theirs.execute)

    table.update().set("n", "5").where("id = 1").with_options(branch="dev").execute()

    dev = table.iceberg.metadata.refs["dev"].snapshot_id
    assert rows(table, snapshot_id=dev) == [(1, 5)]
    assert rows(table) == [(1, 0), (2, 0)]


def test_tag_cannot_be_written_to(table_of):
    table = table_of(SCHEMA, ROWS)
    with table.iceberg.manage_snapshots() as manage:
        manage.create_tag(table.snapshot_id, "v1")

    with pytest.raises(StatementError, match="is a tag"):
        table.delete().with_options(branch="v1").execute()


@pytest.mark.requirement("X08")
def test_summary_option_is_in_the_snapshot_and_hides_no_fact(table_of):
    """Entries of the caller's beside the engine's own, which win."""
    table = table_of(SCHEMA, ROWS)
    given = {"job": "nightly", "run": 7, "total-records": "999"}

    table.delete().where("id = 1").with_options(summary=given).execute()

    found = summary(table)
    assert (found["job"], found["run"]) == ("nightly", "7")
    assert (found["total-records"], found["engine-name"]) == ("2", "icefloe")
    assert found["icefloe.rows-deleted"] == "1"


def test_an_idempotency_key_in_the_summary_is_no_idempotency_key(table_of):
    table = table_of(SCHEMA, ROWS)
    entry = {"icefloe.idempotency-key": "nightly"}
    for number in (1, 2):
        delete = table.delete().where(f"id = {number}").with_options(summary=entry)
        assert delete.execute().rows_deleted == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"retry": 1}, "Unknown option 'retry'"),
        ({"retries": -1}, "integer >= 0"),
        ({"retries": True}, "integer >= 0"),
        ({"branch": ""}, "branch name"),
        ({"summary": "x"}, "must be a dict"),
        ({"idempotency_key": ""}, "must be a non-empty str"),
        ({"isolation": "dirty"}, "Unknown isolation level"),
        ({"mode": "fast"}, "Unknown write mode"),
    ],
)
def test_bad_options_are_refused_by_name(table_of, options, told):
    table = table_of(SCHEMA)
    with pytest.raises(StatementError, match=told):
        table.delete().with_options(**options)


def test_lost_race_does_not_write_data_files_again(table_of, catalog_that):
    table = table_of(SCHEMA, ROWS, properties=QUICK)
    catalog_that(CommitFailedException("moved"))

    table.append([{"id": 3, "n": 0}])

    assert stored_files(table) == {file.path.removeprefix("file://") for file in data_files(table)}


def test_commit_that_landed_keeps_its_files_when_nobody_can_look(table_of, lake, monkeypatch):
    """The answer is lost and so is the look at the table: nothing is removed."""
    table = table_of(SCHEMA, ROWS, properties=QUICK)
    commit_table = lake.catalog.commit_table

    def refuse(*_arguments):
        raise ConnectionError("gone")

    def commit(*arguments):
        commit_table(*arguments)
        monkeypatch.setattr(lake.catalog, "load_table", refuse)
        raise CommitFailedException("409")

    monkeypatch.setattr(lake.catalog, "commit_table", commit)
    with pytest.raises(CommitStateUnknownError):
        table.update().set("n", "n + 1").execute()

    monkeypatch.undo()
    assert rows(table) == [(1, 1), (2, 1)]


def test_ctrl_c_while_the_table_is_looked_at_keeps_the_files(table_of, lake, monkeypatch):
    table = table_of(SCHEMA, ROWS, properties=QUICK)
    commit_table = lake.catalog.commit_table

    def interrupt(*_arguments):
        raise KeyboardInterrupt

    def commit(*arguments):
        commit_table(*arguments)
        monkeypatch.setattr(lake.catalog, "load_table", interrupt)
        raise TimeoutError

    monkeypatch.setattr(lake.catalog, "commit_table", commit)
    with pytest.raises(CommitStateUnknownError):
        table.update().set("n", "n + 1").execute()

    monkeypatch.undo()
    assert rows(table) == [(1, 1), (2, 1)]


BROKEN = [
    ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
    OSError(errno.EHOSTUNREACH, "No route to host"),
    OSError(errno.EPIPE, "Broken pipe"),
    OSError("the connection was closed"),
    PermissionError(errno.EACCES, "a proxy"),
]


@pytest.mark.parametrize("error", BROKEN, ids=lambda error: repr(error)[:40])
@pytest.mark.parametrize("landing", [False, True])
def test_any_error_of_the_connection_leaves_the_outcome_unknown(
    table_of, catalog_that, lake, monkeypatch, error, landing
):
    """The request may still land: no file is deleted, unless the table is seen to have it."""
    table = table_of(SCHEMA, ROWS)
    before = stored_files(table)
    catalog_that(error, landing=landing)

    if landing:
        assert table.append(ROWS).rows_inserted == 2
        return
    with pytest.raises(CommitStateUnknownError, match="No file was deleted"):
        table.append(ROWS)
    assert len(stored_files(table)) > len(before)


def test_metadata_that_cannot_be_written_is_no_unknown_outcome(table_of, lake, monkeypatch):
    """That step comes before the catalog is asked: what was written is removed."""
    table = table_of(SCHEMA, ROWS)

    def full(*_given, **_named):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pyiceberg.io.pyarrow.PyArrowFile.create", full)
    with pytest.raises(StorageError, match="No space left"):
        table.truncate()
    monkeypatch.undo()
    assert rows(table) == [(1, 0), (2, 0)]
    assert leftovers(table) == set()


def test_history_in_part_is_refused_for_every_write(table_of, lake, monkeypatch):
    """With `refs`, keys of earlier statements and concurrent commits would not be seen."""
    table = table_of(SCHEMA, ROWS)
    before = snapshots(table)
    monkeypatch.setitem(lake.catalog.properties, "snapshot-loading-mode", "refs")
    writes = [
        lambda: table.append(ROWS),
        lambda: table.overwrite(ROWS),
        table.truncate,
        lambda: table.update().set("n", "1").execute(),
        lambda: table.delete().execute(),
        lambda: table.upsert(ROWS, on=["id"]).execute(),
        lambda: table.replace_using(["id"], ROWS).execute(),
        lambda: table.replace_where("id = 1", []).with_options(scope="rows").execute(),
        table.compact,
        table.expire_snapshots,
        table.rewrite_manifests,
        table.remove_orphans,
        lambda: table.rollback(before[0].snapshot_id),
    ]
    for write in writes:
        with pytest.raises(UnsupportedTableError, match="snapshot-loading-mode"):
            write()
    assert snapshots(table) == before
    assert rows(table) == [(1, 0), (2, 0)]


def test_a_clean_up_that_fails_after_the_commit_is_no_error(table_of, lake, monkeypatch, caplog):
    """The caller would run the statement again: a second time."""
    table = table_of(SCHEMA, ROWS)

    def gone(*_given, **_named):
        raise ConnectionRefusedError("the session has ended")

    monkeypatch.setattr("pyspark.sql.catalog.Catalog.dropTempView", gone)
    monkeypatch.setattr("pyspark.sql.classic.dataframe.DataFrame.unpersist", gone)
    changed = table.update().set("n", "5").where(f"id IN (SELECT min(id) FROM {table.name})")
    assert changed.execute().rows_updated == 1
    assert table.upsert([{"id": 2, "n": 7}], on=["id"]).execute().rows_updated == 1
    assert rows(table) == [(1, 5), (2, 7)]
    assert "the session has ended" in caplog.text


def test_an_append_lands_after_a_concurrent_rollback(table_of, other, before_commit):
    table = table_of("id INT", [{"id": 1}], [{"id": 2}])
    first = table.iceberg.metadata.snapshots[0].snapshot_id
    before_commit(lambda: other.table(table.name).rollback(first))

    table.append([{"id": 3}])

    assert rows(table) == [(1,), (3,)]
