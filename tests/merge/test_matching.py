"""Which source row meets which row of the table: every kind of condition, NULLs, empty sides."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import pytest

from icefloe.errors import CardinalityError
from support.merge_rows import SCHEMA, row, triples
from support.tables import data_files, rows, snapshots, summary

TARGET = [row(1, "us", 10), row(1, "eu", 11), row(2, "us", 20), row(3, None, 30)]


@pytest.fixture
def table(table_of, mode, partition_by):
    return table_of(SCHEMA, TARGET, mode=mode, partition_by=partition_by)


@pytest.mark.requirement("M10")
def test_reversed_operands_and_differing_names(table):
    source = [{"key": 2, "amount": 5}, {"key": 7, "amount": 6}]

    result = (
        table.merge(source, on="source.key = target.id")
        .when_matched().update({"n": "source.amount + target.n"})
        .when_not_matched().insert({"id": "source.key", "n": "amount", "ts": "timestamp_ntz'2024-01-02 12:00:00'"})
        .execute()
    )  # fmt: skip

    assert result.clauses == (1, 1)
    assert triples(table) == [
        (1, "eu", 11), (1, "us", 10), (2, "us", 25), (3, None, 30), (7, None, 6)
    ]  # fmt: skip


@pytest.mark.requirement("M32", "M30", "M37")
@pytest.mark.parametrize(
    "on",
    [
        ["id", "region"],
        "target.id = source.id AND source.region = target.region",
    ],
    ids=["names", "text"],
)
def test_compound_keys_match_only_together(table, on):
    """(1, us) updates only the us row; a NULL in either part matches nothing."""
    source = [row(1, "us", -1), row(2, "eu", -2), row(3, None, -3)]

    result = table.upsert(source, on=on).execute()

    assert (result.rows_updated, result.rows_inserted) == (1, 2)
    assert triples(table) == [
        (1, "eu", 11), (1, "us", -1), (2, "eu", -2), (2, "us", 20), (3, None, -3), (3, None, 30)
    ]  # fmt: skip


@pytest.mark.requirement("M37", "D12")
def test_null_keys_never_match(table_of, mode, partition_by):
    """Such source rows are inserted, such rows of the table are not matched by source."""
    table = table_of(
        SCHEMA, [row(None, "t", 1), row(1, "t", 2)], mode=mode, partition_by=partition_by
    )
    upsert = table.upsert([row(None, "s", 3), row(None, "s", 3), row(1, "s", 4)], on=["id"])

    result = upsert.execute()
    assert (result.rows_updated, result.rows_inserted) == (1, 2)
    assert triples(table) == [(None, "s", 3), (None, "s", 3), (None, "t", 1), (1, "s", 4)]

    result = (
        table.merge([row(None), row(1)], on=["id"])
        .when_matched().update({"n": "-target.n"})
        .when_not_matched_by_source("target.region = 't'").delete()
        .when_not_matched_by_source().update({"n": "99"})
        .execute()
    )  # fmt: skip
    assert result.clauses == (1, 1, 2)
    assert triples(table) == [(None, "s", 99), (None, "s", 99), (1, "s", -4)]


def test_null_safe_equality_matches_null_keys(table_of, mode, partition_by):
    table = table_of(
        SCHEMA, [row(None, "t", 1), row(1, "t", 2)], mode=mode, partition_by=partition_by
    )

    result = table.upsert([row(None, "s", 3), row(2, "s", 4)], "target.id <=> source.id").execute()

    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    assert triples(table) == [(None, "s", 3), (1, "t", 2), (2, "s", 4)]


@pytest.mark.requirement("M33")
@pytest.mark.parametrize(
    ("on", "matched"),
    [
        ("target.id = source.id OR target.n = source.n", {(1, "us"), (1, "eu"), (3, None)}),
        ("target.n BETWEEN source.n - 9 AND source.n - 1", {(2, "us")}),
        ("target.id + 1 = source.id AND target.region > 'eu'", {(1, "us")}),
        ("target.id = source.id AND source.n > 0 AND target.n > 10", {(1, "eu")}),
        ("upper(target.region) = upper(source.region) AND target.id < 2", {(1, "eu")}),
        ("false", set()),
    ],
    ids=["or", "range", "expression", "both sides", "functions", "never"],
)
def test_any_deterministic_condition_gives_the_right_rows(table_of, on, matched):
    """One source row each time, so that every match is a row of the table."""
    source = {
        "OR": row(1, "x", 30),
        "BETWEEN": row(9, "x", 29),
        "+ 1": row(2, "x", 0),
        "upper": row(9, "EU", 0),
    }
    given = next((r for part, r in source.items() if part in on), row(1, "x", 5))
    table = table_of(SCHEMA, TARGET)

    result = (
        table.merge([given], on)
        .when_matched().update({"n": "0"})
        .when_not_matched().insert_all()
        .execute()
    )  # fmt: skip

    kept = [
        (r["id"], r["region"], 0 if (r["id"], r["region"]) in matched else r["n"]) for r in TARGET
    ]
    new = [] if matched else [(given["id"], given["region"], given["n"])]
    assert sorted(triples(table), key=repr) == sorted(kept + new, key=repr)
    assert result.clauses == (len(matched), len(new))


@pytest.mark.requirement("M33")
def test_or_condition_in_every_layout_with_all_clauses(table):
    """A join that cannot hash its keys, with rows missing on either side."""
    result = (
        table.merge([row(2, "x", 11), row(8, "y", 8)], "target.id = source.id OR target.n = source.n")
        .when_matched("target.region = 'us'").delete()
        .when_matched().update({"n": "source.id"})
        .when_not_matched().insert_all()
        .when_not_matched_by_source("target.region = 'us'").update({"n": "0"})
        .execute()
    )  # fmt: skip

    assert result.clauses == (1, 1, 1, 1)
    assert triples(table) == [(1, "eu", 2), (1, "us", 0), (3, None, 30), (8, "y", 8)]


@pytest.mark.requirement("M38")
def test_empty_sides(table_of, mode, partition_by):
    """An empty table gets all rows; an empty source does nothing unless a by-source clause does."""
    table = table_of(SCHEMA, mode=mode, partition_by=partition_by)
    source = [row(1, "us", 1), row(1, "us", 1), row(2, "eu", 2)]

    result = table.upsert(source, on=["id"]).execute()
    assert (result.rows_inserted, result.rows_updated) == (3, 0)
    assert summary(table)["operation"] == "append"
    assert triples(table) == [(1, "us", 1), (1, "us", 1), (2, "eu", 2)]

    empty = table.scan(where="id > 100")
    before = len(snapshots(table))
    result = table.upsert(empty, on=["id"]).execute()
    assert (result.snapshot_id, result.total_affected, result.clauses) == (None, 0, (0, 0))
    assert len(snapshots(table)) == before

    result = table.merge(empty, on=["id"]).when_not_matched_by_source("id = 1").delete().execute()
    assert (result.rows_deleted, result.clauses) == (2, (2,))
    assert triples(table) == [(2, "eu", 2)]


@pytest.mark.requirement("M39")
def test_insert_only_merge_appends_and_keeps_every_file(table, partition_by):
    """Rows that match are not written anew, also when several source rows match them."""
    before = {f.path for f in data_files(table)}

    result = (
        table.merge([row(1, "us", 0), row(1, "us", 1), row(5, "us", 5)], on=["id"])
        .when_not_matched().insert_all()
        .execute()
    )  # fmt: skip

    assert summary(table)["operation"] == "append"
    assert (result.rows_inserted, result.rows_copied, result.clauses) == (1, 0, (1,))
    after = {f.path for f in data_files(table)}
    assert before < after
    assert len(after - before) == result.data_files_added == 1
    assert (result.data_files_removed, result.delete_files_added) == (0, 0)
    assert triples(table) == [
        (1, "eu", 11), (1, "us", 10), (2, "us", 20), (3, None, 30), (5, "us", 5)
    ]  # fmt: skip


@pytest.mark.requirement("M40")
def test_source_made_of_the_table_sees_it_as_it_was(table):
    """Own rows of one region: exactly those change, once, and new ones are not seen again."""
    source = table.scan(where="region = 'us'").selectExpr(
        "id + 1 AS id", "region", "n + 100 AS n", "ts + INTERVAL 1 DAY AS ts"
    )

    result = table.upsert(source, on=["id", "region"]).execute()

    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    found = [r[:3] for r in rows(table, "id", "region", "n")]
    assert sorted(found, key=repr) == sorted(
        [(1, "us", 10), (1, "eu", 11), (2, "us", 110), (3, None, 30), (3, "us", 120)], key=repr
    )
    with pytest.raises(CardinalityError):  # two rows have id 1: each matches both
        table.upsert(table.scan(), on=["id"]).execute()


def test_names_are_matched_as_spark_does_without_case(table_of, mode):
    table = table_of("Id INT, Name STRING", [{"Id": 1, "Name": "a"}], mode=mode)

    table.upsert([{"ID": 1, "nAME": "b"}, {"ID": 2, "nAME": "c"}], on=["iD"]).execute()
    table.merge([{"ID": 2}], "TARGET.id = Source.Id").when_matched().update(
        {"NAME": "'d'"}
    ).execute()

    assert rows(table) == [(1, "b"), (2, "d")]
    assert table.schema.names == ["Id", "Name"]


@pytest.mark.parametrize(
    ("kind", "source_kind", "values"),
    [
        ("INT", "BIGINT", (1, 2, 2**40)),
        ("BIGINT", "INT", (1, 2, 3)),
        ("DECIMAL(10, 2)", "DECIMAL(5, 1)", tuple(map(Decimal, (1, 2, 3)))),
        ("DOUBLE", "INT", (1, 2, 3)),
        ("FLOAT", "DOUBLE", (1.5, 2.5, 0.1)),
        ("STRING", "STRING", ("", "é", "z" * 40)),
        ("DATE", "DATE", tuple(datetime(1960 + 30 * i, 1, 1).date() for i in range(3))),
        ("BINARY", "BINARY", (b"", b"\x00", b"\xff\x01")),
        ("BOOLEAN", "BOOLEAN", (True, None, False)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_keys_of_every_type_and_of_two_types(table_of, spark, kind, source_kind, values):
    """Two rows are there, the source has one of them and a third; one file each."""
    first, second, third = values
    table = table_of(f"k {kind}, n INT")
    for number, value in enumerate((first, second)):
        frame = spark.createDataFrame([(value,)], f"k {source_kind}")
        table.append(frame.selectExpr(f"cast(k AS {kind}) AS k", f"{number} AS n"))
    source = spark.createDataFrame([(first, 10), (third, 11)], f"k {source_kind}, n INT")

    result = (
        table.merge(source, on=["k"])
        .when_matched().update({"n": "source.n"})
        .when_not_matched().insert({"n": "source.n"})
        .execute()
    )  # fmt: skip

    assert result.clauses == (1, 1)
    assert [r[0] for r in rows(table, "n")] == [1, 10, 11]


def test_nan_keys_match_one_another_and_zero_matches_minus_zero(table_of, spark, mode):
    """As Spark compares them, whatever the bounds of the files say."""
    nan = float("nan")
    table = table_of("k DOUBLE, n INT", [{"k": nan, "n": 1}], [{"k": -0.0, "n": 2}], mode=mode)
    source = spark.createDataFrame([(nan, 10), (0.0, 20), (1.0, 30)], "k DOUBLE, n INT")

    result = table.upsert(source, on=["k"]).execute()

    assert (result.rows_updated, result.rows_inserted) == (2, 1)
    assert rows(table, "n") == [(10,), (20,), (30,)]
