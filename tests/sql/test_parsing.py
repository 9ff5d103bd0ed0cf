"""What statements are parsed into, and what is refused with its place; nothing is run."""

from __future__ import annotations

from typing import Any

import pytest

from icefloe.errors import ParseError
from icefloe.sql.parse import parse_statements
from icefloe.sql.syntax import WithDml


def parsed(text: str) -> Any:
    """The one statement of a text, without the WITH before it."""
    [numbered] = parse_statements(text)
    return numbered.parsed.statement if isinstance(numbered.parsed, WithDml) else numbered.parsed


def refused_at(text: str) -> tuple[str, str]:
    """The rest of the text from where it is refused, and the reason."""
    with pytest.raises(ParseError) as refused:
        parse_statements(text)
    assert refused.value.column is not None
    return text[refused.value.column - 1 :], str(refused.value)


MERGE = "MERGE INTO t USING s ON t.id = s.id WHEN NOT MATCHED THEN INSERT "


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("INSERT OVERWRITE t PARTITION () SELECT 1", "column = value"),
        ("INSERT INTO t () VALUES (1)", "a column"),
        ("INSERT INTO t () BY NAME SELECT 1", "a column"),
        ("INSERT INTO t REPLACE USING () SELECT 1", "a column"),
        (MERGE + "() VALUES ()", "a column"),
        (MERGE + "(id) VALUES ()", "a value"),
        ("ALTER TABLE t DROP COLUMN ()", "a column"),
        ("ALTER TABLE t ADD COLUMNS ()", "a column"),
        ("ALTER TABLE t SET TBLPROPERTIES ()", "a property"),
        ("CREATE TABLE t ()", "a column"),
        ("CREATE TABLE t (id INT) PARTITIONED BY ()", "a column"),
        ("CREATE TABLE t (id INT) TBLPROPERTIES ()", "a property"),
        ("CREATE TABLE t (id INT) WITH ()", "a property"),
    ],
)
def test_empty_lists_are_refused(text, what):
    place, reason = refused_at(text)
    assert place.startswith(")")
    assert f"Expected {what}, found ')'." in reason


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("ALTER TABLE t DROP COLUMN a b", "b"),
        ("ALTER TABLE t DROP COLUMN (a b)", "b)"),
        ("ALTER TABLE t DROP COLUMN a CASCADE", "CASCADE"),
        ("ALTER TABLE t DROP COLUMN IF EXISTS a, DROP COLUMN b", "COLUMN b"),
        ("INSERT INTO t (id name, n = 3) VALUES (1, 2)", "name, n = 3) VALUES (1, 2)"),
        ("INSERT INTO t (id, n = 3) VALUES (1, 2)", "= 3) VALUES (1, 2)"),
        ("INSERT INTO t REPLACE USING (id DESC) SELECT 1", "DESC) SELECT 1"),
        (MERGE + "(id + 1, n x) VALUES (1, 2)", "+ 1, n x) VALUES (1, 2)"),
    ],
)
def test_what_is_left_over_in_a_list_is_refused(text, place):
    found, reason = refused_at(text)
    assert found == place
    assert f"Expected a comma, found {place.split()[0].rstrip(',)')!r}." in reason


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("INSERT INTO t (id, n, ID) VALUES (1, 2, 3)", "ID)", "Column 'ID' is given twice."),
        ("INSERT INTO t REPLACE USING (id, id) SELECT 1", "id) S", "Column 'id' is given twice."),
        (MERGE + "(p.a, p.a) VALUES (1, 2)", "p.a)", "Column 'p.a' is given twice."),
        ("ALTER TABLE t DROP COLUMN a, a", "a", "Column 'a' is given twice."),
        ("INSERT OVERWRITE t PARTITION (d=1, D=2) SELECT 1", "D=2", "PARTITION gives 'D' twice."),
        (
            "CREATE TABLE t (a INT) PARTITIONED BY (a) PARTITIONED BY (b)",
            "PARTITIONED BY (b)",
            "The partitioning is given twice.",
        ),
        (
            "CREATE TABLE t (a INT) PARTITIONED BY (a) WITH (partitioning = ARRAY['b'])",
            "partitioning =",
            "The partitioning is given twice.",
        ),
        (
            "CREATE TABLE t (a INT) TBLPROPERTIES ('a' = '1') TBLPROPERTIES ('b' = '2')",
            "TBLPROPERTIES ('b'",
            "TBLPROPERTIES is given twice.",
        ),
        (
            "CREATE TABLE t (a INT) WITH (sorted_by = ARRAY['a'], sorted_by = ARRAY['b'])",
            "sorted_by = ARRAY['b']",
            "sorted_by is given twice.",
        ),
        ("CREATE TABLE t (a INT) USING iceberg USING iceberg", "USING", "USING is given twice."),
        (
            "INSERT INTO t (id) BY NAME SELECT 1 AS id",
            "BY NAME",
            "INSERT takes (columns) or BY NAME, not both.",
        ),
    ],
)
def test_what_is_given_twice_is_refused(text, place, reason):
    rest, message = refused_at(text)
    assert rest.startswith(place)
    assert reason in message


@pytest.mark.parametrize(
    ("columns", "added"),
    [
        ("m MAP<STRING, INT>", [("m", "MAP<STRING, INT>")]),
        ("(p STRUCT<a: STRING, b: INT>)", [("p", "STRUCT<a: STRING, b: INT>")]),
        ("p STRUCT<first: STRING>", [("p", "STRUCT<first: STRING>")]),
        (
            "(a ARRAY<MAP<STRING, DECIMAL(10, 2)>>, b STRUCT<> COMMENT '<', c INT)",
            [
                ("a", "ARRAY<MAP<STRING, DECIMAL(10, 2)>>"),
                ("b", "STRUCT<> COMMENT '<'"),
                ("c", "INT"),
            ],
        ),
        ("first INT, `default` STRING", [("first", "INT"), ("default", "STRING")]),
    ],
)
def test_commas_and_words_inside_of_a_type_belong_to_it(columns, added):
    found = parsed(f"ALTER TABLE t ADD COLUMNS {columns}").columns
    assert [(".".join(name), kind) for name, kind in found] == added


def test_a_place_for_a_new_column_is_refused_after_its_type():
    place, reason = refused_at("ALTER TABLE t ADD COLUMN p STRUCT<first: INT> AFTER q")
    assert place == "AFTER q"
    assert "AFTER is not supported: new columns are added last." in reason


def test_a_cast_to_a_nested_type_is_one_value():
    text = "UPDATE t SET a = x::MAP<STRING, INT>, b = y < 2, c = z::ARRAY<INT>[0] > 1, d = map > 3"
    assert [value.text for _, value in parsed(text).assignments] == [
        "x::MAP<STRING, INT>",
        "y < 2",
        "z::ARRAY<INT>[0] > 1",
        "map > 3",
    ]


@pytest.mark.parametrize(
    ("ctes", "names"),
    [
        ("c (SELECT 1 AS id)", ("c",)),
        ("c (id) (SELECT 1)", ("c",)),
        ("c (id, n) AS (SELECT 1, 2), d (VALUES 1)", ("c", "d")),
        ("c (FROM x), d (TABLE y)", ("c", "d")),
        ("RECURSIVE c (id) MAX RECURSION LEVEL 5 AS (SELECT 1)", ("c",)),
    ],
)
def test_a_cte_needs_no_as(ctes, names):
    [numbered] = parse_statements(f"WITH {ctes} INSERT INTO t SELECT * FROM c")
    assert numbered.parsed.ctes.names == names
    assert numbered.parsed.ctes.text.text == f"WITH {ctes}"


def test_a_cte_needs_a_query():
    place, reason = refused_at("WITH c SELECT 1")
    assert place == "SELECT 1"
    assert "Expected AS (a query), found 'SELECT'." in reason


@pytest.mark.parametrize("name", ["map", "values", "from", "table", "with", "reduce"])
def test_a_first_column_may_be_called_as_a_query_begins(name):
    assert parsed(f"INSERT INTO a.t ({name}, id) VALUES (1, 2)").columns == (name, "id")
    assert parsed(f"INSERT INTO a.t ({name}) VALUES (1)").columns == (name,)
    for kind in ("INT", "MAP<STRING, INT>", "DECIMAL(10, 2)", "STRING NOT NULL"):
        columns = f"{name} {kind}, id INT"
        assert parsed(f"CREATE TABLE a.t ({columns})").columns.text == columns


@pytest.mark.parametrize(
    "query",
    ["(SELECT date FROM x)", "(VALUES DATE '2024-01-01')", "(TABLE x)", "(FROM map SELECT 1)"],
)
def test_a_query_in_parentheses_is_no_list_of_columns(query):
    assert parsed(f"INSERT INTO t {query}").query.text == query
    assert parsed(f"CREATE TABLE t {query}").query.text == query


@pytest.mark.parametrize("call", ["map('a', 1)", "reduce(a, 0, (x, y) -> x + y)"])
def test_a_call_in_replace_where_begins_no_query(call):
    found = parsed(f"INSERT INTO t REPLACE WHERE m = {call} SELECT 1")
    assert (found.predicate.text, found.query.text) == (f"m = {call}", "SELECT 1")


@pytest.mark.parametrize("alias", ["AS s(id, n)", "s(id, n)", "AS s", "s"])
def test_the_source_of_a_merge_may_be_values(alias):
    for rows in ("VALUES (1, 2), (3, 4)", "VALUES 1, 2"):
        found = parsed(f"MERGE INTO t USING {rows} {alias} ON t.id = s.id WHEN MATCHED THEN DELETE")
        assert (found.source.text, found.source_name) == (f"{rows} {alias}", ("s",))
