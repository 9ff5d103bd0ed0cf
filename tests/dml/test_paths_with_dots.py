"""A manifest that names a file by a path with `..`: nothing outside the table's folder changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from icefloe import Lake, Table
from icefloe.builders import Merge
from icefloe.errors import UnsupportedTableError
from support.foreign_files import equality_delete, position_delete, publish
from support.pyiceberg_tables import age, data_paths, folder_of, later, publish_at, stored, stray
from support.tables import data_files, rows
from support.unreferenced_files import leftovers

SCHEMA = "id BIGINT, n INT"
SOURCE = [{"id": 1, "n": -1}, {"id": 7, "n": -7}, {"id": 20, "n": -20}]
OWN = [(1, 1), (2, 2)]
THEIRS = [(7, 7), (8, 8)]


@pytest.fixture(params=["copy-on-write", "merge-on-read"])
def tables(request, lake, table_of) -> tuple[Table, Table]:
    """A table with a file of its own and one in the folder of another table, and that table."""
    other = table_of(SCHEMA, [{"id": key, "n": n} for key, n in THEIRS])
    table = table_of(SCHEMA, [{"id": key, "n": n} for key, n in OWN], mode=request.param)
    (theirs,) = data_paths(other)
    path = f"{table.location}/data/../../{folder_of(other).name}/data/{theirs.name}"
    publish_at(lake, table, [path], like=theirs)
    return table, other


def merge_of(table: Table) -> Merge:
    return table.merge(SOURCE, on="target.id = source.id")


REFUSED: dict[str, Callable[[Table], object]] = {
    "update": lambda t: t.update().set("n", "0").where("id IN (1, 7)").execute(),
    "update of every row": lambda t: t.update().set("n", "0").execute(),
    "update in auto": lambda t: t.update().set("n", "0").with_options(mode="auto").execute(),
    "delete": lambda t: t.delete().where("n % 2 = 1").execute(),
    "merge, matched": lambda t: merge_of(t).when_matched().update_all().execute(),
    "merge, upsert": lambda t: (
        merge_of(t).when_matched().update_all().when_not_matched().insert_all().execute()
    ),
    "merge, not matched by source": lambda t: (
        merge_of(t).when_not_matched_by_source().delete().execute()
    ),
    "replace where": lambda t: (
        t.replace_where("id IN (1, 7)", [{"id": 1, "n": 5}]).with_options(scope="rows").execute()
    ),
    "replace using": lambda t: t.replace_using(["id"], SOURCE).execute(),
    "compact": lambda t: t.compact(),
    "compact where": lambda t: t.compact("n % 2 = 1", target_file_bytes=2**20),
    "scan of file names": lambda t: t.scan(["id", "_file"]).collect(),
}


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder, the catalog's database excepted."""
    return {path: path.read_bytes() for path in stored(folder) if path.suffix != ".db"}


def test_statements_on_rows_of_such_a_file_are_refused_and_change_nothing(tables, tmp_path):
    table, other = tables
    before, snapshot = contents(tmp_path), table.snapshot_id
    for name, statement in REFUSED.items():
        with pytest.raises(UnsupportedTableError, match="may lead to another table's folder"):
            statement(table)
        assert contents(tmp_path) == before, name
        assert table.snapshot_id == snapshot, name
    assert rows(table) == OWN + THEIRS
    assert rows(other) == THEIRS


def test_own_rows_change_and_whole_files_are_removed_in_the_tables_own_folder(tables, tmp_path):
    """Then history expires and orphans are removed: the other table keeps its file."""
    table, other = tables
    (dotted,) = [file.path for file in data_files(table) if ".." in file.path]
    home = stray(tmp_path / "home.parquet")
    lost = stray(folder_of(other) / "data" / "lost.parquet")
    own_lost = stray(folder_of(table) / "data" / "lost.parquet")
    inside = folder_of(table)

    def outside() -> dict[Path, bytes]:
        found = contents(tmp_path)
        return {path: data for path, data in found.items() if not path.is_relative_to(inside)}

    before = outside()
    assert {home, lost} < set(before)
    table.update().set("n", "10").where("id = 1").execute()
    table.delete().where("id = 2").execute()
    merged = table.merge([{"id": 1, "n": 11}], on=["id"]).when_matched().update_all().execute()
    assert merged.rows_updated == 1
    assert rows(table) == [(1, 11), *THEIRS]
    table.delete().where("id >= 7").execute()  # by metadata alone
    assert rows(table) == [(1, 11)]
    assert leftovers(table) == {str(own_lost)}
    table.compact()

    expired = table.expire_snapshots(older_than=later())
    assert expired.files_kept == (dotted,)
    age(*stored(folder_of(other)))
    removed = table.remove_orphans(dry_run=False)
    assert [Path(path).name for path in removed.files] == [own_lost.name]
    assert outside() == before
    assert rows(table) == [(1, 11)]
    assert rows(other) == THEIRS


def test_the_other_table_keeps_a_file_that_only_such_a_path_still_names(tables):
    table, other = tables
    (theirs,) = data_paths(other)
    other.truncate()
    expired = other.expire_snapshots(older_than=later())
    assert [Path(path).name for path in expired.files_kept] == [theirs.name]
    age(theirs)
    assert other.remove_orphans(dry_run=False).files == ()
    assert rows(table) == OWN + THEIRS


def test_a_scan_applies_deletes_where_sizes_identify_files(tables, lake: Lake):
    table, _ = tables
    table.delete().where("id < 7").execute()
    publish(lake, table, deletes=[equality_delete(table, [{"id": 8}])])
    assert rows(table) == [(7, 7)]


def test_a_scan_is_refused_where_sizes_are_the_same(lake: Lake, table_of):
    table = table_of(SCHEMA, [{"id": key, "n": n} for key, n in OWN])
    (own,) = data_paths(table)
    copy = shutil.copy(own, own.with_name("copy.parquet"))
    publish_at(lake, table, [f"{table.location}/data/../data/{copy.name}"], like=copy)
    assert rows(table) == sorted(OWN * 2)
    publish(lake, table, deletes=[position_delete(table, [(f"file://{own}", 0)])])
    with pytest.raises(UnsupportedTableError, match="reads it only if no deletes apply"):
        table.scan()


def test_a_scan_of_one_file_under_two_names_is_refused(lake: Lake, table_of):
    """Spark would read it once, where the table has its rows twice."""
    table = table_of(SCHEMA, [{"id": key, "n": n} for key, n in OWN])
    (own,) = data_paths(table)
    publish_at(lake, table, [f"{table.location}/data/./{own.name}"], like=own)
    with pytest.raises(UnsupportedTableError, match="no other path names the same file"):
        table.scan()
