"""A bound predicate said in other words: for Spark, for PyIceberg, and as SQL text again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from operator import and_, or_
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from icefloe.commands.replace.predicate import And, Compare, Constant, In, IsNull, Node, Not, Or
from icefloe.commands.replace.predicate_bind import PartitionPredicate, SourceColumn
from icefloe.pruning.comparisons import (
    ALWAYS,
    NEVER,
    UNKNOWN,
    Column,
    Comparison,
    FilePredicate,
    all_of,
    any_of,
    compare,
    is_in,
    is_null,
)
from icefloe.pruning.literals import LiteralKind, SqlLiteral
from icefloe.schema.partition_spec import source_path
from icefloe.schema.to_spark import spark_type
from icefloe.spark.columns import quoted

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a moment without a zone


def as_condition(predicate: PartitionPredicate, schema: Schema) -> SparkColumn:
    """The predicate as Spark evaluates it on a row of the table."""
    return _condition(predicate.tree, predicate, schema)


def _balanced(
    join: Callable[[SparkColumn, SparkColumn], SparkColumn], parts: Sequence[SparkColumn]
) -> SparkColumn:
    """A tree of logarithmic depth: Spark goes down a deep one on its stack."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_balanced(join, parts[:middle]), _balanced(join, parts[middle:]))


def _condition(node: Node[Any], predicate: PartitionPredicate, schema: Schema) -> SparkColumn:
    match node:
        case And(parts):
            return _balanced(and_, [_condition(p, predicate, schema) for p in parts])
        case Or(parts):
            return _balanced(or_, [_condition(p, predicate, schema) for p in parts])
        case Not(part):
            return ~_condition(part, predicate, schema)
        case Constant(value):
            return F.lit(value).cast("boolean")
        case _:
            return _test(node, predicate.columns[node.column], schema)


def _test(
    node: Compare[Any] | In[Any] | IsNull, column: SourceColumn, schema: Schema
) -> SparkColumn:
    path = source_path(schema, column.field_id) or (column.name,)
    value = quoted(*path)
    match node:
        case IsNull():
            return value.isNull()
        case In(_, listed):
            return value.isin(*(_spark_literal(item, column.type) for item in listed))
        case Compare(_, comparison, literal):
            return _compared(value, comparison, _spark_literal(literal, column.type))


def _compared(left: SparkColumn, comparison: Comparison, right: SparkColumn) -> SparkColumn:
    match comparison:
        case Comparison.EQUAL:
            return left == right
        case Comparison.NOT_EQUAL:
            return left != right
        case Comparison.LESS:
            return left < right
        case Comparison.LESS_OR_EQUAL:
            return left <= right
        case Comparison.GREATER:
            return left > right
        case Comparison.GREATER_OR_EQUAL:
            return left >= right


def _spark_literal(value: Any, kind: PrimitiveType) -> SparkColumn:
    """A value as Iceberg keeps it, as a constant that no time zone changes."""
    if value is None:
        return F.lit(None).cast(spark_type(kind))
    match kind:
        case DateType():
            return F.date_from_unix_date(F.lit(value))
        case TimestamptzType():
            return F.timestamp_micros(F.lit(value))
        case TimestampType():
            return F.lit(_moment(value)).cast("timestamp_ntz")
        case FloatType() | DoubleType():
            return F.lit(float(value))  # Spark compares a FLOAT with a DOUBLE as doubles
        case _:
            return F.lit(value).cast(spark_type(kind))


def as_lowered(predicate: PartitionPredicate) -> FilePredicate:
    """The predicate for choosing manifests and files."""
    return _lowered(predicate.tree, predicate, negated=False)


def _lowered(node: Node[Any], predicate: PartitionPredicate, *, negated: bool) -> FilePredicate:
    match node:
        case Constant(value):
            return ALWAYS if value is not None and value is not negated else NEVER
        case Not(part):
            return _lowered(part, predicate, negated=not negated)
        case And(parts) | Or(parts):
            lowered = [_lowered(part, predicate, negated=negated) for part in parts]
            return all_of(lowered) if isinstance(node, And) is not negated else any_of(lowered)
        case _:
            source = predicate.columns[node.column]
            return _lowered_leaf(node, source, predicate.time_zone, negated=negated)


def _lowered_leaf(
    node: Compare[Any] | In[Any] | IsNull, source: SourceColumn, time_zone: str, *, negated: bool
) -> FilePredicate:
    if "." in source.name:
        return UNKNOWN  # a nested field, or a name that PyIceberg takes for one
    column = Column(source.name, source.type, time_zone)
    match node:
        case IsNull():
            return is_null(column, negated=negated)
        case In(_, listed):
            return is_in(column, [sql_literal(v, source.type) for v in listed], negated=negated)
        case Compare(_, comparison, value):
            chosen = comparison.negated if negated else comparison
            return compare(column, chosen, sql_literal(value, source.type))


def sql_literal(value: Any, kind: PrimitiveType) -> SqlLiteral:
    """A value as Iceberg keeps it, as a SQL constant."""
    match kind:
        case _ if value is None:
            return SqlLiteral(LiteralKind.NULL, "NULL")
        case DateType():
            return SqlLiteral(LiteralKind.DATE, _day(value))
        case TimestamptzType():
            return SqlLiteral(LiteralKind.TIMESTAMP, f"{_moment(value)}+00:00")
        case TimestampType():
            return SqlLiteral(LiteralKind.TIMESTAMP_NTZ, _moment(value))
        case StringType():
            return SqlLiteral(LiteralKind.STRING, str(value))
        case DecimalType():
            return SqlLiteral(LiteralKind.NUMBER, f"{Decimal(value):f}")
        case _ if isinstance(value, bool):
            return SqlLiteral(LiteralKind.BOOLEAN, str(value).upper())
        case _:
            return SqlLiteral(LiteralKind.NUMBER, str(value))


def sql_text(literal: SqlLiteral) -> str:
    """A constant as it is written in SQL."""
    match literal.kind:
        case LiteralKind.NULL | LiteralKind.BOOLEAN | LiteralKind.NUMBER:
            return literal.text
        case LiteralKind.STRING:
            return "'" + literal.text.replace("'", "''") + "'"
        case kind:
            return f"{kind.value.upper()} '{literal.text}'"


def _day(days: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=days)).isoformat()


def _moment(micros: int) -> str:
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(sep=" ")
