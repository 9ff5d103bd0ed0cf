"""Indexes and other writers: what is committed concurrently, and what failed statements leave."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe import Lake, Table
from icefloe.errors import ConflictError, IcefloeError, StatementError
from icefloe.indexes.definitions import definitions_of
from support.indexed_tables import sidecar_of, stored_sidecars
from support.pyiceberg_tables import later
from support.races import (
    Meanwhile,
    before_commit,
    before_swap,
    meanwhile,
    once_before_publish,
    other,
)
from support.rest_catalog import Land, Reply, running_catalog
from support.tables import data_files, rows

__all__ = ["before_commit", "before_swap", "meanwhile", "other"]

DDL = "id BIGINT, region STRING, n INT"


def some(*ids: int) -> list[dict[str, Any]]:
    return [{"id": i, "region": "us" if i % 2 else "eu", "n": 0} for i in ids]


@pytest.fixture
def table(table_of, mode, partition_by) -> Table:
    table = table_of(DDL, mode=mode, partition_by=partition_by)
    table.create_index("by_id", "btree", "id")
    table.append(some(*range(10)))
    return table


def sidecars_of_files(table: Table) -> set[Path]:
    """The sidecars of live data files."""
    names = [definition.name for definition in definitions_of(table.iceberg.metadata)]
    return {sidecar_of(table, name, live) for name in names for live in data_files(table)}


@pytest.mark.requirement("X10")
def test_a_conflict_leaves_no_sidecar(table, other, meanwhile):
    """Both writers wrote sidecars; those of the loser are deleted with its data files."""
    theirs = other.table(table.name)
    before = stored_sidecars(table)
    meanwhile(lambda: theirs.update().set("n", "1").where("id = 3").execute())
    with pytest.raises(ConflictError):
        table.update().set("n", "2").where("id = 3").execute()
    assert sidecars_of_files(table) <= stored_sidecars(table)
    assert stored_sidecars(table) <= sidecars_of_files(table) | before
    assert [row for row in rows(table) if row[2]] == [(3, "us", 1)]
    assert table.count("id = 3") == 1


@pytest.mark.requirement("X10")
def test_a_failed_statement_leaves_no_sidecar(table):
    before = stored_sidecars(table)
    with pytest.raises(IcefloeError):
        table.update().set("n", "CAST(2147483647 + id AS INT)").where("id >= 0").execute()
    with pytest.raises(RuntimeError, match="no more"):
        once_before_publish(table._lake, fail)
        table.append(some(100, 101))
    assert stored_sidecars(table) == before
    assert table.count() == 10


def fail() -> None:
    raise RuntimeError("no more")


def test_two_writers_append_while_a_third_drops_the_index(table, lake, other):
    theirs = other.table(table.name)
    late = sidecar_of(table, "by_id", data_files(table)[0])
    content = late.read_bytes()

    def drop() -> None:
        other.table(table.name).drop_index("by_id")

    def append_theirs() -> None:
        once_before_publish(other, drop)
        theirs.append(some(20, 21))

    once_before_publish(lake, append_theirs)
    table.append(some(30, 31))
    expected = [*range(10), 20, 21, 30, 31]
    assert sorted(row[0] for row in rows(table)) == expected
    assert table.indexes().collect() == []
    assert [row.id for row in table.scan(where="id = 30").collect()] == [30]
    assert table.delete().where("id IN (20, 30)").execute().rows_deleted == 2
    assert stored_sidecars(table) == set()
    # What a task writes for the index after it was dropped is for remove_orphans.
    late.parent.mkdir(parents=True, exist_ok=True)
    late.write_bytes(content)
    found = table.remove_orphans(older_than=later(), dry_run=True, allow_recent=True)
    assert late in {Path(file.removeprefix("file://")) for file in found.files}
    table.remove_orphans(older_than=later(), dry_run=False, allow_recent=True)
    assert stored_sidecars(table) == set()
    assert sorted(row[0] for row in rows(table)) == [i for i in expected if i not in (20, 30)]


def test_an_index_that_is_created_while_rows_are_appended(table_of, lake, other):
    """The append knows no index: its file is uncovered, or built by the call."""
    table = table_of(DDL)
    table.append(some(1, 2))
    once_before_publish(lake, lambda: other.table(table.name).create_index("by_id", "btree", "id"))
    table.append(some(3, 4))
    [listed] = table.indexes().collect()
    assert (listed.files, listed.files_covered) == (2, 1)
    assert table.count("id IN (2, 3)") == 2
    assert table.create_index("by_id", "btree", "id").files_covered == 2


def test_the_same_index_that_is_created_at_once(table_of, other, before_swap):
    """The first definition counts, and is the other writer's; nothing is built twice."""
    table = table_of(DDL)
    table.append(some(1, 2))
    theirs = other.table(table.name)
    before_swap(lambda: theirs.create_index("BY_ID", "btree", "id"))
    built = table.create_index("by_id", "btree", "id")
    assert (built.name, built.files, built.files_covered) == ("BY_ID", 1, 1)
    [listed] = table.indexes().collect()
    assert (listed.name, listed.columns, listed.files_covered) == ("BY_ID", ["id"], 1)
    assert stored_sidecars(table) == sidecars_of_files(table)
    assert table.count("id = 2") == 1
    assert "index BY_ID" in str(theirs.delete().where("id = 2").explain())


def test_another_index_of_that_name_that_is_created_at_once(table_of, other, before_swap):
    """No definition replaces another: that would leave a writer with an index it did not ask for."""
    table = table_of(DDL)
    table.append(some(1, 2))
    theirs = other.table(table.name)
    before_swap(lambda: theirs.create_index("by_id", "btree", "n"))
    with pytest.raises(StatementError, match="another index 'by_id': btree on n"):
        table.create_index("by_id", "btree", "id")
    [listed] = table.indexes().collect()
    assert (listed.columns, listed.files_covered) == (["n"], 1)
    assert stored_sidecars(table) == sidecars_of_files(table)
    assert table.count("id = 2") == 1


def test_a_rest_catalog_keeps_the_last_definition(spark, tmp_path):
    """Its servers compare no properties: the writer whose definition is no more is not left alone."""
    with (
        running_catalog(tmp_path / "rest") as server,
        icefloe.connect(spark=spark, **server.properties) as lake,
        icefloe.connect(spark=spark, **server.properties) as other,
    ):
        lake.create_namespace("a")
        table = lake.create_table("a.t", DDL)
        table.append(some(1, 2))
        theirs = other.table("a.t")

        def create_theirs_first(land: Land) -> Reply:
            theirs.create_index("by_id", "btree", "n")
            return land()

        server.faults.append(create_theirs_first)
        built = table.create_index("by_id", "btree", "id")
        assert (built.files, built.files_covered) == (1, 1)
        assert [row.columns for row in table.indexes().collect()] == [["id"]]
        with pytest.raises(StatementError, match="another index 'by_id': btree on id"):
            theirs.create_index("by_id", "btree", "n")
        assert table.count("id = 2") == 1


def test_an_append_while_an_index_is_defined_is_no_conflict(table_of, other, before_swap):
    table = table_of(DDL)
    table.append(some(1, 2))
    theirs = other.table(table.name)
    before_swap(lambda: theirs.append(some(3)))
    built = table.create_index("by_id", "btree", "id")
    assert (built.files, built.files_covered) == (2, 2)
    assert table.count("id = 3") == 1


@pytest.fixture
def once_built(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Runs something once the first sidecar is written and before the lake reads a table again."""

    def let_in(action: Callable[[], object]) -> None:
        pending, load_table = [action], lake.catalog.load_table

        def load_late(*arguments: Any) -> Any:
            if pending and [*(tmp_path / "lake").rglob("_icefloe/index/*/*/*")]:
                pending.pop()()
            return load_table(*arguments)

        monkeypatch.setattr(lake.catalog, "load_table", load_late)

    return let_in


def create_again(theirs: Table, column: str) -> None:
    theirs.drop_index("by_id")
    theirs.create_index("by_id", "btree", column, on_write=False)


def test_the_same_index_that_is_created_again_while_it_is_built(table_of, other, once_built):
    """What was built was of the index that is no more: the other one gets its sidecars."""
    table = table_of(DDL)
    table.append(some(1, 2))
    theirs = other.table(table.name)
    once_built(lambda: (create_again(theirs, "id"), theirs.append(some(3))))
    built = table.create_index("by_id", "btree", "id", on_write=False)
    assert (built.files, built.files_covered) == (2, 2)
    assert stored_sidecars(table) == sidecars_of_files(table)
    assert table.count("id IN (2, 3)") == 2


def test_another_index_that_is_created_while_one_is_built(table_of, other, once_built):
    table = table_of(DDL)
    table.append(some(1, 2))
    once_built(lambda: create_again(other.table(table.name), "n"))
    with pytest.raises(StatementError, match="another index 'by_id': btree on n"):
        table.create_index("by_id", "btree", "id", on_write=False)
    assert [row.columns for row in table.indexes().collect()] == [["n"]]


def test_an_index_that_is_dropped_while_it_is_built(table_of, other, once_built):
    table = table_of(DDL)
    table.append(some(1, 2))
    once_built(lambda: other.table(table.name).drop_index("by_id"))
    with pytest.raises(ConflictError, match="index 'by_id' was dropped while it was created"):
        table.create_index("by_id", "btree", "id")
    assert table.indexes().collect() == []


def test_many_threads_write_and_create(table_of, lake):
    table = table_of(DDL, properties={"commit.retry.num-retries": "20"})

    def write(number: int) -> None:
        mine = lake.table(table.name)
        if number % 3 == 0:
            mine.create_index("by_id", "btree", "id")
        else:
            mine.append(some(10 * number, 10 * number + 1))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(9)))
    table.create_index("by_id", "btree", "id")
    expected = sorted(10 * n + k for n in range(9) if n % 3 for k in (0, 1))
    assert sorted(row[0] for row in rows(table)) == expected
    assert stored_sidecars(table) == sidecars_of_files(table)
    for key in expected:
        assert table.count(f"id = {key}") == 1


def test_a_statement_that_lost_a_race_uses_the_index_of_the_new_state(table, lake: Lake, other):
    """The other writer rewrites the files; positions of the state before it are not of use."""
    theirs = other.table(table.name)
    once_before_publish(lake, theirs.compact)
    delete = table.delete().where("id = 3").with_options(retries=5, isolation="snapshot")
    try:
        result = delete.execute()
    except ConflictError:
        result = table.delete().where("id = 3").execute()
    assert result.rows_deleted == 1
    assert sorted(row[0] for row in rows(table)) == [i for i in range(10) if i != 3]
    assert table.count("id = 3") == 0
