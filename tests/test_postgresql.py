"""A lake whose catalog is in PostgreSQL: a real server, on loopback."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

import icefloe
from icefloe.errors import ConflictError, TableExistsError, TableNotFoundError
from support.tables import rows, summary
from support.unreferenced_files import leftovers

SCHEMA = "id BIGINT, region STRING, n INT"
ROWS = [{"id": 1, "region": "us", "n": 0}, {"id": 2, "region": "eu", "n": 0}]


@pytest.fixture
def open_lake(postgresql_server, spark, tmp_path):
    """Opens connections to one lake, closed afterwards."""
    opened = []

    def make():
        opened.append(
            icefloe.connect(uri=postgresql_server, warehouse=tmp_path / "files", spark=spark)
        )
        return opened[-1]

    yield make
    for name in opened[0].tables():
        opened[0].drop_table(name)
    for lake in opened:
        lake.catalog.close()


def test_statements_on_a_postgresql_catalog(open_lake, tmp_path, mode):
    lake = open_lake()
    modes = {f"write.{kind}.mode": mode for kind in ("delete", "update")}
    table = lake.create_table("shop.orders", SCHEMA, partition_by="region", properties=modes)

    table.append(ROWS)
    assert table.update().set("n", "n + 1").where("id = 1").execute().rows_updated == 1
    assert table.delete().where("id = 2").execute().rows_deleted == 1

    assert rows(open_lake().table("shop.orders")) == [(1, "us", 1)]
    assert lake.tables() == ["shop.orders"]
    assert table.location.startswith(f"file://{tmp_path}/files/")
    assert summary(table)["engine-name"] == "icefloe"
    with pytest.raises(TableExistsError):
        open_lake().create_table("shop.orders", SCHEMA)


@pytest.mark.requirement("M27")
def test_racing_connections_lose_no_increment(open_lake):
    """Both connections change the same rows; the loser runs its statement again."""
    lakes = [open_lake(), open_lake()]
    table = lakes[0].create_table("counts", SCHEMA)
    table.append(ROWS)

    def increment(lake: icefloe.Lake) -> list[Any]:
        statement = lake.table("counts").update().set("n", "n + 1").with_options(retries=20)
        return [statement.execute().rows_updated for _ in range(3)]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(increment, lakes)) == [[2, 2, 2], [2, 2, 2]]
    assert rows(table, "n") == [(6,), (6,)]
    assert leftovers(table) == set()


@pytest.mark.requirement("U13")
def test_conflict_between_connections_is_found(open_lake, monkeypatch):
    ours, theirs = open_lake(), open_lake()
    table = ours.create_table("t", SCHEMA)
    table.append(ROWS)
    commit_table = ours.catalog.commit_table

    def commit_late(*arguments):
        monkeypatch.undo()
        theirs.table("t").update().set("n", "7").execute()
        return commit_table(*arguments)

    monkeypatch.setattr(ours.catalog, "commit_table", commit_late)
    with pytest.raises(ConflictError):
        table.update().set("n", "5").execute()
    assert rows(table, "n") == [(7,), (7,)]


def test_table_dropped_by_another_connection_is_reported(open_lake):
    ours, theirs = open_lake(), open_lake()
    table = ours.create_table("t", SCHEMA)
    theirs.drop_table("t")
    with pytest.raises(TableNotFoundError, match=r"default\.t"):
        table.count()


def test_catalog_object_on_postgresql_is_taken_as_it_is(postgresql_server, spark, tmp_path):
    catalog = load_catalog(
        "mine", type="sql", uri=postgresql_server, warehouse=f"file://{tmp_path}/mine"
    )
    with icefloe.connect(catalog=catalog, spark=spark) as lake:
        assert lake.catalog is catalog
        lake.create_table("t", SCHEMA).append(ROWS)
        assert lake.table("t").count() == 2
        lake.drop_table("t", purge=True)


# -------------------------------------------------------------------------------------------------
# Inline rows

INLINE = {"icefloe.inline.enabled": "true"}


@pytest.mark.requirement("L01", "L18", "L24", "X02")
def test_inline_rows_in_postgresql(open_lake, mode):
    modes = {f"write.{kind}.mode": mode for kind in ("delete", "update", "merge")}
    table = open_lake().create_table("t", SCHEMA, properties={**INLINE, **modes})
    table.append(ROWS)
    new = [{"id": i, "region": "eu", "n": i} for i in (3, 4, 5)]
    assert table.insert(new, idempotency_key="k").mode == "inline"
    assert table.insert(new, idempotency_key="k").rows_inserted == 3
    assert table.update().set("n", "n * 10").where("id = 3").execute().mode == "inline"
    assert table.delete().where("region = 'eu' AND id < 5 AND n <= 4").execute().rows_deleted == 2
    other = open_lake().table("t")
    assert rows(other, "id", "n", "_file", where="id > 1") == [(3, 30, "inline"), (5, 5, "inline")]
    other.add_column("extra", "STRING")
    other.insert([{"id": 6, "region": None, "n": None, "extra": "x"}])
    source = [{"id": i, "region": "me", "n": 0, "extra": None} for i in (1, 6, 7)]
    assert table.upsert(source, ["id"]).execute().clauses == (2, 1)
    assert (rows(table, "id"), table.inline.rows) == ([(1,), (3,), (5,), (6,), (7,)], 3)
    table.insert([{"id": 8, "region": None, "n": 1, "extra": None}])
    assert table.truncate().rows_deleted == 6
    assert rows(table) == []


@pytest.mark.requirement("L27")
def test_connections_insert_update_and_flush_at_once(open_lake):
    lakes = [open_lake(), open_lake(), open_lake()]
    properties = {**INLINE, "icefloe.inline.row-limit": "25"}
    lakes[0].create_table("t", SCHEMA, properties=properties)

    def insert(number: int) -> None:
        table = lakes[number % 3].table("t")
        for i in range(20):
            table.insert([{"id": 100 * number + i, "region": "us", "n": 0}])

    def change(number: int) -> int:
        table = lakes[number].table("t")
        statement = table.update().set("n", "n + 1").where("id = 5")
        statement = statement.with_options(isolation="snapshot", retries=20)
        return sum(statement.execute().rows_updated for _ in range(3))

    def flush(number: int) -> None:
        for _ in range(3):
            lakes[number].table("t").flush()

    with ThreadPoolExecutor(6) as pool:
        inserts = [pool.submit(insert, number) for number in range(4)]
        changes, flushes = pool.submit(change, 0), pool.submit(flush, 1)
        for each in (*inserts, flushes):
            each.result()
        updated = changes.result()
    table = lakes[2].table("t")
    expected = sorted(100 * number + i for number in range(4) for i in range(20))
    assert sorted(found.id for found in table.scan(["id"]).collect()) == expected
    assert rows(table, "n", where="id = 5") == [(updated,)]
    table.flush()
    assert sorted(table.iceberg.scan().to_arrow()["id"].to_pylist()) == expected
