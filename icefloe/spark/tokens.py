"""Tokens of a SQL text with their positions: sqlglot's Spark dialect, extended to Spark 4.

Statements are split by tokens and assembled from slices of the user's text, so that Spark gets
exactly what the user wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token as Scanned
from sqlglot.tokenizer_core import TokenType


class TokenKind(Enum):
    """Kinds of tokens."""

    WORD = "word"
    QUOTED = "quoted name"
    STRING = "string"
    NUMBER = "number"
    SYMBOL = "symbol"
    OPEN = "unterminated"  # a quote or comment that nothing closes


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its text as written, from `start` to before `end`."""

    kind: TokenKind
    text: str
    start: int

    @property
    def end(self) -> int:
        """The position after the token."""
        return self.start + len(self.text)

    @property
    def word(self) -> str:
        """A keyword or an unquoted name in upper case, or a symbol; empty for other kinds."""
        return self.text.upper() if self.kind in (TokenKind.WORD, TokenKind.SYMBOL) else ""

    @property
    def name(self) -> str | None:
        """The name without its backticks; None if the token is not a name."""
        if self.kind is TokenKind.QUOTED:
            return self.text[1:-1].replace("``", "`")
        return self.text if self.kind is TokenKind.WORD else None


_SYMBOLS = ("<=>", "<=", ">=", "<>", "!=", "==", "||", "|>", "::", "->", "=>")
_SUFFIXES = frozenset(Spark.Tokenizer.NUMERIC_LITERALS.values())  # the types of 1L, 2BD and so on


class _Tokenizer(Spark.Tokenizer):
    """Every word is a token of its own: Spark decides which words are reserved."""

    KEYWORDS: ClassVar[dict[str, TokenType]] = {
        **dict.fromkeys(_SYMBOLS, TokenType.UNKNOWN),
        **{word: kind for word, kind in Spark.Tokenizer.KEYWORDS.items() if word in _SUFFIXES},
    }
    COMMANDS: ClassVar[set[TokenType]] = set()
    HEX_STRINGS: ClassVar[list[str | tuple[str, str]]] = []
    HEREDOC_STRINGS: ClassVar[list[str | tuple[str, str]]] = ["$"]
    HEREDOC_TAG_IS_IDENTIFIER = True
    STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']  # it''s


_KINDS = {
    TokenType.STRING: TokenKind.STRING,
    TokenType.RAW_STRING: TokenKind.STRING,
    TokenType.HEREDOC_STRING: TokenKind.STRING,
    TokenType.IDENTIFIER: TokenKind.QUOTED,
    TokenType.NUMBER: TokenKind.NUMBER,
}
# What starts or ends a comment in Spark or in sqlglot, but not in both, with a neutral text of the
# same length.
_COMMENT_DIFFERENCES = (
    ("\\\n", "  "),  # continues a comment of Spark on the next line
    ("{#", "##"),  # starts a Jinja comment in sqlglot
)
_OPENINGS = re.compile(r"[rR]?['\"]|`|\$|/\*")


def tokenize(text: str) -> list[Token]:
    """Tokens of a text, without spaces and comments; the last one may be unterminated."""
    scanned, closed = _scan(text)
    tokens: list[Token] = []
    for token in _as_tokens(text, scanned):
        if _is_fraction(tokens, token):
            tokens[-1] = Token(TokenKind.NUMBER, f".{token.text}", tokens[-1].start)
        else:
            tokens.append(token)
    if not closed:
        start = _unterminated_start(text, tokens[-1].end if tokens else 0)
        tokens.append(Token(TokenKind.OPEN, text[start:], start))
    return tokens


def _scan(text: str) -> tuple[list[Scanned], bool]:
    """Sqlglot's tokens, and whether it reached the end of the text."""
    tokenizer = _Tokenizer(dialect=Spark)
    try:
        for spelling, neutral in _COMMENT_DIFFERENCES:
            text = text.replace(spelling, neutral)
        return tokenizer.tokenize(text), True
    except TokenError:
        return tokenizer.tokens, False


def _as_tokens(text: str, scanned: list[Scanned]) -> Iterator[Token]:
    start = -1
    for token in scanned:
        if token.start == start:  # 1L is scanned as 1, :: and L, all at one position
            continue
        start = token.start
        written = text[start : token.end + 1]
        if token.token_type is TokenType.NATIONAL_STRING:  # N'…', which Spark does not have
            yield Token(TokenKind.WORD, written[0], start)
            yield Token(TokenKind.STRING, written[1:], start + 1)
        else:
            yield Token(_kind(token.token_type, written), written, start)


def _is_fraction(before: list[Token], token: Token) -> bool:
    """Whether the point before a number belongs to it: in `.5`, but not in `t.5`."""
    if token.kind is not TokenKind.NUMBER or not before or before[-1].text != ".":
        return False
    point, owner = before[-1], before[-2] if len(before) > 1 else None
    owned = owner is not None and owner.end == point.start and owner.name is not None
    return point.end == token.start and not owned


def _kind(scanned: TokenType, written: str) -> TokenKind:
    if scanned in _KINDS:
        return _KINDS[scanned]
    return TokenKind.WORD if written[0].isalnum() or written[0] == "_" else TokenKind.SYMBOL


def _unterminated_start(text: str, after: int) -> int:
    """Start of the unterminated token: the last opening with only comments before it."""
    openings = [after + match.start() for match in _OPENINGS.finditer(text[after:])]
    starts = [opening for opening in openings if _scan(text[after:opening]) == ([], True)]
    return starts[-1] if starts else after
