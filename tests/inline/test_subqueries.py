"""Statements whose subqueries read the table: both reads see the same rows, inline rows too."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from icefloe import Lake, Table
from icefloe.errors import ConflictError
from support.races import once_before_publish
from support.tables import row, rows, snapshots

SCHEMA = "id BIGINT, region STRING, n INT"
INLINE = {"icefloe.inline.enabled": "true"}

InlineOf = Callable[..., Table]


@pytest.fixture
def inline_of(table_of) -> InlineOf:
    """A table with rows 1 and 2 in a file, of which row 99 is deleted, and rows 3, 4 and 5 inline."""

    def make(**options: Any) -> Table:
        table = table_of(SCHEMA, properties=INLINE, **options)
        table.append([row(1, n=1), row(2, "eu", 2), row(99)])
        table.delete().where("id = 99").execute()
        table.insert([row(3, n=3), row(4, "eu", 4), row(5, None, None)])
        return table

    return make


@pytest.mark.requirement("L18", "L24")
def test_an_update_reads_rows_of_both_tiers_and_changes_them_in_place(
    inline_of, mode, partition_by
):
    table = inline_of(mode=mode, partition_by=partition_by)
    before = len(snapshots(table))
    update = table.update().set("n", "(SELECT sum(n) FROM t0)").where("n >= 2")
    result = update.execute()
    assert (result.rows_updated, table.inline.rows > 0) == (3, True)
    assert len(snapshots(table)) <= before + 1  # nothing was flushed
    assert rows(table, "id", "n") == [(1, 1), (2, 10), (3, 10), (4, 10), (5, None)]


def test_inline_rows_alone_change_without_a_snapshot(inline_of):
    table = inline_of()
    before = table.snapshot_id
    update = table.update().set("n", "0 - n").where("id = (SELECT max(id) - 1 FROM t0)")
    result = update.execute()
    assert (result.mode, result.rows_updated, result.snapshot_id) == ("inline", 1, None)
    deleted = table.delete().where("n IS NULL AND EXISTS (SELECT 1 FROM t0 WHERE n = -4)").execute()
    assert (deleted.mode, deleted.rows_deleted) == ("inline", 1)
    assert (table.snapshot_id, table.inline.rows) == (before, 2)
    assert rows(table, "id", "n") == [(1, 1), (2, 2), (3, 3), (4, -4)]


def test_a_subquery_on_another_table_does_not_flush(inline_of, lake: Lake, partition_by):
    table = inline_of(partition_by=partition_by)
    erase = lake.create_table("erase", "id BIGINT", properties=INLINE)
    erase.append([{"id": 2}])
    erase.insert([{"id": 3}])
    result = lake.sql("DELETE FROM t0 WHERE id IN (SELECT id FROM erase)")
    assert (result.rows_deleted, table.inline.rows, erase.inline.rows) == (2, 2, 1)
    assert rows(table, "id") == [(1,), (4,), (5,)]


def test_a_merge_with_subqueries_changes_inline_rows_where_they_are(inline_of, partition_by):
    table = inline_of(partition_by=partition_by)
    source = [row(2, "eu", 20), row(4, "eu", 40), row(6, "us", 60)]
    result = (
        table.merge(source, on="target.id = source.id")
        .when_matched("source.n > (SELECT max(n) FROM t0) * 5").update({"n": "source.n"})
        .when_matched("target.id = (SELECT min(id) + 1 FROM t0)").delete()
        .when_not_matched().insert_all()
        .execute()
    )  # fmt: skip
    assert result.clauses == (1, 1, 1)
    assert rows(table, "id", "n") == [(1, 1), (3, 3), (4, 40), (5, None), (6, 60)]
    assert table.inline.rows == 3


def test_replaced_rows_are_chosen_by_a_subquery_over_both_tiers(inline_of, mode, partition_by):
    table = inline_of(mode=mode, partition_by=partition_by)
    replace = table.replace_where("n > (SELECT avg(n) FROM t0)", [row(7, "eu", 9)])
    result = replace.with_options(scope="rows").execute()
    assert (result.rows_deleted, result.rows_inserted) == (2, 1)
    assert rows(table, "id") == [(1,), (2,), (5,), (7,)]


@pytest.mark.requirement("U13", "L27")
@pytest.mark.every_variant
@pytest.mark.parametrize(
    ("theirs", "conflicts"),
    [
        (lambda table: table.insert([row(9, n=100)]), True),
        (lambda table: table.delete().where("id = 4").execute(), True),
        (lambda table: table.update().set("n", 100).where("id = 4").execute(), True),
        (lambda table: table.delete().where("id = 2").execute(), True),
        (lambda table: table.append([row(9, n=100)]), True),
        (lambda table: table.flush(), False),
        (lambda table: table.insert([]), False),
    ],
    ids=["insert", "delete inline", "update inline", "delete filed", "append", "flush", "nothing"],
)
def test_a_row_that_a_subquery_read_must_not_change(inline_of, lake, other, theirs, conflicts):
    """The statement changes row 3 alone, by the greatest n of all rows."""
    table = inline_of()
    once_before_publish(lake, lambda: theirs(other.table("t0")))
    update = table.update().set("n", "(SELECT max(n) FROM t0)").where("id = 3")
    if conflicts:
        with pytest.raises(ConflictError):
            update.execute()
        assert (3, 3) in rows(table, "id", "n")
        update.execute()
    else:
        update.execute()
    greatest = max(n for _, n in rows(table, "id", "n") if n is not None)
    assert (3, greatest) in rows(table, "id", "n")


def test_both_reads_see_the_rows_of_one_time(inline_of, lake, other, monkeypatch):
    """Rows that others insert and remove between the two reads are in neither."""
    table, theirs, exists = inline_of(), other.table("t0"), lake.catalog.table_exists
    pending: list[int] = [1]

    def between_the_reads(name: str) -> bool:
        if pending:
            pending.pop()
            theirs.insert([row(9, n=100)])
            theirs.delete().where("id = 9").execute()
            theirs.insert([row(8, n=50)])
        return bool(exists(name))

    update = table.update().set("n", "(SELECT max(n) FROM t0)").where("id IN (3, 8)")
    monkeypatch.setattr(lake.catalog, "table_exists", between_the_reads)
    with pytest.raises(ConflictError, match="inline rows"):
        update.execute()
    assert rows(table, "id", "n") == [(1, 1), (2, 2), (3, 3), (4, 4), (5, None), (8, 50)]
    pending.append(1)
    update.with_options(isolation="snapshot").execute()
    after = [(1, 1), (2, 2), (3, 50), (4, 4), (5, None), (8, 50), (8, 50)]
    assert rows(table, "id", "n") == after


@pytest.fixture
def before_reading(lake: Lake, monkeypatch) -> Callable[..., None]:
    """Calls a function once, before the n-th table that a text names is read."""

    def before(what: Callable[[], object], number: int = 1) -> None:
        exists, calls = lake.catalog.table_exists, iter(range(1, number + 1))

        def counted(name: str) -> bool:
            if next(calls, None) == number:
                what()
            return bool(exists(name))

        monkeypatch.setattr(lake.catalog, "table_exists", counted)

    return before


def test_a_scan_and_its_subquery_see_the_rows_of_one_time(inline_of, other, before_reading):
    table, theirs = inline_of(), other.table("t0")
    before_reading(lambda: theirs.insert([row(9, n=100)]))
    greatest = table.scan(["id", "n"], where="n = (SELECT max(n) FROM t0)")
    assert [tuple(r) for r in greatest.collect()] == [(4, 4)]
    assert table.count("n = (SELECT max(n) FROM t0)") == 1


def test_a_row_that_is_updated_between_two_reads_of_a_scan_has_one_value(
    inline_of, other, before_reading
):
    table, theirs = inline_of(), other.table("t0")
    before_reading(lambda: theirs.update().set("n", "n + 10").where("id IN (2, 4)").execute())
    assert table.count("n NOT IN (SELECT n FROM t0 WHERE n IS NOT NULL)") == 0
    assert rows(table, "id", "n") == [(1, 1), (2, 12), (3, 3), (4, 14), (5, None)]


@pytest.mark.parametrize("theirs", ["insert", "append"])
def test_a_query_that_names_a_table_twice_sees_the_rows_of_one_time(
    inline_of, lake, other, before_reading, theirs
):
    inline_of()
    before_reading(lambda: getattr(other.table("t0"), theirs)([row(9, n=100)]), number=2)
    text = (
        "SELECT (SELECT max(n) FROM t0), max(a.n), count(*) FROM t0 a JOIN default.t0 b USING (id)"
    )
    assert tuple(lake.sql(text).first()) == (4, 4, 5)
    assert tuple(lake.sql(text).first()) == (100, 100, 6)


def test_statements_of_one_text_see_what_those_before_them_did(inline_of, lake):
    inline_of()
    text = "SELECT * FROM t0; INSERT INTO t0 VALUES (9, 'us', 9); SELECT count(*) FROM t0"
    assert lake.sql(text).first()[0] == 6


def test_subqueries_of_an_update_see_the_rows_of_another_table_at_one_time(
    inline_of, lake, other, before_reading
):
    table = inline_of()
    lake.create_table("o", "id BIGINT, n INT", properties=INLINE).insert([{"id": 3, "n": 30}])
    before_reading(lambda: other.table("o").insert([{"id": 4, "n": 40}]), number=2)
    update = table.update().set("n", "(SELECT max(n) FROM o)").where("id IN (SELECT id FROM o)")
    assert update.execute().rows_updated == 1
    assert rows(table, "id", "n") == [(1, 1), (2, 2), (3, 30), (4, 4), (5, None)]


def test_a_statement_that_runs_again_reads_other_tables_again(inline_of, lake, other):
    table = inline_of()
    lake.create_table("o", "id BIGINT", properties=INLINE).insert([{"id": 3}])

    def theirs() -> None:
        other.table("o").insert([{"id": 4}])
        other.table("t0").delete().where("id = 3").execute()

    once_before_publish(lake, theirs)
    update = table.update().set("n", "-1").where("id IN (SELECT id FROM o)")
    assert update.with_options(retries=1).execute().rows_updated == 1
    assert rows(table, "id", "n") == [(1, 1), (2, 2), (4, -1), (5, None)]


@pytest.mark.requirement("U13")
def test_the_first_inline_row_of_a_table_conflicts_with_a_subquery(table_of, other, before_reading):
    """The database does not have the table yet when the statement begins."""
    table = table_of(SCHEMA, properties=INLINE)
    table.append([row(1, n=1), row(2, "eu", 2)])
    before_reading(lambda: other.table("t0").insert([row(9, n=100)]))
    update = table.update().set("n", "(SELECT max(n) FROM t0)")
    with pytest.raises(ConflictError, match="inline rows"):
        update.execute()
    assert rows(table, "id", "n") == [(1, 1), (2, 2), (9, 100)]
    assert update.execute().rows_updated == 3
    assert rows(table, "id", "n") == [(1, 100), (2, 100), (9, 100)]


@pytest.mark.requirement("U13", "L27")
@pytest.mark.slow
def test_concurrent_statements_that_count_on_from_all_rows_have_a_serial_order(
    inline_of, lake, other
):
    """Each statement takes the number after the greatest: none is taken twice or left out."""
    table, count = inline_of(), 8
    table.update().set("n", "0").execute()
    table.insert([row(6, n=0), row(7, n=0)])

    def count_on(mine: Lake, ids: list[int]) -> None:
        for number in range(count):
            update = mine.table("t0").update().set("n", "(SELECT max(n) + 1 FROM t0)")
            update = update.where(f"id = {ids[number % len(ids)]}").with_options(retries=100)
            assert update.execute().rows_updated == 1

    def disturb(mine: Lake) -> None:
        for number in range(count):
            mine.table("t0").insert([row(100 + number, n=None)])
            mine.table("t0").flush()

    with ThreadPoolExecutor(3) as pool:
        work = [pool.submit(count_on, lake, [1, 6]), pool.submit(count_on, other, [6, 4, 2])]
        work.append(pool.submit(disturb, other))
        for each in work:
            each.result()
    assert table.scan().agg({"n": "max"}).first()[0] == 2 * count
    assert table.count() == 7 + count
