"""Expiring deletes the table's own files, whatever paths a manifest names."""

from __future__ import annotations

from uuid import uuid4

import pytest
from pyiceberg.table.snapshots import MetadataLogEntry
from pyiceberg.table.statistics import StatisticsFile

from icefloe.errors import StorageError
from icefloe.maintenance.own_files import holds_warehouse
from icefloe.metadata.table_state import delete_old_metadata
from icefloe.storage.locations import name_of
from support.pyiceberg_tables import (
    SCHEMA,
    append,
    data_paths,
    drop_rows,
    folder_of,
    ids_of,
    later,
    make,
    overwrite,
    path_of,
    publish_at,
    stored,
    stray,
)


def expire(table):
    return table.expire_snapshots(older_than=later())


def hostile(plain_lake, tmp_path):
    """A table whose first snapshot names files that are not its own, then overwritten."""
    other = make(plain_lake, "other", 7)
    table = make(plain_lake, "t", 1)
    home = stray(tmp_path / "home" / "notes.txt")
    (theirs,) = data_paths(other)
    (folder_of(table) / "data" / "linked").symlink_to(theirs.parent)
    names = [
        f"file://{theirs}",
        f"file:{home}",
        f"{table.location}/../other/data/{theirs.name}",
        f"{table.location}/data/../../other/./data/{theirs.name}",
        f"{table.location}/data/linked/{theirs.name}",
        f"{table.location}/data/%2e%2e/%2e%2e/other/data/{theirs.name}",
        str(home),
    ]
    publish_at(plain_lake, table, names, like=theirs)
    return table, other, home, names


def test_expiring_deletes_nothing_outside_the_tables_folders(plain_lake, tmp_path):
    table, other, home, names = hostile(plain_lake, tmp_path)
    own = data_paths_of_first(table)
    drop_rows(table)

    result = expire(table)

    assert home.exists()
    assert ids_of(other) == [7]
    assert not own.exists()
    assert {name_of(kept) for kept in result.files_kept} == {name_of(name) for name in names}
    assert result.data_files_deleted == 1


def data_paths_of_first(table):
    snapshot = table.iceberg.metadata.snapshots[0]
    return data_paths_at(table, snapshot.snapshot_id)[0]


def data_paths_at(table, snapshot_id):
    tasks = table.iceberg.scan(snapshot_id=snapshot_id).plan_files()
    return [path_of(task.file.file_path) for task in tasks]


def test_expiring_keeps_what_a_remaining_snapshot_has_under_another_name(plain_lake, tmp_path):
    """Links, encoded names and queries: the names differ, the file is one."""
    table = make(plain_lake, "t", 1)
    (live,) = data_paths(table)
    link = tmp_path / "link"
    link.symlink_to(live.parent)
    drop_rows(table)
    odd = live.rename(live.with_name("a b.parquet"))
    table.set_properties({"write.object-storage.path": f"file://{link}"})
    publish_at(plain_lake, table, [f"file://{link}/{odd.name}", f"file://{odd}?v=1"], like=odd)
    drop_rows(table)
    publish_at(plain_lake, table, [f"file://{odd}"], like=odd)
    result = expire(table)
    assert len(result.snapshots_expired) == 4
    assert odd.exists()
    assert f"file://{link}/{odd.name}" in result.files_kept


def test_expiring_deletes_no_metadata_that_a_manifest_names(plain_lake):
    table = make(plain_lake, "t", 1)
    pointer = table.iceberg.metadata_location
    later_pointer = f"{table.location}/metadata/version-hint.text"
    stray(path_of(later_pointer))
    publish_at(plain_lake, table, [pointer, later_pointer], like=data_paths(table)[0])
    drop_rows(table)
    result = expire(table)
    assert path_of(pointer).exists()
    assert set(result.files_kept) == {pointer, later_pointer}


def test_manifests_lists_and_statistics_outside_the_tables_folders(plain_lake, tmp_path):
    """Once written elsewhere, by an old `write.metadata.path`: reported, not deleted."""
    old = f"file://{tmp_path}/old"
    table = make(plain_lake, "t", **{"write.metadata.path": old})
    append(table, 1)
    first = table.iceberg.current_snapshot()
    statistics = f"{old}/{first.snapshot_id}-{uuid4()}.stats"
    stray(path_of(statistics))
    with table.iceberg.update_statistics() as update:
        update.set_statistics(
            StatisticsFile(
                **{"snapshot-id": first.snapshot_id, "statistics-path": statistics},
                **{"file-size-in-bytes": 4, "file-footer-size-in-bytes": 0, "blob-metadata": []},
            )
        )
    table.set_properties({"write.metadata.path": f"{table.location}/metadata"})
    overwrite(table, 2)
    before = stored(tmp_path / "old")
    result = expire(table)
    assert {statistics, first.manifest_list} <= set(result.files_kept)
    assert stored(tmp_path / "old") == before
    assert result.manifest_lists_deleted == len(result.snapshots_expired) - 1


def test_a_table_registered_twice_keeps_what_the_other_name_reaches(plain_lake):
    table = make(plain_lake, "t", 1)
    plain_lake.catalog.register_table("default.again", table.iceberg.metadata_location)
    overwrite(table, 2)
    assert expire(table).data_files_deleted == 0
    assert ids_of(plain_lake.table("again")) == [1]


def test_a_table_inside_another_keeps_its_files(plain_lake):
    outer = make(plain_lake, "outer", 1)
    place = f"{outer.location}/data/inner"
    plain_lake.catalog.create_table("default.inner", SCHEMA, location=place)
    inner = plain_lake.table("inner")
    append(inner, 7)
    lost = stray(path_of(place) / "data" / "lost.parquet")
    publish_at(plain_lake, outer, [f"{place}/data/lost.parquet"], like=data_paths(outer)[0])
    drop_rows(outer)
    assert f"{place}/data/lost.parquet" in expire(outer).files_kept
    assert (lost.exists(), ids_of(inner)) == (True, [7])


def test_another_table_that_cannot_be_read_is_found_out_before_the_commit(plain_lake):
    table = make(plain_lake, "t", 1)
    overwrite(table, 2)
    broken = make(plain_lake, "broken", 7)
    (manifest,) = broken.iceberg.current_snapshot().manifests(broken.iceberg.io)
    path_of(manifest.manifest_path).unlink()
    before, pointer = stored(folder_of(table)), table.iceberg.metadata_location
    with pytest.raises(StorageError, match=path_of(manifest.manifest_path).name):
        expire(table)
    assert stored(folder_of(table)) == before
    assert table.iceberg.metadata_location == pointer


def test_a_folder_that_holds_the_warehouse_is_not_the_tables(plain_lake, tmp_path):
    other = stray(tmp_path / "lake" / "notes.txt")
    table = make(plain_lake, "t", 1, **{"write.object-storage.path": f"file://{tmp_path}"})
    publish_at(plain_lake, table, [f"file://{other}"], like=data_paths(table)[0])
    drop_rows(table)
    assert expire(table).files_kept == (f"file://{other}",)
    assert other.exists()
    assert holds_warehouse(plain_lake.catalog, name_of(str(tmp_path)))


def test_old_metadata_is_deleted_only_in_the_metadata_folder(plain_lake, tmp_path):
    """`write.metadata.delete-after-commit.enabled` goes by the log, which may name any path."""
    properties = {
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "1",
    }
    table = make(plain_lake, "t", 1, 2, **properties)
    metadata = table.iceberg.metadata
    home = stray(tmp_path / "home" / "x.metadata.json")
    notes = stray(folder_of(table) / "metadata" / "notes.txt")
    own = stray(folder_of(table) / "metadata" / f"00000-{uuid4()}.metadata.json")
    places = [
        f"file://{home}",
        f"{table.location}/metadata/../../../../home/x.metadata.json",
        f"file://{notes}",
        f"file://{own}",
    ]
    log = [MetadataLogEntry(metadata_file=place, timestamp_ms=1) for place in places]
    before = metadata.model_copy(update={"metadata_log": log})
    delete_old_metadata(table.iceberg.io, before, metadata)
    assert (home.exists(), notes.exists(), own.exists()) == (True, True, False)
