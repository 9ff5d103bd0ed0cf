"""Table names in the tokens of a SQL text.

A name is a table where Spark's grammar has a relation: after FROM, JOIN and TABLE, and after the
commas of a FROM clause. A name that a WITH defines is not a table in the scope of that WITH.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from icefloe.spark.tokens import Token, TokenKind

DEFAULT_NAMESPACE = "default"  # of tables named without one


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


QUERY_STARTS = _words("SELECT WITH FROM VALUES TABLE MAP REDUCE")
_SET_OPERATORS = _words("UNION EXCEPT INTERSECT MINUS SETMINUS")
_CLAUSES = _SET_OPERATORS | _words(
    "WHERE GROUP HAVING ORDER SORT CLUSTER DISTRIBUTE LIMIT OFFSET WINDOW QUALIFY PIVOT UNPIVOT "
    "SELECT |>"
)
# Words that may follow a table and are not its alias.
FOLLOWERS = _CLAUSES | _words(
    "JOIN CROSS INNER LEFT RIGHT FULL NATURAL SEMI ANTI OUTER ON USING LATERAL TABLESAMPLE FROM "
    "WHEN SET MAP REDUCE FOR AS"
)
_TYPED = _words("TIMESTAMP DATE TIMESTAMP_NTZ TIMESTAMP_LTZ")
_UNITS = _words("YEAR MONTH WEEK DAY HOUR MINUTE SECOND MILLISECOND MICROSECOND")
_OPERATORS = _words("+ - * / % || ::")
_BETWEEN_VALUES = _words(", AND OR = == <> != < <= > >=")


class Travel(StrEnum):
    """The two forms of time travel."""

    VERSION = "VERSION AS OF"
    TIMESTAMP = "TIMESTAMP AS OF"


@dataclass(frozen=True, slots=True)
class TableName:
    """A table name in a text, from `start` to `end`, with its time travel."""

    parts: tuple[str, ...]
    start: int
    end: int
    travel: Travel | None = None
    version: str = ""  # the text after AS OF
    alias_at: int | None = None  # where an alias can be inserted; None if there is one

    def __str__(self) -> str:
        return ".".join(self.parts)

    def moved(self, by: int) -> TableName:
        """The same name in a text with `by` more characters before it."""
        at = None if self.alias_at is None else self.alias_at + by
        return replace(self, start=self.start + by, end=self.end + by, alias_at=at)


def find_tables(tokens: Sequence[Token], text: str, *, is_query: bool) -> tuple[TableName, ...]:
    """The tables that a query names, or an expression with subqueries."""
    finder = _Finder(tokens, text, is_query=is_query)
    finder.run()
    return tuple(finder.tables)


@dataclass(slots=True)
class _Level:
    """The state of the search inside one pair of parentheses."""

    is_query: bool = False
    expects_table: bool = False
    expects_cte: bool = False
    commas: bool = False  # tables follow commas
    ctes: set[str] = field(default_factory=set)
    defines: str | None = None  # the WITH name whose query this is
    recursive: bool = False  # its WITH is RECURSIVE


class _Finder:
    def __init__(self, tokens: Sequence[Token], text: str, *, is_query: bool) -> None:
        self._is_query = is_query
        self._tokens = tokens
        self._text = text
        self._levels = [_Level()]
        self.tables: list[TableName] = []

    def run(self) -> None:
        at = 0
        while at < len(self._tokens):
            at = self._step(at)

    def _word(self, at: int) -> str:
        return self._tokens[at].word if 0 <= at < len(self._tokens) else ""

    def _step(self, at: int) -> int:
        level, word = self._levels[-1], self._word(at)
        if level.expects_cte:
            return self._begin_cte(at)
        if level.expects_table:
            level.expects_table = False
            return self._relation(at)
        if word == "(":
            self._levels.append(_Level())
        elif word == ")":
            self._close(at)
        elif word == ",":
            level.expects_table = level.commas
        elif self._word(at - 1) != ".":
            self._keyword(at, word, level)
        return at + 1

    def _keyword(self, at: int, word: str, level: _Level) -> None:
        if word == "WITH" and self._begins_query(at):
            level.expects_cte = True
            level.recursive = self._word(at + 1) == "RECURSIVE"
        elif word == "FROM" and self._is_clause(at, level):
            level.expects_table = level.commas = True
        elif word == "JOIN" or (word == "TABLE" and self._begins_query(at)):
            level.expects_table = True
        elif word in _CLAUSES or (word == "LATERAL" and self._word(at + 1) == "VIEW"):
            level.commas = False
            level.is_query = level.is_query or word == "SELECT"
        elif word in ("MAP", "REDUCE") and self._begins_query(at):
            level.is_query = True

    def _begins_query(self, at: int) -> bool:
        before = self._word(at - 1)
        if before == ")":
            return bool(self._levels[-1].ctes)
        if at == 0:
            return self._is_query
        return before in ("(", "ALL", "DISTINCT") or before in _SET_OPERATORS

    def _is_clause(self, at: int, level: _Level) -> bool:
        """Whether a FROM is a clause, not one of `IS DISTINCT FROM` or `extract(year FROM d)`."""
        distinct = self._word(at - 1) == "DISTINCT" and self._word(at - 2) in ("IS", "NOT")
        trims = self._word(at - 1) == "(" and self._word(at - 2) == "TRIM"
        return not distinct and not trims and (level.is_query or self._begins_query(at))

    def _close(self, at: int) -> None:
        closed = self._levels.pop() if len(self._levels) > 1 else _Level()
        if closed.defines is not None:
            level = self._levels[-1]
            level.ctes.add(closed.defines)
            level.expects_cte = self._word(at + 1) == ","

    def _begin_cte(self, at: int) -> int:
        """Step from the name that a WITH defines into its parentheses."""
        level = self._levels[-1]
        level.expects_cte = False
        while self._word(at) in (",", "RECURSIVE"):
            at += 1
        name = self._tokens[at].name if at < len(self._tokens) else None
        at += 1
        if lists_names(self._tokens, at):
            at = closing(self._tokens, at) + 1
        while at < len(self._tokens) and self._word(at) != "(":
            at += 1
        inside = _Level(defines=(name or "").lower())
        if level.recursive:
            inside.ctes.add((name or "").lower())
        self._levels.append(inside)
        return at + 1

    def _relation(self, at: int) -> int:
        word = self._word(at)
        if word == "(":
            inside = self._word(at + 1) not in QUERY_STARTS
            self._levels.append(_Level(expects_table=inside))
            return at + 1
        if word in ("LATERAL", "STREAM") and self._word(at + 1) != ".":
            self._levels[-1].expects_table = True
            return at + 1
        if word == "VALUES":
            return rows_end(self._tokens, at + 1)
        parts, end = name_at(self._tokens, at)
        if not parts or word in FOLLOWERS:
            return at  # not a table name
        if self._word(end) == "(":
            return end  # a function
        return self._named(parts, at, end)

    def _named(self, parts: tuple[str, ...], at: int, end: int) -> int:
        local = len(parts) == 1 and any(parts[0].lower() in level.ctes for level in self._levels)
        travel, version, stop = self._travel(end)
        after = self._sample(stop)
        last = self._tokens[stop - 1].end
        aliased = self._word(after) == "AS" or (
            after < len(self._tokens)
            and self._tokens[after].name is not None
            and self._word(after) not in FOLLOWERS
        )
        alone = self._word(at - 1) == "TABLE"  # a query of its own, which takes no alias
        alias_at = None if aliased or alone else self._tokens[after - 1].end
        if not local:
            start = self._tokens[at].start
            self.tables.append(TableName(parts, start, last, travel, version, alias_at))
        return stop

    def _sample(self, at: int) -> int:
        """The index after TABLESAMPLE (…) REPEATABLE (…), if it is at this index."""
        for word in ("TABLESAMPLE", "REPEATABLE"):
            if self._word(at) == word and self._word(at + 1) == "(":
                at = closing(self._tokens, at + 1) + 1
        return at

    def _travel(self, at: int) -> tuple[Travel | None, str, int]:
        start = at + (self._word(at) == "FOR")
        kinds = {
            "VERSION": Travel.VERSION,
            "SYSTEM_VERSION": Travel.VERSION,
            "TIMESTAMP": Travel.TIMESTAMP,
            "SYSTEM_TIME": Travel.TIMESTAMP,
        }
        kind = kinds.get(self._word(start))
        if kind is None or (self._word(start + 1), self._word(start + 2)) != ("AS", "OF"):
            return None, "", at
        end = operand_end(self._tokens, start + 3)
        if end == start + 3:
            return None, "", at
        version = self._text[self._tokens[start + 3].start : self._tokens[end - 1].end]
        return kind, version, end


# -------------------------------------------------------------------------------------------------
# Token sequences


def name_at(tokens: Sequence[Token], at: int) -> tuple[tuple[str, ...], int]:
    """The parts of the dotted name at token `at`, and the index after it."""
    parts: list[str] = []
    while at < len(tokens) and (name := tokens[at].name) is not None:
        parts.append(name)
        if at + 2 >= len(tokens) or tokens[at + 1].word != "." or tokens[at + 2].name is None:
            return tuple(parts), at + 1
        at += 2
    return tuple(parts), at


def closing(tokens: Sequence[Token], at: int) -> int:
    """Index of the parenthesis that closes the one at `at`; the last index if none does."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += (tokens[i].word == "(") - (tokens[i].word == ")")
        if depth == 0:
            return i
    return len(tokens) - 1


def lists_names(tokens: Sequence[Token], at: int) -> bool:
    """Whether a list of names in parentheses is at `at`; a query is not such a list."""
    if at >= len(tokens) or tokens[at].word != "(":
        return False
    inside = tokens[at + 1 : closing(tokens, at)]
    names, commas = inside[::2], inside[1::2]
    return all(t.name is not None for t in names) and all(t.word == "," for t in commas)


def rows_end(tokens: Sequence[Token], at: int) -> int:
    """The index after the rows of a VALUES: its alias, a clause or the end."""
    while at < len(tokens):
        at = operand_end(tokens, at)
        if at < len(tokens) and tokens[at].kind is TokenKind.STRING:  # of X'1F'
            at += 1
        if at >= len(tokens) or tokens[at].word not in _BETWEEN_VALUES:
            break
        at += 1
    return at


def operand_end(tokens: Sequence[Token], at: int) -> int:
    """The index after an expression of literals, calls and arithmetic, as AS OF takes it."""
    while at < len(tokens):
        start = at
        while at < len(tokens) and tokens[at].word in ("-", "+"):
            at += 1
        at = _one_operand(tokens, at)
        if at == start or at >= len(tokens) or tokens[at].word not in _OPERATORS:
            break
        at += 1
    return at


def _one_operand(tokens: Sequence[Token], at: int) -> int:
    if at >= len(tokens):
        return at
    word = tokens[at].word
    if word == "(":
        return closing(tokens, at) + 1
    if tokens[at].kind in (TokenKind.STRING, TokenKind.NUMBER):
        return at + 1
    if word == "INTERVAL":
        return _interval_end(tokens, at + 1)
    if word in _TYPED and at + 1 < len(tokens) and tokens[at + 1].kind is TokenKind.STRING:
        return at + 2
    _, end = name_at(tokens, at)
    if end < len(tokens) and end > at and tokens[end].word == "(":
        return closing(tokens, end) + 1
    return end


def _interval_end(tokens: Sequence[Token], at: int) -> int:
    """The index after `1 DAY 2 HOURS`, `'1 2:03' DAY TO MINUTE` or `'1 day'`."""
    while at < len(tokens):
        value = at + (tokens[at].word in ("-", "+"))
        if value >= len(tokens) or tokens[value].kind not in (TokenKind.NUMBER, TokenKind.STRING):
            break
        at = value + 1
        if at < len(tokens) and tokens[at].word.removesuffix("S") in _UNITS:
            at += 1
        if at < len(tokens) and tokens[at].word == "TO":
            at += 2
    return min(at, len(tokens))
