"""Orphans: a stray file goes and nothing else, whatever a table's files are called."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.update import SetLocationUpdate
from pyiceberg.types import LongType, NestedField

import icefloe
from icefloe.errors import StatementError, StorageError, UnsupportedTableError
from icefloe.maintenance import orphans
from icefloe.storage.locations import name_of
from support.pyiceberg_tables import folder_of, later, path_of, stored, stray
from support.tables import data_files, rows
from support.unreferenced_files import leftovers

SCHEMA = "id BIGINT, region STRING"


def row(number, region="us"):
    return {"id": number, "region": region}


@pytest.fixture
def table(table_of):
    """Two partitions, one with a blank and a sign in its name, a delete file, three snapshots."""
    table = table_of(SCHEMA, [row(1), row(2), row(3, "a b%20c")], partition_by=("region",))
    table.delete().where("id = 1").execute()
    return table


def test_only_old_orphans_are_deleted_and_only_on_request(table):
    folder = folder_of(table)
    known = stored(folder)
    old = [
        stray(folder / "data" / "stray.parquet"),
        stray(folder / "data" / "region=us" / "b c.parquet"),
    ]
    old.append(stray(folder / "metadata" / "lost-m0.avro"))
    young = stray(folder / "data" / "young.parquet")
    os.utime(young)
    hidden = [stray(folder / "data" / "_SUCCESS"), stray(folder / "metadata" / "version-hint.text")]
    hidden.append(stray(folder / "data" / ".staging" / "a.parquet"))
    outside = stray(folder / "README")

    told = table.remove_orphans()

    assert told.dry_run
    assert [path_of(f) for f in told.files] == sorted(old)
    assert (told.bytes, told.files_deleted, told.files_too_young) == (30, 0, 1)
    assert all(path.exists() for path in old)

    result = table.remove_orphans(dry_run=False)

    assert (result.files, result.files_deleted, result.bytes_deleted) == (told.files, 3, 30)
    assert stored(folder) == known | {young, outside, *hidden}
    assert rows(table, "id") == [(2,), (3,)]
    assert table.remove_orphans(dry_run=False).files == ()


def test_with_no_age_limit_everything_the_table_needs_stays(table):
    """Snapshots, old metadata in the log, statistics: whatever time travel can reach."""
    first = table.history().first().snapshot_id
    table.overwrite([row(9)])
    known = stored(folder_of(table))
    result = table.remove_orphans(older_than=later(), dry_run=False, allow_recent=True)
    assert (result.files, stored(folder_of(table))) == ((), known)
    assert result.files_listed == len(known)
    assert rows(table, "id", snapshot_id=first) == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    "spelling", ["file:{}", pytest.param("file:///{}", marks=pytest.mark.slow), "{}"]
)
def test_other_spellings_of_the_same_place(lake, tmp_path, spelling):
    """Files are reached under one spelling of the folder and listed under another."""
    place = tmp_path / "a b%20c" / "t"
    location = spelling.format(str(place).lstrip("/") if "///" in spelling else place)
    lake.create_namespace("odd")
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    lake.catalog.create_table("odd.t", schema, location=f"file://{place}")
    table = lake.table("odd.t")
    table.append([{"id": 1}])
    lake.catalog.commit_table(table.iceberg, (), (SetLocationUpdate(location=location),))
    assert table.location == location
    gone = stray(place / "data" / "s t%20u.parquet")

    assert [Path(f).name for f in table.remove_orphans(dry_run=False).files] == [gone.name]
    assert not gone.exists()
    assert len(table.remove_orphans(older_than=later()).files) == 0
    table.append([{"id": 2}])
    assert len(table.remove_orphans(older_than=later()).files) == 0
    assert len(table.expire_snapshots(older_than=later()).snapshots_expired) == 1
    assert rows(table) == [(1,), (2,)]


def test_names_are_compared_in_one_form():
    same = {"s3://b/k/x", "s3a://b/k/x", "s3n://b/k//x"}
    assert len({name_of(location) for location in same}) == 1
    local = {"/a/b c", "file:/a/b c", "file:///a/b c", "file://localhost/a//b c", "/a/./b c"}
    assert len({name_of(location) for location in local}) == 1
    assert name_of("/a/b%20c") != name_of("/a/b c")
    assert name_of("s3://b/x") != name_of("s3://c/x") != name_of("gs://c/x")
    assert name_of("s3://b/x#1?y").path == "/x#1?y"
    with pytest.raises(StorageError, match="neither a URI nor an absolute path"):
        name_of("data/x.parquet")
    assert name_of("/a").holds(name_of("file:/a/b"))
    assert not name_of("/a/b").holds(name_of("/a/bc"))


def test_names_that_another_engine_encoded_are_kept(table, monkeypatch):
    """A location written as a URL means the file with the blank, or the one with `%20`: both stay."""
    folder = folder_of(table)
    blank, encoded = (
        stray(folder / "data" / "x y.parquet"),
        stray(folder / "data" / "p%20q.parquet"),
    )
    reached = {
        name_of(str(folder / "data/x%20y.parquet")),
        name_of(str(folder / "data/p q.parquet")),
    }
    files_of = orphans.files_of
    monkeypatch.setattr(orphans, "files_of", lambda table: files_of(table) | reached)
    assert table.remove_orphans(dry_run=False).files == ()
    assert blank.exists()
    assert encoded.exists()


def test_a_file_that_may_be_one_the_table_knows_elsewhere_is_a_refusal(table, monkeypatch):
    path = stray(folder_of(table) / "data" / "region=us" / "same.parquet")
    reached = {name_of("hdfs://one/lake/t/data/region=us/same.parquet")}
    files_of = orphans.files_of
    monkeypatch.setattr(orphans, "files_of", lambda table: files_of(table) | reached)
    with pytest.raises(StorageError, match=r"may be the file that a table refers to as hdfs://one"):
        table.remove_orphans(dry_run=False)
    assert path.exists()


def test_a_table_inside_the_folder_stays(table, lake):
    inner_folder = folder_of(table) / "data" / "inner"
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    lake.create_namespace("deep.er")
    lake.catalog.create_table("deep.er.inner", schema, location=f"file://{inner_folder}")
    inner = lake.table("deep.er.inner")
    inner.append([{"id": 1}])
    theirs = stray(inner_folder / "data" / "stray.parquet")
    ours = stray(folder_of(table) / "data" / "stray.parquet")

    result = table.remove_orphans(older_than=later(), dry_run=False, allow_recent=True)

    assert (theirs.exists(), ours.exists(), result.files_deleted) == (True, False, 1)
    assert inner.count() == 1
    assert inner.remove_orphans(dry_run=False).files_deleted == 1
    assert not theirs.exists()
    assert rows(table, "id") == [(2,), (3,)]
    assert leftovers(table) <= {str(p) for p in stored(inner_folder)}


def test_what_symbolic_links_lead_to_stays(table, tmp_path):
    behind = stray(tmp_path / "elsewhere" / "a.parquet")
    (folder_of(table) / "data" / "linked").symlink_to(behind.parent)
    (folder_of(table) / "data" / "b.parquet").symlink_to(behind)
    assert table.remove_orphans(older_than=later(), dry_run=False, allow_recent=True).files == ()
    assert behind.exists()


def test_a_catalog_that_cannot_be_listed_is_a_refusal(table, lake, monkeypatch):
    def forbidden(*_):
        raise PermissionError("not yours")

    path = stray(folder_of(table) / "data" / "stray.parquet")
    monkeypatch.setattr(lake.catalog, "list_tables", forbidden)
    with pytest.raises(StorageError, match="Cannot list the tables"):
        table.remove_orphans(dry_run=False)
    assert path.exists()


def test_a_shared_folder_is_refused(table, lake, tmp_path):
    lake.catalog.register_table("default.again", table.iceberg.metadata_location)
    path = stray(folder_of(table) / "data" / "stray.parquet")
    with pytest.raises(UnsupportedTableError, match=r"default\.again share a folder"):
        table.remove_orphans(dry_run=False)
    lake.drop_table("again")

    shared = f"file://{tmp_path}/shared"
    other = lake.create_table("other", SCHEMA, properties={"write.data.path": shared})
    other.append([row(1)])
    table.set_properties({"write.data.path": f"{shared}/"})
    with pytest.raises(UnsupportedTableError, match=r"default\.other share a folder"):
        table.remove_orphans(older_than=later(), dry_run=False, allow_recent=True)
    assert path.exists()
    assert other.count() == 1

    table.set_properties({"write.data.path": f"file://{tmp_path}/lake"})
    with pytest.raises(UnsupportedTableError, match="contains the whole warehouse"):
        table.remove_orphans(older_than=later(), dry_run=False, allow_recent=True)
    assert (tmp_path / "lake" / "catalog.db").exists()


def test_folders_that_properties_name_are_listed_too(table, tmp_path):
    elsewhere = tmp_path / "else where"
    table.set_properties({"write.data.path": f"file://{elsewhere}/"})
    table.append([row(7)])
    gone = stray(elsewhere / f"00000-1-{uuid4()}-00001.parquet")
    result = table.remove_orphans(older_than=later(), dry_run=False, allow_recent=True)
    assert (result.files_deleted, gone.exists()) == (1, False)
    assert rows(table, "id") == [(2,), (3,), (7,)]


def test_unreadable_metadata_is_a_refusal(table, lake):
    path = stray(folder_of(table) / "data" / "stray.parquet")
    manifest = table.iceberg.current_snapshot().manifests(table.iceberg.io)[0].manifest_path
    kept = path_of(manifest)
    content = kept.read_bytes()
    kept.unlink()
    with pytest.raises(StorageError, match=kept.name):
        table.remove_orphans(dry_run=False)
    kept.write_bytes(content)

    broken = lake.create_table("broken", SCHEMA)
    path_of(broken.iceberg.metadata_location).unlink()
    with pytest.raises(StorageError, match=r"default\.broken cannot be read"):
        table.remove_orphans(dry_run=False)
    assert path.exists()
    with pytest.raises(StatementError, match="Invalid value 3 for older_than"):
        table.remove_orphans(older_than=3)


def test_files_that_cannot_be_deleted_are_reported(table, monkeypatch):
    path = stray(folder_of(table) / "data" / "stray.parquet")
    monkeypatch.setattr(orphans, "delete_listed", lambda files: [f.location for f in files])
    result = table.remove_orphans(dry_run=False)
    assert [path_of(f) for f in result.files_failed] == [path]
    assert (result.files_deleted, result.bytes_deleted) == (0, 0)


def test_no_spark_is_needed(table, tmp_path):
    """Expiring and looking for orphans is metadata work: the session is not asked for."""
    catalog = icefloe.lake.open_catalog(tmp_path / "lake", None, {})
    plain = icefloe.Lake(catalog).table(table.name)
    plain._lake.__class__ = type("NoSpark", (icefloe.Lake,), {"spark": property(lambda _: 1 / 0)})
    assert plain.remove_orphans().files == ()
    assert plain.expire_snapshots().snapshots_expired == ()
    assert plain.rewrite_manifests().manifests_before >= 1
    assert plain.flush().snapshot_id is None
    assert len(data_files(plain)) == 2


def test_files_that_another_table_once_put_here_stay(lake, table_of, tmp_path):
    """Its writers use another folder by now, but its rows are still where they were."""
    place = (tmp_path / "shared").as_uri()
    first = table_of(SCHEMA, mode="merge-on-read")
    first.set_properties({"write.data.path": place})
    first.append([row(1)])
    first.set_properties({"write.data.path": (tmp_path / "elsewhere").as_uri()})
    second = table_of(SCHEMA, mode="merge-on-read")
    second.set_properties({"write.data.path": place})
    second.append([row(2)])
    lost = stray(tmp_path / "shared" / f"00000-1-{uuid4()}.parquet")

    result = second.remove_orphans(older_than=later(), dry_run=False, allow_recent=True)

    assert (result.files_deleted, lost.exists()) == (1, False)
    assert (rows(first), rows(second)) == ([(1, "us")], [(2, "us")])
