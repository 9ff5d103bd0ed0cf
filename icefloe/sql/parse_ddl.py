"""Parse CREATE, DROP, ALTER, DESCRIBE and SHOW."""

from __future__ import annotations

import json

from icefloe.errors import StatementError
from icefloe.spark.table_names import QUERY_STARTS
from icefloe.spark.tokens import TokenKind
from icefloe.sql.cursor import Cursor
from icefloe.sql.ddl import add_property, parse_properties, parse_property
from icefloe.sql.syntax import (
    AddColumns,
    CreateIndex,
    CreateNamespace,
    CreateTable,
    Ddl,
    Describe,
    DropColumns,
    DropIndex,
    DropTable,
    Name,
    RenameColumn,
    RenameTable,
    SetProperties,
    Show,
    ShowCreateTable,
    ShowIndexes,
    ShowNamespaces,
    ShowProperties,
    ShowTables,
    Slice,
)

DDL = ("CREATE", "DROP", "ALTER")
SHOW = ("DESCRIBE", "DESC", "SHOW")
_SIZED = ("DECIMAL", "DEC", "NUMERIC", "CHAR", "CHARACTER", "VARCHAR")
_TYPES = (
    *("BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG"),
    *("FLOAT", "REAL", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"),
    *("STRING", "BINARY", "ARRAY", "MAP", "STRUCT", *_SIZED),
)
_AFTER_TYPE = (",", ")", "<", "NOT", "COMMENT")
_NAMESPACE = ("NAMESPACE", "SCHEMA", "DATABASE")
_NAMESPACES = ("NAMESPACES", "SCHEMAS", "DATABASES")


def parse_ddl(cursor: Cursor) -> Ddl:
    """Read the statement whose first word is next."""
    match cursor.next().word:
        case "CREATE":
            statement: Ddl = _create(cursor)
        case "DROP":
            statement = _drop(cursor)
        case _:
            statement = _alter(cursor)
    cursor.finish()
    return statement


def parse_show(cursor: Cursor) -> Show:
    """Read a DESCRIBE or SHOW, whose first word is next."""
    statement = _show(cursor) if cursor.next().word == "SHOW" else _describe(cursor)
    cursor.finish()
    return statement


def _create(cursor: Cursor) -> Ddl:
    if cursor.take_any(_NAMESPACE):
        exists = cursor.take("IF", "NOT", "EXISTS")
        return CreateNamespace(cursor.dotted("a namespace"), exists)
    if cursor.word() == "OR":
        raise cursor.error(
            "CREATE OR REPLACE is not supported: a new table would lose the old one's history. "
            "Use INSERT OVERWRITE, or DROP TABLE and CREATE TABLE."
        )
    if cursor.take("INDEX"):
        return _create_index(cursor)
    if not cursor.take("TABLE"):
        raise _unsupported(cursor, "CREATE", "CREATE TABLE, CREATE NAMESPACE and CREATE INDEX are.")
    exists = cursor.take("IF", "NOT", "EXISTS")
    table = cursor.dotted()
    columns = None
    if cursor.word() == "(" and (cursor.word(1) not in QUERY_STARTS or _is_column(cursor)):
        start = cursor.at + 1
        cursor.parenthesised("a column", types=True)
        columns = cursor.slice(start, cursor.at - 1)
    return _Create(table, columns, exists).clauses(cursor)


def _is_column(cursor: Cursor) -> bool:
    """Whether the parenthesis starts with a column: `(values INT)`, not `(VALUES 1)`."""
    if cursor.word(1) == "SELECT" or cursor.word(2) not in _TYPES:
        return False
    sized = cursor.word(2) in _SIZED and cursor.word(3) == "("
    return sized or cursor.word(3) in _AFTER_TYPE


class _Create:
    """Collects the clauses of a CREATE TABLE."""

    def __init__(self, table: Name, columns: Slice | None, if_not_exists: bool) -> None:
        self._table = table
        self._columns = columns
        self._if_not_exists = if_not_exists
        self._partition_by: tuple[str, ...] = ()
        self._sort_by: tuple[str, ...] = ()
        self._properties: dict[str, str] = {}
        self._clauses: set[str] = set()

    def clauses(self, cursor: Cursor) -> CreateTable:
        """Read the clauses, in any order, and the query."""
        while not cursor.done() and self._clause(cursor):
            pass
        query = None
        if cursor.take("AS") or cursor.word() in QUERY_STARTS | {"("}:
            query = cursor.rest("a query")
        if query is None and self._columns is None:
            raise cursor.expected("(columns) or AS SELECT")
        if query is not None and self._columns is not None:
            raise StatementError(
                "CREATE TABLE takes columns or AS SELECT, not both: the query gives the columns."
            )
        return CreateTable(
            self._table,
            self._columns,
            query,
            self._partition_by,
            self._sort_by,
            self._properties,
            self._if_not_exists,
        )

    def _clause(self, cursor: Cursor) -> bool:
        start = cursor.at
        if cursor.take("USING"):
            self._once("USING", cursor, start)
            self._format(cursor.name("a format"), "USING")
        elif cursor.take("PARTITIONED", "BY"):
            self._once("The partitioning", cursor, start)
            self._partition_by = tuple(part.text for part in cursor.parenthesised("a column"))
        elif cursor.take("COMMENT"):
            add_property(self._properties, "comment", cursor.string())
        elif cursor.take("TBLPROPERTIES"):
            self._once("TBLPROPERTIES", cursor, start)
            for name, value in parse_properties(cursor).items():
                add_property(self._properties, name, value)
        elif cursor.word() == "WITH" and cursor.word(1) == "(":
            self._once("WITH", cursor, start)
            cursor.at += 1
            for part in cursor.parenthesised("a property"):
                self._trino(cursor.inside(part))
        elif cursor.word() in ("LOCATION", "OPTIONS", "CLUSTERED", "CLUSTER", "ROW", "STORED"):
            raise cursor.error(f"CREATE TABLE … {cursor.word()} is not supported.")
        else:
            return False
        return True

    def _once(self, clause: str, cursor: Cursor, at: int) -> None:
        if clause in self._clauses:
            raise cursor.error(f"{clause} is given twice.", at)
        self._clauses.add(clause)

    def _trino(self, cursor: Cursor) -> None:
        """Read one property of Trino's `WITH (…)`."""
        name, value = parse_property(cursor)
        cursor.finish()
        match name.lower(), value:
            case "partitioning", list():
                self._once("The partitioning", cursor, 0)
                self._partition_by = tuple(value)
            case "sorted_by", list():
                self._once("sorted_by", cursor, 0)
                self._sort_by = tuple(value)
            case "format", str():
                self._once("format", cursor, 0)
                self._format(value, "format =")
            case ("location", _):
                raise StatementError("CREATE TABLE … WITH (location = …) is not supported.")
            case _:
                add_property(self._properties, name, value)

    def _format(self, name: str, clause: str) -> None:
        supported = "iceberg" if clause == "USING" else "parquet"
        if name.lower() != supported:
            raise StatementError(
                f"{clause} {name} is not supported: tables of the lake are Iceberg tables of "
                f"Parquet files. Omit it, or write {clause} {supported}."
            )


def _drop(cursor: Cursor) -> Ddl:
    if cursor.take("INDEX"):
        exists = cursor.take("IF", "EXISTS")
        name = cursor.name("an index")
        return DropIndex(name, _indexed_table(cursor), exists)
    if not cursor.take("TABLE"):
        raise _unsupported(cursor, "DROP", "DROP TABLE and DROP INDEX are.")
    exists = cursor.take("IF", "EXISTS")
    return DropTable(cursor.dotted(), exists, cursor.take("PURGE"))


def _create_index(cursor: Cursor) -> CreateIndex:
    exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.name("an index")
    table = _indexed_table(cursor)
    kind = cursor.name("a kind of index").lower() if cursor.take("USING") else "btree"
    columns = cursor.columns(cursor.parenthesised("a column"), dotted=False)
    params: dict[str, object] = {}
    if cursor.take_any(("WITH", "OPTIONS")):
        for part in cursor.parenthesised("a parameter"):
            _add_parameter(params, cursor.inside(part))
    return CreateIndex(name, table, kind, tuple(".".join(c) for c in columns), params, exists)


def _indexed_table(cursor: Cursor) -> Name:
    cursor.need("ON")
    cursor.take("TABLE")
    return cursor.dotted()


def _add_parameter(params: dict[str, object], cursor: Cursor) -> None:
    """Read `name = value`, where the value is a text, a number, TRUE, FALSE or ARRAY['…', …]."""
    start = cursor.at
    name, text = parse_property(cursor)
    is_text = isinstance(text, list) or cursor.tokens[cursor.at - 1].kind is TokenKind.STRING
    cursor.finish()
    if name in params:
        raise cursor.error(f"Parameter {name!r} is given twice.", start)
    params[name] = text if is_text else json.loads(str(text))


def _alter(cursor: Cursor) -> Ddl:
    if not cursor.take("TABLE"):
        raise _unsupported(cursor, "ALTER", "ALTER TABLE is.")
    table = cursor.dotted()
    if cursor.take("SET", "TBLPROPERTIES"):
        return SetProperties(table, parse_properties(cursor))
    if cursor.take("SET", "PROPERTIES"):
        return SetProperties(table, _trino_properties(cursor))
    if cursor.take("ADD", "COLUMN") or cursor.take("ADD", "COLUMNS"):
        added = _listed(cursor, types=True)
        return AddColumns(table, tuple(_new_column(cursor.inside(part)) for part in added))
    if cursor.take("DROP", "COLUMN") or cursor.take("DROP", "COLUMNS"):
        exists = cursor.take("IF", "EXISTS")
        return DropColumns(table, cursor.columns(_listed(cursor)), exists)
    if cursor.take("RENAME", "COLUMN"):
        old = cursor.dotted("a column")
        cursor.need("TO")
        return RenameColumn(table, old, cursor.name("a column"))
    if cursor.take("RENAME", "TO"):
        return RenameTable(table, cursor.dotted())
    raise _unsupported(
        cursor,
        "ALTER TABLE",
        "SET TBLPROPERTIES, ADD COLUMN, DROP COLUMN, RENAME COLUMN and RENAME TO are; "
        "table.evolve_partitions() changes the partitioning.",
    )


def _listed(cursor: Cursor, types: bool = False) -> list[Slice]:
    """Read a list of columns, with or without parentheses."""
    if cursor.word() == "(":
        return cursor.parenthesised("a column", types)
    return cursor.separated(len(cursor.tokens), "a column", types)


def _new_column(cursor: Cursor) -> tuple[Name, str]:
    name = cursor.dotted("a column")
    unsupported = {
        "FIRST": "new columns are added last.",
        "AFTER": "new columns are added last.",
        "DEFAULT": "Iceberg has defaults from format version 3.",
    }
    at = cursor.find(lambda at: cursor.tokens[at].word in unsupported, types=True)
    if at < len(cursor.tokens):
        word = cursor.tokens[at].word
        raise cursor.error(f"{word} is not supported: {unsupported[word]}", at)
    return name, cursor.rest("a type").text


def _trino_properties(cursor: Cursor) -> dict[str, str]:
    if cursor.word() == "(":
        return parse_properties(cursor)
    properties: dict[str, str] = {}
    add_property(properties, *parse_property(cursor))
    while cursor.take(","):
        add_property(properties, *parse_property(cursor))
    return properties


def _describe(cursor: Cursor) -> Show:
    cursor.take("TABLE")
    extended = cursor.take("EXTENDED") or cursor.take("FORMATTED")
    return Describe(cursor.dotted(), extended)


def _show(cursor: Cursor) -> Show:
    if cursor.take("TABLES"):
        inside = cursor.take_any(("IN", "FROM")) is not None
        return ShowTables(cursor.dotted("a namespace") if inside else None, _like(cursor))
    if cursor.take_any(_NAMESPACES):
        return ShowNamespaces(_like(cursor))
    if cursor.take("CREATE", "TABLE"):
        return ShowCreateTable(cursor.dotted())
    if cursor.take("TBLPROPERTIES"):
        return ShowProperties(cursor.dotted())
    if cursor.take("INDEXES"):
        if cursor.take_any(("ON", "IN", "FROM")) is None:
            raise cursor.expected("ON")
        return ShowIndexes(cursor.dotted())
    raise _unsupported(
        cursor,
        "SHOW",
        "SHOW TABLES, SHOW NAMESPACES, SHOW CREATE TABLE, SHOW TBLPROPERTIES and SHOW INDEXES are.",
    )


def _like(cursor: Cursor) -> str | None:
    return cursor.string("a pattern") if cursor.take("LIKE") else None


def _unsupported(cursor: Cursor, verb: str, instead: str) -> StatementError:
    return cursor.error(f"{verb} {cursor.word() or '…'} is not supported. {instead}")
