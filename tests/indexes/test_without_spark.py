"""Statements and reads by an index alone: there is no Spark session that they could use."""

from __future__ import annotations

import random
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
)

from icefloe import Table
from support.indexed_tables import (
    append_rows,
    build_sidecars,
    define_index,
    make_table,
    warnings_of_icefloe,
)
from support.inline_lakes import SparkNeededError, open_place
from support.judged_conditions import Conditions, Literal
from support.random_programs import seeds
from support.sidecar_counts import local
from support.tables import data_files, delete_files, snapshots

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "i", IntegerType(), required=False),
    NestedField(3, "d", DoubleType(), required=False),
    NestedField(4, "n", DecimalType(9, 2), required=False),
    NestedField(5, "day", DateType(), required=False),
    NestedField(6, "s", StringType(), required=False),
)
LITERALS: dict[str, list[Literal]] = {
    "id": [(str(n), n) for n in range(0, 130, 3)],
    "i": [(str(n), n) for n in (-1, 0, 1, 7, 2**31 - 1)],
    "d": [(text, float(text)) for text in ("0.0", "-0.0", "1.5", "-2.25")],
    "n": [(text, Decimal(text)) for text in ("0", "-0.01", "1.50", "9999999.99")],
    "day": [(f"DATE '{d}'", d) for d in (date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29))],
}
NAN = float("nan")
VALUES: dict[str, list[Any]] = {
    "i": [None, -(2**31), -1, 0, 1, 7, 2**31 - 1],
    "d": [None, NAN, float("inf"), 0.0, -0.0, 1.5, -2.25],
    "n": [None, *(Decimal(x) for x in ("0.00", "-0.01", "1.50", "9999999.99"))],
    "day": [None, date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29)],
    "s": [None, "", "a", "b", "ab"],
}


def random_rows(chosen: random.Random, first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"id": number} | {name: chosen.choice(values) for name, values in VALUES.items()}
        for number in range(first, first + count)
    ]


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    return random_rows(random.Random(8), 0, 130)


@pytest.fixture
def table(tmp_path: Path, rows: list[dict[str, Any]]) -> Table:
    """Five files: more than the driver would read without an index."""
    table = make_table(open_place(str(tmp_path)), "t", SCHEMA, rows[:30])
    for name in LITERALS:
        define_index(table, f"by_{name}", name)
    for start in range(30, 130, 25):
        append_rows(table, rows[start : start + 25])
    assert build_sidecars(table) == []
    return table


def ids_of(table: Table) -> list[int]:
    return sorted(table.iceberg.scan().to_arrow().column("id").to_pylist())


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_random_deletes(table, rows, seed):
    chosen = random.Random(seed)
    conditions = Conditions(chosen, LITERALS)
    left, done = rows, 0
    while done < 12:
        judged = conditions.condition(chosen.choice([0, 1, 1]))
        hits = judged.rows(left)
        try:
            counted = table.count(judged.sql)
            deleted = table.delete().where(judged.sql).execute().rows_deleted
        except SparkNeededError:  # a test that no index answers
            continue
        assert (counted, deleted) == (len(hits), len(hits)), judged.sql
        left = [row for place, row in enumerate(left) if place not in set(hits)]
        assert ids_of(table) == [row["id"] for row in left], judged.sql
        done += 1


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_random_reads(table, rows, seed):
    table.delete().where("id IN (3, 60, 61, 129)").execute()
    left = [row for row in rows if row["id"] not in (3, 60, 61, 129)]
    conditions = Conditions(random.Random(seed + 50), LITERALS)
    read = 0
    for number in range(60):
        judged = conditions.condition(number % 3)
        try:
            counted = table.count(judged.sql)
        except SparkNeededError:
            continue
        assert counted == len(judged.rows(left)), judged.sql
        read += 1
    assert read > 10


@pytest.mark.requirement("L19")
def test_a_delete_opens_no_data_file(table, rows):
    """All of them have other bytes while it runs, as many."""
    content = {path: path.read_bytes() for path in map(local, data_files(table))}
    for path, whole in content.items():
        path.write_bytes(b"?" * len(whole))
    result = table.delete().where("id IN (5, 50, 100) OR id > 126").execute()
    assert table.count("id > 120") == 6
    for path, whole in content.items():
        path.write_bytes(whole)
    assert (result.rows_deleted, result.files_scanned, result.data_files_removed) == (6, 0, 0)
    gone = {5, 50, 100, 127, 128, 129}
    assert ids_of(table) == [row["id"] for row in rows if row["id"] not in gone]


def test_files_that_lose_their_last_row_are_removed(table, rows):
    files = {live.path for live in data_files(table)}
    table.delete().where("id IN (31, 33, 35)").execute()
    listed = ", ".join(str(n) for n in range(30, 55))
    result = table.delete().where(f"id IN ({listed}, 5)").execute()
    assert (result.rows_deleted, result.data_files_removed) == (23, 1)
    assert len(files - {live.path for live in data_files(table)}) == 1
    assert len(delete_files(table)) <= 2
    assert ids_of(table) == [n for n in range(130) if n != 5 and not 30 <= n < 55]


def test_no_rows_no_snapshot(table):
    before = len(snapshots(table))
    for where in ("id = 777", "id = 3 AND id = 4", "i = 5", "d = 1.25 OR n = 0.77"):
        result = table.delete().where(where).execute()
        assert (result.rows_deleted, result.snapshot_id) == (0, None)
        assert table.count(where) == 0
    assert len(snapshots(table)) == before


def test_an_index_does_not_answer_for_a_data_file_that_was_changed_in_place(table):
    """On a disk of this machine: the file's rows are looked at, as without an index."""
    [live, *_] = data_files(table)
    path = local(live)
    stored = pq.read_table(path)
    other = pa.array([key + 1000 for key in stored.column("id").to_pylist()])
    pq.write_table(stored.set_column(0, stored.schema.field(0), other), path, compression="none")
    key = stored.column("id")[7]
    with warnings_of_icefloe() as warnings:
        assert table.count(f"id = {key}") == 0
        with pytest.raises(SparkNeededError):
            table.delete().where(f"id = {key}").execute()
    assert len(warnings) == 2
    assert all(f"{path} has {path.stat().st_size} bytes" in warning for warning in warnings)
    assert build_sidecars(table)[0].endswith(f"it has {path.stat().st_size} bytes, not {live.size}")


def test_an_index_does_not_answer_for_a_data_file_that_is_missing(table):
    path = local(data_files(table)[0])
    key = pq.read_table(path).column("id")[7]
    path.unlink()
    for statement in (
        lambda: table.count(f"id = {key}"),
        table.delete().where(f"id = {key}").execute,
    ):
        with warnings_of_icefloe() as warnings, pytest.raises(SparkNeededError):
            statement()
        assert f"{path} is missing" in warnings[0]
    assert len(snapshots(table)) == 5


def test_spark_is_asked_where_a_file_has_no_sidecar(table):
    append_rows(table, random_rows(random.Random(1), 500, 20))
    with pytest.raises(SparkNeededError):
        table.delete().where("id IN (5, 510) AND s = 'a'").execute()
    build_sidecars(table)
    assert table.delete().where("id IN (5, 510)").execute().rows_deleted == 2
