"""create_index, drop_index, indexes(): what is refused, what is built, and columns that change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.types import DoubleType, LongType

import icefloe
from icefloe import Table
from icefloe.commands import indexes as commands
from icefloe.errors import ColumnNotFoundError, IndexNotFoundError, StatementError
from support.indexed_statements import append_by_pyiceberg
from support.indexed_tables import sidecar_of, stored_sidecars
from support.sidecar_counts import remove_sidecars
from support.tables import data_files, rows

DDL = "id BIGINT, k INT, f FLOAT, s STRING, ok BOOLEAN, li ARRAY<INT>, st STRUCT<x: INT>"


def some(*ids: int) -> list[dict[str, Any]]:
    return [
        {"id": i, "k": i % 7, "f": i / 4, "s": f"s{i}", "ok": True, "li": [i], "st": {"x": i}}
        for i in ids
    ]


@pytest.fixture
def table(table_of) -> Table:
    return table_of(DDL, some(*range(40)), some(*range(40, 60)))


def definitions(table: Table) -> dict[str, dict[str, Any]]:
    found = table.properties.items()
    return {
        name.removeprefix("icefloe.indexes."): json.loads(text)
        for name, text in found
        if name.startswith("icefloe.indexes.")
    }


# -------------------------------------------------------------------------------------------------
# Create, list, drop


@pytest.mark.parametrize(
    ("name", "kind", "columns", "params", "error", "message"),
    [
        ("1st", "btree", "id", {}, StatementError, "'1st' is not a valid name of an index"),
        ("a b", "btree", "id", {}, StatementError, "not a valid name"),
        ("é", "btree", "id", {}, StatementError, "not a valid name"),
        ("", "btree", "id", {}, StatementError, "not a valid name"),
        ("x" * 129, "btree", "id", {}, StatementError, "not a valid name"),
        ("x\n", "btree", "id", {}, StatementError, "not a valid name"),
        (None, "btree", "id", {}, StatementError, "not a valid name"),
        ("i", "hash", "id", {}, StatementError, "no index of kind 'hash'. Use: .*btree"),
        ("i", None, "id", {}, StatementError, "no index of kind None"),
        ("i", "btree", [], {}, StatementError, "Index 'i' has no column"),
        ("i", "btree", ["id", "ID"], {}, StatementError, "has a column twice"),
        ("i", "btree", "nope", {}, ColumnNotFoundError, "'nope'"),
        ("i", "btree", "st.x", {}, StatementError, "only whole columns are indexed"),
        ("i", "btree", "ok", {}, StatementError, "'ok' has type boolean, which a btree"),
        ("i", "btree", ["id", "li"], {}, StatementError, "'li' has type list"),
        ("i", "btree", "st", {}, StatementError, "'st' has type struct"),
        ("i", "btree", "id", {"speed": 9}, StatementError, "no parameter 'speed'; it takes"),
        ("i", "btree", "id", {"on_write": "no"}, StatementError, "Invalid value 'no'"),
    ],
)
@pytest.mark.every_variant
def test_what_cannot_be_indexed_is_refused(refusing, name, kind, columns, params, error, message):
    before = refusing.iceberg.metadata_location
    with pytest.raises(error, match=message):
        refusing.create_index(name, kind, columns, **params)
    assert refusing.iceberg.metadata_location == before
    assert stored_sidecars(refusing) == set()


@pytest.fixture(scope="module")
def refusing(shared_lake) -> Table:
    return shared_lake.create_table("refusing", DDL)


def test_an_index_is_built_listed_and_dropped(table):
    built = table.create_index("By_K", "btree", "k")
    table.create_index("pair", "btree", ["S", "id"])
    assert (built.name, built.kind, built.rows) == ("By_K", "btree", 60)
    assert built.files == built.files_covered == len(data_files(table))
    assert built.files_skipped == {}
    assert built.bytes == sum(
        sidecar_of(table, "By_K", live).stat().st_size for live in data_files(table)
    )
    [first, second] = sorted(table.indexes().collect(), key=lambda row: row.name)
    assert (first.name, first.kind, first.columns) == ("By_K", "btree", ["k"])
    assert (second.name, second.columns) == ("pair", ["s", "id"])
    assert json.loads(first.params) == {"on_write": True}
    assert (first.files, first.files_covered, first.rows_covered) == (built.files, built.files, 60)
    assert (first.bytes, first.problem) == (built.bytes, None)
    table.drop_index("by_k")
    assert list(definitions(table)) == ["pair"]
    assert len(stored_sidecars(table)) == built.files
    table.drop_index("pair")
    assert stored_sidecars(table) == set()
    assert definitions(table) == {}
    assert table.indexes().collect() == []
    assert rows(table, "id") == sorted(((i,) for i in range(60)), key=repr)


def test_an_unknown_index_is_named_with_those_there_are(table):
    table.create_index("by_id", "btree", "id")
    with pytest.raises(IndexNotFoundError, match=r"by_id"):
        table.drop_index("by_ix")


def test_the_same_definition_again_builds_what_is_missing(table):
    table.create_index("by_id", "btree", "id")
    kept, lost = data_files(table)[:2]
    remove_sidecars(table, "by_id", [lost])
    stamp = sidecar_of(table, "by_id", kept).stat().st_mtime_ns
    before = definitions(table)
    append_by_pyiceberg(table, some(99))
    built = table.create_index("BY_ID", "btree", ["ID"])
    assert built.files == built.files_covered == len(data_files(table))
    assert definitions(table) == before
    assert sidecar_of(table, "by_id", kept).stat().st_mtime_ns == stamp
    assert table.count("id IN (0, 41, 99)") == 3


@pytest.mark.parametrize(
    ("columns", "params"), [("k", {}), (["id", "k"], {}), ("id", {"on_write": False})]
)
def test_another_definition_of_the_name_is_refused(table, columns, params):
    table.create_index("by_id", "btree", "id")
    before = definitions(table)
    with pytest.raises(StatementError, match=r"another index 'by_id': btree on id"):
        table.create_index("by_id", "btree", columns, **params)
    assert definitions(table) == before


def test_an_interrupted_build_is_completed_by_the_next_call(table, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(commands, "cover_files", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.create_index("by_id", "btree", "id")
    assert list(definitions(table)) == ["by_id"]
    assert stored_sidecars(table) == set()
    # Writers keep the index up already; reads are as without it.
    table.append(some(100))
    assert len(stored_sidecars(table)) == 1
    assert table.count("id IN (5, 100)") == 2
    assert [row.id for row in table.scan(["id"], "id = 5").collect()] == [5]
    built = table.create_index("by_id", "btree", "id")
    assert built.files == built.files_covered == 3
    assert len(stored_sidecars(table)) == 3


def test_an_index_that_writes_do_not_keep_up(table):
    table.create_index("by_id", "btree", "id", on_write=False)
    covered = len(stored_sidecars(table))
    assert covered == len(data_files(table))
    table.append(some(100))
    table.update().set("s", "'new'").where("id = 3").execute()
    assert len(stored_sidecars(table)) == covered
    assert table.count("id IN (3, 4, 100)") == 3
    assert table.delete().where("id IN (3, 4, 100)").execute().rows_deleted == 3
    built = table.create_index("by_id", "btree", "id", on_write=False)
    assert built.files == built.files_covered == len(data_files(table))
    table.compact()
    [listed] = table.indexes().collect()
    assert (listed.files, listed.files_covered) == (1, 1)
    assert table.count("id IN (3, 4, 5)") == 1


def test_sidecars_in_a_folder_of_their_own(table, tmp_path):
    folder = tmp_path / "elsewhere"
    table.set_properties({"icefloe.index.location": f"file://{folder}"})
    table.create_index("by_id", "btree", "id")
    assert len(stored_sidecars(table)) == len(data_files(table))
    assert all(path.is_relative_to(folder) for path in stored_sidecars(table))
    assert table.count("id = 7") == 1
    table.drop_index("by_id")
    assert list(Path(folder).rglob("*.parquet")) == []


def test_another_session_finds_the_index_in_the_table(table, lake, spark, tmp_path):
    table.create_index("by_id", "btree", "id")
    with icefloe.connect(tmp_path / "lake", spark=spark) as opened:
        again = opened.table(table.name)
        assert again.indexes().collect()[0].name == "by_id"
        plan = again.delete().where("id = 7").explain()
        assert plan.files_skipped > 0 or len(data_files(again)) == 1
        assert "index by_id" in str(plan)


# -------------------------------------------------------------------------------------------------
# Columns that change


def test_renamed_promoted_and_other_columns(table):
    table.create_index("by_k", "btree", "k")
    table.create_index("by_f", "btree", "f")
    table.create_index("pair", "btree", ["k", "s"])
    stored = stored_sidecars(table)
    table.rename_column("k", "key")
    table.rename_column("s", "k")  # a name that an indexed column had
    table.drop_column("li")
    table.add_column("later", "INT")
    with table.iceberg.update_schema() as update:
        update.update_column("key", field_type=LongType())
        update.update_column("f", field_type=DoubleType())
    expected = [i for i in range(60) if i % 7 == 3]
    assert sorted(table.to_arrow(["id"], "key = 3").column("id").to_pylist()) == expected
    assert sorted(row.id for row in table.scan(["id"], "key = 3").collect()) == expected
    assert table.count("key = 3000000000") == 0
    assert table.count("f IN (0.25, 0.1)") == 1
    assert table.count("key = 3 AND k = 's10'") == 1
    assert "index by_k" in str(table.delete().where("key = 3").explain())
    row = {"id": 100, "key": 2**40, "f": 0.1, "k": "s100", "ok": None, "st": None, "later": 1}
    table.append([row])
    assert len(stored_sidecars(table)) == len(stored) + 3
    assert table.count(f"key = {2**40}") == table.count("f = 0.1D") == 1
    assert table.delete().where("key = 3 OR f = 0.25").execute().rows_deleted == len(expected) + 1
    assert table.create_index("by_k", "btree", "key").files_skipped == {}


def test_a_column_that_old_files_lack(table):
    table.add_column("later", "INT")
    built = table.create_index("by_later", "btree", "later")
    old = {live.path for live in data_files(table)}
    assert built.files_covered == 0
    assert set(built.files_skipped) == old
    assert set(built.files_skipped.values()) == {"it lacks an indexed column"}
    table.append([{**row, "later": 5} for row in some(100, 101)])
    assert sorted(row.id for row in table.scan(where="later = 5").collect()) == [100, 101]
    assert table.count("later IS NULL") == 60
    assert table.update().set("later", "5").where("id = 3").execute().rows_updated == 1
    assert sorted(row.id for row in table.scan(where="later = 5").collect()) == [3, 100, 101]


def test_an_indexed_column_is_not_dropped(table):
    table.create_index("by_k", "btree", "k")
    with pytest.raises(StatementError, match=r"Index 'by_k' is on 'k'.*drop_index\('by_k'\)"):
        table.drop_column("k")
    table.drop_index("by_k")
    table.drop_column("k")
    assert table.count("id = 3") == 1


def test_a_column_that_another_engine_dropped(table):
    table.create_index("by_k", "btree", "k")
    with table.iceberg.update_schema() as update:
        update.delete_column("k")
    [listed] = table.indexes().collect()
    assert listed.problem == "the table no longer has an indexed column"
    assert (listed.columns, listed.files_covered) == ([], 0)
    [row] = some(100)
    table.append([{name: value for name, value in row.items() if name != "k"}])
    assert table.count("id = 100") == 1
    assert table.delete().where("id = 3").execute().rows_deleted == 1
    table.drop_index("by_k")
    assert table.indexes().collect() == []
    assert stored_sidecars(table) == set()
