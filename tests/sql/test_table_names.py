"""Tables that a text names, and texts with other names in their place."""

from __future__ import annotations

import pytest

from icefloe.spark.sql_text import SqlText, rename_tables, unqualified
from icefloe.spark.table_names import Travel
from icefloe.sql.cursor import string_literal, string_value


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SELECT 1", []),
        ("a = 1 AND b IS DISTINCT FROM c", []),
        ("extract(YEAR FROM d) = trim(BOTH 'x' FROM s)", []),
        ("trim(FROM x) = 'a'", []),
        ("substring((a) FROM b) = overlay(x PLACING (y) FROM z)", []),
        ("SELECT extract(YEAR FROM d) FROM t", ["t"]),
        ("WITH a AS (SELECT 1) FROM a, t SELECT 1", ["t"]),
        ("SELECT a FROM t WHERE b IS NOT DISTINCT FROM c", ["t"]),
        ("x IN (SELECT y FROM a.b)", ["a.b"]),
        ("SELECT * FROM a, b x, c AS y WHERE 1 IN (2, 3)", ["a", "b", "c"]),
        ("SELECT * FROM a JOIN b ON a.x = b.x, c", ["a", "b", "c"]),
        ("SELECT * FROM (a CROSS JOIN (b JOIN c))", ["a", "b", "c"]),
        ("SELECT a, b FROM t ORDER BY a, b", ["t"]),
        ("SELECT * FROM ((SELECT * FROM a) UNION (SELECT * FROM b))", ["a", "b"]),
        ("SELECT from_unixtime(x), y FROM t", ["t"]),
        ("SELECT * FROM f(1, 2), t", ["t"]),
        ("SELECT * FROM f(TABLE(SELECT * FROM t))", ["t"]),
        ("SELECT * FROM VALUES (1), (2) AS v(a), t", ["t"]),
        ("SELECT * FROM VALUES 1, 2 AS v(x), q.people p", ["q.people"]),
        ("SELECT * FROM VALUES -1, X'1F', NULL, DATE '2024-01-01' v(x), t", ["t"]),
        ("SELECT * FROM VALUES (1, 2) v JOIN t ON true", ["t"]),
        ("SELECT * FROM VALUES (1)", []),
        ("SELECT * FROM t LATERAL VIEW explode(m) e AS k, v", ["t"]),
        (
            "SELECT * FROM t LATERAL VIEW OUTER explode(m) e AS k, v WHERE k IN (SELECT 1 FROM u)",
            ["t", "u"],
        ),
        ("SELECT * FROM t, LATERAL (SELECT * FROM u)", ["t", "u"]),
        ("SELECT * FROM t PIVOT (sum(x) FOR y IN (1, 2))", ["t"]),
        ("WITH t AS (SELECT * FROM t) SELECT * FROM t", ["t"]),
        ("WITH a AS (SELECT * FROM x), b AS (SELECT * FROM a) SELECT * FROM a, b", ["x"]),
        ("WITH a(i, j) AS (SELECT 1, 2 FROM x) SELECT * FROM A", ["x"]),
        ("WITH RECURSIVE r AS (SELECT 1 UNION ALL SELECT * FROM r, x) SELECT * FROM r", ["x"]),
        ("WITH a (SELECT * FROM x), b (SELECT * FROM a) SELECT * FROM a, b", ["x"]),
        ("WITH a (i, j) (SELECT 1, 2 FROM x) SELECT * FROM a", ["x"]),
        (
            "WITH RECURSIVE a AS (WITH i AS (SELECT 1) SELECT * FROM i), "
            "r AS (SELECT 1 UNION ALL SELECT * FROM r) SELECT * FROM a, r",
            [],
        ),
        (
            "WITH r AS (WITH RECURSIVE i AS (SELECT 1) SELECT * FROM i), "
            "t AS (SELECT * FROM t) SELECT * FROM r, t",
            ["t"],
        ),
        ("SELECT * FROM (WITH a AS (SELECT 1) SELECT * FROM a), a", ["a"]),
        ("SELECT * FROM `from`.`select` `where`", ["from.select"]),
        ("SELECT t.`from`, 'FROM x', \"FROM y\" /* FROM z */ FROM t -- FROM w", ["t"]),
        ("SELECT t.from, t.join FROM t", ["t"]),
        ("TABLE t", ["t"]),
        ("SELECT 1 UNION ALL TABLE t", ["t"]),
        ("FROM t |> JOIN u ON true |> WHERE x", ["t", "u"]),
        ("SELECT count(*) FILTER (WHERE x) OVER (PARTITION BY a, b) FROM t", ["t"]),
        ("SELECT * FROM ns.t.files f", ["ns.t.files"]),
        ("SELECT a FROM t GROUP BY a, b HAVING x > (SELECT 1 FROM u, v)", ["t", "u", "v"]),
    ],
)
def test_tables_stand_where_the_grammar_has_relations(text, names):
    assert sorted(map(str, SqlText(text).query_tables)) == sorted(names)


@pytest.mark.parametrize(
    ("travel", "version"),
    [
        ("VERSION AS OF 5", "5"),
        ("FOR VERSION AS OF 'tag'", "'tag'"),
        ("FOR SYSTEM_VERSION AS OF 5", "5"),
        ("TIMESTAMP AS OF '2024-01-01'", "'2024-01-01'"),
        ("FOR SYSTEM_TIME AS OF now()", "now()"),
        ("TIMESTAMP AS OF now() - INTERVAL 1 DAY", "now() - INTERVAL 1 DAY"),
        ("TIMESTAMP AS OF now() - INTERVAL '1 day'", "now() - INTERVAL '1 day'"),
        ("TIMESTAMP AS OF now() - INTERVAL '1' DAY", "now() - INTERVAL '1' DAY"),
        ("TIMESTAMP AS OF now() - INTERVAL 1 DAY 2 HOURS", "now() - INTERVAL 1 DAY 2 HOURS"),
        (
            "TIMESTAMP AS OF (now() - INTERVAL '1 2' DAY TO HOUR)",
            "(now() - INTERVAL '1 2' DAY TO HOUR)",
        ),
        (
            "TIMESTAMP AS OF DATE '2024-01-01' + INTERVAL 1 HOUR",
            "DATE '2024-01-01' + INTERVAL 1 HOUR",
        ),
        ("TIMESTAMP AS OF '2024-01-01'::TIMESTAMP", "'2024-01-01'::TIMESTAMP"),
    ],
)
@pytest.mark.parametrize("after", ["", " x", " AS x", " WHERE true", " JOIN u ON true"])
def test_time_travel_ends_where_its_expression_ends(travel, version, after):
    name = SqlText(f"SELECT * FROM ns.t {travel}{after}").query_tables[0]
    assert (str(name), name.version) == ("ns.t", version)
    assert name.travel is (Travel.VERSION if "VERSION" in travel else Travel.TIMESTAMP)
    assert (name.alias_at is None) == after.endswith("x")


@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        ("SELECT * FROM ns.t", "SELECT * FROM v AS `t`"),
        ("SELECT * FROM ns.t x", "SELECT * FROM v x"),
        ("SELECT * FROM ns.t AS x", "SELECT * FROM v AS x"),
        ("SELECT ns.t.a FROM ns.t", "SELECT t.a FROM v AS `t`"),
        ("SELECT t.a FROM ns.t WHERE NS.T.a = 1", "SELECT t.a FROM v AS `t` WHERE T.a = 1"),
        ("SELECT x.ns.t.a FROM ns.t", "SELECT x.ns.t.a FROM v AS `t`"),
        ("SELECT 'ns.t.a' FROM ns.t -- ns.t.a", "SELECT 'ns.t.a' FROM v AS `t` -- ns.t.a"),
        ("SELECT * FROM ns.t TABLESAMPLE (5 ROWS)", "SELECT * FROM v TABLESAMPLE (5 ROWS) AS `t`"),
        ("SELECT * FROM t VERSION AS OF 1 LIMIT 1", "SELECT * FROM v AS `t` LIMIT 1"),
        ("SELECT * FROM `o``dd`", "SELECT * FROM v AS `o``dd`"),
    ],
)
def test_only_names_are_replaced(text, renamed):
    spliced = rename_tables(SqlText(text), [(name, "v") for name in SqlText(text).query_tables])
    assert spliced.text == renamed
    last = len(renamed) - 1
    if renamed[last] == text[-1] != "`":
        assert spliced.origin(last) == len(text) - 1


def test_columns_of_a_table_without_an_alias_lose_their_namespace():
    text = "ns.t.a = 1 AND b IN (SELECT c FROM ns.t.files)"
    assert (
        unqualified(SqlText(text), [("ns", "t")]) == "t.a = 1 AND b IN (SELECT c FROM ns.t.files)"
    )


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("'a'", "a"),
        ('"a"', "a"),
        ("'it''s'", "it's"),
        (r"'it\'s'", "it's"),
        (r"'\n\t\\\0'", "\n\t\\\0"),
        (r"'\u0041\U0001F600\101'", "A😀A"),
        (r"'100\%'", r"100\%"),
        (r"r'\n'", r"\n"),
        (r"'\q'", "q"),
        ("$$it's$$", "it's"),
        ("$x$a$$b$x$", "a$$b"),
    ],
)
def test_string_literals_are_read_as_spark_reads_them(literal, value, spark):
    assert string_value(literal) == value
    if not literal.startswith("$"):
        assert spark.sql(f"SELECT {literal}").first()[0] == value


@pytest.mark.parametrize("value", ["it's", "a\\b", "line\nbreak", '"', "\\'", ""])
def test_a_literal_that_is_written_is_read_again(value, spark):
    assert string_value(string_literal(value)) == value
    assert spark.sql(f"SELECT {string_literal(value)}").first()[0] == value
