"""The value of a string literal, as Spark reads it."""

from __future__ import annotations

import re

_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_ESCAPE = re.compile(
    r"\\(?:u(?P<four>[0-9A-Fa-f]{4})|U(?P<eight>[0-9A-Fa-f]{8})|(?P<octal>[0-3][0-7]{2})|(?P<one>.))"
    r"|(?P<twice>''|\"\")",
    re.DOTALL,
)


def string_value(literal: str) -> str:
    """What a literal in quotes stands for; a raw one stands for itself."""
    if literal[0] in "rR":
        return literal[2:-1]
    if literal[0] == "$":
        width = literal.index("$", 1) + 1
        return literal[width:-width]
    return _ESCAPE.sub(_unescaped, literal[1:-1])


def string_literal(value: str) -> str:
    """A literal that Spark reads as `value`."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def _unescaped(found: re.Match[str]) -> str:
    if found["twice"]:
        return found["twice"][0]
    if digits := found["four"] or found["eight"]:
        return chr(int(digits, 16))
    if found["octal"]:
        return chr(int(found["octal"], 8))
    one = found["one"]
    if one in "%_":
        return f"\\{one}"  # LIKE reads these
    return _ESCAPES.get(one, one)
