"""Split a text into statements, and read the tokens of one statement from left to right."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from icefloe.errors import ParseError
from icefloe.spark.sql_text import SqlText
from icefloe.spark.table_names import closing, name_at
from icefloe.spark.tokens import Token, TokenKind, tokenize
from icefloe.sql.syntax import Name, Slice

# -------------------------------------------------------------------------------------------------
# Statements of a text


@dataclass(frozen=True, slots=True)
class Piece:
    """One statement of a text, without its semicolon and surrounding comments."""

    text: SqlText
    line: int  # of its first token, from 1
    start: int = 0  # position in the whole text


def split_statements(text: str) -> list[Piece]:
    """Split at the semicolons outside quotes and comments."""
    pieces: list[Piece] = []
    start = end = None
    for token in tokenize(text):
        if token.word == ";":
            if start is not None:
                pieces.append(_piece(text, start, end))
            start = None
        else:
            start, end = token.start if start is None else start, token.end
    if start is not None:
        pieces.append(_piece(text, start, end))
    return pieces


def is_complete(text: str) -> bool:
    """Whether the last statement ends with a semicolon outside quotes and comments."""
    tokens = tokenize(text)
    return bool(tokens) and tokens[-1].kind is not TokenKind.OPEN and tokens[-1].word == ";"


def _piece(text: str, start: int, end: int | None) -> Piece:
    return Piece(SqlText(text[start:end]), text.count("\n", 0, start) + 1, start)


# -------------------------------------------------------------------------------------------------
# Cursor

_OPENING = frozenset("([{")
_CLOSING = frozenset(")]}")
_BETWEEN_VALUES = {"*", "/", "%", "&", "|", "^", "||", "=", "==", "<=>", "<>", "!=", "<", "<=", ">"}
_BETWEEN_VALUES |= {">=", "AND", "OR", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "DIV"}
_BEFORE_VALUES = _BETWEEN_VALUES | {"+", "-", "~", "!", "NOT", "CASE", "WHEN", "THEN", "ELSE"}
_AFTER_VALUES = _BETWEEN_VALUES | {",", ")", ".", "::", "[", "IS", "IN", "THEN", "ELSE"}
_NESTED = ("ARRAY", "MAP", "STRUCT")


class Cursor:
    """Reads one statement from left to right; positions in errors are those of the whole text."""

    def __init__(self, piece: Piece, whole: str) -> None:
        self._piece = piece
        self._whole = whole
        self.tokens = piece.text.tokens
        self.at = 0
        if self.tokens and self.tokens[-1].kind is TokenKind.OPEN:
            opened = self.tokens[-1].text[:2]
            what = "comment" if opened == "/*" else "quote"
            raise self.error(f"This {what} is not closed.", len(self.tokens) - 1)

    def done(self) -> bool:
        """Whether all tokens are read."""
        return self.at >= len(self.tokens)

    def word(self, ahead: int = 0) -> str:
        """The keyword or symbol `ahead` tokens on; empty for other tokens and after the end."""
        at = self.at + ahead
        return self.tokens[at].word if 0 <= at < len(self.tokens) else ""

    def error(self, reason: str, at: int | None = None) -> ParseError:
        """A ParseError at token `at`, by default the next one."""
        at = self.at if at is None else at
        inside = self.tokens[at].start if at < len(self.tokens) else len(self._piece.text)
        return ParseError(reason, self._whole, self._piece.start + inside)

    def expected(self, what: str) -> ParseError:
        """A ParseError that says what is expected instead of the next token."""
        actual = repr(self.tokens[self.at].text) if not self.done() else "the end"
        return self.error(f"Expected {what}, found {actual}.")

    def take(self, *words: str) -> bool:
        """Read these words if all of them are next."""
        if all(self.word(i) == word for i, word in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def take_any(self, words: Collection[str]) -> str | None:
        """Read and return the next word if it is one of these."""
        word = self.word()
        if word and word in words:
            self.at += 1
            return word
        return None

    def need(self, *words: str) -> None:
        """Read these words, which must be next."""
        for word in words:
            if not self.take(word):
                raise self.expected(word)

    def finish(self, what: str = "the end of the statement") -> None:
        """Refuse tokens that are left."""
        if not self.done():
            raise self.expected(what)

    def next(self) -> Token:
        """Read a token."""
        if self.done():
            raise self.expected("more")
        self.at += 1
        return self.tokens[self.at - 1]

    def name(self, what: str = "a name") -> str:
        """Read a name of one part."""
        parts = self.dotted(what)
        if len(parts) > 1:
            self.at -= 1
            raise self.error(
                f"Expected {what} without dots; quote it with backticks if it has any."
            )
        return parts[0]

    def dotted(self, what: str = "a table name") -> Name:
        """Read a name of one or more parts."""
        parts, end = name_at(self.tokens, self.at)
        if not parts:
            raise self.expected(what)
        self.at = end
        return parts

    def string(self, what: str = "a string") -> str:
        """Read a string literal and return its value."""
        if self.done() or self.tokens[self.at].kind is not TokenKind.STRING:
            raise self.expected(what)
        return string_value(self.next().text)

    def slice(self, start: int, end: int) -> Slice:
        """The text from token `start` to before token `end`."""
        if start >= end:
            return Slice(SqlText(), self._position(start))
        first, last = self.tokens[start].start, self.tokens[end - 1].end
        return Slice(SqlText(self._piece.text[first:last]), self._piece.start + first)

    def rest(self, what: str) -> Slice:
        """Read everything that is left; it must not be empty."""
        return self.until((), what)

    def until(self, words: Collection[str], what: str) -> Slice:
        """Read up to one of these words, outside parentheses and CASE, or to the end."""
        start = self.at
        self.at = self.find(lambda at: self.tokens[at].word in words)
        if self.at == start:
            raise self.expected(what)
        return self.slice(start, self.at)

    def parenthesised(self, what: str, types: bool = False) -> list[Slice]:
        """Read a list in parentheses; it must not be empty."""
        if self.word() != "(":
            raise self.expected("'('")
        end = closing(self.tokens, self.at)
        if self.tokens[end].word != ")":
            raise self.error("This parenthesis is not closed.")
        self.at += 1
        parts = self.separated(end, what, types)
        self.at = end + 1
        return parts

    def separated(self, end: int, what: str, types: bool = False) -> list[Slice]:
        """Read a list up to token `end`; it must not be empty."""
        if self.at >= end:
            raise self.expected(what)
        parts = []
        while self.at < end:
            start = self.at
            comma = self.find(lambda at: self.tokens[at].word == "," or at >= end, types)
            self.at = min(end, comma)
            if self.at == start:
                raise self.expected("something before the comma")
            parts.append(self.slice(start, self.at))
            if self.at < end:
                self.at += 1
                if self.at == end:
                    raise self.error("Nothing follows this comma.", self.at - 1)
        return parts

    def columns(self, parts: list[Slice], dotted: bool = True) -> tuple[Name, ...]:
        """The column names in a list, without duplicates."""
        names: dict[Name, Name] = {}
        for part in parts:
            inside = self.inside(part)
            name = inside.dotted("a column") if dotted else (inside.name("a column"),)
            inside.finish("a comma")
            key = tuple(level.lower() for level in name)
            if key in names:
                raise inside.error(f"Column {'.'.join(name)!r} is given twice.", 0)
            names[key] = name
        return tuple(names.values())

    def find(self, is_end: Callable[[int], bool], types: bool = False) -> int:
        """Index of the first such token outside parentheses, CASE … END and MAP<…>.

        A `<` belongs to a type after `::MAP` and the like; with `types`, after every such word.
        """
        depth = angles = cases = 0
        type_end = -1
        for at in range(self.at, len(self.tokens)):
            word = self.tokens[at].word
            part = at > 0 and self.tokens[at - 1].word == "."
            if depth == angles == cases == 0 and not part and is_end(at):
                return at
            depth += (word in _OPENING) - (word in _CLOSING)
            if depth == 0 and word in ("<", ">"):
                opens = angles > 0 or self._begins_type(at - 1, types)
                type_end = at if word == ">" and angles else type_end
                angles = max(0, angles + (word == "<" and opens) - (word == ">"))
            if depth == 0 and not part:
                ends = word == "END" and (type_end == at - 1 or not self._wants_value(at - 1))
                cases = max(0, cases + self._begins_case(at) - ends)
        return len(self.tokens)

    def inside(self, part: Slice) -> Cursor:
        """A cursor in a part of this statement."""
        return Cursor(Piece(part.text, 0, part.start), self._whole)

    def _begins_case(self, at: int) -> bool:
        """Whether a CASE starts an expression and is not a column of that name."""
        after, then = (self.word(ahead - self.at) for ahead in (at + 1, at + 2))
        is_column = after in _AFTER_VALUES or (after == "END" and then != "WHEN")
        return self.tokens[at].word == "CASE" and at + 1 < len(self.tokens) and not is_column

    def _wants_value(self, at: int) -> bool:
        """Whether a value must follow, so that END is a column."""
        before = self.tokens[at - 1].word if at > 0 else ""
        word = self.tokens[at].word
        if before == "." or (word == "CASE" and not self._begins_case(at)):
            return False
        return word in _BEFORE_VALUES or (before, word) == ("DISTINCT", "FROM")

    def _begins_type(self, at: int, types: bool) -> bool:
        nested = at >= 0 and self.tokens[at].word in _NESTED
        return nested and (types or (at > 0 and self.tokens[at - 1].word == "::"))

    def _position(self, at: int) -> int:
        inside = self.tokens[at].start if at < len(self.tokens) else len(self._piece.text)
        return self._piece.start + inside


# -------------------------------------------------------------------------------------------------
# String literals as Spark reads them

_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_ESCAPE = re.compile(
    r"\\(?:u(?P<four>[0-9A-Fa-f]{4})|U(?P<eight>[0-9A-Fa-f]{8})|(?P<octal>[0-3][0-7]{2})|(?P<one>.))"
    r"|(?P<twice>''|\"\")",
    re.DOTALL,
)


def string_value(literal: str) -> str:
    """The value of a string literal in any of Spark's notations."""
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


def _unescaped(escape: re.Match[str]) -> str:
    if escape["twice"]:
        return escape["twice"][0]
    if digits := escape["four"] or escape["eight"]:
        return chr(int(digits, 16))
    if escape["octal"]:
        return chr(int(escape["octal"], 8))
    one = escape["one"]
    if one in "%_":
        return f"\\{one}"  # LIKE reads these
    return _ESCAPES.get(one, one)
