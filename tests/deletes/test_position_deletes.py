"""Position delete files: the partition they are written under, and their rows by data file."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from icefloe.deletes.position_deletes import (
    read_position_deletes,
    write_position_deletes,
)
from icefloe.file_changes import DeletedRows
from icefloe.scan import scan as scan_module
from support.tables import data_files, delete_files, rows

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
