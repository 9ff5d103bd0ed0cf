"""Manifests are read once in a process, and never in place of others."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlparse

import pytest
from pyiceberg.manifest import ManifestEntry

from icefloe import connect
from icefloe.errors import SetupError, StorageError
from icefloe.metadata import manifest_cache
from icefloe.metadata.manifest_cache import cache_bytes, entries_of
from icefloe.metadata.manifests import list_manifests, read_entries, read_snapshot_files
from support.foreign_files import manifest_entry
from support.pyiceberg_tables import append, ids_of, make, open_lake, path_of
from support.tables import rows

MERGE_ON_READ = {"write.delete.mode": "merge-on-read"}
pytestmark = pytest.mark.requirement("T36")


@pytest.fixture(autouse=True)
def _empty_cache():
    caches = (manifest_cache.manifests, manifest_cache.lists)
    for cache in caches:
        cache.clear()
    yield
    for cache in caches:
        cache.clear()


def manifests_of(table):
    iceberg = table.iceberg
    return iceberg.io, list_manifests(iceberg.io, iceberg.current_snapshot())


def entries_of_three_files(table_of):
    """Entries of a manifest with three files."""
    table = table_of("id BIGINT, p INT", partition_by=("p",))
    table.append([{"id": i, "p": i} for i in range(3)])
    io, [manifest] = manifests_of(table)
    return read_entries(io, manifest)


def test_the_second_statement_reads_no_manifest_that_the_first_one_read(table_of):
    table = table_of("id BIGINT, p INT", partition_by=("p",), mode="merge-on-read")
    for part in range(3):
        table.append([{"id": part, "p": part}, {"id": part + 10, "p": part}])
    manifest_cache.manifests.clear()

    plans = [table.delete().where("id = 1").explain() for _ in range(2)]

    assert [(p.manifests_read, p.manifests_cached) for p in plans] == [(3, 0), (3, 3)]
    assert "3 manifests read, 3 of them from the cache, 0 skipped" in str(plans[1])
    table.delete().where("id = 1").execute()  # adds a manifest, of a delete file
    plan = table.delete().where("id = 2").explain()
    assert (plan.manifests_read, plan.manifests_cached) == (4, 3)
    assert sorted(rows(table)) == [(0, 0), (2, 2), (10, 0), (11, 1), (12, 2)]


def test_a_damaged_manifest_is_an_error_with_its_path_and_is_not_held(table_of):
    table = table_of("id BIGINT", [{"id": 1}])
    io, [manifest] = manifests_of(table)
    path = Path(urlparse(manifest.manifest_path).path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    for _ in range(2):
        with pytest.raises(StorageError, match=path.name):
            table.scan()
    path.write_bytes(whole)
    assert rows(table) == [(1,)]
    assert len(read_entries(io, manifest)) == 1


def test_a_manifest_that_is_damaged_later_is_an_error_once_it_is_not_held(tmp_path):
    """What was read whole stays right; nothing of the damaged file is ever used."""
    table = make(open_lake(tmp_path), "t", 1, 2, **MERGE_ON_READ)
    assert table.count() == 2
    _, [manifest, _] = manifests_of(table)
    path = path_of(manifest.manifest_path)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:-16] + bytes(16), bytes(len(whole)), b""):
        path.write_bytes(damaged)
        assert table.count() == 2
        manifest_cache.manifests.clear()
        for _ in range(2):
            with pytest.raises(StorageError, match=path.name):
                table.count()
            with pytest.raises(StorageError, match=path.name):
                table.delete().where("id = 1").execute()
        path.write_bytes(whole)
        assert table.count() == 2
    assert table.delete().where("id = 1").execute().rows_deleted == 1
    assert ids_of(table) == [2]


def test_a_manifest_list_is_decoded_once(tmp_path):
    table = make(open_lake(tmp_path), "t", 1, 2)
    iceberg = table.iceberg
    path = path_of(iceberg.current_snapshot().manifest_list)
    os.utime(path, ns=(10**18, 10**18))  # a file that was changed just now is read again
    first, again = (list_manifests(iceberg.io, iceberg.current_snapshot()) for _ in range(2))
    assert again is first
    whole = path.read_bytes()
    for damaged in (whole[:-1], bytes(len(whole)), b""):
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match=path.name):
            table.count()
        os.utime(path, ns=(10**18, 10**18 + 1))
        for _ in range(2):
            with pytest.raises(StorageError, match=path.name):
                table.count()
    path.unlink()
    with pytest.raises(StorageError, match=path.name):
        table.count()
    path.write_bytes(whole)
    assert table.count() == 2


def test_manifest_lists_are_held_within_the_limit(tmp_path):
    table = make(open_lake(tmp_path), "t", *range(4))
    io = table.iceberg.io
    io.properties["io.manifest.cache.max-total-bytes"] = "5000"
    for snapshot in table.iceberg.snapshots():
        path = path_of(snapshot.manifest_list)
        os.utime(path, ns=(10**18, 10**18))
        list_manifests(io, snapshot)
    assert 0 < manifest_cache.lists.bytes <= 5000
    io.properties["io.manifest.cache-enabled"] = "false"
    manifest_cache.lists.clear()
    list_manifests(io, table.iceberg.current_snapshot())
    assert manifest_cache.lists.bytes == 0


def test_held_manifests_have_their_live_files_ready(tmp_path):
    table = make(open_lake(tmp_path), "t", 0, **MERGE_ON_READ)
    append(table, 1, 11)
    table.delete().where("id = 11").execute()
    table.delete().where("id = 0").execute()  # removes a file
    iceberg = table.iceberg

    first, again = (read_snapshot_files(iceberg.io, iceberg.current_snapshot()) for _ in range(2))

    assert [file.rows for file in first.data] == [2]
    assert [file.is_data for file in first.deletes] == [False]
    assert [*map(id, again.data)] == [*map(id, first.data)]
    assert [*map(id, again.deletes)] == [*map(id, first.deletes)]


def test_a_manifest_of_another_length_is_read_again():
    reads = []

    def read():
        reads.append(len(reads))
        return ()

    for length in (10, 10, 11, 10):
        entries_of("file:///m.avro", length, {}, read)
    assert reads == [0, 1]


def test_entries_count_by_what_they_hold(table_of):
    entries = entries_of_three_files(table_of)
    manifest_cache.manifests.clear()
    manifest_cache.manifests.put(("a", 1, 0), entries, 10**9)
    assert 3 * 1000 < manifest_cache.manifests.bytes < 3 * 5000


def test_long_bounds_count():
    """Bounds of texts may be as long as the texts: some writers do not truncate them."""
    text = {1: b"x" * 100_000}
    entries = tuple(
        manifest_entry(f"file:///{n}", spec_id=0, lower_bounds=text, upper_bounds=text)
        for n in range(3)
    )
    read = [ManifestEntry.from_args(status=1, data_file=file) for file in entries]
    manifest_cache.manifests.put(("a", 1, 0), tuple(read), 10**9)
    assert 600_000 < manifest_cache.manifests.bytes < 700_000


def test_the_limit_is_a_catalog_property_by_icebergs_name():
    assert cache_bytes({}) == 256 * 2**20
    assert cache_bytes({"io.manifest.cache.max-total-bytes": "1000"}) == 1000
    assert cache_bytes({"io.manifest.cache-enabled": "False"}) == 0
    with pytest.raises(SetupError, match=r"max-total-bytes must be a number"):
        cache_bytes({"io.manifest.cache.max-total-bytes": "many"})


def test_without_a_cache_every_statement_reads(spark, tmp_path):
    options = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path / 'catalog.db'}",
        "warehouse": tmp_path.as_uri(),
        "io.manifest.cache-enabled": "false",
    }
    with connect(spark=spark, **options) as lake:
        lake.create_namespace("n")
        table = lake.create_table("n.t", "id BIGINT")
        table.append([{"id": 1}])
        for _ in range(2):
            assert table.delete().where("id = 1").explain().manifests_cached == 0
    assert len(manifest_cache.manifests) == 0


def test_entries_that_callers_share_do_not_change(table_of):
    """A commit that rewrites a manifest makes entries of its own."""
    table = table_of("id BIGINT", mode="copy-on-write")
    table.append([{"id": i} for i in range(3)])
    io, [manifest] = manifests_of(table)
    before = [repr(entry) for entry in read_entries(io, manifest)]
    table.update().set("id", "id + 10").where("id = 1").execute()
    table.rewrite_manifests()
    assert [repr(entry) for entry in read_entries(io, manifest)] == before
    assert sorted(rows(table)) == [(0,), (2,), (11,)]
