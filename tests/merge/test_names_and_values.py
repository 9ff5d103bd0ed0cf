"""Names that are easily confused, values at the ends of their ranges, subqueries, time zones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from icefloe.errors import StatementError
from support.merge_rows import row, triples
from support.tables import rows, snapshots
from support.unreferenced_files import leftovers

SMALL = "id BIGINT, region STRING, n INT, ts TIMESTAMP"


def test_columns_with_spaces_dots_and_reserved_names(table_of, spark, mode):
    schema = "`a b` INT, `c.d` STRING, `order` INT, `größe` INT"
    table = table_of(schema, mode=mode, partition_by=("order",))
    table.append(spark.createDataFrame([(1, "x", 1, 1), (2, "y", 2, 2)], schema))
    source = spark.createDataFrame([(2, "z", 2, 20), (3, "w", 3, 30)], schema)

    result = table.upsert(source, on=["a b", "order"]).execute()
    assert (result.clauses, result.dpp_applied) == ((1, 1), True)
    (
        table.merge(source, on="target.`a b` = source.`a b`")
        .when_matched("target.`c.d` = 'w'").update({"größe": "source.`größe` + target.`order`"})
        .when_not_matched_by_source("`c.d` = 'x'").update({"`c.d`": "concat(`c.d`, '!')"})
        .execute()
    )  # fmt: skip

    assert rows(table) == [(1, "x!", 1, 1), (2, "z", 2, 20), (3, "w", 3, 33)]


def test_columns_named_like_the_sides(table_of, mode):
    """`source` and `target` are columns of both sides; `source.source` is the source's."""
    table = table_of("id INT, source STRING, target STRING", mode=mode)
    table.append(
        [{"id": 1, "source": "s1", "target": "t1"}, {"id": 2, "source": "s2", "target": "t2"}]
    )
    changes = [{"id": i, "source": f"new {i}", "target": f"new {i}"} for i in (1, 3)]

    (
        table.merge(changes, on=["id"])
        .when_matched().update({"source": "concat(target.source, source.source)"})
        .when_not_matched().insert({"id": "id", "target": "source.target"})
        .when_not_matched_by_source("target.source = 's2'").update({"target": "target.source"})
        .execute()
    )  # fmt: skip

    assert rows(table) == [(1, "s1new 1", "t1"), (2, "s2", "s2"), (3, None, "new 3")]


def test_source_with_columns_that_scans_have_too(table_of, mode):
    """`_file` and `_pos` of another table are columns like any others."""
    table = table_of(SMALL, [row(1, "us", 1), row(2, "us", 2)], mode=mode)
    other = table_of(SMALL, [row(2, "eu", 20), row(3, "eu", 30)], mode=mode)
    source = other.scan(["id", "region", "n", "ts", "_file", "_pos"])

    result = (
        table.merge(source, on=["id"])
        .when_matched("source._pos = 0 AND source._file IS NOT NULL").update_all()
        .when_not_matched("_pos = 1").insert_all()
        .execute()
    )  # fmt: skip

    assert result.clauses == (1, 1)
    assert triples(table) == [(1, "us", 1), (2, "eu", 20), (3, "eu", 30)]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("BIGINT", (-(2**63), -1, 0, 2**63 - 1)),
        ("INT", (-(2**31), -1, 0, 2**31 - 1)),
        ("STRING", ("", "p" * 20 + "1", "p" * 20 + "2", "p" * 40)),
        ("STRING", ("é", "ß" * 17, "𝄞" * 17, "\U0010ffff" * 20)),
        ("DATE", tuple(datetime(y, 12, 31).date() for y in (1, 1969, 1970, 9999))),
    ],
    ids=["bigint", "int", "long texts", "unicode", "date"],
)
def test_keys_at_the_ends_of_their_ranges_choose_no_file_too_few(table_of, spark, kind, values):
    """Every value in a file of its own; two are changed, with bounds cut to 16 characters."""
    table = table_of(f"k {kind}, n INT")
    for value in values:
        table.append(spark.createDataFrame([(value, 0)], f"k {kind}, n INT"))
    for pair in ((0, 3), (1, 2)):
        source_rows = [(values[i], 1 + i) for i in pair]
        result = table.upsert(
            spark.createDataFrame(source_rows, f"k {kind}, n INT"), on=["k"]
        ).execute()
        assert (result.rows_updated, result.rows_inserted) == (2, 0)
    assert dict(rows(table)) == {value: 1 + i for i, value in enumerate(values)}


@pytest.mark.requirement("M21")
def test_partitions_are_in_utc_whatever_the_session_says(table_of, spark):
    """Days are Iceberg's, and values are the same timestamps."""
    stamps = [datetime(2024, 1, d, h, tzinfo=UTC) for d in (1, 2) for h in (2, 23)]
    table = table_of("ts TIMESTAMP, n INT", partition_by=("days(ts)",))
    table.append([{"ts": ts, "n": i} for i, ts in enumerate(stamps)])
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    try:
        source = [{"ts": stamps[0], "n": 10}, {"ts": stamps[1], "n": 11}]
        result = table.upsert(source, on=["ts"]).execute()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)

    assert (result.rows_updated, result.rows_inserted) == (2, 0)
    assert (result.dpp_partition_count, result.files_scanned) == (1, 1)
    assert rows(table, "n") == [(10,), (11,), (2,), (3,)]


def test_subqueries_in_clauses_see_the_table_as_it_was(table_of, mode):
    table = table_of(SMALL, [row(1, "us", 1), row(2, "eu", 2), row(3, "eu", 3)], mode=mode)
    top = f"(SELECT max(n) FROM {table.name})"

    result = (
        table.merge([row(1, "us", 10), row(3, "us", 30), row(4, "us", 40)], on=["id"])
        .when_matched(f"target.n = {top}").delete()
        .when_matched().update({"n": f"{top} + source.n"})
        .when_not_matched(f"source.id NOT IN (SELECT id FROM {table.name})").insert_all()
        .when_not_matched_by_source(f"target.n < {top}").update({"n": f"-{top}"})
        .execute()
    )  # fmt: skip

    assert result.clauses == (1, 1, 1, 1)
    assert triples(table) == [(1, "us", 13), (2, "eu", -3), (4, "us", 40)]
    assert leftovers(table) == set()


def test_same_builder_runs_again_on_the_table_as_it_is_then(table_of, mode):
    """Nothing of the first run is kept: rows that it inserted are matched by the second."""
    table = table_of(SMALL, [row(1, "us", 1)], mode=mode)
    merge = table.upsert([row(1, "us", 5), row(2, "us", 6)], on=["id"])

    assert merge.execute().clauses == (1, 1)
    assert merge.execute().clauses == (2, 0)
    assert triples(table) == [(1, "us", 5), (2, "us", 6)]
    assert len(snapshots(table)) == 3


def test_keys_far_from_those_of_the_table(table_of):
    """Files of one key each, and source keys at the ends of the type."""
    ends = [-(2**63), 2**63 - 1]
    table = table_of("k BIGINT, n INT", [{"k": 1, "n": 0}], [{"k": 1, "n": 1}])

    result = table.upsert([{"k": k, "n": 9} for k in ends], on=["k"]).execute()

    assert (result.rows_updated, result.rows_inserted) == (0, 2)
    assert sorted(row["k"] for row in table.scan().collect()) == [ends[0], 1, 1, ends[1]]


def test_the_join_key_can_be_a_partition_column_with_a_dot_in_its_name(table_of):
    table = table_of(
        "`a.b` INT, n INT", [{"a.b": 1, "n": 1}, {"a.b": 2, "n": 2}], partition_by=("a.b",)
    )

    result = table.upsert([{"a.b": 1, "n": 10}, {"a.b": None, "n": 0}], on=["a.b"]).execute()

    assert (result.dpp_partition_count, result.files_scanned) == (1, 1)
    assert rows(table) == [(None, 0), (1, 10), (2, 2)]


def test_reserved_names_in_a_source_are_refused(table_of):
    table = table_of("id INT, n INT", [{"id": 1, "n": 1}])
    for name in ("_icefloe_pos", "_icefloe_source_row"):
        with pytest.raises(StatementError, match=name):
            table.merge([{"id": 1, name: 1}], on=["id"]).when_matched().delete().execute()
    assert rows(table) == [(1, 1)]
