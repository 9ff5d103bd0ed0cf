"""MERGE that finds rows of the table by an index: the rows are those that it finds without one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from icefloe import Lake, Table
from icefloe.errors import CardinalityError
from support.foreign_files import equality_delete, publish
from support.indexed_statements import append_by_pyiceberg, texts
from support.indexed_tables import sidecar_of, stored_sidecars, warnings_of_icefloe
from support.sidecar_counts import local, remove_sidecars
from support.tables import data_files

Row = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """The columns that rows are matched by, and the values of the n-th row."""

    ddl: str
    of: Callable[[int], tuple[Any, ...]]

    @property
    def names(self) -> list[str]:
        return [part.split()[0] for part in self.ddl.split(", ")]

    def row(self, number: int | None, v: int, s: str | None = "old") -> Row:
        values = (None,) * len(self.names) if number is None else self.of(number)
        return {**dict(zip(self.names, values, strict=True)), "v": v, "s": s}


KEYS = {
    "long": Key("k BIGINT", lambda n: (n * 7919 % 10007 - 5000,)),
    "string": Key("k STRING", lambda n: (f"key {n * 7919 % 10007}",)),
    "pair": Key("k INT, k2 STRING", lambda n: (n // 10, f"{n % 10}")),
    "alike": Key("k STRING", lambda n: (f"{n % 2} has the same beginning {n}",)),
    "date": Key("k DATE", lambda n: (date(1969, 1, 1) + timedelta(days=n * 13 % 1009),)),
    "timestamp": Key("k TIMESTAMP", lambda n: (datetime(2024, 1, 1) + timedelta(seconds=n),)),
    "decimal": Key("k DECIMAL(9,2)", lambda n: (Decimal(n - 100).scaleb(-2),)),
    "wide decimal": Key("k DECIMAL(30,2)", lambda n: (Decimal((n - 100) * 10**14 + n).scaleb(-2),)),
    "three": Key(
        "k DATE, k2 DECIMAL(9,2), k3 BIGINT", lambda n: (date(2024, 1, 1), Decimal(f"{n}.00"), n)
    ),
}
QUICK = ("string", "pair")
PARAMETERS = [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in KEYS]


def make_table(lake: Lake, key: Key, mode: str, partition_by: tuple[str, ...]) -> Table:
    """200 rows in files with deletes of every kind, a third of them without sidecars."""
    modes = {f"write.{kind}.mode": mode for kind in ("delete", "update", "merge")}
    ddl = f"{key.ddl}, v INT, s STRING"
    table = lake.create_table("t", ddl, partition_by=partition_by, properties=modes)
    table.create_index("by_key", "btree", key.names)
    table.append([key.row(n, n % 4) for n in range(80)] + [key.row(None, 1)])
    append_by_pyiceberg(table, [key.row(n, n % 4) for n in range(80, 140)] + [key.row(None, 2)])
    table.delete().where("v = 3 AND s = 'old'").with_options(mode="merge-on-read").execute()
    partition = (2,) if partition_by else ()
    publish(lake, table, deletes=[equality_delete(table, [{"v": 2}], partition=partition)])
    table.append([key.row(n, n % 4) for n in range(140, 200)])
    return table


def live_rows(table: Table) -> list[Row]:
    return list(table.scan().toArrow().to_pylist())


def expected_rows(rows: list[Row], source: list[Row], key: Key, change: str) -> list[Row]:
    """What a MERGE makes of rows; NULL matches nothing."""

    def key_of(row: Row) -> tuple[Any, ...]:
        values = (row[name] for name in key.names)
        return tuple(v.replace(tzinfo=None) if isinstance(v, datetime) else v for v in values)

    by_key = {key_of(row): row for row in source if None not in key_of(row)}
    seen = {key_of(row) for row in rows}
    new = [row for row in source if key_of(row) not in seen or None in key_of(row)]
    result: list[Row] = []
    for row in rows:
        match = by_key.get(key_of(row))
        if match is None:
            result.append(row)
        elif change == "upsert":
            result.append(match)
        elif change == "older":
            result.append({**row, "v": row["v"] + match["v"]} if row["v"] < match["v"] else row)
    return result if change == "older" else [*result, *new]


def in_utc(rows: list[Row]) -> list[str]:
    return texts(
        [
            {n: v.replace(tzinfo=None) if isinstance(v, datetime) else v for n, v in row.items()}
            for row in rows
        ]
    )


@pytest.mark.requirement("X03", "X05", "L11")
@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("partition_by", [(), ("v",)], ids=["unpartitioned", "partitioned"])
def test_merges_by_key(lake, mode, partition_by, name, always_by_position):
    key, chosen = KEYS[name], random.Random(name)
    table = make_table(lake, key, mode, partition_by)
    rows = live_rows(table)
    for change in ("upsert", "older", "delete"):
        numbers = chosen.sample(range(230), 25)
        source = [key.row(n, chosen.randrange(4), f"new {n}") for n in numbers]
        source += [key.row(None, 9, "null"), key.row(None, 9, "null")]
        frame = lake.spark.createDataFrame(source, f"{key.ddl}, v INT, s STRING")
        merge = table.merge(frame, key.names)
        match change:
            case "upsert":
                merge = merge.when_matched().update_all().when_not_matched().insert_all()
            case "older":
                older = merge.when_matched("target.v < source.v")
                merge = older.update({"v": "target.v + source.v"})
            case "delete":
                merge = merge.when_matched().delete().when_not_matched().insert_all()
        if change != "older":
            assert "index by_key: the source's keys are looked up" in str(merge.explain())
        merge.execute()
        rows = expected_rows(rows, source, key, change)
        found = live_rows(table)
        assert in_utc(found) == in_utc(rows), change


HELD = ["long", "date", "timestamp", "decimal"]


@pytest.mark.parametrize("name", HELD)
def test_random_upserts_of_rows_that_the_driver_holds(lake, name, jobs):
    """Keys that several rows of the table have, NULL keys, and new keys more than once."""
    key, chosen = KEYS[name], random.Random(name)
    ddl = f"{key.ddl}, v INT, s STRING"
    table = lake.create_table("held", ddl, partition_by=["v"] if name == "date" else [])
    table.create_index("by_key", "btree", key.names)
    schema = lake.spark.createDataFrame([], ddl).toArrow().schema
    for start in (0, 60):
        old = [key.row(n % 90, n % 3, f"old {n}") for n in range(start, start + 60)]
        table.append(pa.Table.from_pylist([*old, key.row(None, 1)], schema=schema))
    for step in range(3):
        numbers = chosen.sample(range(120), 20)
        source = [key.row(n, chosen.randrange(3), f"new {step}") for n in numbers]
        source += [
            key.row(None, 2, f"null {step}"),
            key.row(1000 + step, 0),
            key.row(1000 + step, 1),
        ]
        expected = expected_rows(live_rows(table), source, key, "upsert")
        before = jobs()
        table.upsert(pa.Table.from_pylist(source, schema=schema), key.names).execute()
        assert jobs() == before
        assert in_utc(live_rows(table)) == in_utc(expected), step
        table.delete().where(f"s = 'new {step}' AND v = 1").execute()


def shuffled_table(lake: Lake, mode: str, *, indexed: bool = True) -> Table:
    """Eight files whose ids no bounds tell apart, as one append makes them."""
    modes = {f"write.{kind}.mode": mode for kind in ("delete", "update", "merge")}
    ddl = "id BIGINT, v INT, g INT"
    table = lake.create_table("shuffled", ddl, partition_by=["g"], properties=modes)
    if indexed:
        table.create_index("by_id", "btree", "id")
    ids = list(range(4000))
    random.Random(3).shuffle(ids)
    table.append(
        pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "v": pa.array([0] * len(ids), pa.int32()),
                "g": pa.array([n % 8 for n in range(len(ids))], pa.int32()),
            }
        )
    )
    assert len(data_files(table)) == 8
    return table


@pytest.mark.requirement("L12", "L19")
def test_an_upsert_reads_no_data_file(lake):
    """While it runs they have no bytes that make sense."""
    table = shuffled_table(lake, "merge-on-read")
    keys = [*range(0, 4000, 40), *range(4000, 4010)]
    source = lake.spark.createDataFrame([(key, 7, 1) for key in keys], "id BIGINT, v INT, g INT")
    upsert = table.upsert(source, ["id"])
    stored = {local(live): local(live).read_bytes() for live in data_files(table)}
    for path, content in stored.items():
        path.write_bytes(bytes(len(content)))
    plan = upsert.explain()
    result = upsert.execute()
    for path, content in stored.items():
        path.write_bytes(content)
    assert "index by_id: the source's keys are looked up in 8 files" in plan.reasons
    assert "index by_id: no column of these files is read" in plan.reasons
    assert (result.rows_updated, result.rows_inserted, result.files_scanned) == (100, 10, 0)
    found = {row["id"]: row["v"] for row in live_rows(table)}
    assert len(found) == table.count() == 4010
    assert found == {key: 7 if key in keys else 0 for key in range(4010)}


@pytest.mark.parametrize("damage", ["missing", "damaged", "all missing"])
def test_files_without_a_usable_sidecar_are_read(lake, mode, damage):
    table = shuffled_table(lake, mode)
    files = data_files(table)
    if damage == "damaged":
        for live in files[:4]:
            path = sidecar_of(table, "by_id", live)
            path.write_bytes(path.read_bytes()[:-100])
    else:
        remove_sidecars(table, "by_id", files if damage == "all missing" else files[:4])
    keys = [*range(0, 4000, 100), 5000]
    source = lake.spark.createDataFrame([(key, 7, 1) for key in keys], "id BIGINT, v INT, g INT")
    upsert = table.upsert(source, ["id"])
    plan = str(upsert.explain())
    if damage == "missing":
        assert "index by_id not used for 4 files: they have no sidecar" in plan
    if damage == "all missing":
        assert "index by_id not used: no file has a sidecar" in plan
    result = upsert.execute()
    assert (result.rows_updated, result.rows_inserted) == (40, 1)
    found = {row["id"]: row["v"] for row in live_rows(table)}
    assert found == {key: 7 if key in keys else 0 for key in [*range(4000), 5000]}


@pytest.mark.requirement("M02")
@pytest.mark.parametrize("partition_by", [(), ("g",)], ids=["unpartitioned", "partitioned"])
def test_two_source_rows_for_one_row_are_refused(lake, mode, partition_by, always_by_position):
    table = shuffled_table(lake, mode)
    if not partition_by:
        table.evolve_partitions(())
        table.compact()
    before, sidecars = table.snapshot_id, stored_sidecars(table)
    doubled = [(5, 1, 1), (9, 1, 1), (9, 2, 2), (4001, 1, 1), (4001, 2, 1), (None, 1, 1)]
    source = lake.spark.createDataFrame(doubled, "id BIGINT, v INT, g INT")
    with pytest.raises(CardinalityError, match="9"):
        table.upsert(source, ["id"]).execute()
    assert table.snapshot_id == before
    assert stored_sidecars(table) == sidecars
    # A key that is new may come twice.
    fine = lake.spark.createDataFrame([doubled[0], *doubled[3:]], "id BIGINT, v INT, g INT")
    result = table.upsert(fine, ["id"]).execute()
    assert (result.rows_updated, result.rows_inserted) == (1, 3)
    assert table.count("id = 4001") == 2


@pytest.mark.requirement("L13")
@pytest.mark.parametrize(
    ("clauses", "reason"),
    [
        (
            lambda m: m.when_not_matched_by_source().delete(),
            "rows that match no source row are needed too",
        ),
        (
            lambda m: m.when_matched(F.exists(F.array("target.v"), lambda v: v > 0)).update_all(),
            "a condition or a value may name any column",
        ),
    ],
)
def test_explain_says_why_an_index_is_not_used(lake, clauses, reason):
    table = shuffled_table(lake, "merge-on-read")
    source = lake.spark.createDataFrame([(5, 1, 1)], "id BIGINT, v INT, g INT")
    merge = clauses(table.merge(source, ["id"]))
    assert f"index by_id not used: {reason}" in str(merge.explain())


def test_a_large_source_is_joined_without_the_index(lake):
    """A plain upsert would be looked up by the driver."""
    table = shuffled_table(lake, "merge-on-read")
    values = {"v": "source.v", "g": "source.g"}
    source = lake.spark.range(1000).selectExpr("id", "1 AS v", "CAST(2 AS INT) AS g")
    upsert = table.merge(source, ["id"]).when_matched().update(values)
    assert "index by_id not used: the source has 1000 rows, the files 4000" in str(upsert.explain())
    assert upsert.execute().rows_updated == 1000
    table.set_properties({"icefloe.index.max-keys": "50"})
    few = lake.spark.range(51).selectExpr("id", "2 AS v", "CAST(2 AS INT) AS g")
    upsert = table.merge(few, ["id"]).when_matched().update(values)
    assert "index by_id not used: the source has 51 rows, more than 50" in str(upsert.explain())
    assert upsert.execute().rows_updated == 51
    assert table.count("v = 2") == 51


def test_keys_of_other_types_than_the_table(lake, mode, always_by_position):
    """INT and BIGINT are compared as numbers; a string is cast, and no index has its codes."""
    table = lake.create_table("typed", "k INT, v INT", properties={"write.merge.mode": mode})
    table.create_index("by_k", "btree", "k")
    table.append([{"k": n, "v": 0} for n in range(20)])
    for ddl, keys, used in (
        ("k BIGINT, v INT", [3, 2**40], True),
        ("k SMALLINT, v INT", [4, 5], True),
        ("k STRING, v INT", ["6", "07"], False),
        ("k DOUBLE, v INT", [8.0, 8.5], False),
    ):
        source = lake.spark.createDataFrame([(key, 1) for key in keys], ddl)
        merge = table.merge(source, "target.k = source.k").when_matched().update({"v": "source.v"})
        assert ("looked up in" in str(merge.explain())) is used
        merge.execute()
    assert sorted(r["k"] for r in live_rows(table) if r["v"] == 1) == [3, 4, 5, 6, 7, 8]


def test_no_warning_where_all_is_well(lake, always_by_position):
    table = shuffled_table(lake, "copy-on-write")
    source = lake.spark.createDataFrame([(5, 1, 1)], "id BIGINT, v INT, g INT")
    with warnings_of_icefloe() as warnings:
        assert table.upsert(source, ["id"]).execute().rows_updated == 1
    assert warnings == []
