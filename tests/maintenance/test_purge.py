"""DROP TABLE … PURGE deletes the table's own files, and nothing where files may be shared."""

from __future__ import annotations

import logging

import pytest

from icefloe.errors import StorageError, TableNotFoundError, UnsupportedTableError
from icefloe.maintenance import own_files
from support.pyiceberg_tables import (
    append,
    data_paths,
    folder_of,
    ids_of,
    make,
    overwrite,
    path_of,
    publish_at,
    stored,
    stray,
)


def test_every_file_of_the_table_is_deleted(plain_lake):
    table = make(plain_lake, "t", 1, 2)
    overwrite(table, 3)
    folder = folder_of(table)
    other = stray(folder / "data" / "orphan.parquet")
    plain_lake.drop_table("t", purge=True)
    assert stored(folder) == {other}
    assert plain_lake.tables() == []


def test_a_table_that_shares_its_files_is_refused(plain_lake):
    """Seen: the table and the one that shared its files were destroyed."""
    table = make(plain_lake, "t", 1, **{"gc.enabled": "false"})
    before = stored(folder_of(table))
    for drop in (
        lambda: plain_lake.drop_table("t", purge=True),
        lambda: plain_lake.drop_table("t", purge=True, if_exists=True),
    ):
        with pytest.raises(UnsupportedTableError, match=r"gc\.enabled = false.*PURGE"):
            drop()
    assert stored(folder_of(table)) == before
    assert ids_of(plain_lake.table("t")) == [1]
    plain_lake.drop_table("t")
    assert plain_lake.tables() == []


def test_sql_refuses_it_too(plain_lake, spark):
    make(plain_lake, "t", 1, **{"gc.enabled": "false"})
    with pytest.raises(UnsupportedTableError, match=r"gc\.enabled = false"):
        plain_lake.sql("DROP TABLE default.t PURGE")
    assert ids_of(plain_lake.table("t")) == [1]


def test_a_rest_server_purges_after_the_same_refusal(plain_lake, monkeypatch):
    make(plain_lake, "t", 1, **{"gc.enabled": "false"})
    make(plain_lake, "u", 1)
    asked = []
    monkeypatch.setattr(own_files, "MetastoreCatalog", int)
    monkeypatch.setattr(plain_lake.catalog, "purge_table", asked.append)
    with pytest.raises(UnsupportedTableError, match=r"gc\.enabled = false"):
        plain_lake.drop_table("t", purge=True)
    plain_lake.drop_table("u", purge=True)
    assert asked == ["default.u"]


def test_files_of_others_and_outside_the_folders_stay(plain_lake, tmp_path, caplog):
    other = make(plain_lake, "other", 7)
    table = make(plain_lake, "t", 1)
    home = stray(tmp_path / "home" / "notes.txt")
    (theirs,), (shared,) = data_paths(other), data_paths(table)
    publish_at(plain_lake, table, [f"file://{home}", f"file://{theirs}"], like=theirs)
    publish_at(plain_lake, other, [f"file://{shared}"], like=shared)
    with caplog.at_level(logging.WARNING, "icefloe"):
        plain_lake.drop_table("t", purge=True)
    assert home.exists()
    assert sorted(ids_of(other)) == [1, 7]
    assert stored(folder_of(other).parent / "t") == {shared}
    assert f"Purge of default.t kept file://{home}: it may not belong to the table" in caplog.text


def test_a_table_registered_twice_stays_readable(plain_lake):
    table = make(plain_lake, "t", 1)
    plain_lake.catalog.register_table("default.again", table.iceberg.metadata_location)
    append(table, 2)
    plain_lake.drop_table("t", purge=True)
    assert ids_of(plain_lake.table("again")) == [1]


def test_another_table_that_cannot_be_read_changes_nothing(plain_lake):
    table = make(plain_lake, "t", 1)
    broken = make(plain_lake, "broken", 7)
    path_of(broken.iceberg.metadata_location).unlink()
    before = stored(folder_of(table))
    with pytest.raises(StorageError, match=r"default\.broken cannot be read"):
        plain_lake.drop_table("t", purge=True)
    assert stored(folder_of(table)) == before
    assert ids_of(plain_lake.table("t")) == [1]


def test_a_damaged_table_is_purged_as_far_as_it_can_be_read(plain_lake, caplog):
    table = make(plain_lake, "t", 1)
    folder = folder_of(table)
    (manifest,) = table.iceberg.current_snapshot().manifests(table.iceberg.io)
    path_of(manifest.manifest_path).unlink()
    with caplog.at_level(logging.WARNING, "icefloe"):
        plain_lake.drop_table("t", purge=True)
    assert "Purge of default.t keeps files that unreadable metadata refers to" in caplog.text
    assert {path.parent.name for path in stored(folder)} == {"data"}


def test_a_table_that_took_the_name_since_is_not_dropped(plain_lake, monkeypatch):
    make(plain_lake, "t", 1)
    select_deletable = own_files.select_deletable

    def rename_after_selection(*arguments):
        selection = select_deletable(*arguments)
        plain_lake.catalog.rename_table("default.t", "default.renamed")
        make(plain_lake, "t", 8)
        return selection

    monkeypatch.setattr(own_files, "select_deletable", rename_after_selection)
    with pytest.raises(TableNotFoundError, match="is another table now"):
        plain_lake.drop_table("t", purge=True)
    assert (ids_of(plain_lake.table("t")), ids_of(plain_lake.table("renamed"))) == ([8], [1])


def test_a_table_that_is_not_there(plain_lake):
    plain_lake.create_namespace("default")
    plain_lake.drop_table("t", purge=True, if_exists=True)
    with pytest.raises(TableNotFoundError, match="does not exist"):
        plain_lake.drop_table("t", purge=True)
