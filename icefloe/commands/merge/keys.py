"""What a MERGE's condition says about single columns: equalities that choose files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from sqlglot import exp

from icefloe.spark.columns import quoted
from icefloe.spark.sql_text import SqlText
from icefloe.statements import Condition

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
    """`target.column = source.column`, which every matching pair of rows satisfies."""

    target: str  # a column of the table, as the table spells it
    source: str  # a column of the source, as the source spells it


@dataclass(frozen=True, slots=True)
class MergeSides:
    """The two sides of a MERGE, as its expressions name them."""

    target_alias: str
    source_alias: str
    target: T.StructType  # as it will be
    source: T.StructType
    added: tuple[str, ...] = ()  # columns that the statement adds: no expression sees them

    @property
    def present(self) -> T.StructType:
        """The table's columns without those that are added: what expressions may name."""
        return T.StructType([f for f in self.target.fields if f.name not in self.added])

    def target_column(self, name: str) -> Column:
        """A column of the table; no row has a value yet in one that is added."""
        if name in self.added:
            return F.lit(None).cast(self.target[name].dataType)
        return quoted(self.target_alias, name)

    def source_column(self, name: str) -> Column:
        """A column of the source."""
        return quoted(self.source_alias, name)


def find_keys(on: Condition | Sequence[str], sides: MergeSides) -> tuple[MergeKey, ...]:
    """The equalities between plain columns that the condition demands; a Column tells none."""
    if isinstance(on, Column):
        return ()
    if not isinstance(on, str):
        return tuple(_named(name, sides) for name in on)
    if "\\\n" in on:  # Spark's comments go on there, sqlglot's do not
        return ()
    tree = SqlText.of(on).tree
    if tree is None:
        return ()
    found = (_key(part, sides) for part in _conjuncts(tree))
    return tuple(key for key in found if key is not None)


def is_identical(key: MergeKey, sides: MergeSides) -> bool:
    """Whether values that are equal in Spark are the same value, stored the same way.

    Spark compares other pairs of types after casts of its own, under which values that look
    different are equal; 0.0 equals -0.0.
    """
    target, source = _type_of(key.target, sides.target), _type_of(key.source, sides.source)
    if target is None or source is None or not isinstance(target, _COMPARABLE):
        return False
    return target == source or all(isinstance(t, T.IntegralType) for t in (target, source))


def match_name(name: str, schema: T.StructType) -> str | None:
    """The column a name means: exactly if there is one, else the only one of another case."""
    if name in schema.names:
        return name
    same = [known for known in schema.names if known.lower() == name.lower()]
    return same[0] if len(same) == 1 else None


def _type_of(name: str, schema: T.StructType) -> T.DataType | None:
    return next((field.dataType for field in schema.fields if field.name == name), None)


def _named(name: str, sides: MergeSides) -> MergeKey:
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


def _key(part: exp.Expr, sides: MergeSides) -> MergeKey | None:
    if not isinstance(part, exp.EQ):
        return None
    for left, right in ((part.left, part.right), (part.right, part.left)):
        target = _column_of(left, sides.target_alias, sides.present, sides.source)
        source = _column_of(right, sides.source_alias, sides.source, sides.present)
        if target is not None and source is not None:
            return MergeKey(target, source)
    return None


def _column_of(node: exp.Expr, alias: str, schema: T.StructType, other: T.StructType) -> str | None:
    """The column of one side that a node is; bare names count where only that side has them."""
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, exp.Column) or len(node.parts) > 2:
        return None
    if node.table:
        return match_name(node.name, schema) if node.table.lower() == alias.lower() else None
    bare = {known.lower() for known in other.names}
    return match_name(node.name, schema) if node.name.lower() not in bare else None
