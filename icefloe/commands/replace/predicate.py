"""A predicate over partition columns as a small tree of values.

`parse` makes it with literals as they stand in the text, `bind` with values of the columns' own
types. IN and BETWEEN need no more than comparisons; IN stays one node because lists can be long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from icefloe.errors import InvalidPredicateError, UnsupportedOperatorError
from icefloe.pruning.comparisons import Comparison
from icefloe.pruning.literals import LiteralKind, SqlLiteral, read_literal

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Compare(Generic[V]):
    """`column <op> value`."""

    column: str
    comparison: Comparison
    value: V


@dataclass(frozen=True, slots=True)
class In(Generic[V]):
    """`column IN (…)`."""

    column: str
    values: tuple[V, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """`column IS NULL`."""

    column: str


@dataclass(frozen=True, slots=True)
class Constant:
    """TRUE, FALSE or NULL."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class And(Generic[V]):
    """All of the parts."""

    parts: tuple[Node[V], ...]


@dataclass(frozen=True, slots=True)
class Or(Generic[V]):
    """Any of the parts."""

    parts: tuple[Node[V], ...]


@dataclass(frozen=True, slots=True)
class Not(Generic[V]):
    """The opposite of the part; of NULL, NULL."""

    part: Node[V]


Leaf: TypeAlias = Compare[V] | In[V] | IsNull
Node: TypeAlias = Compare[V] | In[V] | IsNull | Constant | And[V] | Or[V] | Not[V]


def leaves_of(node: Node[V]) -> Iterator[Leaf[V]]:
    """Every test of a column, from left to right."""
    match node:
        case And(parts) | Or(parts):
            for part in parts:
                yield from leaves_of(part)
        case Not(part):
            yield from leaves_of(part)
        case Compare() | In() | IsNull():
            yield node
        case Constant():
            return


# -------------------------------------------------------------------------------------------------
# Predicate text → tree: what partition matching knows, and nothing else.

Tree = Node[SqlLiteral]

_COMPARISONS: Mapping[type[exp.Expr], Comparison] = {
    exp.EQ: Comparison.EQUAL,
    exp.NEQ: Comparison.NOT_EQUAL,
    exp.LT: Comparison.LESS,
    exp.LTE: Comparison.LESS_OR_EQUAL,
    exp.GT: Comparison.GREATER,
    exp.GTE: Comparison.GREATER_OR_EQUAL,
}
_TRUE = SqlLiteral(LiteralKind.BOOLEAN, "TRUE")
# Names, comments and strings of a text; a quote or backslash elsewhere is one we do not read.
_PIECES = re.compile(
    r"`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/|(?P<string>'(?:[^'\\]|'')*')|(?P<other>['\"\\])",
    re.DOTALL,
)
_OPERATORS: Mapping[type[exp.Expr], str] = {
    exp.Like: "LIKE",
    exp.ILike: "ILIKE",
    exp.RegexpLike: "RLIKE",
    exp.NullSafeEQ: "<=>",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Neg: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.DPipe: "||",
    exp.Select: "subquery",
    exp.Subquery: "subquery",
    exp.Exists: "subquery",
    exp.TryCast: "CAST",
    exp.Cast: "CAST",
    exp.Is: "IS",
    exp.Bracket: "[]",
    exp.Case: "CASE",
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
    exp.BitwiseXor: "^",
}

_PLACE = "§"  # before the number that stands for a string


def parse_predicate(text: str) -> Tree:
    """The tree of a predicate; raises where it is no SQL, or uses what partitions cannot tell."""
    if "\\\n" in text:  # where Spark's comments go on, and sqlglot's do not
        raise InvalidPredicateError(text, "it has a backslash at the end of a line")
    strings: list[str] = []
    plain = _PIECES.sub(_set_aside(text, strings), text)
    try:
        parsed = parse_one(plain, read="spark", into=exp.Condition)
    except (SqlglotError, RecursionError) as wrong:
        raise InvalidPredicateError(text, "it is not a SQL condition") from wrong
    for literal in parsed.find_all(exp.Literal):
        if literal.is_string:
            if not literal.this.startswith(_PLACE):  # sqlglot's own, as for the number 1BD
                raise UnsupportedOperatorError(f"the literal {literal.this}")
            literal.set("this", strings[int(literal.this.removeprefix(_PLACE))])
    return _Reader(text).node(parsed)


def _set_aside(text: str, strings: list[str]) -> Callable[[re.Match[str]], str]:
    """Put a number in the place of each string: sqlglot's rules for quotes are not Spark's."""

    def replaced(piece: re.Match[str]) -> str:
        if piece["other"]:
            raise InvalidPredicateError(
                text,
                f"it has {piece['other']} outside a string or without an end: write strings "
                "in single quotes ('' for a quote inside), without backslashes",
            )
        if not piece["string"]:
            return piece[0]
        strings.append(piece["string"][1:-1].replace("''", "'"))
        return f"'{_PLACE}{len(strings) - 1}'"

    return replaced


class _Reader:
    """Turns sqlglot's nodes into ours."""

    def __init__(self, text: str) -> None:
        self._text = text

    def node(self, node: exp.Expr) -> Tree:
        match node:
            case exp.Paren():
                return self.node(node.this)
            case exp.And():
                return And(tuple(self.node(part) for part in node.flatten()))
            case exp.Or():
                return Or(tuple(self.node(part) for part in node.flatten()))
            case exp.Not():
                return Not(self.node(node.this))
            case exp.Boolean():
                return Constant(bool(node.this))
            case exp.Null():
                return Constant(None)
            case exp.Column():
                return Compare(self._column(node), Comparison.EQUAL, _TRUE)
            case _:
                return self._test(node)

    def _test(self, node: exp.Expr) -> Tree:
        if type(node) in _COMPARISONS:
            return self._compare(node)
        match node:
            case exp.In() if _has_only(node, "this", "expressions"):
                values = tuple(self._literal(item) for item in node.expressions)
                if not values:
                    raise InvalidPredicateError(self._text, "IN has no values")
                return In(self._column(node.this), values)
            case exp.Between() if _has_only(node, "this", "low", "high"):
                return self._between(node)
            case exp.Is() if isinstance(node.expression, exp.Null):
                return IsNull(self._column(node.this))
            case _:
                raise self._unsupported(node)

    def _compare(self, node: exp.Expr) -> Tree:
        comparison = _COMPARISONS[type(node)]
        left, right = node.this.unnest(), node.expression.unnest()
        if isinstance(left, exp.Column) and isinstance(right, exp.Column):
            raise UnsupportedOperatorError(f"{comparison.value} between two columns", self._text)
        if isinstance(left, exp.Column):
            return Compare(self._column(left), comparison, self._literal(right))
        if isinstance(right, exp.Column):
            return Compare(self._column(right), comparison.mirrored, self._literal(left))
        for side in (left, right):
            if read_literal(side, strings_are_plain=True) is None:
                raise self._unsupported(side)
        raise InvalidPredicateError(self._text, f"{node.sql('spark')} names no column")

    def _between(self, node: exp.Expr) -> Tree:
        column = self._column(node.this)
        low, high = self._literal(node.args["low"]), self._literal(node.args["high"])
        return And(
            (
                Compare(column, Comparison.GREATER_OR_EQUAL, low),
                Compare(column, Comparison.LESS_OR_EQUAL, high),
            )
        )

    def _column(self, node: exp.Expr) -> str:
        node = node.unnest()
        if not isinstance(node, exp.Column):
            raise self._unsupported(node)
        return ".".join(part.name for part in node.parts)

    def _literal(self, node: exp.Expr) -> SqlLiteral:
        found = read_literal(node, strings_are_plain=True)
        if found is None:
            raise self._unsupported(node.unnest())
        return found

    def _unsupported(self, node: exp.Expr) -> Exception:
        if isinstance(node, exp.Concat) and node.args.get("coalesce") is False:
            return InvalidPredicateError(self._text, "two strings stand side by side")
        if isinstance(node, exp.In):
            return UnsupportedOperatorError("subquery", self._text)
        known = _OPERATORS.get(type(node))
        if known is None and isinstance(node, exp.Anonymous):
            known = node.name
        if known is None and isinstance(node, exp.Func):
            known = node.sql_name().lower()
        return UnsupportedOperatorError(known or node.key.upper(), self._text)


def _has_only(node: exp.Expr, *names: str) -> bool:
    """Whether no other argument is set; one we do not know may change what the node means."""
    return all(name in names for name, value in node.args.items() if value)
