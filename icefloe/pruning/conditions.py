"""From a SQL condition to PyIceberg expressions that select files.

What is lowered is not the condition but "the condition IS TRUE", so NOT is pushed down to the
leaves. Whatever may mean something else in Spark is unknown: it may be true for any row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

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
from icefloe.pruning.literals import SqlLiteral
from icefloe.pruning.predicate import (
    And,
    ColumnName,
    Compare,
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
)
from icefloe.spark.sql_text import SqlText

C = TypeVar("C")
L = TypeVar("L")


def lower(
    condition: str | None,
    schema: Schema,
    *,
    time_zone: str,
    qualifiers: frozenset[str] = frozenset(),
) -> FilePredicate:
    """Lower a Spark SQL condition; None is no condition. Never raises: Spark checks the syntax.

    A column is known by its bare name or behind one of `qualifiers` (any case). Timestamps without
    an offset are read in `time_zone`, the session's.
    """
    if condition is None:
        return ALWAYS
    # Spark replaces variables before it parses, in string literals too, and continues a comment
    # after a backslash at the end of its line. sqlglot does neither.
    if "${" in condition or "\\\n" in condition:
        return UNKNOWN
    scope = _Scope(schema, time_zone, frozenset(name.lower() for name in qualifiers))
    # sqlglot's escapes are not Spark's, and under some of Spark's settings a double-quoted word is
    # a column.
    strings_are_plain = "\\" not in condition and '"' not in condition
    parsed = SqlText.of(condition).tree
    if parsed is None:
        return UNKNOWN
    try:
        return scope.tree(read_condition(parsed, strings_are_plain=strings_are_plain))
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
    time_zone: str
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
        fields = [field for field in self.schema.fields if field.name.lower() == name]
        if len(fields) != 1 or not isinstance(fields[0].field_type, PrimitiveType):
            return None
        if self.schema.find_field(fields[0].name).field_id != fields[0].field_id:
            return None  # a name with a dot, which PyIceberg takes for a nested field
        return PredicateColumn(fields[0].name, fields[0].field_type, self.time_zone)
