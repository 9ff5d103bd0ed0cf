"""An expression is taken whole: no word of it is dropped as a name."""

from __future__ import annotations

import pytest

from icefloe.errors import ParseError, StatementError
from support.tables import rows

ROWS = [{"id": 1, "n": 1}, {"id": 2, "n": 2}, {"id": 3, "n": 3}]


@pytest.fixture
def table(table_of):
    return table_of("id BIGINT, n INT", ROWS)


@pytest.mark.parametrize(
    "text", ["id > 1 AND", "id > 1 OR", "id > 1 LIMIT", "id > 1 x", "id > 1 AS x", "id > 1 -- y\nx"]
)
def test_a_word_after_a_condition_is_refused(table, text):
    """Spark alone takes it for the condition's name, and `id > 1 AND` for `id > 1`."""
    merge = table.merge([{"id": 1, "n": 9}], on=f"target.{text.replace('1', 'source.id')}")
    for statement in (
        table.delete().where(text).execute,
        table.update().set("n", "0").where(text).execute,
        lambda: table.scan(where=text),
        merge.when_matched().delete().execute,
        table.merge([{"id": 1, "n": 9}], on=["id"]).when_matched(f"target.{text}").delete().execute,
    ):
        with pytest.raises(ParseError, match=r"\^"):
            statement()
    assert len(rows(table)) == 3


@pytest.mark.parametrize("text", ["1 b", "n + 1 AS n", "SELECT 7", "TABLE x", "VALUES (1)"])
def test_a_value_is_one_expression(table, text):
    with pytest.raises(StatementError):
        table.update().set("n", text).where("id = 1").execute()
    assert [row["n"] for row in table.scan().sort("id").collect()] == [1, 2, 3]


def test_parentheses_that_close_too_early_are_refused(table):
    with pytest.raises(ParseError):
        table.delete().where("id = 1) OR (id = 2").execute()
    assert table.count() == 3


def test_columns_called_like_the_beginning_of_a_query(table_of):
    table = table_of("`values` INT, `from` INT, `table` BOOLEAN", [
        {"values": 1, "from": 1, "table": True}, {"values": 2, "from": None, "table": False}
    ])  # fmt: skip

    assert table.scan(where="values > 1").count() == 1
    assert table.scan(where="from IS NULL").count() == 1
    assert table.scan(where="table").count() == 1
    assert table.delete().where("values IN (1) -- and no more").execute().rows_deleted == 1


def test_text_beside_a_subquery_stays_as_it_is(table_of, lake):
    table = table_of("id INT, name STRING", [{"id": 1, "name": "it's"}, {"id": 2, "name": "its"}])
    lake.create_table("q1", "id INT").append([{"id": 1}, {"id": 2}])

    table.delete().where("name = 'it\\'s' AND id IN (SELECT id FROM default.q1)").execute()

    assert rows(table) == [(2, "its")]


def test_subqueries_see_the_branch_that_is_changed(table_of):
    table = table_of("id INT", [{"id": 1}, {"id": 2}, {"id": 3}])
    name = table.name
    table.delete().where("id = 3").with_options(branch="dev").execute()

    count = f"(SELECT int(count(*)) FROM {name})"
    table.update().set("id", count).with_options(branch="dev").execute()

    dev = table.iceberg.metadata.refs["dev"].snapshot_id
    assert rows(table, snapshot_id=dev) == [(2,), (2,)]
    assert rows(table) == [(1,), (2,), (3,)]
