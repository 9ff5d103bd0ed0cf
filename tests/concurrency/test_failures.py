"""Faults at every stage: nothing visible changes, nothing is left, the first error is told."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlparse

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO

from icefloe.errors import (
    ConflictError,
    IcefloeError,
    NullabilityError,
    StatementError,
    StorageError,
)
from icefloe.storage import files
from support.tables import rows, snapshots, stored_files
from support.unreferenced_files import leftovers

pytestmark = pytest.mark.requirement("X10")

SCHEMA = "id BIGINT, region STRING, n INT NOT NULL"
ROWS = [
    {"id": 1, "region": "eu", "n": 0},
    {"id": 2, "region": "eu", "n": 0},
    {"id": 3, "region": "us", "n": 0},
    {"id": 4, "region": "us", "n": 0},
]


@pytest.fixture
def table(table_of, mode, partition_by):
    """Four rows of two regions, whose statements take the mode of the test."""
    return table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)


@pytest.fixture
def unchanged(table):
    """Checks afterwards that the table is as it was and nothing is left behind."""
    metadata, stored = table.iceberg.metadata_location, stored_files(table)
    yield
    assert table.iceberg.metadata_location == metadata
    assert stored_files(table) == stored
    assert leftovers(table) == set()
    assert rows(table, "id", "n") == [(1, 0), (2, 0), (3, 0), (4, 0)]


@pytest.fixture
def output_fails(monkeypatch):
    """Makes writing of files whose name has a text fail, as a full disk would."""

    def arrange(text):
        new_output, new_file = PyArrowFileIO.new_output, files.new_file

        def check(location):
            if text in location.rpartition("/")[2]:
                raise OSError(28, "No space left on device", location)

        def output(self, location):  # of metadata files
            check(location)
            return new_output(self, location)

        def file(filesystem, path):
            check(path)
            return new_file(filesystem, path)

        monkeypatch.setattr(PyArrowFileIO, "new_output", output)
        monkeypatch.setattr(files, "new_file", file)

    return arrange


def block(table, region):
    """Puts a plain file where the folder of a partition has to be made."""
    path = Path(urlparse(table.location).path) / "data" / f"region={region}"
    path.write_text("in the way")
    return path


@pytest.mark.usefixtures("unchanged")
def test_expression_that_fails_on_some_row(table):
    with pytest.raises(StatementError, match="not this one") as caught:
        table.update().set("n", "if(id = 4, raise_error('not this one'), 1)").execute()
    assert caught.value.__cause__ is not None


@pytest.mark.usefixtures("unchanged")
def test_null_for_a_required_column_found_while_writing(table):
    with pytest.raises(NullabilityError, match="'n'"):
        table.update().set("n", "if(id = 4, NULL, 1)").execute()


@pytest.mark.requirement("T25")
@pytest.mark.parametrize("statement", ["append", "update"])
def test_writer_task_that_cannot_write_one_of_its_files(table_of, mode, statement):
    """The partition before it was written already, and is removed again."""
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=("region",))
    before, snapshot = stored_files(table), table.snapshot_id
    blocked = block(table, "zz")
    new = [{"id": 5, "region": "aa", "n": 0}, {"id": 6, "region": "zz", "n": 0}]
    with pytest.raises(StorageError, match="region=zz'") as caught:
        if statement == "append":
            table.append(new)
        else:
            table.update().set("region", "if(id = 1, 'aa', 'zz')").execute()

    assert caught.value.__cause__ is not None
    blocked.unlink()
    assert stored_files(table) == before
    assert table.snapshot_id == snapshot
    assert leftovers(table) == set()


@pytest.mark.requirement("T25")
def test_delete_file_that_cannot_be_written(table_of, tmp_path):
    """The delete file of the other partition, and the new rows, are removed again."""
    table = table_of(SCHEMA, ROWS, partition_by=("region",))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    table.set_properties({"write.data.path": f"file://{elsewhere}"})
    (elsewhere / "region=us").write_text("in the way")
    snapshot = table.snapshot_id

    with pytest.raises(StorageError, match="region=us") as caught:
        table.delete().where("id in (1, 3)").execute()

    assert isinstance(caught.value.__cause__, OSError)
    assert [path for path in elsewhere.rglob("*.parquet") if path.is_file()] == []
    assert table.snapshot_id == snapshot
    assert leftovers(table) == set()


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "name",
    ["-m0.avro", "-m1.avro", "snap-"],
    ids=["first manifest", "second manifest", "manifest list"],
)
def test_manifest_that_cannot_be_written(table, output_fails, name):
    output_fails(name)
    with pytest.raises(StorageError, match=r"Cannot write .*avro: .*No space left") as caught:
        table.update().set("n", "1").where("id in (1, 3)").execute()
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.usefixtures("unchanged")
def test_metadata_file_that_cannot_be_written(table, output_fails):
    output_fails(".metadata.json")
    with pytest.raises(StorageError, match=r"metadata of default\.t0") as caught:
        table.update().set("n", "1").where("id in (1, 3)").execute()
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.usefixtures("unchanged")
def test_catalog_that_refuses_the_commit(table, lake, monkeypatch):
    lost = CommitFailedException("moved")

    def refuse(*_arguments):
        raise lost

    monkeypatch.setattr("icefloe.settings.RetryPolicy.wait_s", lambda *_: 0.0)
    monkeypatch.setattr(lake.catalog, "commit_table", refuse)
    with pytest.raises(ConflictError) as caught:
        table.delete().where("id in (1, 3)").execute()
    assert caught.value.__cause__.__cause__ is lost


@pytest.mark.requirement("T20")
def test_clean_up_that_fails_does_not_hide_the_first_error(table, output_fails, monkeypatch):

    def refuse(*_arguments):
        raise OSError("cannot delete either")

    output_fails("snap-")
    monkeypatch.setattr(PyArrowFileIO, "delete", refuse)
    monkeypatch.setattr(files, "delete_one", refuse)
    with pytest.raises(StorageError, match="No space left"):
        table.update().set("n", "1").where("id in (1, 3)").execute()
    assert len(snapshots(table)) == 1
    assert rows(table, "n") == [(0,)] * 4


def test_every_error_of_a_stage_is_ours(table, output_fails):
    """All errors raised on purpose are under IcefloeError, and the next statement works."""
    with pytest.raises(IcefloeError):
        table.update().set("n", "1 / 0").execute()
    table.update().set("n", "1").execute()
    assert rows(table, "n") == [(1,)] * 4
