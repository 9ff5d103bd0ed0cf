"""Rows that another engine deleted by value stay deleted, whatever statement comes after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from icefloe import Lake, Table
from support.foreign_files import equality_delete, position_delete, publish
from support.foreign_readers import icefloe_rows, read_clickhouse, read_duckdb
from support.tables import data_files, rows

SCHEMA = "id BIGINT, region STRING, n INT"

TableOf = Callable[..., Table]


def batch(*triples: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [dict(zip(("id", "region", "n"), triple, strict=True)) for triple in triples]


OLD = batch(
    (1, "eu", 10), (2, "eu", 20), (3, "us", 30), (4, "us", None), (None, "eu", 50), (6, None, 60)
)


def assert_rows(table: Table, *expected: tuple[Any, ...]) -> None:
    assert rows(table) == sorted(expected, key=lambda r: [(v is not None, repr(v)) for v in r])


@pytest.fixture
def dented(lake: Lake, table_of: TableOf, mode: str, partition_by: tuple[str, ...]) -> Table:
    """Rows 2, 4 (by NULL) and the one without id are deleted by value; 2 comes again later."""
    table = table_of(SCHEMA, OLD, mode=mode, partition_by=partition_by)
    if partition_by:
        deletes = [
            equality_delete(table, [{"id": 2}, {"id": None}, {"id": 3}], partition=("eu",)),
            equality_delete(table, [{"n": None}], partition=("us",)),
        ]
    else:
        deletes = [
            equality_delete(table, [{"id": 2}, {"id": None}]),
            equality_delete(table, [{"n": None}]),
        ]
    publish(lake, table, deletes=deletes)
    table.append(batch((2, "eu", 21)))
    return table


def test_scan_applies_deletes_to_older_rows_of_their_partition(dented: Table) -> None:
    assert_rows(dented, (1, "eu", 10), (2, "eu", 21), (3, "us", 30), (6, None, 60))
    assert rows(dented, "region", where="id = 2") == [("eu",)]
    assert rows(dented, "n", where="n IS NULL") == []


def test_update_of_a_neighbour_brings_no_row_back(dented: Table) -> None:
    result = dented.update().set("n", "n + 1").where("id IN (1, 2, 3)").execute()
    assert result.rows_updated == 3
    assert_rows(dented, (1, "eu", 11), (2, "eu", 22), (3, "us", 31), (6, None, 60))


def test_update_of_every_row_counts_and_changes_live_rows_only(dented: Table) -> None:
    assert dented.update().set("n", "0").execute().rows_updated == 4
    assert_rows(dented, (1, "eu", 0), (2, "eu", 0), (3, "us", 0), (6, None, 0))


def test_update_of_the_deleted_rows_only_changes_nothing(dented: Table) -> None:
    before = dented.snapshot_id
    result = dented.update().set("n", "0").where("n = 20 OR id IS NULL OR n IS NULL").execute()
    assert (result.rows_updated, result.snapshot_id) == (0, None)
    assert dented.snapshot_id == before


def test_update_that_moves_rows_to_another_partition_moves_live_ones(dented: Table) -> None:
    assert dented.update().set("region", "'ap'").where("region = 'eu'").execute().rows_updated == 2
    assert_rows(dented, (1, "ap", 10), (2, "ap", 21), (3, "us", 30), (6, None, 60))


def test_update_to_a_deleted_value_gives_a_live_row(dented: Table) -> None:
    dented.update().set("id", "2").set("n", "NULL").where("id IN (1, 3)").execute()
    assert_rows(dented, (2, "eu", None), (2, "eu", 21), (2, "us", None), (6, None, 60))


def test_delete_of_a_neighbour_brings_no_row_back(dented: Table) -> None:
    assert dented.delete().where("id = 1").execute().rows_deleted == 1
    assert_rows(dented, (2, "eu", 21), (3, "us", 30), (6, None, 60))
    assert dented.delete().where("n = 21").execute().rows_deleted == 1
    assert_rows(dented, (3, "us", 30), (6, None, 60))


def test_delete_of_a_whole_partition_counts_live_rows(dented: Table) -> None:
    assert dented.delete().where("region = 'us'").execute().rows_deleted == 1
    assert_rows(dented, (1, "eu", 10), (2, "eu", 21), (6, None, 60))
    dented.append(batch((4, "us", None)))
    assert_rows(dented, (1, "eu", 10), (2, "eu", 21), (6, None, 60), (4, "us", None))


def test_delete_of_every_row_counts_live_rows(dented: Table) -> None:
    assert dented.delete().execute().rows_deleted == 4
    assert_rows(dented)


@pytest.mark.requirement("T33", "D16")
def test_statements_after_one_another_bring_no_row_back(dented: Table) -> None:
    """Equality deletes are applied when a file is rewritten."""
    dented.update().set("n", "n + 1").where("id = 1").execute()
    dented.delete().where("id = 3").execute()
    dented.update().set("n", "n + 1").where("region = 'eu'").execute()
    dented.append(batch((None, "eu", 51)))
    dented.update().set("n", "coalesce(n, 0) + 1").execute()
    assert_rows(dented, (1, "eu", 13), (2, "eu", 23), (6, None, 61), (None, "eu", 52))


@pytest.mark.parametrize("partition_by", [(), ("region",)], ids=["unpartitioned", "partitioned"])
def test_engines_that_know_equality_deletes_read_the_same(
    lake: Lake, table_of: TableOf, mode: str, partition_by: tuple[str, ...]
) -> None:
    """DuckDB and ClickHouse, on rows without NULL.

    PyIceberg, and Polars and Daft through it: "PyIceberg does not yet support equality deletes".
    DuckDB 1.5.5 and ClickHouse 26.9 take a NULL in the key column for deleted by any key, and
    DuckDB fails on a NULL partition: "INTERNAL Error: Comparison on NULL values".
    """
    full = [row for row in OLD if None not in row.values()]
    table = table_of(SCHEMA, full, mode=mode, partition_by=partition_by)
    place = ("eu",) if partition_by else ()
    publish(lake, table, deletes=[equality_delete(table, [{"id": 2}], partition=place)])
    table.append(batch((2, "eu", 21)))
    assert read_duckdb(table) == read_clickhouse(table) == icefloe_rows(table)
    table.update().set("n", "n + 1").where("id IN (2, 3)").execute()
    assert read_duckdb(table) == read_clickhouse(table) == icefloe_rows(table)
    table.delete().where("id = 1").execute()
    assert read_duckdb(table) == read_clickhouse(table) == icefloe_rows(table)
    assert_rows(table, (2, "eu", 22), (3, "us", 31))


def test_both_kinds_of_deletes_on_one_file(lake: Lake, table_of: TableOf, mode: str) -> None:
    table = table_of(SCHEMA, OLD, mode="merge-on-read")
    table.delete().where("id = 1").execute()
    publish(lake, table, deletes=[equality_delete(table, [{"id": 3}, {"id": 1}])])
    assert_rows(table, (2, "eu", 20), (4, "us", None), (None, "eu", 50), (6, None, 60))
    table.update().set("n", "n + 1").where("id <= 4").with_options(mode=mode).execute()
    assert_rows(table, (2, "eu", 21), (4, "us", None), (None, "eu", 50), (6, None, 60))


def test_keys_of_several_columns_match_only_together(
    lake: Lake, table_of: TableOf, mode: str
) -> None:
    table = table_of(SCHEMA, OLD, mode=mode)
    keys = [{"id": 1, "n": 10}, {"id": 2, "n": 10}, {"id": 4, "n": None}, {"id": None, "n": None}]
    publish(lake, table, deletes=[equality_delete(table, keys)])
    table.update().set("region", "'x'").where("id < 4").execute()
    assert_rows(table, (2, "x", 20), (3, "x", 30), (None, "eu", 50), (6, None, 60))


def test_global_deletes_reach_every_partition_of_every_spec(
    lake: Lake, table_of: TableOf, mode: str
) -> None:
    """A delete file under an unpartitioned spec applies to older files of all specs."""
    table = table_of(SCHEMA, OLD, mode=mode)
    table.evolve_partitions(("region",))
    table.append(batch((2, "us", 22), (7, "eu", 70), (8, "us", 80)))
    publish(lake, table, deletes=[equality_delete(table, [{"id": 2}, {"id": 8}], spec_id=0)])
    table.append(batch((8, "us", 81)))
    left = [(1, "eu", 10), (3, "us", 30), (4, "us", None), (None, "eu", 50), (6, None, 60)]
    assert_rows(table, *left, (7, "eu", 70), (8, "us", 81))
    assert table.delete().where("region = 'us'").execute().rows_deleted == 3
    left = [(1, "eu", 10), (None, "eu", 50), (6, None, 60), (7, "eu", 70)]
    assert_rows(table, *left)
    table.update().set("n", "n + 1").execute()
    assert_rows(table, *((i, region, n + 1) for i, region, n in left))


def test_deletes_by_a_column_that_was_dropped_later(
    lake: Lake, table_of: TableOf, mode: str
) -> None:
    table = table_of(SCHEMA, OLD, mode=mode)
    publish(lake, table, deletes=[equality_delete(table, [{"n": 20}, {"n": None}])])
    table.drop_column("n")
    expected = [(1, "eu"), (3, "us"), (None, "eu"), (6, None)]
    assert rows(table) == sorted(expected, key=lambda r: [(v is not None, repr(v)) for v in r])
    assert table.update().set("region", "'x'").where("id <= 3").execute().rows_updated == 2
    assert rows(table, "id", where="region = 'x'") == [(1,), (3,)]
    assert table.delete().where("id IS NULL OR id = 6").execute().rows_deleted == 2
    assert rows(table, "id") == [(1,), (3,)]


def test_deletes_by_a_column_that_was_renamed_later(
    lake: Lake, table_of: TableOf, mode: str
) -> None:
    table = table_of(SCHEMA, OLD, mode=mode)
    publish(lake, table, deletes=[equality_delete(table, [{"n": 20}, {"n": None}])])
    table.rename_column("n", "number")
    table.update().set("number", "number + 1").where("id <= 3").execute()
    assert_rows(table, (1, "eu", 11), (3, "us", 31), (None, "eu", 50), (6, None, 60))


def test_overwrites_leave_nothing_of_the_deleted_rows(dented: Table) -> None:
    dented.overwrite_partitions(batch((2, "us", None), (4, "eu", 1)))
    dented.overwrite(batch((2, "eu", 1), (4, "us", None), (None, "eu", 2)))
    assert_rows(dented, (2, "eu", 1), (4, "us", None), (None, "eu", 2))
    dented.truncate()
    dented.append(batch((2, "eu", 3)))
    assert_rows(dented, (2, "eu", 3))


def test_position_deletes_of_many_files_unsorted_and_twice(
    lake: Lake, table_of: TableOf, mode: str
) -> None:
    """A delete file of a whole partition: places in no order, one twice, one of a file long gone."""
    table = table_of(SCHEMA, OLD[:3], OLD[3:], mode=mode)
    first, second = sorted(data_files(table), key=lambda f: f.sequence_number)
    places = [(second.path, 2), (first.path, 1), (second.path, 0), (first.path, 1), ("gone", 0)]
    publish(lake, table, deletes=[position_delete(table, places)])
    assert_rows(table, (1, "eu", 10), (3, "us", 30), (None, "eu", 50))
    assert table.update().set("n", "n + 1").where("n >= 30").execute().rows_updated == 2
    assert_rows(table, (1, "eu", 10), (3, "us", 31), (None, "eu", 51))
    assert table.delete().execute().rows_deleted == 3
    assert_rows(table)
