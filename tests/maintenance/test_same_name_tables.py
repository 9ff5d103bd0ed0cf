"""Tables are loaded by name more than once: another table of that name is never worked on."""

from __future__ import annotations

import pytest
from pyiceberg.exceptions import CommitFailedException

from icefloe.commit import catalog
from icefloe.errors import CommitStateUnknownError, StorageError, TableNotFoundError
from icefloe.maintenance import expire
from support.pyiceberg_tables import (
    data_paths,
    ids_of,
    later,
    make,
    open_lake,
    overwrite,
    stored,
)


@pytest.fixture
def lake(tmp_path):
    with open_lake(tmp_path / "lake") as opened:
        yield opened


@pytest.fixture
def table(lake):
    table = make(lake, "t", 1, 2)
    overwrite(table, 3)
    return table


def swapped(lake):
    """Another process renames the table and makes a new one of its name."""
    lake.catalog.rename_table("default.t", "default.renamed")
    fresh = make(lake, "t", 7)
    overwrite(fresh, 8)
    return fresh


def on_load(lake, monkeypatch, number):
    """Swap the tables just before the `number`th time that the table is loaded."""
    load, calls = lake.catalog.load_table, iter(range(1, 1000))

    def loaded(identifier):
        if identifier == "default.t" and next(calls) == number:
            monkeypatch.setattr(lake.catalog, "load_table", load)
            swapped(lake)
        return load(identifier)

    monkeypatch.setattr(lake.catalog, "load_table", loaded)


CALLS = {
    "expire": lambda table: table.expire_snapshots(older_than=later()),
    "manifests": lambda table: table.rewrite_manifests(),
    "orphans": lambda table: table.remove_orphans(older_than=later()),
    "rollback": lambda table: table.rollback(
        table.iceberg.metadata.snapshots[0].snapshot_id  # loads the table, too
    ),
}


@pytest.mark.parametrize("call", list(CALLS))
def test_another_table_of_the_name_is_not_touched(lake, table, tmp_path, monkeypatch, call):
    on_load(lake, monkeypatch, 3 if call == "rollback" else 2)
    with pytest.raises(TableNotFoundError, match="is another table now"):
        CALLS[call](table)
    renamed, fresh = lake.table("renamed"), lake.table("t")
    assert (ids_of(renamed), ids_of(fresh)) == ([3], [8])
    assert (len(renamed.iceberg.snapshots()), len(fresh.iceberg.snapshots())) == (4, 3)


def test_renamed_between_the_commit_and_the_deletion(lake, table, tmp_path, monkeypatch):
    """Every file of the renamed table looked unreached, for the new table reaches none of them."""
    remove = expire.remove_snapshots

    def removed(*arguments):
        remove(*arguments)
        swapped(lake)

    monkeypatch.setattr(expire, "remove_snapshots", removed)
    before = stored(tmp_path / "lake" / "default")
    with pytest.raises(StorageError, match=r"no file was deleted: .* is another table now"):
        table.expire_snapshots(older_than=later())
    assert before <= stored(tmp_path / "lake" / "default")
    assert ids_of(lake.table("renamed")) == [3]
    assert all(path.exists() for path in data_paths(lake.table("renamed")))


@pytest.mark.parametrize("made", [True, False], ids=["another table", "no table"])
def test_what_came_of_a_commit_cannot_be_asked_of_another_table(lake, table, made):
    """It may be in the renamed table: its files must stay."""
    uuid = table.iceberg.metadata.table_uuid
    if made:
        swapped(lake)
    else:
        lake.catalog.rename_table("default.t", "default.renamed")
    doubt = CommitStateUnknownError("unknown")
    with pytest.raises(CommitStateUnknownError):
        catalog.settle(
            lake.catalog,
            "default.t",
            uuid,
            lambda _metadata: False,
            doubt,
            CommitFailedException("the second request found the first"),
        )
