"""Conditions as Columns choose the files that their text chooses, and never too few."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import pytest
from pyspark.sql import Column
from pyspark.sql import functions as F

from icefloe import Table
from icefloe.commands.bind import columns_named, has_subquery, lower_condition
from icefloe.errors import ConflictError
from icefloe.pruning.candidates import plan_files
from icefloe.spark.column_trees import ColumnReader, TypedLiteral, nodes_of
from support.column_forms import OTHERS, Form, random_forms
from support.races import once_before_publish
from support.random_conditions import SCHEMA, random_rows

ROWS = random_rows(seed=3, size=60)


@pytest.fixture
def table(lake) -> Table:
    """A file for each row."""
    table = lake.create_table("t", SCHEMA, partition_by=("id",))
    table.append(ROWS)
    return table


def kept(table: Table, where: str | Column) -> set[int]:
    """The ids of the rows in the files that a condition keeps."""
    state = table._state()
    lowered = lower_condition(where, state, ColumnReader(lambda: table._lake.spark))
    return {c.live.file.partition[0] for c in plan_files(state, lowered).candidates}


def matching(table: Table, conditions: Sequence[Column]) -> list[set[int]]:
    """The ids of the rows for which Spark says that a condition is TRUE."""
    results = [condition.alias(f"c{n}") for n, condition in enumerate(conditions)]
    rows = table.scan().select("id", *results).collect()
    return [{row[0] for row in rows if row[n + 1] is True} for n in range(len(conditions))]


# Columns whose text is another condition, or one that keeps every file.
OWN = [
    lambda: F.col("d") == 0.1,
    lambda: F.col("d") == float("nan"),
    lambda: F.col("d") >= float("nan"),
    lambda: F.col("d") < float("inf"),
    lambda: F.col("d") <= float("-inf"),
    lambda: F.col("d") == -0.0,
    lambda: F.col("f").isin(0.25, 1, 1.5),
    lambda: ~F.col("d").isin(0.1, 1),
    lambda: F.col("i") == 5.0,
    lambda: F.col("l") > 9.2e18,
    lambda: F.col("l") < -9.3e18,
    lambda: F.col("n") == 10.5,
    lambda: F.col("ts") > datetime(2024, 1, 1),
    lambda: F.col("ts").isin(datetime(2024, 1, 1, tzinfo=UTC), None),
    lambda: F.col("ntz") == datetime(2024, 1, 1, tzinfo=UTC),
    lambda: F.col("s").startswith("a"),
    lambda: F.col("s").startswith(""),
    lambda: F.col("s").startswith("a%"),
    lambda: ~F.col("s").startswith("a"),
    lambda: F.col("s").like("a\\%"),
    lambda: F.expr("s LIKE 'a!%' ESCAPE '!'"),
    lambda: ~F.expr("s LIKE 'aaB' ESCAPE 'a'"),
    lambda: F.expr("s LIKE 'aaB' ESCAPE 'a'") | (F.col("i") == 5),
    lambda: F.col("i").isin([]) | F.col("i").isNull(),
    lambda: ~F.col("i").isin([]),
    lambda: F.col("b").eqNullSafe(F.col("i") == 5),
    lambda: F.isnan("d") & (F.col("i") > 0),
    lambda: F.coalesce(F.col("b"), F.lit(True)),
    lambda: F.col("st.x") == 1,
]


def test_no_file_with_a_matching_row_is_skipped(table):
    forms = random_forms(seed=11, count=100)
    conditions = [form.column(F) for form in forms] + [own() for own in OWN]
    judged = matching(table, conditions)
    assert [n for n, c in enumerate(conditions) if not judged[n] <= kept(table, c)] == []
    assert [
        form.text for form in forms if kept(table, form.column(F)) != kept(table, form.text)
    ] == []
    assert sum(len(kept(table, form.column(F))) < len(ROWS) for form in forms) > 80


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"spark.sql.ansi.enabled": "false"},
        {"spark.sql.session.timeZone": "Europe/Berlin"},
        {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
    ],
    ids=["", "without ANSI", "in Berlin", "timestamps without a zone"],
)
def test_random_conditions(table, spark, seed, settings):
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        conditions = [form.column(F) for form in random_forms(100 + seed, 150)]
        conditions += [own() for own in OWN]
        judged = matching(table, conditions)
        assert [n for n, c in enumerate(conditions) if not judged[n] <= kept(table, c)] == []
    finally:
        for key in settings:
            spark.conf.unset(key)
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.every_variant
def test_other_conditions_keep_the_files_of_their_text(table):
    for form in OTHERS:
        assert kept(table, form.column(F)) == kept(table, form.text), form.text


def test_the_zone_of_the_active_session_does_not_matter(table, spark):
    """The literal is one instant, which a zone may have twice."""
    instant = datetime(2024, 10, 27, 0, 30, tzinfo=UTC)  # 2:30 in Berlin, for the first time
    condition = F.col("ts") > instant
    read = ColumnReader(lambda: spark).tree
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        in_berlin = read(condition)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert in_berlin == ColumnReader(lambda: spark).tree(condition)
    assert in_berlin.children[1].value == int(instant.timestamp()) * 1_000_000


DAYS = ["1582-10-04", "1582-10-10", "1582-10-15", "0001-01-01", "1500-02-28", "2011-12-30"]


@pytest.mark.parametrize("day", DAYS)
def test_a_date_is_of_the_calendar_and_zone_of_the_table(spark, day):
    """The JVM's dates lack days, and those before 1582 are of another calendar."""
    read = ColumnReader(lambda: spark).tree
    zones = spark._jvm.java.util.TimeZone
    before = zones.getDefault()
    condition = F.expr(f"day = DATE '{day}' AND s = 'x' AND day < DATE '2024-02-29'")
    zones.setDefault(zones.getTimeZone("Pacific/Apia"))  # which had no 30 December 2011
    try:
        tree = read(condition)
    finally:
        zones.setDefault(before)
    days = [n.value for n in nodes_of(tree) if isinstance(n, TypedLiteral) and n.type == "date"]
    assert days == [(date.fromisoformat(d) - date(1970, 1, 1)).days for d in (day, "2024-02-29")]


def test_other_dates_say_nothing(table):
    for day in ("-0044-03-15", "+12024-01-01"):
        assert kept(table, F.expr(f"day = DATE '{day}'")) == {row["id"] for row in ROWS}


def test_columns_of_other_rows_say_nothing(table, spark):
    other = spark.range(3)
    assert kept(table, other["id"] == 1) == {row["id"] for row in ROWS}


def test_subqueries_of_columns_are_found(spark):
    columns = ColumnReader(lambda: spark)
    rows = spark.range(3)
    reading = [
        F.col("i") == rows.select(F.max("id")).scalar(),
        rows.exists() & (F.col("i") == 1),
        F.col("i").isin(rows),
        F.expr("i IN (SELECT 1)"),
        F.expr("EXISTS (SELECT 1)"),
    ]
    assert [has_subquery(column, columns) for column in reading] == [True] * 5
    assert not has_subquery((F.col("i") == 1) | F.expr("s = 'subquery'"), columns)


def test_columns_that_conditions_name(spark):
    columns, names = ColumnReader(lambda: spark), ["id", "i", "l", "st", "s"]

    def named(column: Column) -> Any:
        return columns_named([column, "s = 'x'"], names, columns)

    assert named((F.col("t.I") == 1) & (F.col("st.x") > F.abs("l"))) == ["i", "l", "st", "s"]
    assert named(F.col("st")["x"] == 1) == ["st", "s"]
    assert named(F.udf(lambda value: value, "boolean")(F.col("i"))) is None
    assert named(F.struct("*").isNull()) is None


# -------------------------------------------------------------------------------------------------
# Statements


def three_files(table_of, **options: Any) -> Table:
    batches = [
        [{"id": 10 * f + n, "v": n, "day": f"2024-01-0{f}"} for n in range(3)] for f in (1, 2, 3)
    ]
    return table_of("id BIGINT, v INT, day STRING", *batches, **options)


WHERE = Form("id = 21", lambda F: F.col("id") == 21)
BY_SOURCE = Form("target.id >= 30", lambda F: F.col("target.id") >= 30)
ON = Form(
    "target.id = source.id AND target.v < 2",
    lambda F: (F.col("target.id") == F.col("source.id")) & (F.col("target.v") < 2),
)


def plans(table: Table, spark) -> dict[str, list[Any]]:
    """The plans of statements, with text and with Columns."""
    source = spark.createDataFrame([(20, 7), (40, 7)], "id BIGINT, v INT")

    def merge(on: Any, by_source: Any) -> Any:
        return (
            table.merge(source, on)
            .when_matched().update({"v": "source.v"})
            .when_not_matched_by_source(by_source).delete()
        )  # fmt: skip

    return {
        "delete": [table.delete().where(where) for where in (WHERE.text, WHERE.column(F))],
        "update": [
            table.update().set("v", "v + 1").where(where) for where in (WHERE.text, WHERE.column(F))
        ],
        "merge": [
            table.merge(source, on).when_matched().delete() for on in (ON.text, ON.column(F))
        ],
        "merge by source": [
            merge(ON.text, BY_SOURCE.text),
            merge(ON.column(F), BY_SOURCE.column(F)),
        ],
    }


def without_condition(plan: object) -> list[str]:
    lines = [line.split() for line in str(plan).splitlines()]
    return [" ".join(line) for line in lines if line[:1] not in (["where"], ["on"], ["when"])]


def test_plans_are_those_of_the_text(table_of, spark, mode):
    table = three_files(table_of, mode=mode)
    for name, (text, column) in plans(table, spark).items():
        text.explain()  # now all manifests are cached
        of_text, of_column = text.explain(), column.explain()
        assert of_column.files_skipped == of_text.files_skipped > 0, name
        assert of_column.files_skipped == (2 if "source" not in name else 1)
        assert without_condition(of_column) == without_condition(of_text), name


def test_scans_and_counts_read_the_files_of_the_text(table_of, jobs):
    table = three_files(table_of)
    before = jobs()
    assert table.count(where=F.col("id") < 30) == 6
    assert jobs() == before
    assert [row["id"] for row in table.scan(["id"], where=F.col("id") == 21).collect()] == [21]
    rows = table.scan(["id", "_file"], where=(F.col("id") == 21) & (F.col("v") % 2 == 1))
    assert len(rows.inputFiles()) == 1


@pytest.mark.parametrize("form", ["text", "column"])
def test_an_append_elsewhere_is_no_conflict(table_of, mode, form):
    table = three_files(table_of, mode=mode)
    once_before_publish(table._lake, lambda: append(table, 99))
    condition = WHERE.text if form == "text" else WHERE.column(F)
    assert table.delete().where(condition).execute().rows_deleted == 1
    assert table.count() == 9


def test_an_append_of_a_matching_row_is_a_conflict(table_of, mode):
    table = three_files(table_of, mode=mode)
    once_before_publish(table._lake, lambda: append(table, 21))
    with pytest.raises(ConflictError):
        table.delete().where(WHERE.column(F)).execute()
    assert table.count() == 10


def append(table: Table, row_id: int) -> None:
    table._lake.table(table.name).append([{"id": row_id, "v": 0, "day": "x"}])
