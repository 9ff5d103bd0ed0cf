"""Expressions that Spark or we refuse, in every place where users write one.

Whatever is wrong with it, the error is an IcefloeError, shows no column of ours, and nothing is
changed. Values are of one row alone: no aggregates, window functions or generators.
"""

from __future__ import annotations

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from icefloe.errors import IcefloeError, StatementError
from support.tables import snapshots
from support.unreferenced_files import leftovers

SCHEMA = "a INT, b INT, s STRING, m MAP<STRING, INT>, l ARRAY<INT>"
ROWS = [
    {"a": 1, "b": 2, "s": "x", "m": {"k": 1}, "l": [1]},
    {"a": 3, "b": None, "s": None, "m": None, "l": None},
]
SOURCE = [{"k": 1, "v": 7}, {"k": 9, "v": 8}]
ON = "target.a = source.k"

VALUES = {
    "set": lambda t, e: t.update().set("b", e),
    "matched value": lambda t, e: t.merge(SOURCE, on=ON).when_matched().update({"b": e}),
    "by source value": lambda t, e: (
        t.merge(SOURCE, on=ON).when_not_matched_by_source().update({"b": e})
    ),
}
CONDITIONS = {
    "update": lambda t, e: t.update().set("b", "1").where(e),
    "delete": lambda t, e: t.delete().where(e),
    "on": lambda t, e: t.merge(SOURCE, on=e).when_matched().delete(),
    "matched": lambda t, e: t.merge(SOURCE, on=ON).when_matched(e).delete(),
    "by source": lambda t, e: t.merge(SOURCE, on=ON).when_not_matched_by_source(e).delete(),
    "replace": lambda t, e: t.replace_where(e, []).with_options(scope="rows"),
}
NOT_OF_ONE_ROW = {
    "max(a)": "aggregate",
    "1 + sum(a)": "aggregate",
    "count(*)": "aggregate",
    "collect_list(a)[0]": "aggregate",
    "row_number() OVER (ORDER BY a)": "window function",
    "1 + lag(a) OVER (PARTITION BY b ORDER BY a)": "window function",
    "explode(array(1, 2))": "generator",
    "explode(array())": "generator",
    "1 + explode(array(1, 2))": "generator",
    "explode_outer(l)": "generator",
    "posexplode(array(1))": "generator",
    "inline(array(struct(1)))": "generator",
    "stack(2, 1, 2)": "generator",
    "json_tuple(s, 'a', 'b')": "generator",
}
# One of each class of error that Spark's analyser has for expressions, and of ours and sqlglot's.
WRONG = [
    "map(1)",
    "nosuch(a)",
    "nosuchcolumn",
    "a.field",
    "a + m",
    "upper()",
    "cast(a AS nosuchtype)",
    "m['k'] = m",
    "CASE WHEN m THEN 1 END",
    "a IN ('x', m)",
    "(SELECT 1, 2)",
    "a +",
    "transform(l, x -> y)",
    "grouping(a)",
    "struct(*)",
    "named_struct('a')",
    "INTERVAL 1 foo",
    "x'zz'",
    "rand(a)",
    "window(a, '1 hour')",
    "input_file_name() = nosuch",
    "from_json(s, 'bad schema')",
    ":p",
    "?",
    "*",
    "a b",
]


def some(expressions, step):
    """Every third is in each run, the others are slow."""
    return [
        expression if number % step == 0 else pytest.param(expression, marks=pytest.mark.slow)
        for number, expression in enumerate(expressions)
    ]


@pytest.fixture
def table(table_of):
    return table_of(SCHEMA, ROWS)


@pytest.fixture
def unchanged(table):
    before = snapshots(table)
    yield
    assert snapshots(table) == before
    assert leftovers(table) == set()


def refused(statement, expression):
    """The error of a statement, made and explained or executed."""
    with pytest.raises(IcefloeError) as caught:
        statement.explain()
    with pytest.raises(IcefloeError) as again:
        statement.execute()
    assert str(again.value) == str(caught.value)
    assert "_icefloe" not in str(caught.value)
    return caught.value


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("expression", some(NOT_OF_ONE_ROW, 3))
def test_values_must_be_of_one_row(table, expression):
    """The error names the expression, and the column it is for."""
    kind = NOT_OF_ONE_ROW[expression]
    for place in VALUES.values():
        error = refused(place(table, expression), expression)
        assert isinstance(error, StatementError)
        for part in (expression, "'b'", kind):
            assert part in str(error)
    for place in CONDITIONS.values():
        error = refused(place(table, f"({expression}) > 1"), expression)
        assert isinstance(error, StatementError)


@pytest.mark.usefixtures("unchanged")
def test_columns_of_other_rows(table):
    """The same of PySpark's Columns."""
    over = F.row_number().over(Window.orderBy("a"))
    for column, kind in (
        (F.max("a"), "aggregate"),
        (over, "window"),
        (F.explode("l"), "generator"),
    ):
        with pytest.raises(StatementError, match=kind):
            table.update().set("b", column).execute()
    with pytest.raises(StatementError, match="star"):
        table.update().set("s", F.to_json(F.struct("*"))).execute()


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("expression", some(WRONG, 3))
def test_every_error_is_ours_and_shows_no_column_of_ours(table, expression):
    for place in (*VALUES.values(), *CONDITIONS.values()):
        refused(place(table, expression), expression)
    with pytest.raises(IcefloeError) as caught:
        table.scan(where=expression)
    assert "_icefloe" not in str(caught.value)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("expression", ["max(a)", "explode(array(1, 2))", "map(1)", "a + m", "a +"])
def test_the_same_in_sql(table, lake, expression):
    texts = (
        f"UPDATE {table.name} SET b = {expression}",
        f"DELETE FROM {table.name} WHERE {expression}",
        f"MERGE INTO {table.name} t USING s ON t.a = s.k WHEN MATCHED THEN UPDATE SET b = {expression}",
        f"MERGE INTO {table.name} t USING s ON {expression} WHEN MATCHED THEN DELETE",
        f"EXPLAIN UPDATE {table.name} SET b = {expression}",
    )
    for text in texts:
        with pytest.raises(IcefloeError) as caught:
            lake.sql(text, s=SOURCE)
        assert "_icefloe" not in str(caught.value)


def test_names_of_columns_with_stars_are_none(table):
    """A product is no star."""
    assert table.update().set("b", "a * 2").where("a * 1 = 1").execute().rows_updated == 1
    assert table.update().set("b", F.col("a") * 3).execute().rows_updated == 2
    assert table.delete().where(F.col("s").rlike("(zoo.*)")).execute().rows_deleted == 0
    named = F.regexp_extract("s", "(x.*)", 1)
    assert table.update().set("s", named).where(F.col("s") != "(*)").execute().rows_updated == 1
