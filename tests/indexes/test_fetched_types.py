"""Columns of every type are the same whether rows are read by position or with their whole file."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row

from icefloe import Table
from icefloe.commands.bind import lower_condition
from icefloe.pruning.candidates import plan_files
from icefloe.scan.scan import Scan
from icefloe.spark.column_trees import ColumnReader

DDL = (
    "id BIGINT, i INT, ok BOOLEAN, f FLOAT, d DOUBLE, n DECIMAL(9, 2), wide DECIMAL(38, 10), "
    "s STRING, bin BINARY, day DATE, at TIMESTAMP, ntz TIMESTAMP_NTZ, li ARRAY<INT>, "
    "names ARRAY<STRING>, st STRUCT<x: INT, y: STRUCT<z: STRING, at: TIMESTAMP>>, "
    "m MAP<STRING, BIGINT>, deep MAP<INT, ARRAY<STRUCT<a: DECIMAL(5, 1), b: BINARY>>>, "
    "`with.dot` INT, `with``tick` STRING, `Mixed Case` INT, `é` STRING"
)
AT = datetime(2024, 2, 29, 23, 59, 59, 123456)
FULL: dict[str, Any] = {
    "i": -(2**31),
    "ok": True,
    "f": float("nan"),
    "d": -0.0,
    "n": Decimal("-9999999.99"),
    "wide": Decimal("1234567890123456789012345678.0123456789"),
    "s": "é😀\0",
    "bin": bytearray(b"\0\xff"),
    "day": date(1, 1, 1),
    "at": datetime(1500, 1, 1, 0, 0, 0, 1),
    "ntz": AT,
    "li": [1, None],
    "names": ["", None, "x"],
    "st": {"x": 1, "y": {"z": "z", "at": AT}},
    "m": {"a": 1, "b": None},
    "deep": {1: [{"a": Decimal("1.5"), "b": bytearray(b"b")}, None], 2: None},
    "with.dot": 5,
    "with`tick": "tick",
    "Mixed Case": 6,
    "é": "accent",
}
EMPTY: dict[str, Any] = {"li": [], "names": [], "m": {}, "deep": {}, "st": {"x": None, "y": None}}


@pytest.fixture(scope="module")
def table(shared_lake) -> Table:
    table = shared_lake.create_table("types", DDL)
    table.create_index("by_id", "btree", "id")
    nothing = dict.fromkeys(FULL)
    kinds = [FULL, nothing, {**nothing, **EMPTY}]
    rows = [{"id": n, **kinds[n % 3]} for n in range(30)]
    frame = shared_lake.spark.createDataFrame([tuple(row.values()) for row in rows], table.schema)
    table.append(frame)
    return table


WHERE = "id IN (0, 1, 2, 29, 30)"


def is_fetched(table: Table, where: str) -> bool:
    state, spark = table._state(), table._lake.spark
    files = plan_files(state, lower_condition(where, state, ColumnReader(lambda: spark))).candidates
    return Scan.of(spark, state, files).reads_by_position


def shown(rows: list[Row]) -> list[str]:
    return sorted(str(row.asDict(recursive=True)) for row in rows)


def test_every_type(table, always_by_position):
    fetched, whole = table.scan(where=WHERE), table.scan().filter(WHERE)
    assert is_fetched(table, WHERE)
    assert fetched.schema.simpleString() == whole.schema.simpleString()
    found = fetched.collect()
    assert len(found) == 4
    assert shown(found) == shown(whole.collect())


def test_some_columns(table, always_by_position):
    for columns in (["`with.dot`"], ["s", "id"], ["st.y.z"], ["é", "Mixed Case"], ["m"]):
        names = [name.strip("`") for name in columns]
        fetched = table.scan(names, WHERE + " AND `with.dot` = 5")
        whole = table.scan().filter(WHERE + " AND `with.dot` = 5").select(*columns)
        assert shown(fetched.collect()) == shown(whole.collect())


def test_with_file_and_position(table, always_by_position):
    found = table.scan(["id", "_file", "_pos"], WHERE).collect()
    whole = table.scan(["id", "_file", "_pos"]).filter(WHERE).collect()
    assert shown(found) == shown(whole)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.execution.arrow.useLargeVarTypes", "true"),
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "2"),
        ("spark.sql.session.timeZone", "America/New_York"),
        ("spark.sql.caseSensitive", "true"),
        ("spark.sql.ansi.enabled", "false"),
    ],
)
@pytest.mark.every_variant
def test_settings_of_the_session(table, always_by_position, spark, setting, value):
    before = spark.conf.get(setting)
    try:
        spark.conf.set(setting, value)
        fetched = shown(table.scan(where=WHERE).collect())
        whole = shown(table.scan().filter(WHERE).collect())
        by_time = "at < TIMESTAMP '1900-01-01 00:00:00' AND id = 0"
        early = table.scan(["id"], by_time).collect()
    finally:
        spark.conf.set(setting, before)
    assert fetched == whole
    assert [row.id for row in early] == [0]


def test_conditions_that_name_columns_in_other_ways(table, always_by_position):
    """What is read of a row is chosen by the text of the condition."""
    for where in (
        "id IN (0, 3) AND `with``tick` = 'tick'",
        "id IN (0, 3) AND ST.Y.Z = 'z'",
        "id IN (0, 3) AND types.m['a'] = 1",
        "id IN (0, 3) AND size(filter(li, each -> each > 0)) = 1",
        "id IN (0, 3) AND to_json(struct(i, s)) IS NOT NULL",
        "id IN (0, 3) AND EXISTS (SELECT 1 FROM types AS o WHERE o.id = types.id AND o.ok)",
        "id IN (0, 3) AND i IN (SELECT i FROM types WHERE ok)",
    ):
        assert is_fetched(table, where), where
        assert sorted(row.id for row in table.scan(["id"], where).collect()) == [0, 3], where


def test_few_rows_read_by_the_driver(table):
    """PyArrow ends the process if it casts maps of which it took some rows."""
    where = "id IN (0, 29)"
    expected = table.scan().filter(where).toArrow().sort_by("id")
    found = table.to_arrow(where=where).sort_by("id")
    assert str(found.to_pylist()) == str(expected.to_pylist())
    assert found.schema.types == expected.schema.types


def test_new_values_of_a_map(lake, mode, always_by_position):
    table = lake.create_table(
        "maps", "id BIGINT, m MAP<STRING, STRING>", properties={"write.update.mode": mode}
    )
    table.create_index("by_id", "btree", "id")
    table.append([{"id": n, "m": {"n": str(n)}} for n in range(20)])
    where = "id IN (3, 5, 19)"
    assert table.delete().where("id IN (4, 5)").execute().rows_deleted == 2
    assert table.update().set("m", "map('x', 'y')").where(where).execute().rows_updated == 2
    assert table.update().set("id", "id + 100").where("id IN (6, 19)").execute().rows_updated == 2
    found = {row.id: row.m for row in table.scan(where="id > 2").collect()}
    assert found == {3: {"x": "y"}, 106: {"n": "6"}, 119: {"x": "y"}} | {
        n: {"n": str(n)} for n in range(7, 19)
    }
