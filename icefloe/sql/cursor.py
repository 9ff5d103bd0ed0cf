"""A place in the tokens of one statement: what is next, what must be next, slices of the text."""

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
# One text → its statements.


@dataclass(frozen=True, slots=True)
class Piece:
    """One statement of a text, without its semicolon and the comments around it."""

    text: SqlText
    line: int  # where it starts, from 1
    start: int = 0  # the place in the whole text


def split_statements(text: str) -> list[Piece]:
    """The statements between semicolons that are outside of quotes and comments."""
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
    """Whether the last statement ends with a semicolon, outside of quotes and comments."""
    tokens = tokenize(text)
    return bool(tokens) and tokens[-1].kind is not TokenKind.OPEN and tokens[-1].word == ";"


def _piece(text: str, start: int, end: int | None) -> Piece:
    return Piece(SqlText(text[start:end]), text.count("\n", 0, start) + 1, start)


# -------------------------------------------------------------------------------------------------
# The value of a string literal, as Spark reads it.

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


_OPENING = frozenset("([{")
_CLOSING = frozenset(")]}")
_BETWEEN_VALUES = {"*", "/", "%", "&", "|", "^", "||", "=", "==", "<=>", "<>", "!=", "<", "<=", ">"}
_BETWEEN_VALUES |= {">=", "AND", "OR", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "DIV"}
_BEFORE_VALUES = _BETWEEN_VALUES | {"+", "-", "~", "!", "NOT", "CASE", "WHEN", "THEN", "ELSE"}
_AFTER_VALUES = _BETWEEN_VALUES | {",", ")", ".", "::", "[", "IS", "IN", "THEN", "ELSE"}
_NESTED = ("ARRAY", "MAP", "STRUCT")


class Cursor:
    """Reads one statement from left to right; places are those of the whole text."""

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
        """Whether every token is read."""
        return self.at >= len(self.tokens)

    def word(self, ahead: int = 0) -> str:
        """The keyword or symbol some tokens ahead; nothing where there is none."""
        at = self.at + ahead
        return self.tokens[at].word if 0 <= at < len(self.tokens) else ""

    def error(self, reason: str, at: int | None = None) -> ParseError:
        """A ParseError that shows a token, the next one if none is given."""
        at = self.at if at is None else at
        inside = self.tokens[at].start if at < len(self.tokens) else len(self._piece.text)
        return ParseError(reason, self._whole, self._piece.start + inside)

    def expected(self, what: str) -> ParseError:
        """A ParseError that says what should stand here."""
        found = repr(self.tokens[self.at].text) if not self.done() else "the end"
        return self.error(f"Expected {what}, found {found}.")

    def take(self, *words: str) -> bool:
        """Step over these words if all of them stand here."""
        if all(self.word(i) == word for i, word in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def take_any(self, words: Collection[str]) -> str | None:
        """Step over one of these words, and tell which."""
        word = self.word()
        if word and word in words:
            self.at += 1
            return word
        return None

    def need(self, *words: str) -> None:
        """Step over these words, which must stand here."""
        for word in words:
            if not self.take(word):
                raise self.expected(word)

    def finish(self, what: str = "the end of the statement") -> None:
        """Refuse anything that is left."""
        if not self.done():
            raise self.expected(what)

    def next(self) -> Token:
        """Step over a token."""
        if self.done():
            raise self.expected("more")
        self.at += 1
        return self.tokens[self.at - 1]

    def name(self, what: str = "a name") -> str:
        """Step over a name of one part."""
        parts = self.dotted(what)
        if len(parts) > 1:
            self.at -= 1
            raise self.error(
                f"Expected {what} without dots; quote it with backticks if it has any."
            )
        return parts[0]

    def dotted(self, what: str = "a table's name") -> Name:
        """Step over a name of one or more parts."""
        parts, end = name_at(self.tokens, self.at)
        if not parts:
            raise self.expected(what)
        self.at = end
        return parts

    def string(self, what: str = "a string") -> str:
        """Step over a string literal and give its value."""
        if self.done() or self.tokens[self.at].kind is not TokenKind.STRING:
            raise self.expected(what)
        return string_value(self.next().text)

    def slice(self, start: int, end: int) -> Slice:
        """The text from one token to before another."""
        if start >= end:
            return Slice(SqlText(), self._place(start))
        first, last = self.tokens[start].start, self.tokens[end - 1].end
        return Slice(SqlText(self._piece.text[first:last]), self._piece.start + first)

    def rest(self, what: str) -> Slice:
        """Everything that is left; it must not be empty."""
        return self.until((), what)

    def until(self, words: Collection[str], what: str) -> Slice:
        """What stands before one of these words (outside of parentheses and CASE), or the end."""
        start = self.at
        self.at = self.find(lambda at: self.tokens[at].word in words)
        if self.at == start:
            raise self.expected(what)
        return self.slice(start, self.at)

    def parenthesised(self, what: str, types: bool = False) -> list[Slice]:
        """The parts, between commas, of what stands in parentheses here; there must be one."""
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
        """The parts between commas up to a place; there must be one."""
        if self.at >= end:
            raise self.expected(what)
        parts = []
        while self.at < end:
            start = self.at
            found = self.find(lambda at: self.tokens[at].word == "," or at >= end, types)
            self.at = min(end, found)
            if self.at == start:
                raise self.expected("something before the comma")
            parts.append(self.slice(start, self.at))
            if self.at < end:
                self.at += 1
                if self.at == end:
                    raise self.error("Nothing follows this comma.", self.at - 1)
        return parts

    def columns(self, parts: list[Slice], dotted: bool = True) -> tuple[Name, ...]:
        """The columns that the parts of a list name, each of them once."""
        found: dict[Name, Name] = {}
        for part in parts:
            inside = self.inside(part)
            name = inside.dotted("a column") if dotted else (inside.name("a column"),)
            inside.finish("a comma")
            key = tuple(level.lower() for level in name)
            if key in found:
                raise inside.error(f"Column {'.'.join(name)!r} is given twice.", 0)
            found[key] = name
        return tuple(found.values())

    def find(self, wanted: Callable[[int], bool], types: bool = False) -> int:
        """The first token that is wanted, outside of parentheses, CASE … END and MAP<…>.

        A `<` is a type's after `::MAP` and the like; with `types`, after every such word.
        """
        depth = angles = cases = 0
        type_end = -1
        for at in range(self.at, len(self.tokens)):
            word = self.tokens[at].word
            part = at > 0 and self.tokens[at - 1].word == "."
            if depth == angles == cases == 0 and not part and wanted(at):
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
        """A cursor over a part of this statement."""
        return Cursor(Piece(part.text, 0, part.start), self._whole)

    def _begins_case(self, at: int) -> bool:
        """Whether a CASE is one, not a column of that name."""
        after, then = (self.word(ahead - self.at) for ahead in (at + 1, at + 2))
        is_column = after in _AFTER_VALUES or (after == "END" and then != "WHEN")
        return self.tokens[at].word == "CASE" and at + 1 < len(self.tokens) and not is_column

    def _wants_value(self, at: int) -> bool:
        """Whether a value must follow: an END there is a column."""
        before = self.tokens[at - 1].word if at > 0 else ""
        word = self.tokens[at].word
        if before == "." or (word == "CASE" and not self._begins_case(at)):
            return False
        return word in _BEFORE_VALUES or (before, word) == ("DISTINCT", "FROM")

    def _begins_type(self, at: int, types: bool) -> bool:
        nested = at >= 0 and self.tokens[at].word in _NESTED
        return nested and (types or (at > 0 and self.tokens[at - 1].word == "::"))

    def _place(self, at: int) -> int:
        inside = self.tokens[at].start if at < len(self.tokens) else len(self._piece.text)
        return self._piece.start + inside
