"""Rows tell their file by a number on their way through a statement; files must not be mixed up."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from zlib import crc32

import pytest

from icefloe import Table
from icefloe.builders import Merge
from icefloe.errors import UnsupportedTableError
from icefloe.scan.file_keys import FileKeys
from support.foreign_files import adopted_file, publish
from support.tables import data_files, rows

TWINS = ("plumless", "buckeroo")  # of the same CRC-32, and so are names that differ by them alone


def test_keys_are_numbers_unless_two_files_share_one():
    usual = FileKeys.of([SimpleNamespace(path=f"file:///data/{n}.parquet") for n in range(1000)])
    assert usual.are_numbers
    assert list(usual.files)[7] == crc32(b"file:/data/7.parquet")
    twins = [SimpleNamespace(path=f"file:///data/{name}.parquet") for name in TWINS]
    assert len({crc32(f"file:/data/{name}.parquet".encode()) for name in TWINS}) == 1
    keys = FileKeys.of(twins)
    assert not keys.are_numbers
    assert list(keys.files.values()) == twins
    assert keys.of_files(twins) == list(keys.files)


@pytest.fixture(params=["copy-on-write", "merge-on-read"])
def table(request, lake, table_of) -> Table:
    """Two files whose names have the same checksum, one of them with a deleted row."""
    batches = [[{"id": i, "n": i} for i in range(start, start + 4)] for start in (0, 10)]
    table = table_of("id BIGINT, n INT", *batches, mode=request.param)
    copies = []
    for file, name in zip(data_files(table), TWINS, strict=True):
        path = Path(file.path.removeprefix("file://").removeprefix("file:"))
        copies.append(shutil.copy(path, path.with_name(f"{name}.parquet")))
    table.truncate()
    publish(lake, table, data=[adopted_file(table, copy, ()) for copy in copies])
    table.delete().where("id = 2").with_options(mode="merge-on-read").execute()
    return table


BEFORE = {0: 0, 1: 1, 3: 3, 10: 10, 11: 11, 12: 12, 13: 13}
SOURCE = [{"id": 0, "n": -1}, {"id": 13, "n": -2}, {"id": 20, "n": -3}]


def merge_of(table: Table) -> Merge:
    return table.merge(SOURCE, on="target.id = source.id")


# Each with the ids that go and the values that are new; by every way in which rows are joined.
STATEMENTS = {
    "update": (lambda t: t.update().set("n", "-1").where("id IN (1, 10)"), [], {1: -1, 10: -1}),
    "delete": (lambda t: t.delete().where("id IN (3, 12)"), [3, 12], {}),
    "upsert": (
        lambda t: merge_of(t).when_matched().update_all().when_not_matched().insert_all(),
        [],
        {0: -1, 13: -2, 20: -3},
    ),
    "matched": (lambda t: merge_of(t).when_matched().update_all(), [], {0: -1, 13: -2}),
    "matched and not": (
        lambda t: (
            merge_of(t)
            .when_matched()
            .update_all()
            .when_not_matched_by_source("target.id IN (1, 11)")
            .delete()
        ),
        [1, 11],
        {0: -1, 13: -2},
    ),
    "not matched by source": (
        lambda t: merge_of(t).when_not_matched_by_source("target.id IN (1, 11)").delete(),
        [1, 11],
        {},
    ),
    "every clause": (
        lambda t: (
            merge_of(t)
            .when_matched()
            .update_all()
            .when_not_matched()
            .insert_all()
            .when_not_matched_by_source("target.id IN (1, 11)")
            .delete()
        ),
        [1, 11],
        {0: -1, 13: -2, 20: -3},
    ),
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_files_whose_names_have_one_checksum_are_told_apart(table, statement):
    build, gone, new = STATEMENTS[statement]
    build(table).execute()
    expected = {key: n for key, n in {**BEFORE, **new}.items() if key not in gone}
    assert dict(rows(table)) == expected


@pytest.mark.parametrize("statement", ["upsert", "matched and not"])
def test_nor_are_they_mixed_up_by_a_shuffled_join(table, statement, spark):
    """Keys are made before the join."""
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        test_files_whose_names_have_one_checksum_are_told_apart(table, statement)
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


@pytest.mark.parametrize("path", ["file:///t/data/../../other/x.parquet", "/t/./x.parquet"])
def test_a_path_that_may_lead_elsewhere_is_refused(path):
    """Rows of such a file could not be found again, and the file may be another table's."""
    candidate = SimpleNamespace(path=path)
    with pytest.raises(UnsupportedTableError, match="may lead to another table's folder"):
        FileKeys.of([candidate])
    assert FileKeys.of([SimpleNamespace(path="file:///t/a..b/x.parquet")]).files
