"""The predicate language: a tree of typed nodes, and its parser from sqlglot's tree.

A tree has connectives (AND, OR, NOT), constants, and leaves, and is generic in its leaves:

* A `Condition` is a tree as parsed. Its leaves test a column by the name in the text against
  literals of the text. What the language does not have is a leaf as well, `Unsupported` or
  `Malformed`, so the reader of the tree decides what that means: file pruning (`conditions`) takes
  it for unknown, REPLACE WHERE (`commands/replace`) refuses it with an error.
* A tree bound to a table has `Test` leaves alone, with columns and values of the table.

Only the text is prepared differently. A condition of a DELETE is evaluated by Spark, so a string is
read only where sqlglot and Spark agree on it. REPLACE WHERE evaluates its predicates itself, so it
defines which quotes and escapes a string has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

from sqlglot import exp

from icefloe.pruning.literals import LiteralKind, SqlLiteral, read_literal
from icefloe.spark.sql_text import SqlText

C = TypeVar("C")  # a column
V = TypeVar("V")  # a value
L = TypeVar("L")  # a leaf

ColumnName: TypeAlias = tuple[str, ...]  # as in the text: qualifiers and name, which may be *


class Comparison(Enum):
    """A SQL comparison of a column with a value."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="

    @property
    def negated(self) -> Comparison:
        """The comparison that is TRUE where this one is FALSE."""
        return _NEGATED[self]

    @property
    def mirrored(self) -> Comparison:
        """The equivalent comparison with exchanged sides."""
        return _MIRRORED.get(self, self)

    @property
    def orders(self) -> frozenset[int]:
        """For which orders of column and value it is TRUE: smaller (-1), equal (0), larger (1)."""
        return _ORDERS[self]


_NEGATED = {
    Comparison.EQUAL: Comparison.NOT_EQUAL,
    Comparison.NOT_EQUAL: Comparison.EQUAL,
    Comparison.LESS: Comparison.GREATER_OR_EQUAL,
    Comparison.LESS_OR_EQUAL: Comparison.GREATER,
    Comparison.GREATER: Comparison.LESS_OR_EQUAL,
    Comparison.GREATER_OR_EQUAL: Comparison.LESS,
}
_MIRRORED = {
    Comparison.LESS: Comparison.GREATER,
    Comparison.LESS_OR_EQUAL: Comparison.GREATER_OR_EQUAL,
    Comparison.GREATER: Comparison.LESS,
    Comparison.GREATER_OR_EQUAL: Comparison.LESS_OR_EQUAL,
}
_ORDERS = {
    Comparison.EQUAL: frozenset({0}),
    Comparison.NOT_EQUAL: frozenset({-1, 1}),
    Comparison.LESS: frozenset({-1}),
    Comparison.LESS_OR_EQUAL: frozenset({-1, 0}),
    Comparison.GREATER: frozenset({1}),
    Comparison.GREATER_OR_EQUAL: frozenset({0, 1}),
}


# -------------------------------------------------------------------------------------------------
# Nodes


@dataclass(frozen=True, slots=True)
class Compare(Generic[C, V]):
    """`column <op> value`."""

    column: C
    comparison: Comparison
    value: V


@dataclass(frozen=True, slots=True)
class In(Generic[C, V]):
    """`column IN (…)`: one node, because lists can be long."""

    column: C
    values: tuple[V, ...]


@dataclass(frozen=True, slots=True)
class IsNull(Generic[C]):
    """`column IS NULL`."""

    column: C


@dataclass(frozen=True, slots=True)
class NullSafeEqual:
    """`column <=> value`."""

    column: ColumnName
    value: SqlLiteral


@dataclass(frozen=True, slots=True)
class Like:
    """`column LIKE pattern`."""

    column: ColumnName
    pattern: SqlLiteral


@dataclass(frozen=True, slots=True)
class IsTruth:
    """`condition IS TRUE` or `condition IS FALSE`."""

    part: Condition
    value: bool


@dataclass(frozen=True, slots=True)
class Unsupported:
    """SQL that the language does not have, by the name of its operator."""

    operator: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """What sqlglot parses although it is not a condition on a column."""

    reason: str


@dataclass(frozen=True, slots=True)
class Constant:
    """TRUE, FALSE or NULL."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class And(Generic[L]):
    """All of the parts."""

    parts: tuple[Node[L], ...]


@dataclass(frozen=True, slots=True)
class Or(Generic[L]):
    """Any of the parts."""

    parts: tuple[Node[L], ...]


@dataclass(frozen=True, slots=True)
class Not(Generic[L]):
    """The opposite of the part; of NULL, NULL."""

    part: Node[L]


Node: TypeAlias = Constant | And[L] | Or[L] | Not[L] | L
Test: TypeAlias = Compare[C, V] | In[C, V] | IsNull[C]
ParsedLeaf: TypeAlias = (
    Test[ColumnName, SqlLiteral] | NullSafeEqual | Like | IsTruth | Unsupported | Malformed
)
Condition: TypeAlias = Node[ParsedLeaf]


def leaves_of(node: Node[L]) -> Iterator[L]:
    """Every leaf, from left to right."""
    match node:
        case And(parts) | Or(parts):
            for part in parts:
                yield from leaves_of(part)
        case Not(part):
            yield from leaves_of(part)
        case Constant():
            return
        case _:
            yield node


# -------------------------------------------------------------------------------------------------
# Parser

_COMPARISONS: Mapping[type[exp.Expr], Comparison] = {
    exp.EQ: Comparison.EQUAL,
    exp.NEQ: Comparison.NOT_EQUAL,
    exp.LT: Comparison.LESS,
    exp.LTE: Comparison.LESS_OR_EQUAL,
    exp.GT: Comparison.GREATER,
    exp.GTE: Comparison.GREATER_OR_EQUAL,
}
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
    exp.In: "subquery",
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
_TRUE = SqlLiteral(LiteralKind.BOOLEAN, "TRUE")


def read_condition(node: exp.Expr, *, strings_are_plain: bool) -> Condition:
    """The condition in sqlglot's tree, `Unsupported` or `Malformed` where the language ends.

    `strings_are_plain` is False where sqlglot may read string literals differently than Spark; they
    are unsupported then.
    """
    return _Reader(strings_are_plain).condition(node)


def is_true(column: ColumnName) -> Condition:
    """A column as a condition."""
    return Compare(column, Comparison.EQUAL, _TRUE)


def read_sql(text: SqlText) -> Condition:
    """The condition that Spark reads in a text; `Unsupported` if that is in doubt."""
    tree = _tree(text)
    return _IN_DOUBT if tree is None else read_condition(tree, strings_are_plain=_is_plain(text))


def read_operand(text: SqlText) -> ColumnName | SqlLiteral | None:
    """The column or constant that a text names for Spark; None for everything else."""
    tree = _tree(text)
    if tree is None:
        return None
    return _column(tree) or read_literal(tree, strings_are_plain=_is_plain(text))


_IN_DOUBT = Unsupported("SQL")


def _tree(text: SqlText) -> exp.Expr | None:
    # Spark replaces variables before it parses, in string literals too, and continues a comment
    # after a backslash at the end of its line. sqlglot does neither.
    return None if "${" in text or "\\\n" in text else text.tree


def _is_plain(text: str) -> bool:
    # sqlglot's escapes are not Spark's, and under some of Spark's settings a double-quoted word is
    # a column.
    return "\\" not in text and '"' not in text


@dataclass(frozen=True, slots=True)
class _Reader:
    strings_are_plain: bool

    def condition(self, node: exp.Expr) -> Condition:
        match node:
            case exp.Paren():
                return self.condition(node.this)
            case exp.And():
                return And(tuple(self.condition(part) for part in node.flatten()))
            case exp.Or():
                return Or(tuple(self.condition(part) for part in node.flatten()))
            case exp.Not():
                return Not(self.condition(node.this))
            case exp.Boolean():
                return Constant(bool(node.this))
            case exp.Null():
                return Constant(None)
            case _:
                column = _column(node)
                return is_true(column) if column else self._test(node)

    def _test(self, node: exp.Expr) -> Condition:
        if type(node) in _COMPARISONS:
            return self._compare(node)
        match node:
            case exp.In() if _has_only(node, "this", "expressions"):
                return self._in(node)
            case exp.Between() if _has_only(node, "this", "low", "high"):
                return self._between(node)
            case exp.Is():
                return self._is(node)
            case exp.NullSafeEQ():
                return self._null_safe_equal(node)
            case exp.Like() if _has_only(node, "this", "expression", "negate"):
                return self._like(node)
            case _:
                return _unsupported(node)

    def _compare(self, node: exp.Expr) -> Condition:
        comparison = _COMPARISONS[type(node)]
        left, right = node.this.unnest(), node.expression.unnest()
        if isinstance(left, exp.Column) and isinstance(right, exp.Column):
            return Unsupported(f"{comparison.value} between two columns")
        if isinstance(left, exp.Column):
            return self._compare_with(left, comparison, right)
        if isinstance(right, exp.Column):
            return self._compare_with(right, comparison.mirrored, left)
        for side in (left, right):
            if self._literal(side) is None:
                return _unsupported(side)
        return Malformed(f"{node.sql('spark')} names no column")

    def _compare_with(
        self, named: exp.Expr, comparison: Comparison, constant: exp.Expr
    ) -> Condition:
        column, literal = _column(named), self._literal(constant)
        if column is None:
            return _unsupported(named.unnest())
        if literal is None:
            return _unsupported(constant.unnest())
        return Compare(column, comparison, literal)

    def _in(self, node: exp.Expr) -> Condition:
        literals: list[SqlLiteral] = []
        for item in node.expressions:
            literal = self._literal(item)
            if literal is None:
                return _unsupported(item.unnest())
            literals.append(literal)
        if not literals:
            return Malformed("IN has no values")
        column = _column(node.this)
        return In(column, tuple(literals)) if column else _unsupported(node.this.unnest())

    def _between(self, node: exp.Expr) -> Condition:
        if _column(node.this) is None:
            return _unsupported(node.this.unnest())
        low, high = node.args["low"], node.args["high"]
        return And(
            (
                self._compare_with(node.this, Comparison.GREATER_OR_EQUAL, low),
                self._compare_with(node.this, Comparison.LESS_OR_EQUAL, high),
            )
        )

    def _is(self, node: exp.Expr) -> Condition:
        match node.expression:
            case exp.Null():
                column = _column(node.this)
                return IsNull(column) if column else _unsupported(node.this.unnest())
            case exp.Boolean() as truth:
                return IsTruth(self.condition(node.this), bool(truth.this))
            case _:
                return _unsupported(node)

    def _null_safe_equal(self, node: exp.Expr) -> Condition:
        for named, constant in ((node.this, node.expression), (node.expression, node.this)):
            column, literal = _column(named), self._literal(constant)
            if column is not None and literal is not None:
                return NullSafeEqual(column, literal)
        return _unsupported(node)

    def _like(self, node: exp.Expr) -> Condition:
        column, pattern = _column(node.this), self._literal(node.expression)
        if column is None or pattern is None:
            return _unsupported(node)
        like = Like(column, pattern)
        return Not(like) if node.args.get("negate") else like

    def _literal(self, node: exp.Expr) -> SqlLiteral | None:
        return read_literal(node, strings_are_plain=self.strings_are_plain)


def _column(node: exp.Expr) -> ColumnName | None:
    node = node.unnest()
    if type(node) is not exp.Column or not isinstance(node.this, exp.Identifier | exp.Star):
        return None
    return tuple(part.name for part in node.parts)


def _has_only(node: exp.Expr, *names: str) -> bool:
    """Whether no other argument is set: an unknown one may change the meaning of the node."""
    return all(name in names for name, value in node.args.items() if value)


def _unsupported(node: exp.Expr) -> Unsupported | Malformed:
    if isinstance(node, exp.Concat) and node.args.get("coalesce") is False:
        return Malformed("it has two strings in a row")
    operator = _OPERATORS.get(type(node))
    if operator is None and isinstance(node, exp.Anonymous):
        operator = node.name
    if operator is None and isinstance(node, exp.Func):
        operator = node.sql_name().lower()
    return Unsupported(operator or node.key.upper())
