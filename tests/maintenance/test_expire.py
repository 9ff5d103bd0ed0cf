"""Expiring history: what goes, what every branch, tag and rollback keeps, and which files follow."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile
from pyiceberg.table.update import SetPartitionStatisticsUpdate, SetSnapshotRefUpdate

from icefloe.errors import (
    CommitStateUnknownError,
    ConflictError,
    StatementError,
    StorageError,
    UnsupportedTableError,
)
from icefloe.maintenance import expire
from icefloe.maintenance.expire import RetentionLimits, find_expired
from icefloe.settings import Settings
from support.pyiceberg_tables import later, path_of
from support.tables import data_files, rows, snapshots, stored_files
from support.unreferenced_files import leftovers

SCHEMA = "id BIGINT, region STRING"


def row(number, region="us"):
    return {"id": number, "region": region}


def ids(table):
    return [s.snapshot_id for s in snapshots(table)]


@pytest.fixture
def table(table_of):
    """Row 1, then overwritten by 2, then 3 added: the first file is no longer live."""
    table = table_of(SCHEMA, [row(1)])
    table.overwrite([row(2)])
    table.append([row(3)])
    return table


def test_old_snapshots_are_removed_with_the_files_only_they_reach(table):
    first, second, third = ids(table)
    lost = path_of(snapshots(table)[0].manifest_list)
    live = {path_of(f.path) for f in data_files(table)}
    old = [Path(p) for p in stored_files(table) if Path(p) not in live]
    size = old[0].stat().st_size

    result = table.expire_snapshots(older_than=later())

    assert result.snapshots_expired == (first, second)
    assert (result.snapshots_kept, ids(table)) == (1, [third])
    assert result.data_files_deleted == len(old) == 1
    assert (result.manifest_lists_deleted, result.manifests_deleted) == (2, 2)
    assert result.files_deleted == 5
    assert result.bytes_deleted > size
    assert result.files_failed == ()
    assert not lost.exists()
    assert not old[0].exists()
    assert all(path.exists() for path in live)
    assert rows(table, "id") == [(2,), (3,)]
    assert leftovers(table) == set()
    with pytest.raises(StatementError, match=f"no snapshot {first}"):
        table.scan(snapshot_id=first)


def test_nothing_is_old_enough_by_default(table):
    before = table.iceberg.metadata_location
    result = table.expire_snapshots()
    assert (result.snapshots_expired, result.snapshots_kept, result.files_deleted) == ((), 3, 0)
    assert table.iceberg.metadata_location == before
    table.set_properties({"history.expire.max-snapshot-age-ms": 1})
    assert len(table.expire_snapshots().snapshots_expired) == 2


def test_retain_last_and_the_tables_own_least_number(table):
    assert len(table.expire_snapshots(older_than=later(), retain_last=2).snapshots_expired) == 1
    table.set_properties({"history.expire.min-snapshots-to-keep": 2})
    assert table.expire_snapshots(older_than=later()).snapshots_expired == ()
    assert rows(table, "id") == [(2,), (3,)]


def test_tags_and_branches_keep_what_they_reach(table):
    first, second, _third = ids(table)
    with table.iceberg.manage_snapshots() as manage:
        manage.create_tag(first, "audit")
        manage.create_branch(second, "dev", min_snapshots_to_keep=2)

    result = table.expire_snapshots(older_than=later())

    assert (result.snapshots_expired, result.refs_removed) == ((), ())
    assert rows(table, "id", snapshot_id=first) == [(1,)]

    with table.iceberg.manage_snapshots() as manage:
        manage.remove_branch("dev")
    assert table.expire_snapshots(older_than=later()).snapshots_expired == (second,)
    assert rows(table, "id", snapshot_id=first) == [(1,)]
    assert rows(table, "id") == [(2,), (3,)]
    assert leftovers(table) == set()


def test_refs_that_are_too_old_are_removed_but_never_main(table):
    first, second, _third = ids(table)
    with table.iceberg.manage_snapshots() as manage:
        manage.create_tag(first, "old", max_ref_age_ms=1)
        manage.create_tag(first, "young")
    table.set_properties({"history.expire.max-ref-age-ms": 3_600_000})

    result = table.expire_snapshots(older_than=later())

    assert (result.refs_removed, result.snapshots_expired) == (("old",), (second,))
    assert set(table.iceberg.metadata.refs) == {"main", "young"}
    table.set_properties({"history.expire.max-ref-age-ms": 1})
    assert table.expire_snapshots().refs_removed == ("young",)
    assert rows(table, "id") == [(2,), (3,)]


def test_a_timestamp_whose_snapshot_has_expired_finds_no_other_snapshot(table):
    """The tag keeps the first, and what was in between is not told as if it had been the first."""
    first, second, third = snapshots(table)
    with table.iceberg.manage_snapshots() as manage:
        manage.create_tag(first.snapshot_id, "audit")
    then = datetime.fromtimestamp(second.timestamp_ms / 1000, UTC)
    assert rows(table, "id", as_of=then) == [(2,)]
    assert table.expire_snapshots(older_than=later()).snapshots_expired == (second.snapshot_id,)
    with pytest.raises(StatementError, match=f"has expired.*{first.snapshot_id}"):
        table.scan(as_of=then)
    late = datetime.fromtimestamp(third.timestamp_ms / 1000, UTC)
    assert rows(table, "id", as_of=late) == [(2,), (3,)]


def test_after_a_rollback_files_that_are_live_again_stay(table):
    """The line that was left goes; its parent's files are told by what is reached, not by age."""
    first, second, third = ids(table)
    table.rollback(first)
    result = table.expire_snapshots(older_than=later())
    assert set(result.snapshots_expired) == {second, third}
    assert (ids(table), rows(table, "id")) == ([first], [(1,)])
    assert result.data_files_deleted == 2
    assert leftovers(table) == set()


def test_files_an_expired_snapshot_added_stay_while_they_are_live(table_of):
    table = table_of(SCHEMA, [row(1), row(2)], [row(3)])
    table.delete().where("id = 1").execute()
    table.rewrite_manifests()
    result = table.expire_snapshots(older_than=later())
    assert len(result.snapshots_expired) == 3
    assert (result.data_files_deleted, result.delete_files_deleted) == (0, 0)
    assert rows(table, "id") == [(2,), (3,)]
    table.compact()
    result = table.expire_snapshots(older_than=later())
    assert (result.data_files_deleted, result.delete_files_deleted) == (2, 1)
    assert rows(table, "id") == [(2,), (3,)]
    assert leftovers(table) == set()


def test_unreadable_manifest_of_a_remaining_snapshot_deletes_nothing(table):
    """Found out before the commit: not even the metadata changes."""
    manifest = path_of(
        table.iceberg.current_snapshot().manifests(table.iceberg.io)[0].manifest_path
    )
    content = manifest.read_bytes()
    manifest.unlink()
    stored, before = stored_files(table), table.iceberg.metadata_location

    with pytest.raises(StorageError, match=manifest.name):
        table.expire_snapshots(older_than=later())

    assert stored_files(table) == stored
    assert table.iceberg.metadata_location == before
    manifest.write_bytes(content)
    assert len(table.expire_snapshots(older_than=later()).snapshots_expired) == 2


def test_lost_manifests_of_expired_snapshots_are_no_obstacle(table):
    gone = snapshots(table)[0]
    path_of(gone.manifest_list).unlink()
    assert len(table.expire_snapshots(older_than=later()).snapshots_expired) == 2
    assert rows(table, "id") == [(2,), (3,)]


def test_killed_between_commit_and_deletion_leaves_orphans_only(table, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(expire, "delete_files", killed)
    with pytest.raises(KeyboardInterrupt):
        table.expire_snapshots(older_than=later())
    monkeypatch.undo()
    assert len(ids(table)) == 1
    assert rows(table, "id") == [(2,), (3,)]

    result = table.remove_orphans(older_than=later(), dry_run=False, allow_recent=True)

    assert result.files_deleted >= 5
    assert rows(table, "id") == [(2,), (3,)]
    assert leftovers(table) == set()


def test_reading_fails_after_the_commit(table, monkeypatch):
    calls = iter([None])

    def fails_later(reachable, before, after):
        if next(calls, "later") == "later":
            raise StorageError("File is missing: m0.avro")
        return {}

    monkeypatch.setattr(expire, "newly_unreachable", fails_later)
    stored = stored_files(table)
    with pytest.raises(
        StorageError, match=r"2 snapshots were expired.*no file was deleted.*orphans"
    ):
        table.expire_snapshots(older_than=later())
    assert stored_files(table) == stored


def test_single_files_that_cannot_be_deleted_are_reported(table, monkeypatch):
    delete = PyArrowFileIO.delete

    def stubborn(self, location):
        if location.endswith(".parquet"):
            raise PermissionError(location)
        delete(self, location)

    monkeypatch.setattr(PyArrowFileIO, "delete", stubborn)
    result = table.expire_snapshots(older_than=later())
    assert len(result.files_failed) == 1
    assert result.files_failed[0].endswith(".parquet")
    assert (result.data_files_deleted, result.manifest_lists_deleted) == (0, 2)
    assert path_of(result.files_failed[0]).exists()


def test_a_writer_that_comes_between_is_seen_on_the_next_try(table, other, before_swap):
    """Judged again on the table as it then is: a new tag keeps its snapshot."""
    first, second, third = ids(table)
    theirs = other.table(table.name)

    def meanwhile():
        with theirs.iceberg.manage_snapshots() as manage:
            manage.create_tag(first, "audit")
        theirs.append([row(4)])

    before_swap(meanwhile)
    result = table.expire_snapshots(older_than=later() + timedelta(minutes=1))
    assert result.snapshots_expired == (second, third)
    assert rows(table, "id", snapshot_id=first) == [(1,)]
    assert rows(table, "id") == [(2,), (3,), (4,)]
    assert leftovers(table) == set()


def test_a_commit_whose_answer_is_lost(table, lake, monkeypatch):
    """Landed: goes on. Cannot be found out: nothing is deleted."""
    commit_table = lake.catalog.commit_table

    def lost(*arguments):
        commit_table(*arguments)
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(lake.catalog, "commit_table", lost)
    assert table.expire_snapshots(older_than=later(), retain_last=2).data_files_deleted == 1

    def never(*_):
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(lake.catalog, "commit_table", never)
    stored = stored_files(table)
    with pytest.raises(CommitStateUnknownError, match="1 snapshots were expired"):
        table.expire_snapshots(older_than=later())
    assert stored_files(table) == stored

    def refused(*_):
        raise CommitFailedException("no")

    monkeypatch.setattr(lake.catalog, "commit_table", refused)
    monkeypatch.setattr("icefloe.settings.RetryPolicy.wait_s", lambda *_: 0.0)
    with pytest.raises(ConflictError, match="because of concurrent"):
        table.expire_snapshots(older_than=later())
    assert stored_files(table) == stored


def test_statistics_files_are_removed_with_their_snapshot(table, lake):
    first, _, third = ids(table)
    folder = f"{table.location}/metadata"
    places = {}
    with table.iceberg.update_statistics() as update:
        for snapshot in (first, third):
            places[snapshot] = f"{folder}/{snapshot}.stats"
            path_of(places[snapshot]).write_bytes(b"PFA1")
            update.set_statistics(
                StatisticsFile(
                    **{"snapshot-id": snapshot, "statistics-path": places[snapshot]},
                    **{
                        "file-size-in-bytes": 4,
                        "file-footer-size-in-bytes": 0,
                        "blob-metadata": [],
                    },
                )
            )
    partition = f"{folder}/p.parquet"
    path_of(partition).write_bytes(b"PAR1")
    told = PartitionStatisticsFile(
        **{"snapshot-id": first, "statistics-path": partition, "file-size-in-bytes": 4}
    )
    update = SetPartitionStatisticsUpdate(**{"partition-statistics": told})
    lake.catalog.commit_table(table.iceberg, (), (update,))

    result = table.expire_snapshots(older_than=later())

    assert result.statistics_files_deleted == 2
    assert not path_of(places[first]).exists()
    assert not path_of(partition).exists()
    assert path_of(places[third]).exists()
    assert [s.snapshot_id for s in table.iceberg.metadata.statistics] == [third]
    assert table.iceberg.metadata.partition_statistics == []


def test_tables_that_must_not_be_collected_and_wrong_arguments(table):
    with pytest.raises(StatementError, match="Invalid value 0 for retain_last"):
        table.expire_snapshots(retain_last=0)
    with pytest.raises(StatementError, match="Invalid value '2020' for older_than"):
        table.expire_snapshots(older_than="2020")
    table.set_properties({"gc.enabled": "false"})
    with pytest.raises(UnsupportedTableError, match=r"gc\.enabled = false"):
        table.expire_snapshots(older_than=later())
    with pytest.raises(UnsupportedTableError, match=r"gc\.enabled = false"):
        table.remove_orphans()
    assert len(ids(table)) == 3


def test_a_branch_has_limits_of_its_own(table):
    """Iceberg's rule: its age limit and its least number, over those of the call."""
    first, second, third = ids(table)
    with table.iceberg.manage_snapshots() as manage:
        manage.create_branch(third, "dev", max_snapshot_age_ms=3_600_000)
    later_ms = int(time.time() * 1000) + 1000
    limits = RetentionLimits.of(Settings(), later_ms, later_ms, 1)
    assert find_expired(table.iceberg.metadata, limits).snapshots == ()
    limits = RetentionLimits.of(Settings(), later_ms + 2 * 3_600_000, later_ms, 1)
    assert find_expired(table.iceberg.metadata, limits).snapshots == (first, second)


def test_an_empty_table_has_nothing_to_expire(table_of):
    table = table_of(SCHEMA)
    assert table.expire_snapshots(older_than=later()).snapshots_kept == 0
    assert table.remove_orphans(older_than=later()).files == ()
    assert table.rewrite_manifests().snapshot_id is None


def test_a_catalog_that_lists_only_some_snapshots_is_refused(table, lake, monkeypatch):
    """Files of the others would look as if nobody needed them."""
    monkeypatch.setitem(lake.catalog.properties, "snapshot-loading-mode", "refs")
    for call in (table.expire_snapshots, table.remove_orphans):
        with pytest.raises(UnsupportedTableError, match=r"branches and tags only.*= all"):
            call()


def test_a_rollback_keeps_how_long_history_is_kept(table_of, lake):
    table = table_of("id INT", [{"id": 1}])
    first = table.snapshot_id
    table.append([{"id": 2}])
    lake.catalog.commit_table(
        table.iceberg,
        (),
        (
            SetSnapshotRefUpdate(
                ref_name="main",
                type="branch",
                snapshot_id=table.snapshot_id,
                max_ref_age_ms=None,
                max_snapshot_age_ms=1000,
                min_snapshots_to_keep=7,
            ),
        ),
    )

    table.rollback(first)

    kept = table.iceberg.metadata.refs["main"]
    assert (kept.snapshot_id, kept.max_snapshot_age_ms) == (first, 1000)
    assert kept.min_snapshots_to_keep == 7
