"""Keys of a MERGE: equalities of columns in its condition, used for pruning and joining."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from sqlglot import exp

from icefloe.pruning.column_conditions import operands
from icefloe.pruning.predicate import ColumnName
from icefloe.spark.column_trees import Call, ColumnPath, ColumnTree, SqlPart
from icefloe.spark.columns import quote_path, quoted
from icefloe.spark.sql_text import SqlText

# A plain column of one side as SQL text: a Column takes half a dozen calls to the JVM, which add up
# on wide tables. Every other value is a Column.
Value: TypeAlias = str | Column

_COMPARABLE = (
    T.IntegerType,
    T.LongType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.DecimalType,
    T.StringType,
    T.BooleanType,
)


@dataclass(frozen=True, slots=True)
class MergeKey:
    """`target.column = source.column`, which holds for every matching pair of rows."""

    target: str  # a column of the table, as the table spells it
    source: str  # a column of the source, as the source spells it


@dataclass(frozen=True, slots=True)
class MergeSides:
    """The aliases and schemas of both sides of a MERGE."""

    target_alias: str
    source_alias: str
    target: T.StructType  # after the statement's schema change
    source: T.StructType
    added: tuple[str, ...] = ()  # columns that the statement adds; expressions cannot use them

    @property
    def present(self) -> T.StructType:
        """The table's columns that expressions may use: all but the added ones."""
        return T.StructType([f for f in self.target.fields if f.name not in self.added])

    def target_column(self, name: str) -> Column:
        """A column of the table; NULL for an added one."""
        if name in self.added:
            return F.lit(None).cast(self.target[name].dataType)
        return quoted(self.target_alias, name)

    def target_value(self, name: str) -> Value:
        """The same as SQL text, if the table has the column already."""
        if name in self.added:
            return self.target_column(name)
        return quote_path(self.target_alias, name)

    def source_column(self, name: str) -> Column:
        """A column of the source."""
        return quoted(self.source_alias, name)

    def source_value(self, name: str) -> str:
        """The same as SQL text."""
        return quote_path(self.source_alias, name)


def find_keys(on: str | ColumnTree | Sequence[str], sides: MergeSides) -> tuple[MergeKey, ...]:
    """The equalities of plain columns that the condition requires."""
    if isinstance(on, str):
        return _keys_of_text(on, sides)
    if isinstance(on, ColumnTree):
        return _keys_of_tree(on, sides)
    return tuple(_same_name(name, sides) for name in on)


def only_key(on: str, sides: MergeSides) -> MergeKey | None:
    """The key of a condition that is one equality of plain columns, and nothing else."""
    tree = SqlText.of(on).tree if "\\\n" not in on else None
    [part, *others] = _conjuncts(tree) if tree is not None else [None]
    if others or not isinstance(part, exp.EQ):
        return None
    return _key(_path(part.left), _path(part.right), sides)


def _keys_of_tree(on: ColumnTree, sides: MergeSides) -> tuple[MergeKey, ...]:
    if any(", " in name for schema in (sides.present, sides.source) for name in schema.names):
        return ()  # the JSON of a Column has such a name as if it were two
    keys: list[MergeKey | None] = []
    for part in operands(on, "and"):
        match part:
            case SqlPart(text):
                keys += _keys_of_text(text, sides)
            case Call("=" | "==", (ColumnPath(left), ColumnPath(right))):
                keys.append(_key(left, right, sides))
            case _:
                pass
    return tuple(key for key in keys if key is not None)


def _keys_of_text(on: str, sides: MergeSides) -> tuple[MergeKey, ...]:
    if "\\\n" in on:  # continues a comment in Spark, but not in sqlglot
        return ()
    tree = SqlText.of(on).tree
    if tree is None:
        return ()
    equalities = (part for part in _conjuncts(tree) if isinstance(part, exp.EQ))
    keys = (_key(_path(part.left), _path(part.right), sides) for part in equalities)
    return tuple(key for key in keys if key is not None)


def is_identical(key: MergeKey, sides: MergeSides) -> bool:
    """Whether values that are equal in Spark are always identical.

    Spark casts other pairs of types before it compares them, so that different values may be equal.
    Floats are excluded because 0.0 equals -0.0.
    """
    target, source = _type_of(key.target, sides.target), _type_of(key.source, sides.source)
    if target is None or source is None or not isinstance(target, _COMPARABLE):
        return False
    return target == source or all(isinstance(t, T.IntegralType) for t in (target, source))


def match_name(name: str, schema: T.StructType) -> str | None:
    """The column of that name: the exact match, or the only match that ignores case."""
    if name in schema.names:
        return name
    same = [column for column in schema.names if column.lower() == name.lower()]
    return same[0] if len(same) == 1 else None


def _type_of(name: str, schema: T.StructType) -> T.DataType | None:
    return next((field.dataType for field in schema.fields if field.name == name), None)


def _same_name(name: str, sides: MergeSides) -> MergeKey:
    return MergeKey(match_name(name, sides.present) or name, match_name(name, sides.source) or name)


def _conjuncts(tree: exp.Expr) -> Iterator[exp.Expr]:
    match tree:
        case exp.And():
            yield from _conjuncts(tree.left)
            yield from _conjuncts(tree.right)
        case exp.Paren():
            yield from _conjuncts(tree.this)
        case _:
            yield tree


def _key(left: ColumnName, right: ColumnName, sides: MergeSides) -> MergeKey | None:
    for one, other in ((left, right), (right, left)):
        target = _column_of(one, sides.target_alias, sides.present, sides.source)
        source = _column_of(other, sides.source_alias, sides.source, sides.present)
        if target is not None and source is not None:
            return MergeKey(target, source)
    return None


def _path(node: exp.Expr) -> ColumnName:
    """The parts of a column's name; none for other expressions."""
    node = node.unnest()
    return tuple(part.name for part in node.parts) if isinstance(node, exp.Column) else ()


def _column_of(
    path: ColumnName, alias: str, schema: T.StructType, other: T.StructType
) -> str | None:
    """The column of one side that a path names; unqualified if only that side has it."""
    match path:
        case (qualifier, name):
            return match_name(name, schema) if qualifier.lower() == alias.lower() else None
        case (name,):
            others = {column.lower() for column in other.names}
            return match_name(name, schema) if name.lower() not in others else None
        case _:
            return None
