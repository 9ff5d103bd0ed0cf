"""Statements and reads of inline rows that Spark is not asked for, compared with those it runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType
from pyspark.sql import DataFrame

from icefloe import Lake, Table
from icefloe.commands.bind import bind_assignments
from icefloe.commands.local_bind import bind_locally, lower_locally
from icefloe.commit.handover import InlineHandover
from icefloe.errors import (
    ColumnNotFoundError,
    ConflictError,
    NullabilityError,
    StatementError,
    TypeMismatchError,
)
from icefloe.lake import open_catalog
from icefloe.metadata.table_state import TableState, state_of
from icefloe.schema.to_spark import spark_schema
from icefloe.settings import UpdateKind
from icefloe.spark.column_trees import ColumnReader
from icefloe.statements import RowStatement
from support.races import once_before_publish
from support.random_conditions import ODD, SCHEMA, random_conditions, random_rows

INLINE = {"icefloe.inline.enabled": "true"}
ROWS = random_rows(seed=3, size=120)


class NoSpark:
    """A session that nothing can be asked of."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"Spark was used: {name}")


@pytest.fixture
def sparkless(tmp_path: Path) -> Iterator[Lake]:
    """A lake whose session fails."""
    with Lake(open_catalog(tmp_path / "lake", None, {})) as lake:
        lake._spark = NoSpark()  # type: ignore[assignment]
        yield lake


def state(table: Table) -> TableState:
    return state_of(table.iceberg, table.name)


def ids(table: Table, where: str | None = None) -> list[int]:
    """The ids of inline rows, read without Spark."""
    current = state(table)
    lowered = lower_locally(where, current)
    assert lowered is not None, where
    cut = table._lake.tier.cut(current, lowered.inclusive)
    assert cut is not None
    assert cut.is_exact, where
    return cut.arrow().column("id").to_pylist()


# -------------------------------------------------------------------------------------------------
# Conditions


@pytest.fixture
def full(lake: Lake) -> Table:
    """A table with all rows inline."""
    table = lake.create_table("x.t", SCHEMA, properties=INLINE)
    table.insert(ROWS)
    return table


def judged(rows: DataFrame, conditions: list[str]) -> list[set[int]]:
    """For each condition the ids of the rows that Spark says TRUE for, by one query."""
    columns = [f"coalesce(({text}), false) AS p{n}" for n, text in enumerate(conditions)]
    found = rows.alias("t").selectExpr("id", *columns).toArrow().to_pydict()
    return [
        {i for i, is_true in zip(found["id"], found[f"p{n}"], strict=True) if is_true}
        for n in range(len(conditions))
    ]


@pytest.mark.requirement("X03")
def test_conditions_that_are_certain_select_the_rows_that_spark_selects(full, spark):
    texts = random_conditions(seed=5, count=300)
    current = state(full)
    certain = [text for text in texts if lower_locally(text, current) is not None]
    assert len(certain) > 250  # some lists mix kinds of literals
    frame = spark.createDataFrame(full.scan().toArrow())
    for text, expected in zip(certain, judged(frame, certain), strict=True):
        assert set(ids(full, text)) == expected, text


def test_spark_accepts_what_is_certain_and_says_the_same(full, spark):
    current = state(full)
    frame = spark.createDataFrame(full.scan().toArrow()).alias("t")
    certain = [text for text in ODD if lower_locally(text, current) is not None]
    assert 50 < len(certain) < len(ODD)
    for ansi in ("true", "false"):
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        try:
            for text in certain:
                expected = {row.id for row in frame.filter(text).select("id").collect()}
                assert set(ids(full, text)) == expected, text
        finally:
            spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.parametrize(
    "text",
    ["nosuch = 1 AND FALSE", "I = 1", "T.i = 1", "i LIKE NULL", "NULL", "s = 'a''b'", "i IN (1,)",
     "st.x = 1", "ts = '2024-01-01'", "rand() < 1", "i IN (SELECT 1)", "i = 1 -- x", ""],
)  # fmt: skip
def test_conditions_in_doubt_are_left_to_spark(sparkless, text):
    table = sparkless.create_table("x.t", SCHEMA, properties=INLINE)
    assert lower_locally(text, state(table)) is None
    with pytest.raises(AssertionError, match="Spark was used"):
        table.delete().where(text).execute()


def test_a_struct_named_like_the_table_is_in_doubt(sparkless):
    table = sparkless.create_table("x.st", SCHEMA, properties=INLINE)
    assert lower_locally("st.x = 1", state(table)) is None
    assert lower_locally("i = 1", state(table)) is None


# -------------------------------------------------------------------------------------------------
# Values

VALUES: list[tuple[str, Any]] = [
    *(("i", v) for v in ("5", "-5", "2147483647", "-2147483648", "2147483648", "5L", "5.0", "NULL")),
    *(("i", v) for v in (5, -1, 2**31 - 1, 2**31, True, 1.0, None, "'5'", "TRUE", "i", "1 + 1")),
    *(("l", v) for v in ("5", "9223372036854775807", "-9223372036854775808", 2**62, 2**63, "1e3")),
    *(("d", v) for v in ("5", "1.5", "-1.5", "0.1", "1e20", "0", "-0.0", "-0e0", "1.5D", "'1.5'")),
    *(("d", v) for v in (0.1, 1e300, math.nan, math.inf, -math.inf, -0.0, 5, Decimal("1.5"))),
    *(("f", v) for v in ("1.5", "0.1", "5", "0.25", 0.25, 0.1)),
    *(("n", v) for v in ("5", "1.5", "1.50", "-0.01", "1.005", "999999999999999999.99", "1e2")),
    *(("n", v) for v in ("1000000000000000000", Decimal("1.5"), 5, 1.5)),
    *(("s", v) for v in ("'a'", "''", "'é😀'", "'a''b'", "'a' 'b'", "'a\\\\n'", '"a"', "5", "NULL")),
    *(("s", v) for v in ("s", "TRUE", "DATE '2024-01-01'", 5)),
    *(("day", v) for v in ("DATE '2024-02-29'", "DATE'0001-01-01'", "'2024-01-01'", "NULL")),
    *(("day", v) for v in (date(2024, 2, 29), date(1, 1, 1), date(1500, 1, 1), datetime(2024, 1, 1))),
    *(("ts", v) for v in ("TIMESTAMP '2024-01-01 00:00:00Z'", "NULL", "DATE '2024-01-01'")),
    *(("b", v) for v in ("TRUE", "false", True, False, 1, "1", "NULL", "'true'")),
    *(("st", v) for v in ("NULL", None)),
    ("id", "NULL"),
    ("I", "5"),
    ("nosuch", "5"),
]  # fmt: skip


def test_values_that_are_certain_are_what_spark_stores(lake, spark):
    first, *others = SCHEMA.fields
    schema = Schema(first.model_copy(update={"required": True}), *others)
    current = state(lake.create_table("x.t", schema, properties=INLINE))
    certain: dict[str, Any] = {}
    stored = []
    one = spark.range(1).selectExpr(*(f"NULL AS {f.name}" for f in current.schema.fields))
    for number, (name, value) in enumerate(VALUES):
        bound = bind_locally(
            RowStatement(UpdateKind.UPDATE, None, ((name, value),)),
            current,
            ColumnReader(lambda: spark),
        )
        if bound is not None:
            certain[f"v{number}"] = bound.assigned[name].as_py()
            new = bind_assignments(
                ((name, value),), one, spark_schema(current.schema), lambda text: text
            )
            stored.append(new[name].alias(f"v{number}"))
    [row] = one.select(*stored).toArrow().to_pylist()
    assert len(certain) > 30
    wrong = {
        str(VALUES[int(key[1:])]): (value, row[key])
        for key, value in certain.items()
        if repr(value) != repr(row[key])  # NaN equals itself, and -0.0 is not 0.0
    }
    assert wrong == {}


# -------------------------------------------------------------------------------------------------
# UPDATE and DELETE

FEW = [{"id": n, "region": "eu" if n % 2 else "us", "n": n} for n in range(6)]
FEW_SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "n", IntegerType(), required=False),
    NestedField(4, "d", DoubleType(), required=False),
)


def few(lake: Lake, **options: Any) -> Table:
    table = lake.create_table("x.few", FEW_SCHEMA, properties=INLINE, **options)
    table.insert([{**row, "d": math.nan if row["id"] == 5 else row["id"] / 2} for row in FEW])
    return table


@pytest.mark.requirement("L17", "L21", "L23", "L24", "L25", "X09")
@pytest.mark.parametrize("partition_by", [(), ("region",)], ids=["unpartitioned", "partitioned"])
def test_statements_on_inline_rows_use_no_spark(sparkless, partition_by):
    table = few(sparkless, partition_by=partition_by)
    cut = table._lake.tier.cut(state(table))
    result = table.update().set("n", "50").set("region", "NULL").where("id = 5").execute()
    assert (result.mode, result.rows_updated, result.snapshot_id) == ("inline", 1, None)
    assert ids(table, "n = 50 AND region IS NULL") == [5]
    assert table._lake.tier.cut(state(table)).rows.row_ids == cut.rows.row_ids
    result = table.delete().where("d > 1.5").execute()  # NaN is the largest
    assert (result.mode, result.rows_deleted) == ("inline", 2)
    assert ids(table) == [0, 1, 2, 3]
    result = table.delete().where("few.id = 77").execute()
    assert (result.rows_deleted, result.snapshot_id) == (0, None)
    assert table.update().set("n", 0).execute().rows_updated == 4
    assert ids(table, "n = 0") == [0, 1, 2, 3]
    assert table.delete().execute().rows_deleted == 4
    assert table.snapshot_id is None


def test_updates_keep_every_other_value(sparkless):
    table = sparkless.create_table("x.t", SCHEMA, properties=INLINE)
    table.insert(ROWS)
    before = table._lake.tier.cut(state(table)).arrow()
    table.update().set("i", "7").execute()
    after = table._lake.tier.cut(state(table)).arrow()
    assert after.column("i").to_pylist() == [7] * len(ROWS)
    for name in set(before.column_names) - {"i"}:
        assert repr(after.column(name).to_pylist()) == repr(before.column(name).to_pylist())


def test_added_and_renamed_columns(sparkless):
    table = few(sparkless)
    with table.iceberg.update_schema() as update:
        update.add_column("extra", StringType())
    table.rename_column("n", "m")
    assert table.update().set("extra", "'x'").where("m = 2").execute().rows_updated == 1
    assert ids(table, "extra = 'x'") == [2]
    assert table.delete().where("extra IS NULL").execute().rows_deleted == 5


def test_files_that_cannot_have_such_rows_are_not_read(lake, jobs):
    table = few(lake)
    table.append([{"id": n, "region": "eu", "n": n, "d": 0.5} for n in range(100, 200)])
    before, files = jobs(), table.snapshot_id
    assert table.update().set("n", "1").where("id = 3").execute().mode == "inline"
    assert table.delete().where("id < 3").execute().mode == "inline"
    assert (jobs(), table.snapshot_id) == (before, files)
    table.set_properties({"icefloe.inline.deletes": False})
    both = table.delete().where("id IN (3, 150)").execute()
    assert (both.rows_deleted, both.snapshot_id is None) == (2, False)
    assert jobs() == before
    assert table.update().set("n", "n + 1").where("id IN (4, 151)").execute().rows_updated == 2
    assert jobs() > before


@pytest.mark.parametrize(
    ("assignments", "where", "error"),
    [
        ({"n": "5"}, "nosuch = 5", ColumnNotFoundError),
        ({"n": "5"}, "nosuch = 5 AND FALSE", ColumnNotFoundError),
        ({"nosuch": "5"}, "id = 5", ColumnNotFoundError),
        ({"n": "'five'"}, "id = 5", TypeMismatchError),
        ({"n": "3000000000"}, "id = 5", TypeMismatchError),
        ({"id": "NULL"}, "id = 5", NullabilityError),
        ({"id": None}, "id = 5", NullabilityError),
        ({"n": "5"}, "id", StatementError),
        ({"n": "5"}, "id = 5 AND", StatementError),
        ({"n": "5", "N": "6"}, "id = 5", StatementError),
    ],
)
def test_errors_are_those_of_spark(lake, assignments, where, error):
    table = few(lake)
    statement = table.update().where(where)
    for name, value in assignments.items():
        statement = statement.set(name, value)
    with pytest.raises(error):
        statement.execute()
    assert ids(table, "n = 5") == [5]


def test_concurrent_changes_are_conflicts(sparkless):
    table = few(sparkless)
    once_before_publish(
        sparkless, lambda: sparkless.table("x.few").update().set("n", "9").where("id = 1").execute()
    )
    with pytest.raises(ConflictError):
        table.delete().where("id = 1").execute()
    once_before_publish(
        sparkless, lambda: table.insert([{"id": 40, "region": None, "n": 9, "d": None}])
    )
    with pytest.raises(ConflictError):
        table.delete().where("n = 9").execute()
    assert ids(table, "n = 9") == [1, 40]


def test_the_plan_is_explained_without_spark(sparkless):
    table = few(sparkless)
    plan = table.delete().where("id = 1").explain()
    assert (plan.files, plan.operation) == ((), "delete")


def test_a_row_that_comes_to_match_concurrently_is_a_conflict(sparkless):
    table = few(sparkless)
    once_before_publish(
        sparkless, lambda: sparkless.table("x.few").update().set("n", "3").where("id = 1").execute()
    )
    with pytest.raises(ConflictError):
        table.delete().where("n = 3").execute()
    assert ids(table, "n = 3") == [1, 3]


def test_other_rows_and_tables_that_change_concurrently_are_none(sparkless):
    table = few(sparkless)
    other = sparkless.create_table("x.other", FEW_SCHEMA, properties=INLINE)
    row = {"id": 40, "region": None, "n": 9, "d": None}
    once_before_publish(sparkless, lambda: other.insert([row]))
    assert table.delete().where("n = 3").execute().rows_deleted == 1
    once_before_publish(sparkless, lambda: table.insert([row]))
    assert table.update().set("n", "7").where("n = 4").execute().rows_updated == 1
    assert ids(table, "n >= 4") == [4, 5, 40]


def test_conditions_are_not_searched_for_again_if_nothing_changed(sparkless, monkeypatch):
    table = few(sparkless)
    searched = []
    monkeypatch.setattr(
        InlineHandover, "_refuse_unread", lambda *arguments: searched.append(arguments)
    )
    table.delete().where("n = 3").execute()
    assert searched == []
    once_before_publish(sparkless, lambda: table.insert([{**FEW[0], "id": 41, "d": None}]))
    table.delete().where("n = 4").execute()
    assert len(searched) == 1


@pytest.mark.requirement("L14")
def test_metadata_is_read_once_for_a_statement_on_inline_rows(sparkless, monkeypatch):
    table, loaded = few(sparkless), []
    load = SqlCatalog.load_table
    monkeypatch.setattr(
        SqlCatalog, "load_table", lambda self, name: loaded.append(name) or load(self, name)
    )
    table.update().set("n", "7").where("id = 1").execute()
    assert len(loaded) == 1
    once_before_publish(sparkless, lambda: table.insert([{**FEW[0], "id": 41, "d": None}]))
    loaded.clear()
    table.delete().where("id = 2").execute()
    assert len(loaded) <= 2


def test_a_commit_beside_a_statement_on_inline_rows_costs_no_retry(sparkless):
    """The statement does not look at the table again before its first transaction."""
    table = few(sparkless)
    table.set_properties({"commit.retry.num-retries": "0"})
    once_before_publish(sparkless, lambda: table.set_properties({"a": "b"}))
    result = table.delete().where("id = 2").execute()
    assert (result.mode, result.rows_deleted) == ("inline", 1)
    assert ids(table) == [0, 1, 3, 4, 5]
