"""The command line's own files are for the user alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from icefloe.cli.worker import history_file, redirect_stderr, spark_log, state_folder


@pytest.fixture(autouse=True)
def _no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_new_files_are_for_the_user_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    tmp_path.chmod(0o755)

    history = history_file()

    assert history == tmp_path / "icefloe" / "history"
    assert (mode_of(history.parent), mode_of(history)) == (0o700, 0o600)
    assert mode_of(tmp_path) == 0o755  # the user's own folder


def test_files_of_earlier_versions_are_restricted_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "icefloe"
    folder.mkdir(0o755)
    for name in ("history", "spark.log"):
        (folder / name).write_text("SELECT 1\n")
        (folder / name).chmod(0o644)

    history = history_file()
    with redirect_stderr(spark_log()):
        assert mode_of(folder / "spark.log") == 0o600

    assert (mode_of(folder), mode_of(history)) == (0o700, 0o600)
    assert history.read_text() == "SELECT 1\n"


def test_a_folder_that_the_user_linked_keeps_its_mode(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    own = tmp_path / "own"
    own.mkdir(0o755)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "icefloe").symlink_to(own)

    assert mode_of(history_file()) == 0o600
    assert mode_of(own) == 0o755


def test_no_history_where_there_is_no_folder(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert state_folder() is None
    assert history_file() is None
