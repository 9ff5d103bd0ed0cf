"""Orphans are the table's own files: never a live file under another name, never others'."""

from __future__ import annotations

import os
from uuid import uuid4

import pytest

from icefloe.errors import StatementError, StorageError, UnsupportedTableError
from icefloe.maintenance import orphans
from icefloe.maintenance.orphans import is_writer_file_name
from icefloe.storage.locations import KnownFiles, name_of
from support.pyiceberg_tables import (
    age,
    append,
    data_paths,
    folder_of,
    ids_of,
    later,
    make,
    overwrite,
    stored,
    stray,
)


def remove(table, **options):
    return table.remove_orphans(older_than=later(), dry_run=False, allow_recent=True, **options)


@pytest.mark.parametrize("inner", ["", "sub"], ids=["whole", "nested"])
@pytest.mark.parametrize("named", ["link", "folder"])
def test_a_linked_folder_of_the_table_keeps_its_live_files(plain_lake, tmp_path, inner, named):
    """Files are reached by one name of the place and listed by the other, in either direction."""
    table = make(plain_lake, "t", 1)
    place = folder_of(table) / "data" / inner
    place.mkdir(exist_ok=True)
    link = tmp_path / "link"
    link.symlink_to(place)
    written, listed = (link, place) if named == "link" else (place, link)
    table.set_properties({"write.data.path": f"file://{written}"})
    append(table, 2)
    table.set_properties({"write.data.path": f"file://{listed}"})
    lost = stray(place / f"00000-1-{uuid4()}.parquet")
    age(*data_paths(table))

    result = remove(table)

    assert ids_of(table) == [1, 2]
    assert (result.files_deleted, len(result.files), lost.exists()) == (1, 1, False)


def test_hard_links_of_live_files_stay(plain_lake, tmp_path):
    """Two names of one file: no loss, but never a deletion by mistake either."""
    table = make(plain_lake, "t", 1)
    (live,) = data_paths(table)
    linked = live.with_name(f"00000-9-{uuid4()}.parquet")
    linked.hardlink_to(live)
    assert remove(table).files == ()
    assert linked.exists()


def test_one_store_under_two_schemes(plain_lake):
    same = {"abfs", "abfss", "wasb", "wasbs"}
    names = {
        name_of(f"{s}://c@a.{'blob' if 'wasb' in s else 'dfs'}.core.windows.net/t/x") for s in same
    }
    assert len(names) == 1
    assert name_of("abfss://c@a.dfs.core.windows.net/t") != name_of(
        "abfss://d@a.dfs.core.windows.net/t"
    )
    assert name_of("s3://b/t/data/../../o/x") == name_of("s3://b/o/x")


@pytest.mark.parametrize(
    ("listed", "reached", "doubtful"),
    [
        ("hdfs://nn1/t/data/x.parquet", "hdfs://nn1:8020/t/data/x.parquet", True),
        ("hdfs://nn1/t/data/sub/x.parquet", "hdfs://nn2/link/x.parquet", True),
        ("hdfs://nn1/t/data/x.parquet", "hdfs://nn2/t/data/sub/x.parquet", True),
        ("hdfs://nn1/t/data/x.parquet", "hdfs://nn1/t/data/sub/x.parquet", False),
        ("s3://b/t/data/x.parquet", "s3://alias/t/data/x.parquet", True),
        ("s3://b/t/data/x.parquet", "s3://b/copied/data/x.parquet", False),
        ("s3://b/t/data/x.parquet", "s3://alias/t/data/y.parquet", False),
    ],
)
def test_names_that_cannot_be_compared_are_a_doubt(listed, reached, doubtful):
    name = name_of(listed)
    folder = name_of(listed.partition("/data/")[0] + "/data")
    known = KnownFiles.of([name_of(reached)])
    assert not known.has(name)
    assert (known.lookalike(name, folder) is not None) == doubtful


def test_a_doubt_between_two_of_the_tables_own_folders_deletes_nothing(
    plain_lake, monkeypatch, tmp_path
):
    """One of the table's folders is on HDFS under another name: its files are called the same."""
    table = make(plain_lake, "t", 1)
    path = stray(folder_of(table) / "data" / f"00000-1-{uuid4()}.parquet")
    (tmp_path / "second").mkdir()
    table.set_properties({"write.object-storage.path": f"file://{tmp_path}/second"})
    reached = {name_of(f"file://{tmp_path}/second/a/{path.name}")}
    files_of = orphans.files_of
    monkeypatch.setattr(orphans, "files_of", lambda table: files_of(table) | reached)
    with pytest.raises(StorageError, match="may be the file that a table refers to as"):
        remove(table)
    assert path.exists()


def test_a_link_to_another_tables_folder_is_a_shared_folder(plain_lake, tmp_path):
    other = make(plain_lake, "other", 7)
    age(*data_paths(other))
    link = tmp_path / "link"
    link.symlink_to(folder_of(other) / "data")
    table = make(plain_lake, "t", 1, **{"write.data.path": f"file://{link}"})
    with pytest.raises(UnsupportedTableError, match="share a folder"):
        remove(table)
    assert (ids_of(table), ids_of(other)) == ([1], [7])


def test_a_link_to_a_folder_that_another_table_once_used(plain_lake, tmp_path):
    place, link = tmp_path / "place", tmp_path / "link"
    place.mkdir()
    link.symlink_to(place)
    other = make(plain_lake, "other", 7, **{"write.data.path": f"file://{place}"})
    other.set_properties({"write.data.path": f"{other.location}/data"})
    age(*data_paths(other))
    table = make(plain_lake, "t", 1, **{"write.data.path": f"file://{link}"})
    assert remove(table, folders=[f"file://{link}"]).files == ()
    assert (ids_of(table), ids_of(other)) == ([1], [7])


HOME = ["notes.txt", "photos/a.jpg", "old.parquet", "part-00000-{}-c000.snappy.parquet"]


def test_a_data_path_that_is_somebodys_home(plain_lake, tmp_path):
    table = make(plain_lake, "t", 1, **{"write.data.path": f"file://{tmp_path}/home"})
    theirs = [stray(tmp_path / "home" / name.format(uuid4())) for name in HOME]
    lost = stray(tmp_path / "home" / "region=us" / f"00000-1-{uuid4()}-00001.parquet")

    result = table.remove_orphans(dry_run=False)

    assert (result.files_deleted, result.files_unrecognised) == (1, len(theirs))
    assert all(path.exists() for path in theirs)
    assert not lost.exists()
    named = table.remove_orphans(folders=[f"file:{tmp_path}/home/"])
    assert (len(named.files), named.files_unrecognised) == (len(theirs), 0)
    assert len(table.remove_orphans(folders=f"file:{tmp_path}/home").files) == len(theirs)
    for wrong in (f"file://{tmp_path}", "home", 3):
        with pytest.raises(StatementError, match=r"not a folder of default\.t.*/home"):
            table.remove_orphans(folders=[wrong])


def test_a_linked_data_folder_is_outside_the_location(plain_lake, tmp_path):
    table = make(plain_lake, "t")
    theirs = stray(tmp_path / "home" / "notes.txt")
    (folder_of(table) / "data").symlink_to(theirs.parent)
    assert table.remove_orphans(dry_run=False).files_unrecognised == 1
    assert theirs.exists()


@pytest.mark.parametrize(
    "name",
    [
        "{h}-0123456789ab.parquet",
        "{h}-0-deletes.parquet",
        "00000-0-{u}.parquet",
        "00000-0-{u}-00001.parquet",
        "00012-345-{u}-0-00001.orc",
        "00000-0-{u}-00001-deletes.parquet",
        "00000-0-{u}-00001-deletes.puffin",
        "20240131_101500_00005_k2ytp-{u}.parquet",
        "{u}-m0.avro",
        "{h}-m1.avro",
        "optimized-m-{u}.avro",
        "snap-123-1-{u}.avro",
        "snap-123-{h}.avro",
        "00003-{u}.metadata.json",
        "00003-{u}.gz.metadata.json",
        "v3.metadata.json",
        "123-{u}.stats",
        "20240131_101500_00005_k2ytp-{u}.stats",
        "partition-stats-123-{u}.parquet",
    ],
)
def test_names_that_iceberg_writers_give(name):
    known = name.format(u=uuid4(), h=uuid4().hex)
    assert is_writer_file_name(known)
    assert not is_writer_file_name(f"{known}.bak")
    assert not is_writer_file_name(f"a-{known}")


def test_names_that_files_of_this_lake_have(plain_lake):
    table = make(plain_lake, "t", 1)
    overwrite(table, 2)
    assert all(is_writer_file_name(path.name) for path in stored(folder_of(table)))


@pytest.mark.parametrize("name", ["a.parquet", "{u}.parquet", "catalog.db", "metadata.json", *HOME])
def test_other_names(name):
    assert not is_writer_file_name(name.format(uuid4(), u=uuid4()))


def test_young_files_are_deleted_only_where_the_caller_insists(plain_lake):
    table = make(plain_lake, "t", 1)
    young = stray(folder_of(table) / "data" / "x.parquet")
    os.utime(young)
    assert len(table.remove_orphans(older_than=later()).files) == 1
    with pytest.raises(StatementError, match=r"less than a day ago.*allow_recent=True"):
        table.remove_orphans(older_than=later(), dry_run=False)
    assert young.exists()
    assert remove(table).files_deleted == 1
    stray(young)
    assert table.remove_orphans(dry_run=False).files_deleted == 1
