"""A name that another column had before: files still have it for the other column."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from icefloe import Table
from support.foreign_readers import disagreements
from support.tables import rows

TableOf = Callable[..., Table]


@pytest.fixture
def swapped(table_of: TableOf, mode: str) -> Table:
    """`a` and `b` have changed names since the file was written; now a = -id and b = id / 2."""
    first = [{"id": i, "a": i / 2, "b": -i} for i in range(6)]
    table = table_of("id BIGINT, a DOUBLE, b INT", first, mode=mode)
    return table.rename_column("a", "x").rename_column("b", "a").rename_column("x", "b")


def test_swapped_names_are_read_and_filtered_by_column(swapped: Table) -> None:
    assert rows(swapped, "id", "a", "b")[:2] == [(0, 0, 0.0), (1, -1, 0.5)]
    assert rows(swapped, "id", where="a < -3") == [(4,), (5,)]
    assert rows(swapped, "id", where="b > 1") == [(3,), (4,), (5,)]
    assert disagreements(swapped) == {}


def test_swapped_names_are_updated_and_deleted_by_column(swapped: Table) -> None:
    assert swapped.update().set("b", "b + a").where("a < -3").execute().rows_updated == 2
    assert swapped.delete().where("b > 1 OR a = -1").execute().rows_deleted == 2
    assert rows(swapped, "id", "a", "b") == [
        (0, 0, 0.0),
        (2, -2, 1.0),
        (4, -4, -2.0),
        (5, -5, -2.5),
    ]
    assert disagreements(swapped) == {}


def test_a_column_added_under_a_dropped_name_is_null_in_old_rows(
    table_of: TableOf, mode: str
) -> None:
    first = [{"id": i, "c": i} for i in range(4)]
    table = table_of("id BIGINT, c INT", first, mode=mode)
    table.drop_column("c").add_column("c", "INT")
    assert rows(table, "id", where="c IS NULL") == [(0,), (1,), (2,), (3,)]
    assert rows(table, "id", where="c = 2") == []
    assert (
        table.update().set("c", "id + 10").where("c IS NULL AND id < 2").execute().rows_updated == 2
    )
    assert table.delete().where("c IS NULL AND id = 2").execute().rows_deleted == 1
    assert rows(table) == [(0, 10), (1, 11), (3, None)]
    assert disagreements(table) == {}


def test_swapped_names_inside_a_struct(table_of: TableOf, mode: str) -> None:
    first = [{"id": i, "p": {"a": i, "b": -i}} for i in range(4)]
    table = table_of("id BIGINT, p STRUCT<a: INT, b: INT>", first, mode=mode)
    table.rename_column("p.a", "x").rename_column("p.b", "a").rename_column("p.x", "b")
    assert rows(table, "id", where="p.a < -1") == [(2,), (3,)]
    assert table.delete().where("p.b = 3").execute().rows_deleted == 1
    assert table.update().set("p.a", "7").where("p.b = 1").execute().rows_updated == 1
    assert rows(table, "id", "p.a", "p.b") == [(0, 0, 0), (1, 7, 1), (2, -2, 2)]
    assert disagreements(table) == {}
