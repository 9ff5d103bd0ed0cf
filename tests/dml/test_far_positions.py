"""A delete far past the rows of its file takes no memory for the positions in between."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlparse

import pytest
from pyroaring import BitMap64

from icefloe.deletes import row_positions
from icefloe.errors import UnsupportedTableError
from icefloe.scan import scan
from support.foreign_files import adopted_file, position_delete, publish
from support.tables import data_files, rows

FAR = 10**11
ROWS = [{"id": i, "n": i} for i in range(3)]


@pytest.fixture(autouse=True)
def _small_words(monkeypatch):
    """Fails where the words of a bitmap would take gigabytes, before they are made."""

    def checked(bitmap):
        assert not bitmap or bitmap.max() < 2**31
        return row_positions.as_words(bitmap)

    monkeypatch.setattr(scan, "as_words", checked)


def test_positions_that_the_file_does_not_have_delete_nothing(lake, table_of, mode):
    table = table_of("id BIGINT, n INT", ROWS, mode=mode)
    path = data_files(table)[0].path
    publish(lake, table, deletes=[position_delete(table, [(path, 1), (path, FAR)])])

    assert rows(table) == [(0, 0), (2, 2)]
    assert table.update().set("n", "9").where("id = 2").execute().rows_updated == 1
    assert table.delete().where("id = 0").execute().rows_deleted == 1
    table.compact()
    assert rows(table) == [(2, 9)]


def test_a_file_that_is_said_to_have_that_many_rows_is_refused_by_name(lake, table_of, mode):
    """The manifest counts 2 * 10^11 rows, and a position among them is deleted."""
    table = table_of("id BIGINT, n INT", ROWS, mode=mode)
    written = Path(urlparse(data_files(table)[0].path).path)
    large = written.with_name("large.parquet")
    shutil.copy(written, large)
    publish(lake, table, data=[adopted_file(table, large, (), rows=2 * FAR)])
    publish(lake, table, deletes=[position_delete(table, [(f"file://{large}", FAR)])])
    before = table.snapshot_id

    for statement in (
        lambda: table.scan().collect(),
        table.update().set("n", "9").where("id = 2").execute,
        table.delete().where("id = 0").execute,
        table.upsert([{"id": 1, "n": 5}], on=["id"]).execute,
        table.compact,
    ):
        with pytest.raises(UnsupportedTableError, match=f"Position {FAR} of .*/large.parquet"):
            statement()
    assert table.snapshot_id == before


def test_words_of_a_far_position_are_refused():
    with pytest.raises(ValueError, match="too large"):
        row_positions.as_words(BitMap64([row_positions.MOST_ROWS]))
