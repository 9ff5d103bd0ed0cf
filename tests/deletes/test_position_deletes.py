"""Position delete files: the partition they are written under, and their rows by data file."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlparse

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyroaring import BitMap64

from icefloe.deletes import position_deletes
from icefloe.deletes.position_deletes import (
    read_position_deletes,
    write_position_deletes,
)
from icefloe.errors import StorageError
from icefloe.file_changes import DeletedRows
from icefloe.metadata.manifest_cache import ENABLED, MOST_BYTES
from icefloe.scan import scan as scan_module
from icefloe.storage import file_cache
from support.tables import data_files, delete_files, rows, scanned_rows

SCHEMA = "id BIGINT, region STRING, n INT"
ROWS = [{"id": i, "region": "us" if i % 2 else "eu", "n": i} for i in range(1, 7)]


@pytest.mark.requirement("U14", "U20")
def test_deletes_are_written_under_the_partition_of_their_data_file(table_of, partition_by):
    """A file's own spec and partition, none when unpartitioned; an old spec stays the old one."""
    table = table_of(SCHEMA, ROWS, partition_by=partition_by)
    state = table._state()
    live = data_files(table)[0]
    table.evolve_partitions(["bucket(2, id)"])
    evolved = table._state()
    deleted = {live.path: DeletedRows(live, BitMap64([0, 2]))}

    (file,) = write_position_deletes(evolved, "d", deleted)

    assert file.spec_id == live.spec_id == state.metadata.default_spec_id
    assert file.partition == live.file.partition
    assert len(file.partition) == len(partition_by)
    assert file.record_count == 2


@pytest.mark.requirement("T13", "T16")
def test_scans_and_rewrites_read_deletes_by_data_file_with_one_function(table_of, partition_by):
    table = table_of(SCHEMA, ROWS[:3], ROWS[3:], partition_by=partition_by)
    gone = rows(table, "_file", "_pos", "region", where="id IN (1, 6)")
    assert sorted(position for _, position, _ in gone) == ([0, 1] if partition_by else [0, 2])
    table.delete().where("id IN (1, 6)").execute()
    deletes = delete_files(table)
    assert len(deletes) == (2 if partition_by else 1)

    contents = read_position_deletes(table.iceberg.io, [*deletes, *deletes])

    assert contents == {
        delete.path: {
            path: BitMap64([position])
            for path, position, region in gone
            if tuple(delete.file.partition) in {(), (region,)}
        }
        for delete in deletes
    }
    assert scan_module.read_position_deletes is read_position_deletes


# -------------------------------------------------------------------------------------------------
# Held contents


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """The delete files that are read, by name; none is held at first, and all count as settled."""
    made: list[str] = []
    read = position_deletes._read

    def counted(io, delete):
        made.append(delete.path)
        return read(io, delete)

    position_deletes.delete_files.clear()
    monkeypatch.setattr(position_deletes, "_read", counted)
    monkeypatch.setattr(file_cache, "_CLOCK_TICK_NS", 0)
    return made


def test_a_delete_file_is_read_once(table_of, mode, reads):
    table = table_of(SCHEMA, ROWS, mode="merge-on-read")
    for gone in (1, 4):
        table.delete().where(f"id = {gone}").execute()
    reads.clear()
    position_deletes.delete_files.clear()
    for _ in range(2):
        assert sorted(scanned_rows(table, "id")) == [(2,), (3,), (5,), (6,)]
    assert sorted(reads) == sorted(delete.path for delete in delete_files(table))
    before = {p: {f: b.copy() for f, b in c.items()} for p, c in contents_of(table).items()}
    table.update().set("n", "0").where("id > 2").with_options(mode=mode).execute()
    table.compact()
    held = [content for content, _ in position_deletes.delete_files._held.values()]
    assert all(content in held for content in before.values())  # nobody changed them
    assert sorted(scanned_rows(table, "id", "n")) == [(2, 2), (3, 0), (5, 0), (6, 0)]


def contents_of(table):
    return read_position_deletes(table.iceberg.io, delete_files(table))


def test_a_delete_file_that_was_damaged_after_it_was_read_is_an_error_with_its_path(
    table_of, reads
):
    table = table_of(SCHEMA, ROWS, mode="merge-on-read")
    table.delete().where("id = 1").execute()
    (delete,) = delete_files(table)
    contents_of(table)
    path = Path(urlparse(delete.path).path)
    whole = path.read_bytes()
    for damaged in (whole[:-9], bytes(len(whole))):
        path.write_bytes(damaged)
        for _ in range(2):
            with pytest.raises(StorageError, match=path.name):
                contents_of(table)
    path.write_bytes(whole)
    assert contents_of(table)[delete.path]
    path.unlink()
    with pytest.raises(StorageError, match=path.name):
        contents_of(table)


def test_memory_of_held_deletes_is_within_the_limit(table_of, reads):
    table = table_of(SCHEMA, ROWS, mode="merge-on-read")
    for gone in range(1, 6):
        table.delete().where(f"id = {gone}").execute()
    deletes = delete_files(table)
    assert len(deletes) == 5
    position_deletes.delete_files.clear()
    read_position_deletes(table.iceberg.io, deletes[:1])
    size = position_deletes.delete_files.bytes
    assert size > 500
    position_deletes.delete_files.clear()
    io = PyArrowFileIO({MOST_BYTES: str(2 * size + size // 2)})
    for _ in range(2):
        for delete in deletes:
            assert read_position_deletes(io, [delete])[delete.path]
            assert position_deletes.delete_files.bytes <= 2 * size + size // 2
    assert len(position_deletes.delete_files) == 2
    position_deletes.delete_files.clear()
    assert read_position_deletes(PyArrowFileIO({ENABLED: "false"}), deletes).keys() == {
        delete.path for delete in deletes
    }
    assert len(position_deletes.delete_files) == 0


def test_many_positions_count_by_what_they_take():
    sparse = {"f": BitMap64(range(0, 10**7, 10_000))}
    dense = {"f": BitMap64(range(0, 10**6, 3))}
    assert position_deletes._bytes_of({}) < position_deletes._bytes_of(sparse) < 20_000
    assert 100_000 < position_deletes._bytes_of(dense) < 200_000
