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
    overwrite,
    stored,
)


@pytest.fixture
def table(plain_lake):
    table = make(plain_lake, "t", 1, 2)
    overwrite(table, 3)
    return table


def swapped(plain_lake):
    """Another process renames the table and makes a new one of its name."""
    plain_lake.catalog.rename_table("default.t", "default.renamed")
    fresh = make(plain_lake, "t", 7)
    overwrite(fresh, 8)
    return fresh


def on_load(plain_lake, monkeypatch, number):
    """Swap the tables just before the `number`th time that the table is loaded."""
    load, calls = plain_lake.catalog.load_table, iter(range(1, 1000))

    def loaded(identifier):
        if identifier == "default.t" and next(calls) == number:
            monkeypatch.setattr(plain_lake.catalog, "load_table", load)
            swapped(plain_lake)
        return load(identifier)

    monkeypatch.setattr(plain_lake.catalog, "load_table", loaded)


CALLS = {
    "expire": lambda table: table.expire_snapshots(older_than=later()),
    "manifests": lambda table: table.rewrite_manifests(),
    "orphans": lambda table: table.remove_orphans(older_than=later()),
    "rollback": lambda table: table.rollback(
        table.iceberg.metadata.snapshots[0].snapshot_id  # loads the table, too
    ),
}


@pytest.mark.parametrize("call", list(CALLS))
def test_another_table_of_the_name_is_not_touched(plain_lake, table, tmp_path, monkeypatch, call):
    on_load(plain_lake, monkeypatch, 3 if call == "rollback" else 2)
    with pytest.raises(TableNotFoundError, match="is another table now"):
        CALLS[call](table)
    renamed, fresh = plain_lake.table("renamed"), plain_lake.table("t")
    assert (ids_of(renamed), ids_of(fresh)) == ([3], [8])
    assert (len(renamed.iceberg.snapshots()), len(fresh.iceberg.snapshots())) == (4, 3)


def test_renamed_between_the_commit_and_the_deletion(plain_lake, table, tmp_path, monkeypatch):
    """Every file of the renamed table looked unreached, for the new table reaches none of them."""
    remove = expire.remove_snapshots

    def removed(*arguments):
        remove(*arguments)
        swapped(plain_lake)

    monkeypatch.setattr(expire, "remove_snapshots", removed)
    before = stored(tmp_path / "lake" / "default")
    with pytest.raises(StorageError, match=r"no file was deleted: .* is another table now"):
        table.expire_snapshots(older_than=later())
    assert before <= stored(tmp_path / "lake" / "default")
    assert ids_of(plain_lake.table("renamed")) == [3]
    assert all(path.exists() for path in data_paths(plain_lake.table("renamed")))


@pytest.mark.parametrize("made", [True, False], ids=["another table", "no table"])
def test_what_came_of_a_commit_cannot_be_asked_of_another_table(plain_lake, table, made):
    """It may be in the renamed table: its files must stay."""
    uuid = table.iceberg.metadata.table_uuid
    if made:
        swapped(plain_lake)
    else:
        plain_lake.catalog.rename_table("default.t", "default.renamed")
    doubt = CommitStateUnknownError("unknown")
    with pytest.raises(CommitStateUnknownError):
        catalog.settle(
            plain_lake.catalog,
            "default.t",
            uuid,
            lambda _metadata: False,
            doubt,
            CommitFailedException("the second request found the first"),
        )
