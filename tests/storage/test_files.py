"""Files are created, read, listed and deleted through one room."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from icefloe.errors import StorageError
from icefloe.storage.files import (
    delete_files,
    delete_files_of_statement,
    delete_listed,
    list_files,
    new_output,
    new_stream,
    open_input,
)
from icefloe.storage.filesystem import is_local_disk, is_object_store, open_output

IO = PyArrowFileIO()


def write(folder: Path, *names: str) -> list[str]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return [f"file://{folder}/{name}" for name in names]


def test_a_new_file_may_be_in_a_new_folder(tmp_path):
    with new_stream(IO, f"file://{tmp_path}/a/b/one") as sink:
        sink.write(b"1")
    with new_output(IO, f"file://{tmp_path}/c/two") as output, output.create() as sink:
        sink.write(b"2")
    with open_output(pafs.LocalFileSystem(), f"{tmp_path}/d/three") as sink:
        sink.write(b"3")
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "one",
        "three",
        "two",
    ]


def test_errors_name_the_file(tmp_path):
    missing = f"file://{tmp_path}/missing"
    with pytest.raises(StorageError, match=f"File is missing: {missing}"), open_input(IO, missing):
        pass
    write(tmp_path, "file")
    below = f"file://{tmp_path}/file/below"
    with pytest.raises(StorageError, match=f"Cannot write {below}"), new_stream(IO, below):
        pass


def test_files_below_a_folder_are_listed(tmp_path):
    locations = write(tmp_path, "a", "b/c")
    listed = sorted(list_files(IO, f"file://{tmp_path}"), key=lambda file: file.relative)
    assert [file.location for file in listed] == locations
    assert [(file.relative, file.bytes) for file in listed] == [("a", 1), ("b/c", 3)]
    assert list_files(IO, f"file://{tmp_path}/none") == []


def test_files_that_cannot_be_deleted_are_returned_and_logged(tmp_path, caplog):
    locations = write(tmp_path, "a", "b")
    folder, missing = f"file://{tmp_path}/folder", f"file://{tmp_path}/missing"
    (tmp_path / "folder").mkdir()
    with caplog.at_level(logging.WARNING, logger="icefloe"):
        assert delete_files(IO, [*locations, folder, missing]) == [folder]
    assert f"{folder} was not deleted" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_listed_files_are_deleted_under_their_own_names(tmp_path):
    write(tmp_path, "day=1%202/a")
    assert delete_listed(list_files(IO, f"file://{tmp_path}")) == []
    assert list_files(IO, f"file://{tmp_path}") == []


def test_files_of_a_statement_are_found_by_its_id(tmp_path):
    write(tmp_path, "p=1/abc-1.parquet", "abc/other.parquet", "def-1.parquet")
    delete_files_of_statement(IO, f"file://{tmp_path}", "abc")
    left = {file.relative for file in list_files(IO, f"file://{tmp_path}")}
    assert left == {"abc/other.parquet", "def-1.parquet"}


def test_object_stores_have_no_folders():
    store = pafs.S3FileSystem(anonymous=True, region="eu-central-1")
    assert is_object_store(store)
    assert not is_local_disk(store)
    disk = pafs.LocalFileSystem()
    assert is_local_disk(disk)
    assert not is_object_store(disk)
