"""Replacing where it is easy to go wrong: long decimals, forgotten predicates, numbers as text."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal

import pytest

import icefloe
from icefloe.errors import (
    InvalidPredicateError,
    ReplaceWhereError,
    StatementError,
    UnsupportedOperatorError,
)
from support.tables import rows


@pytest.mark.requirement("R06")
def test_decimals_of_many_digits_are_compared_exactly(table_of):
    """Python's own decimals round to 28 digits."""
    base = 1234567890123456789012345678123456780
    table = table_of(
        "x DECIMAL(38, 0), v INT",
        [{"x": Decimal(base + 1), "v": 1}, {"x": Decimal(base + 7), "v": 7}],
        partition_by=("truncate(10, x)",),
    )
    for cut in (f"x <= {base + 5}", f"x = {base + 3}", f"x > {base + 5}"):
        with pytest.raises(InvalidPredicateError):
            table.replace_where(cut, []).execute()
    assert len(rows(table)) == 2

    assert table.replace_where(f"x BETWEEN {base} AND {base + 9}", []).execute().rows_deleted == 2


@pytest.mark.requirement("R13")
def test_a_predicate_that_is_none_is_refused_by_the_writer(table_of):
    table = table_of("d INT, v INT", [{"d": 1, "v": 1}], partition_by=("d",))
    frame = table._lake.spark.sql("SELECT 2 AS d, 2 AS v")
    for mode in ("overwrite", "append", "replaceWhere"):
        writer = icefloe.write(frame, lake=table._lake).mode(mode).option("replaceWhere", None)
        with pytest.raises(ReplaceWhereError):
            writer.save(table.name)
    assert rows(table) == [(1, 1)]


@pytest.mark.requirement("R17")
def test_a_number_is_a_text_only_where_it_is_to_be_equal(table_of):
    """`'09' <> 9` is true of texts and false of numbers."""
    table = table_of(
        "s STRING, v INT", [{"s": s, "v": 1} for s in ("9", "09", "10")], partition_by=("s",)
    )
    for text in ("s <> 9", "NOT s = 9", "s NOT IN (9)", "NOT (s = '1' OR s = 9)"):
        with pytest.raises(StatementError, match="'s'"):
            table.replace_where(text, []).execute()

    assert table.replace_where("s = 9", []).execute().rows_deleted == 1
    assert rows(table) == [("09", 1), ("10", 1)]


@pytest.mark.requirement("R35")
def test_the_predicate_of_a_thousand_partitions_runs(table_of):
    table = table_of("d DATE, v INT", [{"d": date(2020, 1, 1), "v": 1}], partition_by=("d",))
    days = [date(2020, 1, 1) + timedelta(days=n) for n in range(1000)]
    frame = table._lake.spark.createDataFrame([(day, 2) for day in days], "d DATE, v INT")

    result = table.replace_where(table.partitions_of(frame), frame.limit(1)).execute()

    assert (result.rows_deleted, result.rows_inserted) == (1, 1)


@pytest.mark.requirement("R12")
def test_texts_stay_texts_in_options_of_the_writer(table_of):
    table = table_of("d INT, v INT", [{"d": 1, "v": 1}], partition_by=("d",))
    frame = table._lake.spark.sql("SELECT 1 AS d, 2 AS v")
    writer = (
        icefloe.write(frame, lake=table._lake).mode("replaceWhere").option("replaceWhere", "d = 1")
    )

    first = writer.option("idempotency_key", "20260131").option("retries", "1").save(table.name)
    again = writer.option("idempotency_key", "20260131").save(table.name)

    assert again.snapshot_id == first.snapshot_id == table.snapshot_id


@pytest.mark.requirement("R16")
def test_decimal_suffixes_and_maps_are_refused_by_name(table_of):
    table = table_of(
        "d INT, s STRING, m MAP<STRING, INT>",
        [{"d": 1, "s": "a", "m": None}],
        partition_by=("d", "s"),
    )
    for text in ("d = 1BD", "s = 'a' OR d = 0BD"):
        with pytest.raises((UnsupportedOperatorError, StatementError)):
            table.replace_where(text, []).execute()
    with pytest.raises(StatementError, match="'m'"):
        table.replace_using(["m"], [{"d": 1, "s": "a", "m": None}]).execute()
    assert len(rows(table)) == 1


@pytest.mark.requirement("R29")
def test_the_error_shows_the_row_by_column(table_of):
    table = table_of("d INT, v INT", [{"d": 1, "v": 1}], partition_by=("d",))
    with pytest.raises(icefloe.errors.ConstraintError, match=r"\(d=2, v=51\)"):
        table.replace_where("d = 1", [{"d": 2, "v": 51}]).execute()


@pytest.mark.requirement("R35")
@pytest.mark.parametrize("scope", ["partitions", "rows"])
def test_a_partition_column_with_a_dot_in_its_name(table_of, scope):
    """The predicate names the column, not a field of a struct, wherever it is used."""
    table = table_of("`a.b` INT, v INT", [{"a.b": 1, "v": 1}], partition_by=("a.b",))
    table.append([{"a.b": 2, "v": 2}, {"a.b": None, "v": 3}])
    new = [{"a.b": 1, "v": 10}, {"a.b": None, "v": 30}]

    predicate = table.partitions_of(new)
    result = table.replace_where(predicate, new).with_options(scope=scope).execute()

    assert (result.rows_deleted, result.rows_inserted) == (2, 2)
    assert sorted(rows(table), key=str) == [(1, 10), (2, 2), (None, 30)]
    assert table.scan(where=predicate).count() == 2


def test_only_columns_that_the_table_is_partitioned_by_are_kept(table_of):
    table = table_of("a INT, `a.b` INT, v INT", [{"a": 0, "a.b": 1, "v": 1}], partition_by=("a.b",))

    with pytest.raises(StatementError, match=r"partitioned by 'a\.b'"):
        table.drop_column("a.b")
    table.drop_column("a")

    assert rows(table) == [(1, 1)]
