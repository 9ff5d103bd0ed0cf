"""SQL text → tokens with their places, by the rules of Spark's own lexer.

Statements are taken apart by tokens and put together from slices of the user's text, so that what
reaches Spark is what was written, to the letter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a token is."""

    WORD = "word"
    QUOTED = "quoted name"
    STRING = "string"
    NUMBER = "number"
    SYMBOL = "symbol"
    OPEN = "unterminated"  # a quote or comment that nothing closes


@dataclass(frozen=True, slots=True)
class Token:
    """One token; `text` is as written, `start` and `end` are its place."""

    kind: Kind
    text: str
    start: int

    @property
    def end(self) -> int:
        """The place after the token."""
        return self.start + len(self.text)

    @property
    def word(self) -> str:
        """A keyword or a bare name in upper case; a symbol as it is; nothing for others."""
        return self.text.upper() if self.kind in (Kind.WORD, Kind.SYMBOL) else ""

    @property
    def name(self) -> str | None:
        """The name that the token is, without its backticks."""
        if self.kind is Kind.QUOTED:
            return self.text[1:-1].replace("``", "`")
        return self.text if self.kind is Kind.WORD else None


_TOKEN = re.compile(
    r"""
      (?P<space>\s+ | --(?:\\\n|[^\r\n])*)
    | (?P<comment>/\*)
    | (?P<string>[rR]'[^']*' | [rR]"[^"]*"
        | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*"
        | (?P<dollars>\$\w*\$).*?(?P=dollars))
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<open>[rR]?['"`] | \$\w*\$)
    | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?i:L|S|Y|F|D|BD)?(?!\w))
    | (?P<word>\w+)
    | (?P<symbol><=>|<=|>=|<>|!=|==|\|\||\|>|::|->|=>|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_KINDS = {
    "string": Kind.STRING,
    "quoted": Kind.QUOTED,
    "number": Kind.NUMBER,
    "word": Kind.WORD,
    "symbol": Kind.SYMBOL,
}
_COMMENT_EDGE = re.compile(r"/\*|\*/")


def tokenize(text: str) -> list[Token]:
    """Tokens of a text without spaces and comments; one that is not closed is the last."""
    found: list[Token] = []
    place = 0
    while match := _TOKEN.match(text, place):
        kind = match.lastgroup
        place = match.end()
        if kind == "comment":
            end = _comment_end(text, match.start())
            if end is None:
                return [*found, Token(Kind.OPEN, text[match.start() :], match.start())]
            place = end
        elif kind == "open":
            return [*found, Token(Kind.OPEN, text[match.start() :], match.start())]
        elif kind != "space":
            found.append(Token(_KINDS[str(kind)], match[0], match.start()))
    return found


def _comment_end(text: str, start: int) -> int | None:
    """Where a comment ends; comments nest, as Spark has them."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return None
