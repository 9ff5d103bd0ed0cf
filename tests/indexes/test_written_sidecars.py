"""Every statement that writes data files writes their sidecars, whatever wrote the rows before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from icefloe import Lake, Table
from support.indexed_tables import sidecar_of
from support.tables import data_files

DDL = "id BIGINT, region STRING, n INT"


def some(*ids: int, n: int = 0) -> list[dict[str, object]]:
    return [{"id": i, "region": "us" if i % 2 else "eu", "n": n} for i in ids]


def sql(text: str) -> Callable[[Table, Lake], object]:
    return lambda table, lake: lake.sql(text.format(t=table.name))


STATEMENTS: dict[str, Callable[[Table, Lake], object]] = {
    "append": lambda table, _: table.append(some(20, 21)),
    "insert": lambda table, _: table.insert(some(20, 21)),
    "overwrite": lambda table, _: table.overwrite(some(20, 21)),
    "overwrite_partitions": lambda table, _: table.overwrite_partitions(some(20, 22)),
    "replace_where": lambda table, _: table.replace_where("region = 'us'", some(21)).execute(),
    "replace_using": lambda table, _: table.replace_using(["id"], some(1, 20)).execute(),
    "update": lambda table, _: table.update().set("n", "n + 1").where("n + id = 3").execute(),
    "update of the key": lambda table, _: table.update().set("id", "id + 20").execute(),
    "delete": lambda table, _: table.delete().where("n + id = 3").execute(),
    "upsert": lambda table, _: table.upsert(some(3, 20, n=5), ["id"]).execute(),
    "compact": lambda table, _: table.compact(),
    "evolve": lambda table, _: table.evolve_partitions(["bucket(2, id)"]).append(some(20)),
    "INSERT": sql("INSERT INTO {t} VALUES (20, 'us', 1)"),
    "MERGE": sql(
        "MERGE INTO {t} t USING (SELECT 3L AS id, 'us' AS region, 7 AS n) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ),
}


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("partition_by", [("region",)], ids=["partitioned"])
def test_new_files_have_sidecars(table_of, lake, partition_by, name):
    for mode in ("copy-on-write", "merge-on-read", "auto"):
        table = table_of(DDL, mode=mode, partition_by=partition_by)
        table.create_index("by_id", "btree", "id")
        table.create_index("pair", "btree", ["region", "n"])
        table.append(some(*range(10)))
        STATEMENTS[name](table, lake)
        rows = [(row.id, row.region, row.n) for row in table.scan().collect()]
        for live in data_files(table):
            assert sidecar_of(table, "by_id", live).exists(), mode
            assert sidecar_of(table, "pair", live).exists(), mode
        for key in (3, 20, 21, 23):
            assert table.count(f"id = {key}") == len([r for r in rows if r[0] == key]), mode
        both = [r for r in rows if r[1] == "us" and r[2] == 1]
        assert table.count("region = 'us' AND n = 1") == len(both), mode
