"""A bound REPLACE WHERE predicate for Spark, which checks new rows, and for file pruning."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DoubleType,
    FloatType,
    PrimitiveType,
    TimestampType,
    TimestamptzType,
)
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from icefloe.commands.replace.predicate import PartitionPredicate, PartitionTest, SourceColumn
from icefloe.pruning.comparisons import UNKNOWN, FilePredicate, PredicateColumn, balanced
from icefloe.pruning.conditions import TreeLowering, lower_test
from icefloe.pruning.literals import SqlLiteral, sql_literal, timestamp_text
from icefloe.pruning.predicate import (
    And,
    Compare,
    Comparison,
    Constant,
    In,
    IsNull,
    Node,
    Not,
    Or,
    Test,
)
from icefloe.schema.partition_spec import source_path
from icefloe.schema.to_spark import spark_type
from icefloe.spark.columns import quoted

_OPERATORS: Mapping[Comparison, Callable[[Any, Any], SparkColumn]] = {
    Comparison.EQUAL: operator.eq,
    Comparison.NOT_EQUAL: operator.ne,
    Comparison.LESS: operator.lt,
    Comparison.LESS_OR_EQUAL: operator.le,
    Comparison.GREATER: operator.gt,
    Comparison.GREATER_OR_EQUAL: operator.ge,
}


def as_condition(predicate: PartitionPredicate, schema: Schema) -> SparkColumn:
    """The predicate as Spark evaluates it on a row of the table."""
    return _condition(predicate.tree, schema)


def _condition(node: Node[PartitionTest], schema: Schema) -> SparkColumn:
    match node:
        case And(parts):
            return balanced(operator.and_, [_condition(part, schema) for part in parts])
        case Or(parts):
            return balanced(operator.or_, [_condition(part, schema) for part in parts])
        case Not(part):
            return ~_condition(part, schema)
        case Constant(value):
            return F.lit(value).cast("boolean")
        case _:
            return _test(node, schema)


def _test(test: PartitionTest, schema: Schema) -> SparkColumn:
    column = test.column
    value = quoted(*(source_path(schema, column.field_id) or (column.name,)))
    match test:
        case IsNull():
            return value.isNull()
        case In(_, listed):
            return value.isin(*(_spark_literal(item, column.type) for item in listed))
        case Compare(_, comparison, literal):
            return _OPERATORS[comparison](value, _spark_literal(literal, column.type))


def _spark_literal(value: Any, kind: PrimitiveType) -> SparkColumn:
    """A value as Iceberg stores it, as a constant that no time zone changes."""
    if value is None:
        return F.lit(None).cast(spark_type(kind))
    match kind:
        case DateType():
            return F.date_from_unix_date(F.lit(value))
        case TimestamptzType():
            return F.timestamp_micros(F.lit(value))
        case TimestampType():
            return F.lit(timestamp_text(value)).cast("timestamp_ntz")
        case FloatType() | DoubleType():
            return F.lit(float(value))  # Spark compares a FLOAT with a DOUBLE as doubles
        case _:
            return F.lit(value).cast(spark_type(kind))


def as_lowered(predicate: PartitionPredicate) -> FilePredicate:
    """The predicate for selecting manifests and files."""
    return _Lowering(predicate.time_zone).tree(predicate.tree)


@dataclass(frozen=True, slots=True)
class _Lowering(TreeLowering[PartitionTest]):
    time_zone: str

    def leaf(self, leaf: PartitionTest, *, negated: bool) -> FilePredicate:
        source = leaf.column
        if "." in source.name:
            return UNKNOWN  # a nested field, or a name that PyIceberg takes for one
        column = PredicateColumn(source.name, source.type, self.time_zone)
        return lower_test(_with_literals(leaf), column, negated=negated)


def _with_literals(test: PartitionTest) -> Test[SourceColumn, SqlLiteral]:
    match test:
        case In(column, values):
            return In(column, tuple(sql_literal(value, column.type) for value in values))
        case Compare(column, comparison, value):
            return Compare(column, comparison, sql_literal(value, column.type))
        case IsNull():
            return test
