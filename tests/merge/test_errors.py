"""A MERGE that is wrong is refused in our words; nothing changes, no file is left."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from icefloe.errors import (
    ColumnNotFoundError,
    ParseError,
    SchemaMismatchError,
    StatementError,
    TypeMismatchError,
)
from support.merge_rows import SCHEMA, row, triples
from support.tables import live_files, stored_files
from support.unreferenced_files import leftovers

pytestmark = pytest.mark.requirement("M33")

TARGET = [row(1, "us", 10), row(2, "eu", 20)]
ON = "target.id = source.id"


@pytest.fixture
def table(table_of, mode, partition_by):
    return table_of(SCHEMA, TARGET, mode=mode, partition_by=partition_by)


def merge_of(table, on=ON, **aliases):
    return table.merge([row(1, "us", 1, op="U"), row(3, "us", 3, op="I")], on, **aliases)


WRONG = {
    "no clause": (
        lambda t: merge_of(t),
        StatementError,
        "has no clause",
    ),
    "no condition": (
        lambda t: merge_of(t, " ").when_matched().delete(),
        StatementError,
        "has no condition",
    ),
    "no columns": (
        lambda t: merge_of(t, []).when_matched().delete(),
        StatementError,
        "list of columns is empty",
    ),
    "column twice": (
        lambda t: merge_of(t).when_matched().update({"n": "1", "N": "2"}),
        StatementError,
        "Column 'n' is assigned more than once",
    ),
    "column twice in insert": (
        lambda t: merge_of(t).when_not_matched().insert({"id": "id", "n": "1", "N": "2"}),
        StatementError,
        "Column 'n' is assigned more than once",
    ),
    "source column in a by-source clause": (
        lambda t: merge_of(t).when_not_matched_by_source("source.n > 1").delete(),
        StatementError,
        "source.n cannot be used in a clause for rows not matched by source",
    ),
    "source column in a by-source update": (
        lambda t: merge_of(t).when_not_matched_by_source().update({"n": "source.n"}),
        StatementError,
        "source.n cannot be used in a clause for rows not matched by source",
    ),
    "target column in an insert": (
        lambda t: merge_of(t).when_not_matched().insert({"id": "target.id"}),
        StatementError,
        "target.id cannot be used in a clause for rows not matched",
    ),
    "source column named bare in a by-source clause": (
        lambda t: merge_of(t).when_not_matched_by_source("op = 'D'").delete(),
        StatementError,
        "'op'",
    ),
    "ambiguous name in a clause": (
        lambda t: merge_of(t).when_matched("n > 1").delete(),
        StatementError,
        r"(?i)ambiguous",
    ),
    "ambiguous name in an update": (
        lambda t: merge_of(t).when_matched().update({"n": "n + 1"}),
        StatementError,
        r"(?i)ambiguous",
    ),
    "ambiguous name in the condition": (
        lambda t: merge_of(t, "target.id = id").when_matched().delete(),
        StatementError,
        r"(?i)ambiguous",
    ),
    "condition that is not deterministic": (
        lambda t: merge_of(t, f"{ON} AND rand() < 0.5").when_matched().delete(),
        StatementError,
        "not deterministic",
    ),
    "Column that is not deterministic": (
        lambda t: merge_of(t, (F.col("target.id") == F.col("source.id")) & (F.rand() < 0.5))
        .when_matched().delete(),
        StatementError,
        "not deterministic",
    ),
    "clause that is not deterministic": (
        lambda t: merge_of(t).when_matched("rand() < 0.5").delete(),
        StatementError,
        "not deterministic",
    ),
    "by-source clause that is not deterministic": (
        lambda t: merge_of(t).when_not_matched_by_source("uuid() > 'a'").delete(),
        StatementError,
        "not deterministic",
    ),
    "source lacks a column of insert_all": (
        lambda t: t.merge([{"id": 3, "region": "x"}], on=["id"]).when_not_matched().insert_all(),
        SchemaMismatchError,
        "The source lacks 'n', 'ts'",
    ),
    "source lacks a column of update_all": (
        lambda t: t.merge([{"id": 1, "n": 3}], on=["id"]).when_matched().update_all(),
        SchemaMismatchError,
        "The source lacks 'region', 'ts'",
    ),
    "unknown column in the condition": (
        lambda t: merge_of(t, "target.idd = source.id").when_matched().delete(),
        ColumnNotFoundError,
        "'target.idd'.*Did you mean 'target.id'",
    ),
    "unknown column among names": (
        lambda t: merge_of(t, ["id", "day"]).when_matched().delete(),
        ColumnNotFoundError,
        "'day'",
    ),
    "unknown column to set": (
        lambda t: merge_of(t).when_matched().update({"regon": "'x'"}),
        ColumnNotFoundError,
        "'regon'.*Did you mean 'region'",
    ),
    "unknown column to insert": (
        lambda t: merge_of(t).when_not_matched().insert({"op": "op"}),
        ColumnNotFoundError,
        "'op'",
    ),
    "unknown column in a value": (
        lambda t: merge_of(t).when_matched().update({"n": "source.nn"}),
        ColumnNotFoundError,
        "'source.nn'",
    ),
    "no SQL": (
        lambda t: merge_of(t, "target.id = = source.id").when_matched().delete(),
        ParseError,
        r"(?i)syntax",
    ),
    "condition that is no condition": (
        lambda t: merge_of(t).when_matched("source.n + 1").delete(),
        TypeMismatchError,
        "BOOLEAN",
    ),
    "value of another type": (
        lambda t: merge_of(t).when_matched().update({"n": "source.region"}),
        TypeMismatchError,
        "'n' expects int but got string",
    ),
    "value that does not fit": (
        lambda t: merge_of(t).when_matched().update({"n": "source.id + 3000000000"}),
        TypeMismatchError,
        "out of range",
    ),
    "both sides of one name": (
        lambda t: merge_of(t, "a.id = A.id", target_alias="a", source_alias="A")
        .when_matched().delete(),
        StatementError,
        "Both sides of the MERGE are called 'a'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_merges_are_refused(table_of, wrong):
    table = table_of(SCHEMA, TARGET)
    build, error, told = WRONG[wrong]
    before, files, stored = table.snapshot_id, live_files(table), stored_files(table)

    with pytest.raises(error, match=told) as caught:
        build(table).execute()

    assert "org.apache" not in str(caught.value)
    assert table.snapshot_id == before
    assert live_files(table) == files
    assert stored_files(table) == stored
    assert leftovers(table) == set()


@pytest.mark.requirement("X10")
def test_what_fails_while_rows_are_written_leaves_nothing(table):
    """Row 3 cannot be inserted, row 1 could have been updated."""
    before, stored = table.snapshot_id, stored_files(table)

    with pytest.raises(StatementError, match=r"(?i)divi") as caught:
        (
            merge_of(table)
            .when_matched().update({"n": "0"})
            .when_not_matched().insert({"id": "source.id", "n": "CAST(1 / (source.n - 3) AS INT)"})
            .execute()
        )  # fmt: skip

    assert "org.apache" not in str(caught.value)
    assert table.snapshot_id == before
    assert stored_files(table) == stored
    assert triples(table) == [(1, "us", 10), (2, "eu", 20)]
    assert leftovers(table) == set()


@pytest.mark.parametrize("given", [{}, None, [("n", "1")], "n = 1"], ids=repr)
def test_clause_takes_a_dict_of_columns(table_of, given):
    merge = table_of(SCHEMA).merge([row(1)], on=["id"])
    for clause in (merge.when_matched().update, merge.when_not_matched().insert):
        with pytest.raises(StatementError, match="takes a dict of column name to expression"):
            clause(given)


def test_source_with_a_column_twice_is_refused(table_of, spark):
    table = table_of(SCHEMA, TARGET)
    source = spark.sql("SELECT 1L AS id, 2 AS n, 3 AS N")
    with pytest.raises(StatementError, match="'N' twice"):
        table.merge(source, on=["id"]).when_matched().delete().execute()
    assert triples(table) == [(1, "us", 10), (2, "eu", 20)]


def test_explain_refuses_what_execute_refuses(table_of):
    table = table_of(SCHEMA, TARGET)
    with pytest.raises(StatementError, match="has no clause"):
        merge_of(table).explain()
    with pytest.raises(SchemaMismatchError, match="lacks 'region'"):
        table.merge([{"id": 1, "n": 3}], on=["id"]).when_matched().update_all().explain()


def test_builder_changes_nothing_before_execute_and_can_be_used_twice(table_of):
    """Every call gives a new statement; the first is not touched by what came after."""
    table = table_of(SCHEMA, TARGET)
    start = merge_of(table)
    deleting = start.when_matched().delete()
    inserting = start.when_not_matched().insert_all()

    assert triples(table) == [(1, "us", 10), (2, "eu", 20)]
    assert inserting.execute().clauses == (1,)
    assert deleting.execute().clauses == (2,)  # the row just inserted matches too
    assert triples(table) == [(2, "eu", 20)]
