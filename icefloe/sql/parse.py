"""Parse a SQL text into statements; nothing is run and no table is read."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from icefloe.errors import ParseError, StatementError
from icefloe.spark.table_names import QUERY_STARTS, closing, lists_names
from icefloe.sql.cursor import Cursor, split_statements
from icefloe.sql.parse_ddl import DDL, SHOW, parse_ddl, parse_show
from icefloe.sql.parse_dml import DML, parse_dml
from icefloe.sql.syntax import Ctes, Explain, Parsed, Query, WithDml

_HOW = ("EXTENDED", "FORMATTED", "COST", "CODEGEN")
_KNOWN = (*sorted(QUERY_STARTS), *DML, *DDL, *SHOW, "EXPLAIN")
_REFUSED = {
    "SET": "Use lake.spark.conf.set(name, value).",
    "RESET": "Use lake.spark.conf.unset(name).",
    "USE": "Write the namespace before the table: namespace.table.",
    "CALL": "Use the methods of a table: compact(), expire_snapshots(), rollback() and so on.",
    "VACUUM": "Use table.expire_snapshots() and table.remove_orphans().",
    "ANALYZE": "Iceberg stores statistics with each file.",
    "REFRESH": "Every statement reads the latest snapshot.",
    "CACHE": "Use lake.sql('SELECT …').cache().",
    "UNCACHE": "Use unpersist() of the DataFrame.",
    "GRANT": "Permissions are managed in the catalog and the storage.",
    "REVOKE": "Permissions are managed in the catalog and the storage.",
    "BEGIN": "Every statement is one commit of its own.",
    "START": "Every statement is one commit of its own.",
    "COMMIT": "Every statement is one commit of its own.",
    "ROLLBACK": "Use table.rollback(snapshot_id).",
    "RESTORE": "Use table.rollback(snapshot_id).",
    "REPLACE": "Use INSERT OVERWRITE, or DROP TABLE and CREATE TABLE.",
    "COPY": "Read the files with lake.spark.read and pass them as a source.",
    "LOAD": "Read the files with lake.spark.read and pass them as a source.",
    "COMMENT": "Give comments in CREATE TABLE.",
    "MSCK": "Iceberg stores partitions in its metadata.",
    "REPAIR": "Iceberg stores partitions in its metadata.",
    "DECLARE": "Put the value into the text, or pass it as a source.",
    "EXECUTE": "Pass the text to lake.sql.",
    "UNDROP": "A dropped table cannot be restored.",
    "ADD": "Use lake.spark.addArtifacts().",
    "LIST": "Use lake.spark.",
    "LOCK": "Commits are checked for conflicts instead.",
    "UNLOCK": "Commits are checked for conflicts instead.",
    "EXPORT": "Use lake.sql('SELECT …').write.",
    "UNLOAD": "Use lake.sql('SELECT …').write.",
}


@dataclass(frozen=True, slots=True)
class Numbered:
    """A parsed statement and its first line."""

    parsed: Parsed
    line: int


def parse_statements(text: str) -> list[Numbered]:
    """The statements of a text; raises a ParseError at the first one that cannot be parsed."""
    pieces = split_statements(text)
    if not pieces:
        raise ParseError("The text has no statement.")
    return [Numbered(_parse(Cursor(piece, text)), piece.line) for piece in pieces]


def _parse(cursor: Cursor) -> Parsed:
    word = cursor.word()
    if word == "EXPLAIN":
        return _explain(cursor)
    if word in DDL:
        return parse_ddl(cursor)
    if word in SHOW:
        return parse_show(cursor)
    if word in (*DML, *QUERY_STARTS, "("):
        return _query_or_dml(cursor)
    raise _refused(cursor)


def _explain(cursor: Cursor) -> Parsed:
    cursor.need("EXPLAIN")
    how = cursor.take_any(_HOW) or ""
    if cursor.word() == "OPTIMIZE":
        raise cursor.error("EXPLAIN OPTIMIZE is not supported: table.files() shows the files.")
    if cursor.word() not in (*DML, *QUERY_STARTS, "("):
        if cursor.word() in (*DDL, *SHOW, "EXPLAIN", "ANALYZE"):
            raise cursor.error(f"EXPLAIN {cursor.word()} is not supported: give a query or DML.")
        raise cursor.expected("a query or INSERT, UPDATE, DELETE or MERGE")
    return Explain(_query_or_dml(cursor), how)


def _query_or_dml(cursor: Cursor) -> Query | WithDml:
    start = cursor.at
    ctes = _ctes(cursor) if cursor.word() == "WITH" else None
    if cursor.word() in DML:
        return WithDml(parse_dml(cursor), ctes)
    if cursor.done() or (cursor.word() not in QUERY_STARTS and cursor.word() != "("):
        raise cursor.expected("SELECT, INSERT, UPDATE, DELETE or MERGE")
    if cursor.word() == "FROM":
        insert = cursor.find(lambda at: cursor.tokens[at].word == "INSERT")
        if insert < len(cursor.tokens):
            raise cursor.error("FROM … INSERT is not supported: INSERT INTO t SELECT … is.", insert)
    cursor.at = start
    return Query(cursor.rest("a query"))


def _ctes(cursor: Cursor) -> Ctes:
    """Read the WITH list before a statement."""
    start = cursor.at
    cursor.need("WITH")
    cursor.take("RECURSIVE")
    names = []
    while True:
        names.append(cursor.name("a name for the query"))
        if lists_names(cursor.tokens, cursor.at):
            cursor.at = closing(cursor.tokens, cursor.at) + 1
        if cursor.take("MAX", "RECURSION", "LEVEL"):
            cursor.next()
        cursor.take("AS")
        if cursor.word() != "(":
            raise cursor.expected("AS (a query)")
        cursor.at = closing(cursor.tokens, cursor.at) + 1
        if not cursor.take(","):
            return Ctes(cursor.slice(start, cursor.at), tuple(names))


def _refused(cursor: Cursor) -> StatementError:
    word = cursor.word()
    if word in _REFUSED:
        return cursor.error(f"{word} is not supported. {_REFUSED[word]}")
    near = get_close_matches(word, _KNOWN, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return cursor.error(
        f"Expected a statement such as SELECT, INSERT, UPDATE, DELETE, MERGE, CREATE TABLE, found "
        f"{cursor.tokens[cursor.at].text!r}.{hint}"
    )
