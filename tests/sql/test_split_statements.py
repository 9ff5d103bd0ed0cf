"""Statements of a text: semicolons count outside of quotes and comments only."""

from __future__ import annotations

import pytest

from icefloe.spark.tokens import TokenKind, tokenize
from icefloe.sql.cursor import Piece, is_complete, split_statements


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        (" ;; -- nothing\n /* no; */ ;", []),
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1;\n", ["SELECT 1"]),
        ("SELECT 1; SELECT 2", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';'; SELECT \";\"", ["SELECT ';'", 'SELECT ";"']),
        ("SELECT 'it''s;'; SELECT 2", ["SELECT 'it''s;'", "SELECT 2"]),
        (r"SELECT '\';'; SELECT 2", [r"SELECT '\';'", "SELECT 2"]),
        (r"SELECT r'\'; SELECT 2", [r"SELECT r'\'", "SELECT 2"]),
        ("SELECT `a;``b`; SELECT 2", ["SELECT `a;``b`", "SELECT 2"]),
        ("SELECT 1 -- no; 'quote\n; SELECT 2", ["SELECT 1", "SELECT 2"]),
        ("SELECT /* a; /* b; */ c; */ 1; SELECT 2", ["SELECT /* a; /* b; */ c; */ 1", "SELECT 2"]),
        ("SELECT 'open; SELECT 2", ["SELECT 'open; SELECT 2"]),
        ("SELECT $$a;b$$; SELECT 2", ["SELECT $$a;b$$", "SELECT 2"]),
        ("-- first\nSELECT 1 /* end */;", ["SELECT 1"]),
    ],
)
def test_semicolons_split_outside_of_quotes_and_comments(text, pieces):
    assert [piece.text for piece in split_statements(text)] == pieces


def test_a_statement_knows_its_line():
    text = "\n-- one\nSELECT 1;\n\nSELECT\n2"
    assert split_statements(text) == [Piece("SELECT 1", 3, 8), Piece("SELECT\n2", 5, 19)]


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", False),
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT 1; -- done;", True),
        ("SELECT 1; /* done */ \n", True),
        ("SELECT 1; SELECT", False),
        ("SELECT ';", False),
        ("SELECT `;", False),
        ("SELECT 1 /* ;", False),
        ("SELECT 1 -- ;", False),
        ("SELECT 'a;';", True),
        (r"SELECT 'a\';", False),
    ],
)
def test_a_text_is_complete_when_it_ends_with_a_semicolon_of_its_own(text, complete):
    assert is_complete(text) is complete


def test_tokens_are_those_of_spark():
    text = "a.`b``c`<=>1.5e3 AND x->y r'\\' 2BD /*+ hint */ \"q\" t.1a 10L 1t .5"
    found = tokenize(text)
    assert " ".join(token.text for token in found) == (
        "a . `b``c` <=> 1.5e3 AND x -> y r'\\' 2BD \"q\" t . 1a 10L 1t .5"
    )
    assert (found[2].kind, found[2].name) == (TokenKind.QUOTED, "b`c")
    assert [token.kind for token in found[-3:]] == [
        TokenKind.NUMBER,
        TokenKind.WORD,
        TokenKind.NUMBER,
    ]


@pytest.mark.parametrize(
    ("text", "open_from"),
    [
        ("SELECT 'a", 7),
        ("SELECT `a", 7),
        ("SELECT 'it''s", 7),
        (r"SELECT 'a\'", 7),
        ("SELECT r'a", 7),
        ("SELECT $$a", 7),
        ("SELECT /* ' */ 'a", 15),
        ("SELECT -- it's\n /* a", 16),
        ("SELECT 1 /* a /* b */ '", 9),
        ("/* a", 0),
    ],
)
def test_what_is_not_closed_is_the_last_token(text, open_from):
    last = tokenize(text)[-1]
    assert (last.kind, last.start, last.text) == (TokenKind.OPEN, open_from, text[open_from:])


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a -- b \\\n c\nd", ["a", "d"]),  # the backslash continues a comment in Spark
        ("'a\\\nb' c", ["'a\\\nb'", "c"]),
        ("GROUP BY x", ["GROUP", "BY", "x"]),
        ("SHOW TABLES", ["SHOW", "TABLES"]),
        ("N'a' X'1F'", ["N", "'a'", "X", "'1F'"]),
        ("1.5BD - .5e-3", ["1.5BD", "-", ".5e-3"]),
        ("a=.5 (.5) t.5", ["a", "=", ".5", "(", ".5", ")", "t", ".", "5"]),
        ("a:b.c::INT", ["a", ":", "b", ".", "c", "::", "INT"]),
        ("x /*+ hint */ y", ["x", "y"]),
        ("$tag$ $$ $tag$", ["$tag$ $$ $tag$"]),
        ("{{ x }}", ["{", "{", "x", "}", "}"]),
        ("{# x #}", ["{", "#", "x", "#", "}"]),
        ("größe_1", ["größe_1"]),
    ],
)
def test_tokens_of_what_sqlglot_has_otherwise(text, tokens):
    assert [token.text for token in tokenize(text)] == tokens
