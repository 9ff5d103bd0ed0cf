"""Table properties as SQL spells them: Spark's quoted names, and Trino's with underscores."""

from __future__ import annotations

from icefloe.errors import StatementError
from icefloe.settings import known_properties
from icefloe.spark.tokens import Kind
from icefloe.sql.cursor import Cursor
from icefloe.sql.strings import string_value

FORMAT_VERSION = "format-version"
_BY_TRINO = {
    name.replace(".", "_").replace("-", "_"): name for name in (*known_properties(), FORMAT_VERSION)
}


def stored_name(name: str) -> str:
    """Iceberg's name of a property that may be in Trino's spelling."""
    return _BY_TRINO.get(name.lower(), name)


def parse_property(cursor: Cursor) -> tuple[str, str | list[str]]:
    """`name = value`, where the value is a literal or Trino's ARRAY['…', …]."""
    name = _key(cursor)
    cursor.take("=")
    if cursor.take("ARRAY", "["):
        return name, _array(cursor)
    sign = "-" if cursor.take("-") else ""
    if cursor.done():
        raise cursor.expected("a value")
    token = cursor.tokens[cursor.at]
    if token.kind is Kind.STRING and not sign:
        value = string_value(token.text)
    elif token.kind is Kind.NUMBER or token.word in ("TRUE", "FALSE"):
        value = sign + token.text.lower()
    else:
        raise cursor.expected("a string, a number, TRUE or FALSE")
    cursor.at += 1
    return name, value


def parse_properties(cursor: Cursor) -> dict[str, str]:
    """`('name' = 'value', …)` under Iceberg's names."""
    found: dict[str, str] = {}
    for part in cursor.parenthesised("a property"):
        inside = cursor.inside(part)
        add_property(found, *parse_property(inside))
        inside.finish()
    return found


def add_property(found: dict[str, str], name: str, value: str | list[str]) -> None:
    """Put a property beside others; refuses one that is given twice."""
    stored = stored_name(name)
    if isinstance(value, list):
        raise StatementError(f"Table property {name!r} takes one value, not an ARRAY.")
    if stored in found:
        raise StatementError(f"Table property {stored!r} is given twice.")
    found[stored] = value


def _key(cursor: Cursor) -> str:
    """A property's name: a string, or words with dots and dashes between."""
    if not cursor.done() and cursor.tokens[cursor.at].kind is Kind.STRING:
        return cursor.string()
    start = cursor.at
    parts = [*cursor.dotted("a property's name")]
    text = ".".join(parts)
    while cursor.word() == "-" and cursor.at > start:
        cursor.at += 1
        text += "-" + ".".join(cursor.dotted("a property's name"))
    return text


def _array(cursor: Cursor) -> list[str]:
    values = []
    while cursor.word() != "]":
        values.append(cursor.string())
        if not cursor.take(","):
            break
    cursor.need("]")
    return values
