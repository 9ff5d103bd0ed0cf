"""Parse INSERT, UPDATE, DELETE, MERGE, TRUNCATE and OPTIMIZE."""

from __future__ import annotations

from icefloe.spark.table_names import (
    FOLLOWERS,
    QUERY_STARTS,
    closing,
    name_at,
    operand_end,
    rows_end,
)
from icefloe.spark.tokens import TokenKind
from icefloe.sql.cursor import Cursor
from icefloe.sql.syntax import (
    Clause,
    DeleteFrom,
    Dml,
    Insert,
    InsertKind,
    MergeInto,
    Name,
    Optimize,
    Slice,
    Truncate,
    UpdateTable,
)
from icefloe.statements import Then, When

DML = ("INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE", "OPTIMIZE")


def parse_dml(cursor: Cursor) -> Dml:
    """Read the statement whose first word is next."""
    match cursor.next().word:
        case "INSERT":
            statement: Dml = _insert(cursor)
        case "UPDATE":
            statement = _update(cursor)
        case "DELETE":
            statement = _delete(cursor)
        case "MERGE":
            statement = _merge(cursor)
        case "OPTIMIZE":
            statement = Optimize(cursor.dotted(), _where(cursor))
        case _:
            cursor.need("TABLE")
            statement = Truncate(cursor.dotted())
    cursor.finish()
    return statement


def _insert(cursor: Cursor) -> Insert:
    if cursor.take("OVERWRITE"):
        kind = InsertKind.OVERWRITE
        cursor.take("INTO")
    else:
        kind = InsertKind.INTO
        cursor.need("INTO")
    cursor.take("TABLE")
    table = cursor.dotted()
    partition = _partition(cursor) if cursor.take("PARTITION") else None
    columns = _column_list(cursor)
    by_name = cursor.take("BY", "NAME")
    if by_name and columns is not None:
        raise cursor.error("INSERT takes (columns) or BY NAME, not both.", cursor.at - 2)
    predicate: Slice | None = None
    using: tuple[str, ...] = ()
    if cursor.take("REPLACE", "WHERE"):
        _refuse_overwrite(kind, cursor)
        kind, predicate = InsertKind.REPLACE_WHERE, _until_query(cursor)
    elif cursor.take("REPLACE", "USING"):
        _refuse_overwrite(kind, cursor)
        kind = InsertKind.REPLACE_USING
        using = _columns(cursor)
    if cursor.word() not in QUERY_STARTS | {"("}:
        raise cursor.expected("VALUES or SELECT")
    query = cursor.rest("a query")
    return Insert(kind, table, query, columns, by_name, partition, predicate, using)


def _refuse_overwrite(kind: InsertKind, cursor: Cursor) -> None:
    if kind is InsertKind.OVERWRITE:
        raise cursor.error("REPLACE is a clause of INSERT INTO, not of INSERT OVERWRITE.")


def _partition(cursor: Cursor) -> tuple[tuple[str, Slice], ...]:
    values: dict[str, tuple[str, Slice]] = {}
    for part in cursor.parenthesised("column = value"):
        inside = cursor.inside(part)
        column = inside.name("a partition column")
        if column.lower() in values:
            raise inside.error(f"PARTITION gives {column!r} twice.", 0)
        if inside.done():
            raise inside.error(
                f"PARTITION needs a value for {column!r}: dynamic partitions are not supported "
                "here. Use table.overwrite_partitions(rows)."
            )
        inside.need("=")
        start = inside.at
        if not _is_constant(inside):
            raise inside.error("PARTITION takes constants, as DATE '2026-01-31'.", start)
        values[column.lower()] = (column, inside.slice(start, inside.at))
    if cursor.take("IF"):
        raise cursor.error("INSERT … IF NOT EXISTS is not supported.", cursor.at - 1)
    return tuple(values.values())


def _is_constant(cursor: Cursor) -> bool:
    """Read a token or two; whether they are a literal and nothing follows."""
    signed = cursor.take("-")
    cursor.take_any(("DATE", "TIMESTAMP"))
    if cursor.done():
        return False
    kind, word = cursor.tokens[cursor.at].kind, cursor.word()
    cursor.at += 1
    plain = kind is TokenKind.STRING or word in ("NULL", "TRUE", "FALSE")
    return cursor.done() and (kind is TokenKind.NUMBER or (plain and not signed))


def _column_list(cursor: Cursor) -> tuple[str, ...] | None:
    if cursor.word() != "(":
        return None
    is_query = cursor.word(1) in QUERY_STARTS and cursor.word(2) not in (",", ")")
    return None if is_query or cursor.word(1) == "(" else _columns(cursor)


def _columns(cursor: Cursor) -> tuple[str, ...]:
    """Read a list of top-level columns in parentheses."""
    columns = cursor.columns(cursor.parenthesised("a column"), dotted=False)
    return tuple(name for (name,) in columns)


def _until_query(cursor: Cursor) -> Slice:
    """Read a condition, which ends where a query starts."""

    def begins(at: int) -> bool:
        word = cursor.tokens[at].word
        distinct = word == "FROM" and cursor.tokens[at - 1].word == "DISTINCT"
        calls = word in ("MAP", "REDUCE") and cursor.word(at + 1 - cursor.at) == "("
        return word in QUERY_STARTS and not distinct and not calls

    start = cursor.at
    cursor.at = cursor.find(begins)
    if cursor.at == start:
        raise cursor.expected("a condition")
    return cursor.slice(start, cursor.at)


def _update(cursor: Cursor) -> UpdateTable:
    table, alias = cursor.dotted(), _alias(cursor)
    cursor.need("SET")
    assignments = _assignments(cursor, ("WHERE", "FROM"))
    if cursor.word() == "FROM":
        raise cursor.error("UPDATE … FROM is not supported: use MERGE INTO … USING ….")
    return UpdateTable(table, alias, assignments, _where(cursor))


def _delete(cursor: Cursor) -> DeleteFrom:
    cursor.need("FROM")
    table, alias = cursor.dotted(), _alias(cursor)
    if cursor.word() == "USING":
        raise cursor.error("DELETE … USING is not supported: use MERGE INTO … USING ….")
    return DeleteFrom(table, alias, _where(cursor))


def _where(cursor: Cursor) -> Slice | None:
    return cursor.rest("a condition") if cursor.take("WHERE") else None


def _alias(cursor: Cursor) -> str | None:
    if cursor.take("AS"):
        return cursor.name("an alias")
    if cursor.done() or cursor.word() in FOLLOWERS or cursor.tokens[cursor.at].name is None:
        return None
    return cursor.name("an alias")


def _assignments(cursor: Cursor, ends: tuple[str, ...]) -> tuple[tuple[Name, Slice], ...]:
    def stops(at: int) -> bool:
        word = cursor.tokens[at].word
        distinct = word == "FROM" and cursor.tokens[at - 1].word == "DISTINCT"
        return word in ends and not distinct

    end = cursor.find(stops)
    assignments = []
    for part in cursor.separated(end, "column = value"):
        inside = cursor.inside(part)
        target = inside.dotted("a column")
        if not inside.take("=") and not inside.take("=="):
            raise inside.expected("'='")
        assignments.append((target, inside.rest("a value")))
    cursor.at = end
    return tuple(assignments)


def _merge(cursor: Cursor) -> MergeInto:
    evolves = cursor.take("WITH", "SCHEMA", "EVOLUTION")
    cursor.need("INTO")
    table, alias = cursor.dotted(), _alias(cursor)
    cursor.need("USING")
    source = cursor.until(("ON",), "a table or a query in parentheses")
    cursor.need("ON")
    on = cursor.until(("WHEN",), "a condition")
    clauses = []
    while cursor.take("WHEN"):
        clauses.append(_clause(cursor))
    if not clauses:
        raise cursor.expected("WHEN MATCHED or WHEN NOT MATCHED")
    name = _source_name(cursor.inside(source))
    return MergeInto(table, alias, source, name, on, tuple(clauses), evolves)


def _source_name(cursor: Cursor) -> Name:
    """The qualifier of the source's columns: its alias, or its name if it has none."""
    tokens = cursor.tokens
    name: Name = ()
    if cursor.word() == "(":
        end = closing(tokens, 0) + 1
    elif cursor.word() == "VALUES":
        named = cursor.find(lambda at: tokens[at].word == "AS")
        end = named if named < len(tokens) else rows_end(tokens, 1)
    else:
        name, end = name_at(tokens, 0)
        if end < len(tokens) and tokens[end].word == "(":  # a function
            end, name = closing(tokens, end) + 1, ()
        else:
            end = _after_travel(cursor, end)
    cursor.at = end
    alias = _alias(cursor)
    if alias is None and not name:
        raise cursor.error("The source of the MERGE needs an alias: USING (…) AS s.", 0)
    if not cursor.done() and cursor.word() != "(":
        raise cursor.expected("ON")
    return (alias,) if alias is not None else name


def _after_travel(cursor: Cursor, at: int) -> int:
    cursor.at = at
    cursor.take("FOR")
    travels = cursor.word() in ("VERSION", "TIMESTAMP", "SYSTEM_VERSION", "SYSTEM_TIME")
    if travels and (cursor.word(1), cursor.word(2)) == ("AS", "OF"):
        return operand_end(cursor.tokens, cursor.at + 3)
    return at


def _clause(cursor: Cursor) -> Clause:
    when = _when(cursor)
    condition = cursor.until(("THEN",), "a condition") if cursor.take("AND") else None
    cursor.need("THEN")
    action = cursor.take_any(("UPDATE", "DELETE", "INSERT"))
    if action is None or (action == "INSERT") != (when is When.NOT_MATCHED):
        allowed = "INSERT" if when is When.NOT_MATCHED else "UPDATE or DELETE"
        cursor.at -= action is not None
        raise cursor.expected(allowed)
    match action:
        case "DELETE":
            return Clause(when, condition, Then.DELETE)
        case "UPDATE":
            return Clause(when, condition, Then.UPDATE, _updated(cursor))
        case _:
            return Clause(when, condition, Then.INSERT, _inserted(cursor))


def _when(cursor: Cursor) -> When:
    if cursor.take("MATCHED"):
        return When.MATCHED
    if not cursor.take("NOT", "MATCHED"):
        raise cursor.expected("MATCHED or NOT MATCHED")
    if not cursor.take("BY"):
        return When.NOT_MATCHED
    side = cursor.take_any(("SOURCE", "TARGET"))
    if side is None:
        raise cursor.expected("SOURCE or TARGET")
    return When.NOT_MATCHED_BY_SOURCE if side == "SOURCE" else When.NOT_MATCHED


def _updated(cursor: Cursor) -> tuple[tuple[Name, Slice], ...] | None:
    cursor.need("SET")
    if cursor.word() == "*" and cursor.word(1) in ("", "WHEN"):
        cursor.at += 1
        return None
    return _assignments(cursor, ("WHEN",))


def _inserted(cursor: Cursor) -> tuple[tuple[Name, Slice], ...] | None:
    if cursor.take("*"):
        return None
    if cursor.word() != "(":
        raise cursor.expected("* or (columns) VALUES (values)")
    names = cursor.columns(cursor.parenthesised("a column"))
    cursor.need("VALUES")
    at = cursor.at
    values = cursor.parenthesised("a value")
    if len(names) != len(values):
        raise cursor.error(f"INSERT names {len(names)} columns but gives {len(values)} values.", at)
    return tuple(zip(names, values, strict=True))
