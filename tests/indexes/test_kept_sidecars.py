"""Which sidecars stay: those of data files that the table reaches, and no others."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from icefloe import Lake, Table
from icefloe.indexes.definitions import delete_written_files
from support.indexed_tables import (
    build_sidecars,
    define_index,
    sidecar_of,
    stored_sidecars,
)
from support.pyiceberg_tables import age, append, later, make, open_lake, overwrite, stray
from support.tables import data_files


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return open_lake(tmp_path)


@pytest.fixture
def table(lake: Lake) -> Table:
    """Files of rows 1 to 3, which are live, and of row 0, which an older snapshot has."""
    table = make(lake, "t", 0)
    define_index(table, "by_id", "id")
    define_index(table, "twice", "id")
    build_sidecars(table)
    overwrite(table, 1)
    append(table, 2)
    append(table, 3)
    build_sidecars(table)
    assert len(stored_sidecars(table)) == 8
    return table


def live_sidecars(table: Table) -> set[Path]:
    files = data_files(table)
    return {sidecar_of(table, name, live) for name in ("by_id", "twice") for live in files}


def test_expired_data_files_take_their_sidecars_with_them(table):
    before = stored_sidecars(table)
    result = table.expire_snapshots(older_than=later())
    assert result.data_files_deleted == 1
    assert stored_sidecars(table) == live_sidecars(table)
    assert len(before - stored_sidecars(table)) == 2


def test_older_snapshots_keep_their_sidecars(table):
    assert len(stored_sidecars(table) - live_sidecars(table)) == 2
    found = table.remove_orphans(older_than=later(), dry_run=False, allow_recent=True)
    assert found.files_deleted == 0
    assert len(stored_sidecars(table)) == 8


@pytest.fixture
def orphans(table: Table) -> set[Path]:
    """Sidecars of a file that nothing reaches, of an index that is not defined, half written."""
    kept = sidecar_of(table, "by_id", data_files(table)[0])
    root = kept.parents[2]
    return {
        stray(kept.parent / "gone.parquet"),
        stray(root / "0123456789ab" / kept.parent.name / kept.name),
        stray(root / kept.parents[1].name / "ffffffff" / kept.name),
    }


def test_orphans_are_listed_and_removed(table, orphans):
    dry = table.remove_orphans(older_than=datetime.now(UTC), allow_recent=True)
    assert {Path(file.removeprefix("file://")) for file in dry.files} == orphans
    assert all(path.exists() for path in orphans)
    real = table.remove_orphans(older_than=datetime.now(UTC), dry_run=False, allow_recent=True)
    assert real.files_deleted == 3
    assert len(stored_sidecars(table)) == 8


def test_young_orphans_are_left(table, orphans):
    for path in orphans:
        path.touch()
    assert table.remove_orphans().files == ()
    age(*orphans)
    assert len(table.remove_orphans().files) == 3


def test_what_is_no_sidecar_is_left(table):
    root = sidecar_of(table, "by_id", data_files(table)[0]).parents[2]
    others = {stray(root / "readme"), stray(root / "notes/of/others.parquet")}
    found = table.remove_orphans(older_than=later(), dry_run=False, allow_recent=True)
    assert found.files_deleted == 0
    assert all(path.exists() for path in others)


def test_a_dropped_index_leaves_the_sidecars_of_others(table, lake):
    table.drop_index("twice")
    assert stored_sidecars(table) == {
        path for path in stored_sidecars(table) if path.parents[1] == _folder(table)
    }
    assert len(stored_sidecars(table)) == 4


def _folder(table: Table) -> Path:
    return sidecar_of(table, "by_id", data_files(table)[0]).parents[1]


def test_a_purged_table_leaves_no_sidecar(table, lake):
    before = stored_sidecars(table)
    lake.drop_table("t", purge=True)
    assert not any(path.exists() for path in before)


def test_a_dropped_table_keeps_its_files(table, lake):
    before = stored_sidecars(table)
    lake.drop_table("t")
    assert all(path.exists() for path in before)


def test_two_tables_in_one_folder_of_sidecars(lake, tmp_path):
    """The folder that a property names is shared: each table removes its own alone."""
    shared = {"icefloe.index.location": f"file://{tmp_path}/shared"}
    one, two = make(lake, "one", 1, **shared), make(lake, "two", 1, **shared)
    define_index(one, "by_id", "id", index_id="aaaaaaaaaaaa")
    define_index(two, "by_id", "id", index_id="bbbbbbbbbbbb")
    build_sidecars(one)
    build_sidecars(two)
    orphan = stray(sidecar_of(one, "by_id", data_files(one)[0]).parent / "gone.parquet")
    found = one.remove_orphans(older_than=later(), dry_run=False, allow_recent=True)
    assert [Path(file.removeprefix("file://")) for file in found.files] == [orphan]
    lake.drop_table("one", purge=True)
    assert stored_sidecars(two) == {sidecar_of(two, "by_id", data_files(two)[0])}


def test_files_of_one_statement_are_deleted_with_their_sidecars(table):
    """As after an error: by the id in their names."""
    state, before = table._state(), stored_sidecars(table)
    kept = sidecar_of(table, "by_id", data_files(table)[0])
    statement = "0123456789abcdef0123456789abcdef"
    written = stray(kept.parents[1] / "aaaaaaaa" / f"{statement}-1.parquet")
    data = stray(Path(state.data_location.removeprefix("file://")) / f"{statement}-1.parquet")
    delete_written_files(state, statement)
    assert not written.exists()
    assert not data.exists()
    assert stored_sidecars(table) == before


def test_an_expired_file_without_a_sidecar(table):
    for path in stored_sidecars(table):
        path.unlink()
    assert table.expire_snapshots(older_than=later()).data_files_deleted == 1
    assert table.iceberg.scan().to_arrow().column("id").sort() == pa.chunked_array([[1, 2, 3]])
