"""Manifests hold the entries of neighbouring partitions, and not too many of them."""

from __future__ import annotations

import random

import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestFile
from pyiceberg.typedef import Record

from icefloe.commit import manifest_layout
from icefloe.commit.manifest_layout import MOST_ENTRIES, is_small, laid_out, new_entry, packed
from icefloe.metadata.manifests import added_entry, list_manifests
from support.tables import rows

_TARGET = 8 * 2**20


def entry(partition, columns=1):
    metrics = dict.fromkeys(range(columns), 1)
    bounds = dict.fromkeys(range(columns), b"12345678")
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file:///t/{partition}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(partition),
        record_count=1,
        file_size_in_bytes=1,
        column_sizes=metrics,
        value_counts=metrics,
        null_value_counts=metrics,
        nan_value_counts={},
        lower_bounds=bounds,
        upper_bounds=bounds,
    )
    return new_entry(added_entry(file, 1))


def manifest(entries, length=1000):
    return ManifestFile.from_args(
        manifest_path=f"m{entries}.avro",
        manifest_length=length,
        partition_spec_id=0,
        content=ManifestContent.DATA,
        added_files_count=entries,
        existing_files_count=0,
        deleted_files_count=5000,
    )


def partitions(layout):
    return [[e.entry.data_file.partition[0] for e in each] for each in layout]


def test_entries_are_sorted_by_partition_a_thousand_in_each_manifest():
    numbers = [*range(2500), None]
    random.Random(1).shuffle(numbers)
    layout = partitions(laid_out(map(entry, numbers), _TARGET))
    assert [len(each) for each in layout] == [MOST_ENTRIES, MOST_ENTRIES, 501]
    assert [n for each in layout for n in each] == [None, *range(2500)]


def test_nan_and_values_that_cannot_be_compared_are_sorted_too():
    nan = float("nan")
    [found] = partitions(laid_out(map(entry, [nan, 2.0, None, -1.0]), _TARGET))
    assert [str(n) for n in found] == ["None", "-1.0", "2.0", "nan"]
    [mixed] = partitions(laid_out(map(entry, ["b", 1, "a"]), _TARGET))
    assert sorted(map(str, mixed)) == ["1", "a", "b"]


def test_entries_of_many_columns_fill_a_manifest_sooner():
    layout = laid_out([entry(n, columns=1000) for n in range(50)], 200_000)
    assert 3 <= len(layout) <= 10
    assert all(sum(e.bytes for e in each) <= 200_000 for each in layout)


def test_a_large_entry_has_a_manifest_of_its_own():
    layout = partitions(laid_out([entry(n, columns=1000) for n in range(3)], 1))
    assert layout == [[0], [1], [2]]
    assert laid_out([], _TARGET) == []


def test_small_manifests_are_merged_up_to_the_same_limits():
    many = [manifest(400), manifest(400), manifest(400), manifest(1)]
    assert [[m.added_files_count for m in g] for g in packed(many, _TARGET)] == [
        [400, 400],
        [400, 1],
    ]
    assert len(packed([manifest(1, 900) for _ in range(4)], 1000)) == 4
    assert is_small(manifest(500), _TARGET)
    assert not is_small(manifest(501), _TARGET)
    assert not is_small(manifest(1, 2**23), _TARGET)


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_a_query_of_one_partition_opens_one_manifest(table_of, mode, monkeypatch):
    monkeypatch.setattr(manifest_layout, "MOST_ENTRIES", 4)
    table = table_of("id BIGINT, p INT", partition_by=("p",), mode=mode)
    table.append([{"id": i, "p": i * 7 % 12} for i in range(12)])

    plan = table.delete().where("p = 5").explain()
    assert (plan.manifests_read, plan.manifests_skipped, plan.files_scanned) == (1, 2, 0)

    # Rewritten and merged manifests are laid out in the same way.
    table.update().set("id", "id + 100").where("id IN (1, 2, 3)").execute()
    table.delete().where("p = 3").execute()
    iceberg = table.iceberg
    found = list_manifests(iceberg.io, iceberg.current_snapshot())
    assert all(manifest_layout.live_count(m) <= 4 for m in found)
    expected = [(i + 100 if i in (1, 2, 3) else i, i * 7 % 12) for i in range(12)]
    assert sorted(rows(table)) == sorted(row for row in expected if row[1] != 3)


def test_a_manifest_of_too_many_entries_is_split_when_it_is_rewritten(table_of, monkeypatch):
    table = table_of("id BIGINT, p INT", partition_by=("p",), mode="copy-on-write")
    table.append([{"id": i, "p": i} for i in range(9)])
    monkeypatch.setattr(manifest_layout, "MOST_ENTRIES", 4)
    monkeypatch.setattr("icefloe.maintenance.rewrite_manifests.MOST_ENTRIES", 4)
    result = table.rewrite_manifests()
    assert (result.manifests_before, result.manifests_after) == (1, 3)
    assert table.rewrite_manifests().manifests_added == 0
    assert sorted(rows(table)) == [(i, i) for i in range(9)]
