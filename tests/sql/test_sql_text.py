"""Texts of users: what is computed from them, and that it is computed once."""

from __future__ import annotations

import pytest
from sqlglot import exp

from icefloe.commands.merge.bind import qualify
from icefloe.spark import sql_text
from icefloe.spark.sql_text import SqlText, rename_tables, unqualified


def test_a_text_is_tokenized_and_parsed_once(monkeypatch):
    calls = []
    for name in ("tokenize", "parse_one", "find_tables"):
        function = getattr(sql_text, name)

        def counted(*args, _name=name, _function=function, **options):
            calls.append(_name)
            return _function(*args, **options)

        monkeypatch.setattr(sql_text, name, counted)
    text = SqlText("a = 1 AND b IN (SELECT c FROM ns.t)")

    for _ in range(2):
        assert SqlText.of(text) is text
        assert len(text.tokens) == 14
        assert text.tree is not None
        assert [str(name) for name in text.tables] == ["ns.t"]

    assert sorted(calls) == ["find_tables", "parse_one", "tokenize"]


def test_a_text_without_edits_stays_the_same_object():
    text = SqlText("target.id = source.id")

    assert rename_tables(text, []).text is text
    assert unqualified(text, [("ns", "t")]) is text
    assert qualify(text, ["n"], "target") is text


def test_what_sqlglot_cannot_parse_has_no_tree():
    assert SqlText("map(1)").tree is None
    assert SqlText("a = ").tree is None


@pytest.mark.parametrize("column", ["comment", "set", "update", "truncate", "use", "refresh"])
def test_a_column_may_have_the_name_of_a_statement(column):
    tree = SqlText(f"{column} = 1").tree

    assert isinstance(tree, exp.EQ)
    assert qualify(SqlText(f"{column} = 1"), [column], "target") == f"`target`.{column} = 1"
