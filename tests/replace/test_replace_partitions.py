"""REPLACE WHERE on whole partitions: metadata alone removes, new rows are checked and added."""

from __future__ import annotations

import logging
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlparse

import pytest
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.typedef import Record
from pyspark.sql import functions as F

import icefloe
from icefloe import DmlResult
from icefloe.errors import (
    ConstraintError,
    InvalidPredicateError,
    NonPartitionedTableError,
    NullabilityError,
    PartitionColumnNotFoundError,
    SchemaMismatchError,
    StatementError,
    TypeMismatchError,
    UnsupportedOperatorError,
)
from support.foreign_files import equality_delete, manifest_entry, publish
from support.tables import data_files, delete_files, live_files, rows, snapshots, summary
from support.unreferenced_files import leftovers

SCHEMA = "id BIGINT NOT NULL, year INT, month INT, v STRING"


def row(i, year, month, v="old"):
    return {"id": i, "year": year, "month": month, "v": v}


SIX = [row(10 * y + m, 2020 + y, m) for y in (1, 2, 3) for m in (1, 2)]


@pytest.fixture
def sales(table_of):
    return table_of(SCHEMA, SIX, partition_by=("year", "month"))


@pytest.mark.requirement("R01", "R07", "R09")
def test_only_matching_partitions_are_replaced(sales):
    before = {f.path: tuple(f.file.partition) for f in data_files(sales)}

    result = sales.replace_where("year = 2022 AND month = 1", [row(900, 2022, 1, "new")]).execute()

    after = {f.path for f in data_files(sales)}
    gone = set(before) - after
    assert {before[path] for path in gone} == {(2022, 1)}
    assert len(set(before) & after) == 5
    assert result.snapshot_id == sales.snapshot_id
    assert (result.rows_deleted, result.rows_inserted) == (1, 1)
    assert (result.data_files_removed, result.data_files_added) == (1, 1)
    assert (result.files_scanned, result.files_skipped) == (0, 5)
    assert rows(sales, "id") == sorted([(11,), (12,), (22,), (31,), (32,), (900,)], key=repr)
    assert len(snapshots(sales)) == 2
    assert summary(sales)["operation"] == "overwrite"


@pytest.mark.requirement("R02")
def test_append_and_overwrite_still_work(sales):
    sales.append([row(1, 2030, 1)])
    assert sales.count() == 7
    sales.overwrite([row(1, 2030, 1)])
    assert rows(sales) == [(1, 2030, 1, "old")]


@pytest.mark.requirement("R03")
def test_new_files_carry_their_partition(sales):
    new = [row(1, 2022, 1, "new"), row(2, 2022, 2, "new")]
    sales.replace_where("year = 2022", new).execute()
    added = {tuple(f.file.partition): f.rows for f in data_files(sales) if f.sequence_number == 2}
    assert added == {(2022, 1): 1, (2022, 2): 1}
    assert sales.delete().where("year = 2022").explain().files_skipped == 4


@pytest.mark.requirement("R23")
def test_the_studied_example_comes_out_exactly(table_of):
    thousand = [{"id": i, "year": str(i % 3), "month": str(i % 2)} for i in range(1000)]
    table = table_of(
        "id BIGINT, year STRING, month STRING", thousand, partition_by=("year", "month")
    )
    new = [{"id": i, "year": "1", "month": "0"} for i in range(100, 200)]

    table.replace_where("year = 1 AND month = 0", new).execute()

    replaced = rows(table, "id", where="year = '1' AND month = '0'")
    assert sorted(i for (i,) in replaced) == list(range(100, 200))
    others = rows(table, "id", where="NOT (year = '1' AND month = '0')")
    kept = [r["id"] for r in thousand if (r["year"], r["month"]) != ("1", "0")]
    assert sorted(i for (i,) in others) == kept
    assert (len(others), table.count()) == (834, 934)


@pytest.mark.requirement("R33")
def test_a_range_of_integer_months_is_no_range_of_texts(table_of):
    table = table_of(
        SCHEMA, [row(m, 2024, m) for m in range(1, 13)], partition_by=("year", "month")
    )
    result = table.replace_where("month BETWEEN 2 AND 11", []).execute()
    assert result.data_files_removed == 10
    assert rows(table, "month") == [(1,), (12,)]


@pytest.mark.requirement("R32", "R12")
def test_or_in_and_text_for_integers(sales):
    predicate = "year = '2021' AND month IN ('1', '2') OR year = 2023"
    result = sales.replace_where(predicate, [row(1, 2023, 7, "new")]).execute()
    assert result.rows_deleted == 4
    assert rows(sales, "id", "v") == [(1, "new"), (21, "old"), (22, "old")]


@pytest.mark.requirement("R37")
def test_no_new_rows_delete_the_partitions(sales, spark):
    empty = spark.createDataFrame([], sales.schema)
    result = sales.replace_where("year = 2021", empty).execute()
    assert (result.rows_deleted, result.rows_inserted, result.data_files_added) == (2, 0, 0)
    assert summary(sales)["operation"] == "delete"
    assert sales.count() == 4


def test_nothing_matching_and_nothing_new_makes_no_snapshot(sales):
    result = sales.replace_where("year = 1999", []).execute()
    assert (result.snapshot_id, result.rows_deleted) == (None, 0)
    assert len(snapshots(sales)) == 1


def test_rows_for_partitions_that_are_not_there_yet_are_added(sales):
    result = sales.replace_where("year = 1999", [row(1, 1999, 1)]).execute()
    assert (result.rows_deleted, result.rows_inserted) == (0, 1)
    assert summary(sales)["operation"] == "append"
    assert sales.count() == 7


def test_on_a_table_without_a_snapshot(table_of):
    table = table_of(SCHEMA, partition_by=("year",))
    assert table.replace_where("year = 1", []).execute().snapshot_id is None
    table.replace_where("year = 1", [row(1, 1, 1)]).execute()
    assert table.count() == 1


def test_null_partitions_are_removed_only_where_the_predicate_is_true(table_of):
    table = table_of(
        SCHEMA, [row(1, None, 1), row(2, 2020, 1), row(3, 2021, None)], partition_by=("year",)
    )
    table.replace_where("year <> 2020", []).execute()
    assert rows(table, "id") == [(1,), (2,)]
    table.replace_where("NOT (year = 1)", []).execute()
    assert rows(table, "id") == [(1,)]
    result = table.replace_where("year IS NULL", [row(4, None, 1, "new")]).execute()
    assert result.rows_deleted == 1
    assert rows(table, "id") == [(4,)]


@pytest.mark.requirement("R29")
@pytest.mark.parametrize(
    ("predicate", "bad"),
    [
        ("year = 2021", row(1, 2022, 1)),
        ("year = 2021", row(1, None, 1)),  # NULL is not true
        ("year <> 2021", row(1, None, 1)),
        ("year IN (2021, NULL)", row(1, 2022, 1)),
        ("year = 2021 AND month > 1", row(1, 2021, 1)),
    ],
)
def test_a_new_row_outside_the_predicate_changes_nothing(sales, predicate, bad):
    before, base = rows(sales), sales.snapshot_id
    good = row(7, 2021, 2, "new")
    with pytest.raises(ConstraintError) as caught:
        sales.replace_where(predicate, [good, bad]).execute()
    assert caught.value.predicate == predicate
    assert str(bad["year"]) in caught.value.row
    assert "check=False" in str(caught.value)
    assert (rows(sales), sales.snapshot_id) == (before, base)
    assert leftovers(sales) == set()


@pytest.mark.requirement("R29")
def test_the_check_can_be_switched_off(sales):
    builder = sales.replace_where("year = 2021", [row(1, 2022, 1, "new")])
    result = builder.with_options(check=False).execute()
    assert (result.rows_deleted, result.rows_inserted) == (2, 1)
    assert rows(sales, "id", where="year = 2022") == [(1,), (21,), (22,)]


@pytest.mark.requirement("R29")
def test_the_check_reads_the_new_rows_once(sales, spark, tmp_path):
    """In the job that writes them, not in a pass of its own."""
    counter = spark.sparkContext.accumulator(0)

    def counted(batches):
        for batch in batches:
            counter.add(batch.num_rows)
            yield batch

    new = spark.createDataFrame([row(i, 2021, 1, "new") for i in range(50)], sales.schema)
    seen = new.coalesce(1).mapInArrow(counted, sales.schema)
    sales.replace_where("year = 2021", seen).execute()
    assert counter.value == 50


def test_the_check_sees_the_rows_that_are_written_and_no_others(sales, spark):
    """Rows that the caller's own limit drops are not judged."""
    many = spark.range(0, 1000, 1, 4).select(
        "id",
        F.when(F.col("id") < 3, 2021).otherwise(1).cast("int").alias("year"),
        F.lit(1).alias("month"),
        F.lit("new").alias("v"),
    )
    result = sales.replace_where("year = 2021", many.orderBy("id").limit(3)).execute()
    assert result.rows_inserted == 3


@pytest.mark.requirement("R08", "R14")
def test_unpartitioned_tables_are_refused(table_of):
    table = table_of(SCHEMA, SIX)
    with pytest.raises(NonPartitionedTableError, match="requires a partitioned table") as caught:
        table.replace_where("year = 2021", []).execute()
    assert caught.value.table_path == table.name
    assert table.count() == 6


WRONG = {
    "a column that is no partition": ("v = 'x'", PartitionColumnNotFoundError, "month, year"),
    "no column": ("yaer = 1", PartitionColumnNotFoundError, "'yaer'"),
    "a function": ("upper(v) = 'X'", UnsupportedOperatorError, "upper"),
    "like": ("year LIKE '20%'", UnsupportedOperatorError, "LIKE"),
    "a subquery": ("year IN (SELECT 1)", UnsupportedOperatorError, "subquery"),
    "no number": ("year = 'abc'", TypeMismatchError, "'year' expects int"),
    "no SQL": ("year=", InvalidPredicateError, "'year='"),
    "no text": ("", InvalidPredicateError, "empty"),
    "blanks": ("  ", InvalidPredicateError, "empty"),
    "no string": (True, InvalidPredicateError, "SQL text"),
}


@pytest.mark.requirement("R15", "R16", "R17", "R19")
@pytest.mark.parametrize("case", WRONG)
def test_predicates_are_refused_before_anything_happens(sales, case):
    predicate, error, told = WRONG[case]
    before = live_files(sales)
    with pytest.raises(error, match=told):
        sales.replace_where(predicate, [row(1, 2021, 1)]).execute()
    assert live_files(sales) == before
    assert leftovers(sales) == set()


BAD_ROWS = {
    "missing": ([{"id": 1, "year": 2021, "month": 1}], SchemaMismatchError, "'v'"),
    "extra": ([{**row(1, 2021, 1), "w": 1}], SchemaMismatchError, "'w'"),
    "type": ([row(1, "x", 1)], SchemaMismatchError, "year"),
    "null": ([row(None, 2021, 1)], NullabilityError, "'id'"),
}


@pytest.mark.requirement("R18")
@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows_that_do_not_fit_change_nothing(sales, case):
    new, error, told = BAD_ROWS[case]
    with pytest.raises(error, match=told):
        sales.replace_where("year = 2021", new).execute()
    assert sales.count() == 6
    assert leftovers(sales) == set()


def test_unknown_options_and_bad_values_are_refused(sales):
    builder = sales.replace_where("year = 2021", [])
    for options, told in [
        ({"scoop": "rows"}, "Unknown option 'scoop'.*check.*scope"),
        ({"scope": "files"}, "'partitions' or 'rows'"),
        ({"check": "no"}, "True or False"),
        ({"retries": -1}, "retries"),
        ({"mode": "fast"}, "write mode"),
    ]:
        with pytest.raises(StatementError, match=told):
            builder.with_options(**options)


def test_options_of_every_statement(sales):
    builder = sales.replace_where("year = 2021", [row(1, 2021, 1, "new")]).with_options(
        summary={"why": "reload"}, idempotency_key="2021-once", branch="audit"
    )
    first = builder.execute()
    again = builder.execute()
    assert first.snapshot_id == again.snapshot_id
    assert (again.operation, again.rows_deleted, again.rows_inserted) == ("replace_where", 2, 1)
    assert sales.count() == 6
    branch = sales.iceberg.snapshot_by_name("audit")
    assert branch.snapshot_id == first.snapshot_id
    assert branch.summary["why"] == "reload"


@pytest.mark.requirement("R24", "X08")
def test_the_summary_has_the_predicate_and_the_figures(sales):
    result = sales.replace_where("year = 2021", [row(1, 2021, 1, "new")]).execute()
    facts = summary(sales)
    assert facts["icefloe.operation"] == "replace_where"
    assert facts["icefloe.predicate"] == "year = 2021"
    assert facts["icefloe.scope"] == "partitions"
    assert facts["icefloe.rows-deleted"] == facts["deleted-records"] == "2"
    assert facts["icefloe.rows-inserted"] == facts["added-records"] == "1"
    assert facts["icefloe.data-files-removed"] == facts["deleted-data-files"] == "2"
    assert facts["icefloe.data-files-added"] == "1"
    assert int(facts["icefloe.bytes-written"]) == result.bytes_written > 0
    assert 0 < int(facts["icefloe.work-ms"]) <= result.duration_s * 1000
    assert isinstance(result, DmlResult)
    assert result.attempts == 1


@pytest.mark.requirement("R11")
def test_files_and_predicate_are_logged(sales, caplog):
    with caplog.at_level(logging.INFO, logger="icefloe"):
        sales.replace_where("year = 2021", [row(1, 2021, 1)]).execute()
    assert "replaceWhere year = 2021: 2 data files removed, 1 added" in caplog.text


def test_explain_shows_files_and_changes_nothing(sales):
    plan = sales.replace_where("year = 2021", [row(1, 2021, 1)]).explain()
    assert plan.operation == "replace_where"
    assert len(plan.files) == 2
    assert plan.files_scanned == 0
    assert plan.files_skipped == 4
    assert plan.estimated_bytes_read == 0
    for told in ("REPLACE_WHERE", "year = 2021", "drop:", "by metadata", "checked while"):
        assert told in str(plan)
    assert len(snapshots(sales)) == 1
    with pytest.raises(SchemaMismatchError):
        sales.replace_where("year = 2021", [{"id": 1}]).explain()


def test_no_data_file_is_read(sales):
    """The bytes of every data file are gone: metadata alone replaces them."""
    for file in data_files(sales):
        Path(urlparse(file.path).path).unlink()
    result = sales.replace_where("year >= 2021", [row(1, 2021, 1, "new")]).execute()
    assert result.rows_deleted == 6
    assert rows(sales) == [(1, 2021, 1, "new")]


@pytest.mark.requirement("R38")
def test_deletes_of_removed_files_are_removed_with_them(table_of):
    table = table_of(
        SCHEMA,
        [row(1, 2021, 1), row(2, 2021, 1), row(3, 2022, 1), row(4, 2022, 1)],
        partition_by=("year",),
    )
    table.delete().where("id IN (1, 3)").with_options(mode="merge-on-read").execute()
    assert len(delete_files(table)) == 2

    result = table.replace_where("year = 2021", [row(9, 2021, 1)]).execute()

    assert (result.rows_deleted, result.delete_files_removed) == (1, 1)
    (left,) = delete_files(table)
    assert tuple(left.file.partition) == (2022,)
    assert rows(table, "id") == [(4,), (9,)]


@pytest.mark.requirement("R38")
def test_equality_deletes_are_removed_with_their_partition_and_counted(table_of, lake):
    table = table_of(
        SCHEMA, [row(1, 2021, 1), row(2, 2021, 1), row(3, 2022, 1)], partition_by=("year",)
    )
    publish(lake, table, deletes=[equality_delete(table, [{"id": 1}], partition=(2021,))])

    result = table.replace_where("year = 2021", [row(1, 2021, 1, "new")]).execute()

    assert (result.rows_deleted, result.delete_files_removed) == (1, 1)
    assert delete_files(table) == []
    assert rows(table, "id", "v") == [(1, "new"), (3, "old")]


@pytest.mark.requirement("D16")
def test_new_rows_are_not_hidden_by_older_equality_deletes_of_the_whole_table(table_of, lake):
    """A delete of an unpartitioned spec stays, and reaches only rows older than itself."""
    table = table_of(SCHEMA, [row(1, 2021, 1), row(3, 2022, 1)])
    publish(lake, table, deletes=[equality_delete(table, [{"id": 1}])])
    table.evolve_partitions(("year",))
    table.append([row(5, 2021, 1), row(6, 2022, 1)])
    result = table.replace_where("year = 2022", [row(1, 2022, 1, "new")]).with_options(scope="rows")
    assert result.execute().rows_deleted == 2
    assert rows(table, "id", "v") == [(1, "new"), (5, "old")]


DAY = datetime(2024, 1, 2, tzinfo=UTC)


def event(i, at):
    return {"id": i, "at": at}


@pytest.fixture
def events(table_of):
    hours = [event(i, DAY + timedelta(hours=i)) for i in range(-24, 48, 6)]
    return table_of(
        "id BIGINT, at TIMESTAMP", [*hours, event(99, None)], partition_by=("days(at)",)
    )


@pytest.mark.requirement("D20")
def test_a_day_of_timestamps(events):
    predicate = "at >= '2024-01-02' AND at < '2024-01-03'"
    result = events.replace_where(predicate, [event(500, DAY)]).execute()
    assert (result.rows_deleted, result.data_files_removed) == (4, 1)
    left = rows(events, "id")
    assert (500,) in left
    assert len(left) == 13 - 4 + 1


@pytest.mark.requirement("D20")
@pytest.mark.parametrize(
    "predicate",
    ["at >= '2024-01-02 12:00:00'", "at = '2024-01-02'", "at <= '2024-01-02'"],
)
def test_a_cut_through_a_day_is_refused_and_names_the_way_out(events, predicate):
    with pytest.raises(InvalidPredicateError, match="both sides") as caught:
        events.replace_where(predicate, []).execute()
    assert "scope='rows'" in str(caught.value)
    assert events.count() == 13


def test_days_are_those_of_utc_whatever_the_session(events, spark):
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        with pytest.raises(InvalidPredicateError):
            events.replace_where("at >= '2024-01-02'", []).execute()
        result = events.replace_where("at >= '2024-01-02 09:00:00'", []).execute()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert result.rows_deleted == 8


@pytest.mark.slow
def test_every_kind_of_partition_value(table_of):
    schema = "id INT, d DATE, p DECIMAL(9,2), s STRING, b BOOLEAN, n TIMESTAMP_NTZ, x DOUBLE"
    cases = {
        "d": ([date(2024, 1, 1), date(2024, 1, 2)], "d > '2024-01-01'"),
        "p": ([Decimal("9.50"), Decimal("10.00")], "p >= 10"),
        "s": (["it's", 'say "é"'], "s <> 'it''s'"),
        "b": ([True, False], "NOT b"),
        "n": ([datetime(2024, 1, 1), datetime(2024, 1, 2)], "n = '2024-01-02 00:00:00'"),
        "x": ([1.0, float("nan")], "x > 5"),
    }
    for column, (values, predicate) in cases.items():
        blank = dict.fromkeys(("d", "p", "s", "b", "n", "x"))
        old = [{**blank, "id": i, column: v} for i, v in enumerate([*values, None])]
        table = table_of(schema, old, partition_by=(column,))
        new = {**blank, "id": 9, column: values[1]}
        result = table.replace_where(predicate, [new]).execute()
        assert result.rows_deleted == 1, column
        assert rows(table, "id") == [(0,), (2,), (9,)], column
        with pytest.raises(ConstraintError):
            table.replace_where(predicate, [{**new, column: values[0]}]).execute()


def test_nested_sources_of_partitions(table_of):
    schema = "id INT, place STRUCT<city: STRING>"
    old = [{"id": i, "place": {"city": c}} for i, c in enumerate(["a", "b"])]
    table = table_of(schema, old, partition_by=("place.city",))
    new = [{"id": 7, "place": {"city": "a"}}]
    assert table.replace_where("place.city = 'a'", new).execute().rows_deleted == 1
    assert rows(table, "id") == [(1,), (7,)]


@pytest.mark.requirement("D8")
def test_files_of_every_spec_are_matched_by_their_own_tuples(table_of):
    table = table_of(SCHEMA, [row(1, 2021, 1), row(2, 2022, 1)], partition_by=("year", "month"))
    table.evolve_partitions(("year",))
    table.append([row(3, 2021, 5), row(4, 2022, 5)])

    result = table.replace_where("year = 2021", [row(9, 2021, 9, "new")]).execute()

    assert (result.data_files_removed, result.rows_deleted) == (2, 2)
    assert rows(table, "id") == [(2,), (4,), (9,)]


def test_a_partition_of_an_older_spec_that_straddles_is_named(table_of):
    table = table_of(SCHEMA, [row(1, 2021, 1), row(2, 2021, 3)], partition_by=("year",))
    table.evolve_partitions(("year", "month"))
    table.append([row(3, 2021, 2)])
    with pytest.raises(InvalidPredicateError, match=r"year=2021.*both sides.*scope='rows'"):
        table.replace_where("year = 2021 AND month = 2", []).execute()
    assert table.count() == 3
    # Its bounds tell that no row of the older file is meant.
    result = table.replace_where("year = 2021 AND month = 7", [row(8, 2021, 7)]).execute()
    assert (result.rows_deleted, result.rows_inserted) == (0, 1)
    result = table.replace_where("month = 2", []).with_options(scope="rows").execute()
    assert result.rows_deleted == 1


def test_bounds_can_prove_that_a_file_of_an_older_spec_is_inside(table_of):
    table = table_of(SCHEMA, [row(1, 2021, 1)], [row(2, 2022, 1)])
    table.evolve_partitions(("year",))
    result = table.replace_where("year = 2021", [row(9, 2021, 1)]).execute()
    assert result.data_files_removed == 1
    assert rows(table, "id") == [(2,), (9,)]


@pytest.mark.requirement("R36")
def test_several_predicates_in_one_commit(sales):
    result = (
        sales.replace_where("year = 2021", [row(1, 2021, 9, "new")])
        .and_where("year = 2022 AND month = 2", [row(2, 2022, 2, "new")])
        .execute()
    )
    assert (result.rows_deleted, result.rows_inserted) == (3, 2)
    assert len(snapshots(sales)) == 2
    assert rows(sales, "id", where="v = 'new'") == [(1,), (2,)]
    assert sales.count() == 5
    assert summary(sales)["icefloe.predicate"] == "(year = 2021) OR (year = 2022 AND month = 2)"


@pytest.mark.requirement("R36")
def test_each_predicate_checks_its_own_rows(sales):
    pair = sales.replace_where("year = 2021", [row(1, 2021, 1)])
    with pytest.raises(ConstraintError) as caught:
        pair.and_where("year = 2022", [row(2, 2021, 1)]).execute()
    assert caught.value.predicate == "year = 2022"
    with pytest.raises(ConstraintError) as caught:
        sales.replace_where("year = 2021", [row(2, 2022, 1)]).and_where("year = 2022", []).execute()
    assert caught.value.predicate == "year = 2021"
    assert sales.count() == 6


@pytest.mark.requirement("R35")
def test_a_predicate_from_the_partitions_of_a_frame(sales, spark):
    source = spark.createDataFrame([row(1, 2021, 1, "new"), row(2, 2023, 2, "new")], sales.schema)
    predicate = sales.partitions_of(source)
    assert predicate == "(`year` = 2021 AND `month` = 1) OR (`year` = 2023 AND `month` = 2)"
    result = sales.replace_where(predicate, source).execute()
    assert (result.rows_deleted, result.rows_inserted) == (2, 2)
    assert sales.partitions_of(source.select("MONTH", "year")) == predicate
    assert sales.partitions_of(source.limit(0)) == "FALSE"
    with pytest.raises(SchemaMismatchError, match="month"):
        sales.partitions_of(source.select("year"))


@pytest.mark.requirement("R35")
def test_predicates_of_other_transforms_and_values(table_of, events, spark):
    assert events.partitions_of(events.scan(where="at > '2024-01-03'")) == (
        "(`at` >= TIMESTAMP '2024-01-03 00:00:00+00:00' AND "
        "`at` <= TIMESTAMP '2024-01-03 23:59:59.999999+00:00')"
    )
    result = events.replace_where(events.partitions_of(events.scan(where="id = 99")), []).execute()
    assert result.rows_deleted == 1
    one = table_of("s STRING, id BIGINT", partition_by=("s",))
    frame = spark.createDataFrame([("it's", 1), (None, 2), ('"', 3)], "s STRING, id BIGINT")
    assert one.partitions_of(frame) == "`s` IN ('\"', 'it''s') OR `s` IS NULL"
    one.append(frame)
    assert one.replace_where(one.partitions_of(frame), frame).execute().rows_deleted == 3
    with pytest.raises(InvalidPredicateError, match="backslash"):
        one.partitions_of(spark.createDataFrame([("a\\b",)], "s STRING"))
    hashed = table_of("id BIGINT", partition_by=("bucket(4, id)",))
    with pytest.raises(InvalidPredicateError, match="overwrite_partitions"):
        hashed.partitions_of(spark.range(3))
    with pytest.raises(NonPartitionedTableError):
        table_of("id BIGINT").partitions_of(spark.range(3))


def test_a_predicate_names_rows_of_the_table_itself(sales):
    """The new rows are computed from those they replace."""
    new = sales.scan(where="year = 2021").withColumn("v", F.lit("again"))
    result = sales.replace_where("year = 2021", new).execute()
    assert (result.rows_deleted, result.rows_inserted) == (2, 2)
    assert rows(sales, "id", where="v = 'again'") == [(11,), (12,)]


@pytest.mark.requirement("X07")
def test_old_snapshots_stay_readable(sales):
    old, before = sales.snapshot_id, rows(sales)
    sales.replace_where("year = 2021", []).execute()
    assert rows(sales, snapshot_id=old) == before


@pytest.mark.parametrize("version", [1, 2])
def test_both_format_versions(table_of, version):
    table = table_of(SCHEMA, SIX, partition_by=("year",), format_version=version)
    result = table.replace_where("year = 2021", [row(1, 2021, 1, "new")]).execute()
    assert (result.rows_deleted, table.count()) == (2, 5)


@pytest.mark.requirement("R25")
def test_a_table_of_ten_thousand_files_takes_seconds(lake, table_of):
    """Manifests are skipped whole by their partition summaries."""
    table = table_of(
        "id BIGINT, p INT",
        partition_by=("p",),
        properties={"commit.manifest-merge.enabled": "false"},
    )
    table.append([{"id": 1, "p": 0}])
    (first,) = data_files(table)
    iceberg = table.iceberg
    template = parquet_file_to_data_file(iceberg.io, iceberg.metadata, first.path)
    for start in range(0, 10_000, 1000):
        publish(lake, table, data=[_copy(template, p) for p in range(start, start + 1000)])

    started = time.monotonic()
    result = table.replace_where("p = 4321", [{"id": 7, "p": 4321}]).execute()
    took = time.monotonic() - started

    assert result.data_files_removed == 1
    plan = table.replace_where("p = 4321", []).explain()
    assert (plan.manifests_read, plan.manifests_skipped) == (2, 10)
    assert took < 20


def _copy(template, p):
    """An entry like `template` in partition `p`; no such file exists, and none is needed."""
    return manifest_entry(
        template.file_path.replace(".parquet", f"-{p}.parquet"),
        spec_id=0,
        partition=Record(p),
        file_size_in_bytes=template.file_size_in_bytes,
    )


@pytest.mark.requirement("R29")
def test_the_error_shows_the_row_by_column(table_of):
    table = table_of("d INT, v INT", [{"d": 1, "v": 1}], partition_by=("d",))
    with pytest.raises(icefloe.errors.ConstraintError, match=r"\(d=2, v=51\)"):
        table.replace_where("d = 1", [{"d": 2, "v": 51}]).execute()
