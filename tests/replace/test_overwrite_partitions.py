"""overwrite_partitions on tables whose files stand under several partition specs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlparse

import pytest

from icefloe.errors import NullabilityError
from support.tables import data_files, delete_files, row, rows, snapshots, summary
from support.unreferenced_files import leftovers

SCHEMA = "id BIGINT NOT NULL, region STRING, n INT"


def test_rows_of_older_specs_in_the_partitions_are_removed_and_others_stay(table_of, mode):
    table = table_of(SCHEMA, [row(1), row(2, "eu"), row(3, None)], mode=mode)
    table.evolve_partitions(("region",))
    table.append([row(4), row(5, "eu"), row(6, None)])

    result = table.overwrite_partitions([row(10, "us", 1), row(11, None, 1)])

    assert (result.operation, result.mode) == ("overwrite_partitions", mode)
    assert (result.rows_deleted, result.rows_inserted) == (4, 2)
    assert rows(table, "id") == [(10,), (11,), (2,), (5,)]
    assert len(snapshots(table)) == 3
    assert bool(delete_files(table)) is (mode == "merge-on-read")
    assert summary(table)["icefloe.rows-deleted"] == "4"


@pytest.mark.parametrize(
    ("first", "then", "left"),
    [
        (("region",), ("bucket(2, id)",), None),
        (("bucket(2, id)",), ("region",), [2, 3, 5]),
        (("bucket(2, id)",), ("truncate(3, id)",), [1, 2, 6]),
        (("truncate(1, region)",), ("region", "n"), [2, 3, 5]),
        (("region",), (), []),
    ],
    ids=str,
)
def test_any_two_specs_equal_a_model(table_of, first, then, left):
    table = table_of(SCHEMA, [row(1), row(2, "eu"), row(3, None)], partition_by=first)
    table.evolve_partitions(then)
    table.append([row(4), row(5, "eu"), row(6, "us")])
    table.overwrite_partitions([row(4, "us", 0)])
    found = sorted(i for (i,) in rows(table, "id"))
    if left is None:  # bucket(2, id): those in the bucket of 4 go
        place = next(f for f in data_files(table) if f.sequence_number == 3).file.partition[0]
        other = [f for f in data_files(table) if f.spec_id == 1 and f.file.partition[0] != place]
        kept = {i for i in found if i != 4}
        assert kept == _in_other_bucket(table, other, {1, 2, 3, 5, 6})
    else:
        assert found == sorted([*left, 4])


def _in_other_bucket(table, other_files, ids):
    """What Iceberg's own transform says."""
    field = table.iceberg.spec().fields[0]
    place = field.transform.transform(table.iceberg.schema().find_type("id"))
    return {i for i in ids if place(i) != place(4)}


def test_files_inside_the_partition_are_removed_by_metadata(table_of):
    """A day lies inside its month: no file of the older spec is read."""
    day = datetime(2024, 1, 5, tzinfo=UTC)
    old = [{"id": i, "at": day + timedelta(days=i)} for i in (0, 1, 40)]
    table = table_of("id BIGINT, at TIMESTAMP", old, partition_by=("days(at)",))
    table.evolve_partitions(("months(at)",))
    for file in data_files(table):
        Path(urlparse(file.path).path).unlink()
    result = table.overwrite_partitions([{"id": 7, "at": day}])
    assert (result.rows_deleted, result.data_files_removed, result.files_scanned) == (2, 2, 0)
    assert sorted(f.rows for f in data_files(table)) == [1, 1]


def test_existing_deletes_and_evolved_partitions(table_of, mode):
    table = table_of(SCHEMA, [row(i) for i in range(4)], mode=mode)
    table.delete().where("id = 0").with_options(mode="merge-on-read").execute()
    table.evolve_partitions(("truncate(2, id)",))
    result = table.overwrite_partitions([row(1, "us", 9)])
    assert result.rows_deleted == 1
    assert rows(table, "id", "n") == [(1, 9), (2, 0), (3, 0)]


def test_no_rows_change_nothing_and_errors_leave_nothing(table_of):
    table = table_of(SCHEMA, [row(1)])
    table.evolve_partitions(("region",))
    table.append([row(2)])
    assert table.overwrite_partitions([]).snapshot_id is None
    with pytest.raises(NullabilityError):
        table.overwrite_partitions([row(5), row(None)])
    assert len(snapshots(table)) == 2
    assert leftovers(table) == set()
    assert rows(table, "id") == [(1,), (2,)]
