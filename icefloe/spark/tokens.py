"""SQL text → tokens with their places: sqlglot's Spark dialect, with what Spark 4 has beyond it.

Statements are taken apart by tokens and put together from slices of the user's text, so that what
reaches Spark is what was written, to the letter.
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

    kind: TokenKind
    text: str
    start: int

    @property
    def end(self) -> int:
        """The place after the token."""
        return self.start + len(self.text)

    @property
    def word(self) -> str:
        """A keyword or a bare name in upper case; a symbol as it is; nothing for others."""
        return self.text.upper() if self.kind in (TokenKind.WORD, TokenKind.SYMBOL) else ""

    @property
    def name(self) -> str | None:
        """The name that the token is, without its backticks."""
        if self.kind is TokenKind.QUOTED:
            return self.text[1:-1].replace("``", "`")
        return self.text if self.kind is TokenKind.WORD else None


_SYMBOLS = ("<=>", "<=", ">=", "<>", "!=", "==", "||", "|>", "::", "->", "=>")
_SUFFIXES = frozenset(Spark.Tokenizer.NUMERIC_LITERALS.values())  # types of 1L, 2BD and so on


class _Tokenizer(Spark.Tokenizer):
    """Each word a token of its own, since which words are reserved is Spark's to say."""

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
# What begins or ends a comment for one of the two alone, and as many characters that do not.
_OTHERWISE = (
    ("\\\n", "  "),  # Spark's comment goes on in the next line
    ("{#", "##"),  # sqlglot takes templates of Jinja
)
_OPENS = re.compile(r"[rR]?['\"]|`|\$|/\*")


def tokenize(text: str) -> list[Token]:
    """Tokens of a text without spaces and comments; one that is not closed is the last."""
    scanned, closed = _scan(text)
    found: list[Token] = []
    for token in _as_tokens(text, scanned):
        if _is_fraction(found, token):
            found[-1] = Token(TokenKind.NUMBER, f".{token.text}", found[-1].start)
        else:
            found.append(token)
    if not closed:
        start = _open_place(text, found[-1].end if found else 0)
        found.append(Token(TokenKind.OPEN, text[start:], start))
    return found


def _scan(text: str) -> tuple[list[Scanned], bool]:
    """What sqlglot finds, and whether it came to the end."""
    tokenizer = _Tokenizer(dialect=Spark)
    try:
        for spelling, same_to_spark in _OTHERWISE:
            text = text.replace(spelling, same_to_spark)
        return tokenizer.tokenize(text), True
    except TokenError:
        return tokenizer.tokens, False


def _as_tokens(text: str, scanned: list[Scanned]) -> Iterator[Token]:
    place = -1
    for token in scanned:
        if token.start == place:  # 1L comes as 1, :: and L, all in one place
            continue
        place = token.start
        written = text[place : token.end + 1]
        if token.token_type is TokenType.NATIONAL_STRING:  # which Spark has not
            yield Token(TokenKind.WORD, written[0], place)
            yield Token(TokenKind.STRING, written[1:], place + 1)
        else:
            yield Token(_kind(token.token_type, written), written, place)


def _is_fraction(before: list[Token], token: Token) -> bool:
    """Whether a number goes with the point before it: `.5`, but not that of `t.5`."""
    if token.kind is not TokenKind.NUMBER or not before or before[-1].text != ".":
        return False
    point, owner = before[-1], before[-2] if len(before) > 1 else None
    owned = owner is not None and owner.end == point.start and owner.name is not None
    return point.end == token.start and not owned


def _kind(scanned: TokenType, written: str) -> TokenKind:
    if scanned in _KINDS:
        return _KINDS[scanned]
    return TokenKind.WORD if written[0].isalnum() or written[0] == "_" else TokenKind.SYMBOL


def _open_place(text: str, after: int) -> int:
    """Where what is not closed begins: the last place before which there are comments alone."""
    places = [after + found.start() for found in _OPENS.finditer(text[after:])]
    clear = [place for place in places if _scan(text[after:place]) == ([], True)]
    return clear[-1] if clear else after
