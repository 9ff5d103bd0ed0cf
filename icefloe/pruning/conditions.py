"""From a condition, SQL text or a Column's tree, to PyIceberg expressions that select files.

What is lowered is not the condition but "the condition IS TRUE", so NOT is pushed down to the
leaves. Whatever may mean something else in Spark is unknown: it may be true for any row.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from icefloe.pruning.column_conditions import read_tree
from icefloe.pruning.comparisons import (
    ALWAYS,
    NEVER,
    UNKNOWN,
    FilePredicate,
    PredicateColumn,
    all_of,
    any_of,
    compare,
    compare_null_safe,
    is_in,
    is_like,
    is_null,
)
from icefloe.pruning.literals import LiteralKind, SqlLiteral
from icefloe.pruning.predicate import (
    And,
    ColumnName,
    Compare,
    Condition,
    Constant,
    In,
    IsNull,
    IsTruth,
    Like,
    Malformed,
    Node,
    Not,
    NullSafeEqual,
    Or,
    ParsedLeaf,
    Test,
    Unsupported,
    read_condition,
    read_sql,
)
from icefloe.spark.column_trees import ColumnTree, has_only_names
from icefloe.spark.sql_text import SqlText
from icefloe.spark.tokens import Token, TokenKind

C = TypeVar("C")
L = TypeVar("L")


def lower(
    condition: str | ColumnTree | None,
    schema: Schema,
    *,
    time_zone: str | None,
    qualifiers: frozenset[str] = frozenset(),
) -> FilePredicate:
    """Lower a Spark SQL condition; None is no condition. Never raises: Spark checks the syntax.

    A column is known by its bare name or behind one of `qualifiers` (any case). Timestamps without
    an offset are read in `time_zone`, the session's; without one they are unknown.
    """
    if condition is None:
        return ALWAYS
    scope = _Scope(schema, time_zone, frozenset(name.lower() for name in qualifiers))
    try:
        if isinstance(condition, str):
            return scope.tree(read_sql(SqlText.of(condition)))
        return scope.tree(read_tree(condition))
    except Exception:  # noqa: BLE001 - whatever sqlglot fails on, in any way, Spark has to check
        return UNKNOWN


class TreeLowering(ABC, Generic[L]):
    """Lowers trees with one kind of leaves."""

    __slots__ = ()

    @abstractmethod
    def leaf(self, leaf: L, *, negated: bool) -> FilePredicate:
        """For which rows the leaf, or its NOT if `negated`, is TRUE."""

    def tree(self, node: Node[L], *, negated: bool = False) -> FilePredicate:
        """For which rows the tree, or its NOT if `negated`, is TRUE."""
        match node:
            case Constant(value):
                return ALWAYS if value is not None and value is not negated else NEVER
            case Not(part):
                return self.tree(part, negated=not negated)
            case And(parts) | Or(parts):
                lowered = [self.tree(part, negated=negated) for part in parts]
                return all_of(lowered) if isinstance(node, And) is not negated else any_of(lowered)
            case _:
                return self.leaf(node, negated=negated)


def lower_test(
    test: Test[C, SqlLiteral], column: PredicateColumn | None, *, negated: bool
) -> FilePredicate:
    """For which rows a test of `column` is TRUE; without a column that is unknown."""
    if column is None:
        return UNKNOWN
    match test:
        case IsNull():
            return is_null(column, negated=negated)
        case In(_, literals):
            return is_in(column, literals, negated=negated)
        case Compare(_, comparison, literal):
            return compare(column, comparison.negated if negated else comparison, literal)


@dataclass(frozen=True, slots=True)
class _Scope(TreeLowering[ParsedLeaf]):
    """The columns that names in a condition can mean."""

    schema: Schema
    time_zone: str | None
    qualifiers: frozenset[str]

    def leaf(self, leaf: ParsedLeaf, *, negated: bool) -> FilePredicate:
        """For which rows a leaf is TRUE; IS NOT TRUE is unknown."""
        match leaf:
            case Unsupported() | Malformed():
                return UNKNOWN
            case IsTruth(part, value):
                return UNKNOWN if negated else self.tree(part, negated=not value)
            case NullSafeEqual(name, literal):
                column = self._column(name)
                return compare_null_safe(column, literal, negated=negated) if column else UNKNOWN
            case Like(name, pattern):
                column = self._column(name)
                return is_like(column, pattern, negated=negated) if column else UNKNOWN
            case _:
                return lower_test(leaf, self._column(leaf.column), negated=negated)

    def _column(self, column: ColumnName) -> PredicateColumn | None:
        """The column of a name; None for nested fields and for names that fit two columns."""
        *qualifier, name = (part.lower() for part in column)
        if name == "*" or len(qualifier) > 1 or not self.qualifiers.issuperset(qualifier):
            return None
        if qualifier and self._has_field(f"{qualifier[0]}, {name}"):
            return None  # the JSON of a Column has this name as if it were two
        fields = [field for field in self.schema.fields if field.name.lower() == name]
        if len(fields) != 1 or not isinstance(fields[0].field_type, PrimitiveType):
            return None
        if self.schema.find_field(fields[0].name).field_id != fields[0].field_id:
            return None  # a name with a dot, which PyIceberg takes for a nested field
        return PredicateColumn(fields[0].name, fields[0].field_type, self.time_zone)

    def _has_field(self, name: str) -> bool:
        return any(field.name.lower() == name for field in self.schema.fields)


# -------------------------------------------------------------------------------------------------
# Conditions that need no Spark

_WORDS = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL", "LIKE", "TRUE", "FALSE"})
_TYPES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_NTZ"})  # of a literal: the string follows
_SYMBOLS = frozenset({"=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>", "(", ")", ",", "-", "."})
_PLAIN_NUMBER = re.compile(r"(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|\d+L", re.ASCII)


def lower_certain(
    condition: str | ColumnTree | None,
    schema: Schema,
    *,
    time_zone: str | None,
    qualifiers: frozenset[str],
) -> FilePredicate | None:
    """A condition that is exact for rows and that Spark provably accepts; None in doubt.

    Stricter than an exact `lower`, which proves nothing about parts that do not matter: Spark
    refuses `id < 0 AND FALSE` if there is no `id`. Names must be spelled as in the schema and in
    `qualifiers`, and a text has to be plain, so that sqlglot reads nothing that Spark refuses.
    """
    if condition is None:
        return ALWAYS
    names = [field.name for field in schema.fields]
    if {name.lower() for name in qualifiers} & {name.lower() for name in names}:
        return None  # `t.a` may be a field of the struct `t`
    scope = _Certain(schema, time_zone, frozenset(name.lower() for name in qualifiers))
    try:
        parsed = _read_plain(condition, frozenset(names) | qualifiers)
        return None if parsed is None else scope.tree(parsed)
    except _DoubtError:
        return None
    except Exception:  # noqa: BLE001 - as in `lower`
        return None


def _read_plain(condition: str | ColumnTree, names: frozenset[str]) -> Condition | None:
    """A condition that has nothing but literals, these names and the operators of conditions."""
    if not isinstance(condition, str):
        return read_tree(condition) if has_only_names(condition, names) else None
    text = SqlText.of(condition)
    if not is_plain_sql(text, names) or text.tree is None:
        return None
    return read_condition(text.tree, strings_are_plain=True)


def is_plain_sql(text: SqlText, names: frozenset[str]) -> bool:
    """Whether a text has nothing but literals, these names and the operators of conditions."""
    if any(sign in text for sign in ("${", "\\", '"', "--", "/*", "{#")):
        return False
    tokens = text.tokens
    following = [*tokens[1:], None]
    return bool(tokens) and all(
        _is_plain(token, after, names) for token, after in zip(tokens, following, strict=True)
    )


def _is_plain(token: Token, after: Token | None, names: frozenset[str]) -> bool:
    string_follows = after is not None and after.kind is TokenKind.STRING
    match token.kind:
        case TokenKind.STRING:
            # Whether two quotes in a string are one depends on a setting of the session.
            return token.text[0] == "'" and "'" not in token.text[1:-1] and not string_follows
        case TokenKind.NUMBER:
            return _PLAIN_NUMBER.fullmatch(token.text) is not None
        case TokenKind.QUOTED:
            return token.name in names
        case TokenKind.WORD if token.word in _WORDS:
            return True
        case TokenKind.WORD if token.word in _TYPES and string_follows:
            return True
        case TokenKind.WORD:
            return token.name in names
        case TokenKind.SYMBOL:
            closes = after is not None and after.text == ")"
            return token.text in _SYMBOLS and not (token.text == "," and closes)
        case _:
            return False


class _DoubtError(Exception):
    """A part of a condition may be refused by Spark, or be TRUE for other rows."""


@dataclass(frozen=True, slots=True)
class _Certain(_Scope):
    def tree(self, node: Node[ParsedLeaf], *, negated: bool = False) -> FilePredicate:
        if isinstance(node, Constant) and node.value is None:
            raise _DoubtError
        return _Scope.tree(self, node, negated=negated)

    def leaf(self, leaf: ParsedLeaf, *, negated: bool) -> FilePredicate:
        if isinstance(leaf, IsTruth):
            raise _DoubtError
        if isinstance(leaf, Like) and leaf.pattern.kind is LiteralKind.NULL:
            raise _DoubtError
        lowered = _Scope.leaf(self, leaf, negated=negated)
        if not lowered.exact_for_rows:
            raise _DoubtError
        return lowered
