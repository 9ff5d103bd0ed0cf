"""Which files a MERGE reads: pruning by the source's partitions and keys."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType
from pyspark.sql import functions as F

from icefloe.errors import StatementError
from icefloe.statements import MergeOptions
from support.merge_rows import SCHEMA, row, triples
from support.tables import data_files, delete_files, rows

REGIONS = ("ap", "eu", "uk", "us")
FOUR = [row(i, REGIONS[i % 4], i) for i in range(8)]


def both_ways(table, source, on):
    """An upsert explained, and run without and with pruning; the plan and the two results."""
    merge = table.upsert(source, on)
    plan = merge.explain()
    pruned = merge.execute()
    found = rows(table)
    table.rollback(plan.snapshot_id)
    whole = merge.with_options(enable_dpp=False).execute()
    assert rows(table) == found
    for name in ("rows_updated", "rows_inserted", "clauses", "mode"):
        assert getattr(pruned, name) == getattr(whole, name)
    assert (plan.dpp_applied, plan.dpp_partition_count) == (
        pruned.dpp_applied,
        pruned.dpp_partition_count,
    )
    assert plan.files_scanned == pruned.files_scanned
    assert (whole.dpp_applied, whole.dpp_partition_count) == (False, 0)
    assert whole.files_skipped == 0
    return plan, pruned, whole


@pytest.mark.requirement("M18", "M23", "M30")
def test_only_partitions_of_the_source_are_read(table_of, mode):
    """Three of four regions stay unread, and keep their files."""
    table = table_of(SCHEMA, FOUR, mode=mode, partition_by=("region",))
    before = {f.file.partition[0]: f.path for f in data_files(table)}

    plan, pruned, whole = both_ways(
        table, [row(1, "eu", -1), row(9, "eu", -9)], on=["id", "region"]
    )

    assert (pruned.dpp_applied, pruned.dpp_partition_count) == (True, 1)
    assert (pruned.files_scanned, pruned.files_skipped) == (1, 3)
    assert [f.path for f in plan.files] == [before["eu"]]
    assert {f.path for f in plan.skipped} == {before[r] for r in ("ap", "uk", "us")}
    assert whole.files_scanned == 4
    assert (pruned.rows_updated, pruned.rows_inserted) == (1, 1)
    after = {f.path for f in data_files(table)}
    assert {before[r] for r in ("ap", "uk", "us")} < after
    assert (before["eu"] in after) == (mode == "merge-on-read")
    if mode == "merge-on-read":
        (deletes,) = delete_files(table)
        assert deletes.file.partition[0] == "eu"
        assert deletes.rows == 1


def hour(number, minute=0):
    return datetime(2024, 1, 31, 22) + timedelta(hours=number, minutes=minute)


@pytest.mark.requirement("M21")
@pytest.mark.parametrize(
    ("transform", "kind", "parts", "hit"),
    [
        ("k", "STRING", ["a a", "b b", "c c"], "a c"),
        ("truncate(2, k)", "STRING", ["aaa aaz", "bba bbz", "cca ccz"], "aam aaz ccb"),
        ("truncate(10, k)", "INT", [(-9, -1), (0, 9), (10, 19)], (-5, -1, 15)),
        (
            "years(k)",
            "DATE",
            [(date(y, 1, 1), date(y, 12, 31)) for y in (1969, 1970, 2024)],
            (date(1969, 5, 5), date(2024, 12, 31)),
        ),
        (
            "months(k)",
            "TIMESTAMP",
            [(hour(0), hour(1)), (hour(2), hour(300)), (hour(700), hour(1300))],
            (hour(0, 1), hour(1), hour(1000)),
        ),
        (
            "days(k)",
            "TIMESTAMP",
            [(hour(24 * d), hour(24 * d + 1)) for d in range(3)],
            (hour(0, 9), hour(49)),
        ),
        (
            "hours(k)",
            "TIMESTAMP_NTZ",
            [(hour(h), hour(h, 59)) for h in range(3)],
            (hour(0), hour(2, 29)),
        ),
    ],
    ids=["identity", "truncate-string", "truncate-int", "years", "months", "days", "hours"],
)
def test_every_transform_whose_value_follows_from_the_key(
    table_of, spark, transform, kind, parts, hit
):
    """Two of three partitions, between whose bounds the keys lie; the middle one is not read."""
    parts, hit = (
        [p.split() if isinstance(p, str) else p for p in parts],
        hit.split() if isinstance(hit, str) else hit,
    )
    values = [value for part in parts for value in part]
    table = table_of(f"k {kind}, n INT", partition_by=(transform,))
    table.append(spark.createDataFrame([(v, 1) for v in values], f"k {kind}, n INT").coalesce(1))
    assert len(data_files(table)) == 3
    source = spark.createDataFrame([(v, 2) for v in hit], f"k {kind}, n INT")

    _, pruned, _ = both_ways(table, source, on=["k"])

    assert (pruned.dpp_applied, pruned.dpp_partition_count) == (True, 2)
    assert (pruned.files_scanned, pruned.files_skipped) == (2, 1)
    assert pruned.rows_updated == sum(value in hit for value in values)
    assert pruned.rows_inserted == len(set(hit) - set(values))
    middle = table.scan(["n"], F.col("k").between(F.lit(parts[1][0]), F.lit(parts[1][1]))).collect()
    assert [r[0] for r in middle] == [1, 1]


@pytest.mark.requirement("M21")
@pytest.mark.parametrize(
    ("mode", "kind", "least"),
    [
        ("copy-on-write", "INT", -(2**31)),
        ("merge-on-read", "BIGINT", -(2**63)),
        ("copy-on-write", "DECIMAL(4, 2)", "-99.99"),
    ],
)
def test_key_that_truncate_has_no_value_for(table_of, spark, mode, kind, least):
    """Rounded down it would leave its type: only the other partition columns rule out files."""
    table = table_of(f"k {kind}, r STRING, n INT", partition_by=("truncate(10, k)", "r"), mode=mode)
    cast = f"SELECT CAST(k AS {kind}) AS k, r, n FROM VALUES"
    table.append(spark.sql(f"{cast} (1, 'a', 1), (25, 'a', 1), (25, 'b', 1) t(k, r, n)"))
    source = spark.sql(f"{cast} ({least}, 'a', 2), (25, 'a', 2), (NULL, 'a', 2) t(k, r, n)")
    merge = table.merge(source, on=["k", "r"]).when_matched().update_all()
    alone = table.merge(source.drop("r"), on=["k"]).when_matched().update({"n": "2"}).explain()
    assert any("too small for truncate" in reason for reason in alone.reasons)

    result = merge.execute()

    assert (result.rows_updated, result.dpp_applied, result.dpp_partition_count) == (1, True, 1)
    after = [(1, "a", 1), (25, "a", 2), (25, "b", 1)]
    assert [(int(k), r, n) for k, r, n in rows(table)] == after
    with pytest.raises(StatementError, match=r"truncate\(10\)"):
        merge.when_not_matched().insert_all().execute()
    assert [(int(k), r, n) for k, r, n in rows(table)] == after


@pytest.mark.requirement("M21")
def test_buckets_of_the_source_are_read(table_of):
    """Every bucket's file has nearly the same range of ids, so that buckets alone tell."""
    forty = [row(i, "us", i) for i in range(40)]
    table = table_of(SCHEMA, forty, partition_by=("bucket(4, id)",))
    assert len(data_files(table)) == 4
    bucket = BucketTransform(4).transform(LongType())
    same = [i for i in range(40) if bucket(i) == bucket(5)][:3]

    _, pruned, _ = both_ways(table, [row(i, "us", -i) for i in same], on=["id"])

    assert (pruned.dpp_applied, pruned.dpp_partition_count) == (True, 1)
    assert (pruned.files_scanned, pruned.files_skipped) == (1, 3)
    assert triples(table) == [(i, "us", -i if i in same else i) for i in range(40)]


@pytest.mark.requirement("M19")
def test_the_limit_is_inclusive_and_a_count_above_it_is_reported(table_of, mode, spark):
    table = table_of(SCHEMA, FOUR, mode=mode, partition_by=("region",))
    source = [row(0, "ap", -1), row(1, "eu", -1), row(4, "ap", -1)]
    merge = table.upsert(source, on=["id", "region"])

    plan = merge.with_options(dpp_max_partitions=2).explain()
    assert (plan.dpp_applied, plan.dpp_partition_count, plan.files_scanned) == (True, 2, 2)

    result = merge.with_options(dpp_max_partitions=1).execute()
    assert (result.dpp_applied, result.dpp_partition_count) == (False, 2)
    assert triples(table) == [(i, REGIONS[i % 4], -1 if i in (0, 1, 4) else i) for i in range(8)]

    many = spark.range(1001).selectExpr("concat('r', id) AS region", "id")
    for count, applied in ((1000, True), (1001, False)):
        merge = table.merge(many.filter(f"id < {count}"), on=["region"]).when_matched().delete()
        plan = merge.explain()
        assert (plan.dpp_applied, plan.dpp_partition_count) == (applied, count)
        assert plan.files_scanned == (0 if applied else len(data_files(table)))
        assert applied or any("1001 partitions" in reason for reason in plan.reasons)


@pytest.mark.requirement("M20")
def test_partition_column_that_is_not_compared_prunes_nothing(table_of, mode):
    table = table_of(SCHEMA, FOUR, mode=mode, partition_by=("region",))

    for on in (["id"], "target.id = source.id AND target.region >= source.region"):
        plan, pruned, _ = both_ways(table, [row(0, "ap", -1), row(7, "us", -7)], on)
        assert (pruned.dpp_applied, pruned.dpp_partition_count) == (False, 0)
        assert pruned.rows_updated == 2
        assert any("no partition column" in reason for reason in plan.reasons)
    assert triples(table) == [
        (i, REGIONS[i % 4], {0: -1, 7: -7}.get(i, i)) for i in range(8)
    ]  # fmt: skip


def test_types_that_differ_prune_nothing_that_matches(table_of, spark):
    """A DATE equals the TIMESTAMP of its midnight; its days are not told by another type."""
    days = [datetime(2024, 1, d) for d in (1, 2, 3)]
    table = table_of(
        "ts TIMESTAMP, n INT", [{"ts": d, "n": 1} for d in days], partition_by=("days(ts)",)
    )
    source = spark.createDataFrame([(days[1].date(), 5), (date(2024, 1, 9), 6)], "ts DATE, n INT")

    result = table.upsert(source, on=["ts"]).execute()

    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    assert rows(table, "n") == [(1,), (1,), (5,), (6,)]


@pytest.mark.requirement("M22", "D11")
def test_by_source_clause_without_condition_sees_every_partition(table_of, mode):
    """No row of a region that the source lacks is hidden."""
    table = table_of(SCHEMA, FOUR, mode=mode, partition_by=("region",))

    merge = (
        table.merge([row(1, "eu", -1)], on=["id", "region"])
        .when_matched().update_all()
        .when_not_matched_by_source().delete()
    )  # fmt: skip
    assert any("must see every row" in reason for reason in merge.explain().reasons)
    result = merge.execute()

    assert (result.dpp_applied, result.dpp_partition_count) == (False, 0)
    assert (result.files_scanned, result.files_skipped) == (4, 0)
    assert (result.clauses, triples(table)) == ((1, 7), [(1, "eu", -1)])


@pytest.mark.requirement("D11")
def test_partitions_named_by_a_by_source_condition_are_read_too(table_of, mode):
    table = table_of(SCHEMA, FOUR, mode=mode, partition_by=("region",))

    result = (
        table.merge([row(1, "eu", -1)], on=["id", "region"])
        .when_matched().update_all()
        .when_not_matched_by_source("target.region = 'us' AND target.id > 3").delete()
        .execute()
    )  # fmt: skip

    assert (result.files_scanned, result.files_skipped) == (2, 2)
    assert (result.dpp_applied, result.dpp_partition_count) == (True, 1)
    assert result.clauses == (1, 1)
    assert triples(table) == [(i, REGIONS[i % 4], -1 if i == 1 else i) for i in range(7)]


@pytest.mark.requirement("M22")
def test_by_source_condition_on_other_columns_sees_every_partition(table_of, mode):
    """Nothing is known of where such rows are."""
    table = table_of(SCHEMA, FOUR, mode=mode, partition_by=("region",))

    result = (
        table.merge([row(1, "eu", -1)], on=["id", "region"])
        .when_not_matched_by_source("target.n % 4 = 2 OR target.n = 5").update({"n": "100"})
        .execute()
    )  # fmt: skip

    assert result.clauses == (3,)
    assert triples(table) == [(i, REGIONS[i % 4], 100 if i in (2, 5, 6) else i) for i in range(8)]


@pytest.mark.requirement("M34")
def test_files_are_chosen_by_the_ranges_of_keys_without_partitions(table_of, mode):
    """A small source reads the files it matches, one that is everywhere reads all."""
    batches = [[row(10 * b + i, "us", i) for i in range(10)] for b in range(5)]
    table = table_of(SCHEMA, *batches, mode=mode)

    few = table.upsert([row(11, "us", -1), row(12, "us", -1)], on=["id"])
    apart = table.upsert([row(3, "us", -1), row(44, "us", -1)], on=["id"])
    new = table.upsert([row(100, "us", -1), row(77, "us", -1)], on=["id"])
    spread = table.upsert([row(10 * b, "us", -1) for b in range(5)], on=["id"])

    assert [m.explain().files_scanned for m in (few, apart, new, spread)] == [1, 2, 0, 5]
    result = apart.execute()
    assert (result.files_scanned, result.files_skipped, result.rows_updated) == (2, 3, 2)
    assert not result.dpp_applied
    assert [r[0] for r in triples(table) if r[2] == -1] == [3, 44]


@pytest.mark.requirement("D8")
def test_partitions_of_older_specs_are_chosen_too(table_of, mode):
    """The count is of the current spec; files of each spec are judged by their own."""
    table = table_of(SCHEMA, FOUR, mode=mode, partition_by=("region",))
    table.evolve_partitions(("bucket(4, id)",))
    table.append([row(10 + i, REGIONS[i % 4], i) for i in range(4)])
    bucket = BucketTransform(4).transform(LongType())

    plan, pruned, _ = both_ways(table, [row(1, "eu", -1), row(11, "eu", -1)], ["id", "region"])

    assert (pruned.dpp_applied, pruned.dpp_partition_count) == (True, len({bucket(1), bucket(11)}))
    old = {f.path for f in data_files(table) if f.spec_id == 0 and f.file.partition[0] != "eu"}
    assert len(old) == 3
    assert old <= {f.path for f in plan.skipped}
    chosen = {
        path
        for (path,) in rows(table, "_file", where="id IN (1, 11)", snapshot_id=plan.snapshot_id)
    }
    assert chosen <= {f.path for f in plan.files}
    assert pruned.rows_updated == 2


@pytest.mark.requirement("M15", "M16", "M17")
def test_options_have_their_defaults_and_stick(table_of):
    assert MergeOptions().enable_dpp is True
    assert MergeOptions().dpp_max_partitions == 1000
    assert MergeOptions().duplicates == "error"
    chosen = MergeOptions().with_(enable_dpp=False).with_(dpp_max_partitions=7)
    assert (chosen.enable_dpp, chosen.dpp_max_partitions, chosen.retries) == (False, 7, 0)

    merge = table_of(SCHEMA).upsert([row(1)], on=["id"])
    for wrong, told in (
        ({"enable_dpp": 1}, "'enable_dpp' must be True or False"),
        ({"dpp_max_partitions": -1}, "'dpp_max_partitions' must be an integer"),
        ({"duplicates": "last"}, "'duplicates' must be 'error' or 'first', not 'last'"),
        ({"dpp": True}, "Unknown option 'dpp'"),
    ):
        with pytest.raises(StatementError, match=told):
            merge.with_options(**wrong)
