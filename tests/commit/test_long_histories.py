"""Statements read and write the table's metadata once, however many snapshots it lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.update import SetPropertiesUpdate, update_table_metadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType

from icefloe import DmlResult, Lake, Table
from icefloe.commit.conflicts import ConflictCheck
from icefloe.commit.publish import Commit
from icefloe.commit.publish import publish as publish_commit
from icefloe.errors import StorageError
from icefloe.file_changes import FileChanges
from icefloe.metadata import sql_catalog
from icefloe.metadata.sql_catalog import ReadOnceSqlCatalog
from icefloe.settings import Isolation
from support.foreign_files import manifest_entry
from support.pyiceberg_tables import data_paths, make, open_lake, path_of
from support.watched_calls import Watch, watching

pytestmark = pytest.mark.requirement("T36")


@pytest.fixture(autouse=True)
def _nothing_held() -> Iterator[None]:
    sql_catalog.files.clear()
    yield
    sql_catalog.files.clear()


def history(lake: Lake, name: str, snapshots: int, **properties: str) -> Table:
    """A table with a file of one row for each snapshot."""
    table = make(lake, name, 0, **properties)
    for number in range(1, snapshots):
        add_file(lake, table, number)
    return lake.table(f"default.{name}")


def add_file(lake: Lake, table: Table, number: int) -> None:
    """Commit a file of one row, as `append` does."""
    state = table._state()
    path = data_paths(table)[0] if number == 1 else path_of(f"{state.data_location}/1.parquet")
    new = path_of(f"{state.data_location}/{number}.parquet")
    new.hardlink_to(path)
    file = manifest_entry(
        f"file://{new}",
        spec_id=0,
        file_size_in_bytes=new.stat().st_size,
        value_counts={1: 1},
        null_value_counts={1: 0},
        lower_bounds={1: number.to_bytes(8, "little")},
        upper_bounds={1: number.to_bytes(8, "little")},
    )
    publish_commit(
        Commit(
            lake.catalog,
            state,
            f"s{number}",
            FileChanges(added_data=(file,)),
            ConflictCheck(Isolation.SERIALIZABLE, None),
            lambda _removed, _deletes: DmlResult("append"),
            {},
            lake.tier,
        )
    )


def calls_of(run: Callable[[], object]) -> Counter[str]:
    """How many files of each kind are opened, and what is asked of the catalog's database."""
    with watching(Watch()) as watch:
        run()
    return Counter(filter(None, map(kind_of, watch.calls)))


def kind_of(call: str) -> str:
    action, _, rest = call.partition(" ")
    if action in ("SELECT", "UPDATE", "COMMIT"):
        return action
    if action not in ("read", "create"):
        return ""
    name = Path(rest).name
    kinds = {".metadata.json": "metadata", ".avro": "manifest", ".parquet": "data"}
    kind = next((kind for end, kind in kinds.items() if name.endswith(end)), "")
    return f"{action} {'list' if name.startswith('snap-') else kind}" if kind else ""


@pytest.mark.parametrize("snapshots", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_calls_do_not_grow_with_the_history(tmp_path, snapshots):
    lake = open_lake(tmp_path / "lake")
    tables = {size: history(lake, f"t{size}", size) for size in (5, snapshots)}
    made = {}
    for size, table in tables.items():
        sql_catalog.files.clear()
        table.count()  # manifests are held
        sql_catalog.files.clear()
        made[size] = {
            "count": calls_of(table.count),
            "count again": calls_of(table.count),
            "append": calls_of(lambda table=table, size=size: add_file(lake, table, size)),
            "delete": calls_of(table.delete().where("id = 2").execute),
        }
        assert len(table.iceberg.metadata.snapshots) == size + 2
    short, long = made.values()
    assert long == short
    assert short["count"]["read metadata"] == 1
    assert short["count again"]["read metadata"] == 0
    for change in ("append", "delete"):
        assert short[change]["read metadata"] <= 1
        assert short[change]["create metadata"] == 1
        assert short[change]["UPDATE"] == 1


def test_the_log_of_metadata_files_is_bounded(tmp_path):
    trimmed = {
        "write.metadata.previous-versions-max": "3",
        "write.metadata.delete-after-commit.enabled": "true",
    }
    lake = open_lake(tmp_path / "lake")
    table = history(lake, "t", 12, **trimmed)
    assert len(table.iceberg.metadata.metadata_log) == 3
    assert len(list((tmp_path / "lake").rglob("*.metadata.json"))) == 4
    assert table.count() == 12


def test_another_writer_is_seen_at_once(tmp_path):
    one, other = open_lake(tmp_path / "lake"), open_lake(tmp_path / "lake")
    table = history(one, "t", 3)
    seen = other.table("default.t")
    assert seen.count() == 3
    add_file(one, table, 3)
    assert (seen.count(), table.count()) == (4, 4)
    one.drop_table("default.t")
    again = make(one, "t", 7)
    assert (again.count(), other.table("default.t").count()) == (1, 1)


def test_a_metadata_file_that_was_replaced_is_read_again(tmp_path):
    lake = open_lake(tmp_path / "lake")
    table = history(lake, "t", 3)
    assert table.count() == 3
    path = path_of(table.iceberg.metadata_location)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(StorageError, match=f"{path.name} of t is damaged: Invalid JSON"):
        table.count()
    path.unlink()
    with pytest.raises(StorageError):
        table.count()
    path.write_bytes(whole)
    assert table.count() == 3


def test_few_bytes_of_metadata_are_held(tmp_path, monkeypatch):
    monkeypatch.setattr(sql_catalog, "MOST_BYTES", 100)
    table = history(open_lake(tmp_path / "lake"), "t", 2)
    assert (table.count(), sql_catalog.files.bytes) == (2, 0)
    monkeypatch.setattr(sql_catalog, "MOST_BYTES", 10**6)
    assert table.count() == 2
    path = path_of(table.iceberg.metadata_location)
    assert sql_catalog.files.bytes == path.stat().st_size


def test_a_commit_copies_no_snapshot_and_leaves_held_metadata_as_it_is(tmp_path):
    lake = open_lake(tmp_path / "lake")
    table = history(lake, "t", 4)
    held = table.iceberg.metadata
    before = held.model_dump_json()
    staged = lake.catalog._update_and_stage_table(
        table.iceberg, ("default", "t"), (), (SetPropertiesUpdate(updates={"a": "1"}),)
    )
    assert [*map(id, staged.metadata.snapshots)] == [*map(id, held.snapshots)]
    add_file(lake, table, 4)
    table.set_properties({"a": "2"})
    assert held.model_dump_json() == before


def test_staged_metadata_is_what_pyiceberg_stages(tmp_path, monkeypatch):
    staged = []
    stage = ReadOnceSqlCatalog._update_and_stage_table

    def compared(catalog, table, identifier, requirements, updates):
        ours = stage(catalog, table, identifier, requirements, updates)
        location = table.metadata_location
        theirs = update_table_metadata(table.metadata, updates, metadata_location=location)
        times = {"last_updated_ms", "snapshot_log"}
        assert ours.metadata.model_dump(exclude=times) == theirs.model_dump(exclude=times)
        assert len(ours.metadata.snapshot_log) == len(theirs.snapshot_log)
        assert ours.metadata.last_updated_ms >= table.metadata.last_updated_ms
        assert Path(ours.metadata_location).parent == Path(location).parent
        assert ours.metadata_location != location
        staged.extend(type(update).__name__ for update in updates)
        return ours

    lake = open_lake(tmp_path / "lake")
    table = history(lake, "t", 3)
    monkeypatch.setattr(ReadOnceSqlCatalog, "_update_and_stage_table", compared)
    commit = ReadOnceSqlCatalog.commit_table

    def read_back(catalog, *changes):
        """What is held of a file that was written is what is read from it."""
        done = commit(catalog, *changes)
        read = FromInputFile.table_metadata(table.iceberg.io.new_input(done.metadata_location))
        assert catalog.load_table("default.t").metadata is done.metadata
        assert done.metadata == read
        assert done.metadata.model_dump_json() == read.model_dump_json()
        return done

    monkeypatch.setattr(ReadOnceSqlCatalog, "commit_table", read_back)
    first = table.snapshot_id
    add_file(lake, table, 3)
    with table.iceberg.update_schema() as change:
        change.add_column("more", LongType())
    with table.iceberg.update_spec() as change:
        change.add_identity("id")
    with table.iceberg.update_sort_order() as change:
        change.asc("id", IdentityTransform())
    with table.iceberg.manage_snapshots() as change:
        change.create_tag(first, "kept")
    table.set_properties({"write.metadata.previous-versions-max": "2"})
    table.rollback(snapshot_id=first)
    assert {
        "AddSnapshotUpdate",
        "SetSnapshotRefUpdate",
        "AddSchemaUpdate",
        "SetCurrentSchemaUpdate",
        "AddPartitionSpecUpdate",
        "AddSortOrderUpdate",
        "SetPropertiesUpdate",
    } <= {*staged}
    assert lake.table("default.t").count() == 3


def test_a_commit_that_changes_nothing_writes_no_metadata(tmp_path):
    lake = open_lake(tmp_path / "lake")
    table = history(lake, "t", 2)
    location = table.iceberg.metadata_location
    lake.catalog.commit_table(table.iceberg, (), ())
    assert lake.table("default.t").iceberg.metadata_location == location
