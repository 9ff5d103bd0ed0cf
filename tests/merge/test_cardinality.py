"""A row of the table is changed by one source row at most."""

from __future__ import annotations

import pytest

from icefloe.errors import CardinalityError, StatementError
from support.merge_rows import SCHEMA, row, triples
from support.tables import live_files
from support.unreferenced_files import leftovers

pytestmark = pytest.mark.requirement("M02")

TARGET = [row(1, "us", 10), row(2, "eu", 20), row(3, "us", 30)]
TWICE = [row(1, "us", 1), row(2, "eu", 2), row(1, "us", 3), row(7, "us", 7), row(7, "us", 8)]


@pytest.fixture
def table(table_of, mode, partition_by):
    return table_of(SCHEMA, TARGET, mode=mode, partition_by=partition_by)


def test_two_source_rows_for_one_row_are_an_error_that_names_it(table):
    """The table stays as it was, and no file is left behind; for DELETE clauses too."""
    before, files = table.snapshot_id, live_files(table)
    merge = table.merge(TWICE, on="target.id = source.id")
    for statement in (
        merge.when_matched().update_all(),
        merge.when_matched().delete(),
        # One of the two rows would change it, whichever:
        merge.when_matched("source.n = 3").update({"n": "0"}).when_not_matched().insert_all(),
        merge.when_matched("source.n = 1").delete().when_not_matched_by_source().delete(),
    ):
        with pytest.raises(CardinalityError, match=r"keys: 1\.") as caught:
            statement.execute()
        assert caught.value.keys == (1,)
        assert "duplicates='first'" in str(caught.value)
        assert isinstance(caught.value, StatementError)
    assert table.snapshot_id == before
    assert live_files(table) == files
    assert triples(table) == [(1, "us", 10), (2, "eu", 20), (3, "us", 30)]
    assert leftovers(table) == set()


def test_duplicates_that_change_nothing_and_unmatched_ones_are_legal(table):
    result = (
        table.merge(TWICE, on=["id"])
        .when_matched("source.n = 2").update({"n": "source.n"})
        .when_matched("source.id = 1 AND source.n > 3").delete()
        .when_not_matched().insert_all()
        .execute()
    )  # fmt: skip

    assert result.clauses == (1, 0, 2)
    assert triples(table) == [
        (1, "us", 10), (2, "eu", 2), (3, "us", 30), (7, "us", 7), (7, "us", 8)
    ]  # fmt: skip


def test_matched_twice_is_matched_for_by_source_clauses(table):
    result = table.merge(TWICE, on=["id"]).when_not_matched_by_source().delete().execute()

    assert result.clauses == (1,)
    assert triples(table) == [(1, "us", 10), (2, "eu", 20)]


def test_first_of_several_source_rows_decides_where_asked(table):
    """Clauses are tried on it alone; the others are neither applied nor inserted."""
    result = (
        table.merge([*TWICE, row(2, "eu", 99)], on=["id"])
        .when_matched("source.n = 3").delete()
        .when_matched("source.n = 99").delete()
        .when_matched().update_all()
        .when_not_matched().insert_all()
        .with_options(duplicates="first")
        .execute()
    )  # fmt: skip

    assert result.clauses == (0, 0, 2, 2)
    assert triples(table) == [
        (1, "us", 1), (2, "eu", 2), (3, "us", 30), (7, "us", 7), (7, "us", 8)
    ]  # fmt: skip


def test_first_of_several_that_no_clause_takes_leaves_the_row(table_of, mode):
    """Order of the source, not of its values; a row whose first match changes nothing stays."""
    table = table_of(SCHEMA, TARGET, mode=mode)
    source = [row(1, "us", 9), row(3, "us", 5), row(1, "us", 3), row(3, "us", 9)]

    result = (
        table.merge(source, on=["id"])
        .when_matched("source.n < 6").update({"n": "source.n"})
        .when_not_matched_by_source().delete()
        .with_options(duplicates="first")
        .execute()
    )  # fmt: skip

    assert result.clauses == (1, 1)
    assert triples(table) == [(1, "us", 10), (3, "us", 5)]


def test_keys_of_a_compound_condition_are_reported_together(table_of):
    table = table_of(SCHEMA, TARGET)
    source = [row(1, "us", 1), row(1, "us", 2), row(1, "eu", 3)]

    with pytest.raises(CardinalityError) as caught:
        table.upsert(source, on=["id", "region"]).execute()
    assert caught.value.keys == ((1, "us"),)


def test_one_source_row_may_change_many_rows(table_of, mode):
    """The other way round there is no limit."""
    table = table_of(SCHEMA, TARGET, mode=mode)

    result = (
        table.merge([row(1, "us", 7)], ["region"])
        .when_matched()
        .update({"n": "source.n"})
        .execute()
    )

    assert result.rows_updated == 2
    assert triples(table) == [(1, "us", 7), (2, "eu", 20), (3, "us", 7)]


def test_equal_source_rows_are_still_two(table_of, mode):
    """Also under a condition without keys, where no equality names the row."""
    table = table_of(SCHEMA, TARGET, mode=mode)
    source = [row(1, "us", 1), row(1, "us", 1)]

    with pytest.raises(CardinalityError):
        table.upsert(source, on=["id"]).execute()
    with pytest.raises(CardinalityError) as caught:
        table.upsert(source, "target.id <= source.id").execute()
    assert len(caught.value.keys) == 1
    assert triples(table) == [(1, "us", 10), (2, "eu", 20), (3, "us", 30)]
    assert leftovers(table) == set()


@pytest.mark.usefixtures("shuffled")
@pytest.mark.parametrize("inserts", [True, False], ids=["right or full", "inner or left"])
@pytest.mark.parametrize("by_source", [True, False], ids=["by source", "matched"])
def test_holds_where_the_source_is_shuffled(table_of, inserts, by_source):
    """Of a large source only rows that share their key are told when they change nothing."""
    table = table_of(SCHEMA, TARGET)

    def merge(source, changing):
        built = table.merge(source, on="target.id = source.id")
        built = built.when_matched(f"source.n = {changing}").update({"n": "source.n"})
        built = built.when_not_matched().insert_all() if inserts else built
        return built.when_not_matched_by_source().update({"n": "-1"}) if by_source else built

    with pytest.raises(CardinalityError, match=r"keys: 1\."):
        merge(TWICE, changing=3).execute()
    assert triples(table) == [(1, "us", 10), (2, "eu", 20), (3, "us", 30)]
    result = merge(TWICE, changing=2).execute()
    assert result.clauses[0] == 1
    assert [n for _, _, n in triples(table)][:3] == [10, 2, -1 if by_source else 30]
