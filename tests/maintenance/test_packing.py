"""Which files a compaction takes, and into how many it makes them; no Spark."""

from __future__ import annotations

import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from icefloe.maintenance.packing import pack_files
from icefloe.metadata.files import LiveFile
from icefloe.pruning.candidates import Candidate


def candidate(size, *, rows=100, partition=("a",), spec_id=1, number=1, equality=()):
    file = DataFile.from_args(
        _table_format_version=2,
        content=DataFileContent.DATA,
        file_path=f"/{partition}/{size}-{number}",
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=rows,
        file_size_in_bytes=size,
    )
    return Candidate(LiveFile(file, spec_id, number, number, 1, "m"), equality_deletes=equality)


def packed(*candidates, live=None, partitioned=True):
    return pack_files(
        candidates,
        lambda c: (live or {}).get(c.path, c.live.rows),
        1,
        100,
        partitioned=partitioned,
    )


def sizes(packing):
    return [([s.candidate.live.size for s in p.sources], p.outputs) for p in packing.packs]


@pytest.mark.parametrize(
    ("file_sizes", "expected"),
    [
        ([10], []),
        ([10, 20], [([10, 20], 1)]),
        ([74, 74], [([74, 74], 1)]),
        ([74, 74, 74], [([74, 74, 74], 2)]),
        ([75, 100, 180], []),
        ([10, 100], []),
        ([181], [([181], 2)]),
        ([500, 10], [([500, 10], 5)]),
        ([60, 60, 60, 60, 60], [([60] * 5, 3)]),
    ],
)
def test_sizes_of_one_partition(file_sizes, expected):
    assert sizes(packed(*(candidate(size) for size in file_sizes))) == expected


def test_partitions_are_packed_apart_and_oldest_first():
    files = [
        candidate(10, number=3),
        candidate(11, number=1),
        candidate(12, partition=("b",)),
        candidate(13, partition=("c",), number=2),
        candidate(14, partition=("c",), number=1),
    ]
    assert sizes(packed(*files)) == [([11, 10], 1), ([14, 13], 1)]


def test_files_with_deletes_are_rewritten_even_alone():
    position, equality = candidate(100), candidate(101, partition=("b",), equality=(object(),))
    packing = packed(position, equality, live={position.path: 40})
    assert sizes(packing) == [([100], 1), ([101], 1)]
    assert [s.bytes for s in packing.sources] == [40, 101]


def test_a_row_cannot_be_split():
    assert sizes(packed(candidate(1000, rows=1))) == []
    assert sizes(packed(candidate(1000, rows=3))) == [([1000], 3)]


def test_files_of_an_old_spec_are_repartitioned():
    old, small, good = candidate(100, spec_id=0), candidate(10), candidate(100, number=2)
    packing = packed(old, small, good)
    assert packing.packs == ()
    assert [s.candidate.live.size for s in packing.repartitioned] == [100, 10]


def test_without_partitions_files_of_every_spec_are_packed_together():
    old, small = candidate(100, spec_id=0), candidate(10, partition=())
    assert sizes(packed(old, small, partitioned=False)) == [([100, 10], 1)]
