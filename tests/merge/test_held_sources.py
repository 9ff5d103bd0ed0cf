"""Few source rows come to the driver once; the statement is the same as with rows Spark keeps."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pytest
from pyiceberg.types import DateType, IntegerType, LongType, StringType, TimestamptzType
from pyspark.sql import functions as F
from pyspark.sql import types as T

from icefloe.commands.merge import held_source
from icefloe.commands.merge.held_source import held_rows, in_type_of, intervals
from icefloe.commands.merge.source import SourceKey, SparkSource, pinned_source
from icefloe.spark.column_trees import ColumnReader
from icefloe.spark.frames import expected_bytes, few_rows
from icefloe.statements import MergeStatement
from support.merge_rows import SCHEMA, row, triples

pytestmark = pytest.mark.kept_by("driver")

VALUES = {
    "i": (T.IntegerType(), [3, None, -7, 3]),
    "l": (T.LongType(), [2**40, None, -(2**40), 0]),
    "s": (T.StringType(), ["ß", None, "", "a\x00b"]),
    "d": (T.DecimalType(9, 2), [Decimal("1.50"), None, Decimal("-0.01"), Decimal("7.00")]),
    "b": (T.BooleanType(), [True, None, False, True]),
    "bin": (T.BinaryType(), [b"\x00", None, b"", b"xyz"]),
    "f": (T.FloatType(), [1.5, None, float("inf"), -0.0]),
    "day": (T.DateType(), [date(1500, 1, 1), None, date(1970, 1, 1), date(9999, 12, 31)]),
    "ts": (T.TimestampType(), [datetime(1900, 1, 1, tzinfo=UTC), None] * 2),
    "ntz": (T.TimestampNTZType(), [datetime(2024, 3, 31, 2, 30), None] * 2),
    "list": (T.ArrayType(T.IntegerType()), [[1, None], None, [], [2]]),
    "map": (T.MapType(T.StringType(), T.LongType()), [{"a": 1}, None, {}, {"b": None}]),
    "st": (
        T.StructType([T.StructField("a", T.IntegerType()), T.StructField("b", T.StringType())]),
        [(1, "x"), None, (None, None), (2, None)],
    ),
}


def frame_of_all(spark):
    schema = T.StructType([T.StructField(name, kind) for name, (kind, _) in VALUES.items()])
    rows = list(zip(*(values for _, values in VALUES.values()), strict=True))
    return spark.createDataFrame(rows, schema).filter("true")


def reader(spark):
    return ColumnReader(lambda: spark)


def statement_of(frame):
    return MergeStatement(frame, ("i",))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_rows_come_back_as_they_were(spark, zone, monkeypatch):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.createDataFrame(frame_of_all(spark).toArrow(), frame_of_all(spark).schema)
        statement = statement_of(frame)
        rows = held_rows(statement, reader(spark))
        held = held_source.held_source(statement, rows, spark).frame
        assert held.drop("_icefloe_source_row").schema == frame.schema
        assert [r[:-1] for r in held.collect()] == [tuple(r) for r in frame.collect()]
        assert [r[-1] for r in held.collect()] == [0, 1, 2, 3]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT CAST('a' AS STRING COLLATE UTF8_LCASE) AS s, 1 AS i",
        "SELECT INTERVAL '1' YEAR AS y, 1 AS i",
        "SELECT NULL AS n, 1 AS i",
        "SELECT 1 AS i, 2 AS I",
        "SELECT parse_json('1') AS v, 1 AS i",
    ],
)
def test_types_that_arrow_has_otherwise_stay_in_spark(spark, query):
    assert held_rows(statement_of(spark.sql(query)), reader(spark)) is None


def test_a_column_of_the_sources_own_frame_keeps_it_in_spark(spark):
    frame = spark.sql("SELECT 1 AS i")
    assert held_rows(statement_of(frame), reader(spark)).num_rows == 1
    bound = MergeStatement(frame, frame["i"] == F.col("target.i"))
    assert held_rows(bound, reader(spark)) is None
    by_name = MergeStatement(frame, F.col("source.i") == F.col("target.i"))
    assert held_rows(by_name, reader(spark)).num_rows == 1


def test_rows_that_pyspark_cannot_convert_stay_in_spark(table_of, spark):
    """A NULL of a type with a field that must not be NULL."""
    source = spark.range(3).selectExpr("id", "array(named_struct('c', id), NULL) AS a")
    assert held_rows(statement_of(source), reader(spark)) is None
    table = table_of("id BIGINT, a ARRAY<STRUCT<c: BIGINT>>", [{"id": 1, "a": None}])
    assert table.upsert(source, ["id"]).execute().rows_updated == 1
    assert [row["a"][0]["c"] for row in table.scan().orderBy("id").collect()] == [0, 1, 2]


def test_what_spark_expects_to_be_large_is_not_read(spark, jobs):
    before = jobs()
    assert few_rows(spark.range(10**9), 1000, 2**20) is None
    assert expected_bytes(spark.range(10**9)) == 8 * 10**9
    assert jobs() == before


def test_more_rows_or_bytes_than_expected(spark):
    rows = spark.range(10).selectExpr("explode(sequence(1, 100)) AS n")
    assert few_rows(rows, 999, 2**20) is None
    assert few_rows(rows, 1000, 2**20).num_rows == 1000
    assert few_rows(rows.selectExpr("repeat('x', 10000) AS s"), 1000, 2**20) is None


MEASURED = {
    "numbers": ("id INT", [5, 1, None, 1, 900], LongType()),
    "numbers that do not fit": ("id BIGINT", [2**40, 7, None], IntegerType()),
    "only NULL": ("id BIGINT", [None, None], LongType()),
    "texts": ("id STRING", ["b", "ä", None, "a", "𝄞", "Z"], StringType()),
    "days": ("id DATE", [date(2024, 1, 2), None, date(1960, 5, 5)], DateType()),
    "times": ("id TIMESTAMP", [datetime(2024, 1, 2, tzinfo=UTC), None], TimestamptzType()),
}


@pytest.mark.parametrize("case", MEASURED)
def test_measures_are_those_of_spark(spark, case):
    declared, values, kind = MEASURED[case]
    frame = spark.createDataFrame([(v, "é") for v in values], f"{declared}, text STRING")
    key = SourceKey("id", "id", 1, kind)
    table = held_source._in_utc(frame.toArrow())
    held = held_source.held_source(statement_of(frame), table, spark)
    with pinned_source(frame) as kept:
        ours, theirs = (source.measure([key], ["id"]) for source in (held, kept))
        assert (ours.rows, ours.bytes, ours.key_bytes) == (
            theirs.rows,
            theirs.bytes,
            theirs.key_bytes,
        )
        [ranges], [whole] = ours.keys, theirs.keys
        if whole.intervals:
            [(low, high)] = whole.intervals
            assert (ranges.intervals[0][0], ranges.intervals[-1][1]) == (low, high)
        else:
            assert ranges.intervals == ()
        [found], [expected] = held.key_values([key]), kept.key_values([key])
        assert found.to_pylist() == expected.to_pylist()


def test_many_values_have_few_intervals_that_hold_them_all(monkeypatch):
    monkeypatch.setattr(held_source, "_MOST_INTERVALS", 3)
    found = intervals(pa.array([9, None, 1, 4, 5, 2, 9, 30]))
    assert found == ((1, 5), (9, 9), (30, 30))  # apart where the gaps are widest
    assert intervals(pa.array(["b", "a", "d", None, "c", "e"])) == (
        ("a", "b"),
        ("c", "d"),
        ("e", "e"),
    )
    assert intervals(pa.array([], pa.int64())) == ()


@pytest.mark.parametrize(
    "values",
    [
        [2**63 - 1, -(2**63), 0, 1, 2, 3, 4, -(2**63) + 1],
        [1.5, float("inf"), float("-inf"), -0.0, 0.0, 1e308, -1e308, 5e-324],
        [Decimal("99999999999999999999999999999999999999"), *map(Decimal, range(7))],
        [date(1, 1, 1), date(9999, 12, 31), *(date(2024, 1, day) for day in range(1, 8))],
        [datetime(1, 1, 1), *(datetime(2024, 1, 1, 0, 0, 0, n) for n in range(8))],
        [bytes([n]) for n in range(9)],
        ["", "é", "雪", *"abcdef"],
    ],
    ids=lambda values: type(values[-1]).__name__,
)
def test_every_value_is_in_one_interval(values, monkeypatch):
    monkeypatch.setattr(held_source, "_MOST_INTERVALS", 4)
    read = pa.array([*values, None, values[0]])
    found = intervals(read)
    assert 1 < len(found) <= 4
    ends = [end for interval in found for end in interval]
    assert ends == sorted(ends)
    assert all(high < low for (_, high), (low, _) in pairwise(found))
    for value in values:
        [(low, high)] = intervals(pa.array([value], read.type))
        assert low == high
        assert sum(start <= low <= end for start, end in found) == 1


def test_a_gap_between_keys_has_no_file_read(table_of, monkeypatch):
    """As in an upsert of rows of one file and of new ones, with more rows than intervals."""
    monkeypatch.setattr(held_source, "_MOST_INTERVALS", 4)
    table = table_of("id BIGINT, n INT", mode="merge-on-read")
    for start in range(0, 80, 10):
        table.append([{"id": n, "n": 0} for n in range(start, start + 10)])
    source = [{"id": n, "n": 1} for n in (*range(10, 17), *range(80, 83))]
    plan = table.upsert(source, ["id"]).explain()
    assert (plan.files_scanned, plan.files_skipped) == (1, 7)
    done = table.upsert(source, ["id"]).execute()
    assert (done.rows_updated, done.rows_inserted) == (7, 3)


def test_integers_that_do_not_fit_become_null():
    values = pa.array([2**31, 2**31 - 1, None, -(2**31), -(2**31) - 1])
    assert in_type_of(values, IntegerType()).to_pylist() == [None, 2**31 - 1, None, -(2**31), None]
    assert in_type_of(pa.array([1], pa.int8()), LongType()).type == pa.int64()


def test_a_source_that_the_driver_holds_needs_one_job_less_the_join(table_of, spark, jobs):
    """The source is read once: measuring and pruning need no job, nor does a local source."""
    table = table_of(SCHEMA, [row(i, "us", i) for i in range(20)], mode="merge-on-read")
    frame = spark.createDataFrame(pa.Table.from_pylist([row(2, "eu", -2), row(30, None, 3)]))
    counted = []
    for source in (frame, [row(2, "eu", -2), row(31, None, 3)]):
        before = jobs()
        table.upsert(source, ["id"]).explain()
        counted.append(jobs() - before)
    assert counted == [1, 0]


def test_a_clause_that_fails_on_a_source_row_changes_nothing(table_of, spark):
    """A local relation is computed while Spark plans: its errors are the same."""
    table = table_of(SCHEMA, [row(1)])
    source = spark.sql("SELECT 1L AS id, 0 AS n")
    merge = table.merge(source, ["id"]).when_matched().update({"n": "CAST(1 / source.n AS INT)"})
    with pytest.raises(Exception, match=r"DIVIDE_BY_ZERO|[Dd]ivision by zero"):
        merge.execute()
    assert triples(table) == [(1, "us", 0)]


def test_partitions_of_all_transforms_are_those_of_spark(table_of, spark):
    table = table_of(
        "id BIGINT, s STRING, d DECIMAL(9,2), day DATE, ts TIMESTAMP",
        partition_by=(
            "bucket(7, id)", "truncate(10, id)", "truncate(2, s)", "bucket(5, s)", "bucket(3, d)",
            "truncate(50, d)", "month(day)", "hours(ts)", "bucket(4, ts)",
        ),
    )  # fmt: skip
    rows = [
        (n * 37 - 90, f"t{n % 5}é", Decimal(n * 11 - 40).scaleb(-1), date(1969, 1 + n % 12, 3),
         datetime(1969, 12, 31, n % 24, tzinfo=UTC))
        for n in range(30)
    ]  # fmt: skip
    frame = spark.createDataFrame([*rows, (None,) * 5], table.scan().schema)
    state = table._state()
    keys = [SourceKey(f.name, f.name, f.field_id, f.field_type) for f in state.schema.fields]
    held = held_source.held_source(statement_of(frame), held_source._in_utc(frame.toArrow()), spark)
    values = dict(zip(keys, held.measure(keys, []).keys, strict=True))
    spec = state.metadata.spec()
    ours = held.partition_values(values, spec, state.schema, 1000)
    theirs = SparkSource(held.frame).partition_values(values, spec, state.schema, 1000)
    assert ours == theirs
    assert ours[1] == 30
    assert held.partition_values(values, spec, state.schema, 29) == (None, 30)
