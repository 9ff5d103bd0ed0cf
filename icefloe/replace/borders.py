"""Whether a predicate falls on the borders of the partitions that rows lie in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from icefloe.errors import InvalidPredicateError
from icefloe.replace.bind import PartitionPredicate, SourceColumn, partitioning_fields
from icefloe.replace.match import Match, match_values, values_of
from icefloe.replace.translate import sql_literal, sql_text
from icefloe.replace.tree import Compare, In, leaves_of

Test = Compare[Any] | In[Any]

_WAY_OUT = "Move it to a border, or use scope='rows' to replace just the rows it is true for"


def refuse_between_borders(predicate: PartitionPredicate, spec: PartitionSpec) -> None:
    """Refuse a predicate that would be true for a part of a partition, whether it has rows or not.

    Partitions are ranges of values, so a test can only cut the one that its literal lies in.
    """
    for test, value in _tests_with_values(predicate):
        column = predicate.columns[test.column]
        if value is not None and (fields := _cuts(test, column, spec, value)):
            raise InvalidPredicateError(
                predicate.text,
                f"{column.name} is partitioned by {fields}, so the partition of "
                f"{sql_text(sql_literal(value, column.type))} lies on both sides of it. {_WAY_OUT}",
            )


def straddling(
    predicate: str, spec: PartitionSpec, schema: Schema, partition: Record
) -> InvalidPredicateError:
    """The error for a live partition that a predicate is true for a part of."""
    where = spec.partition_to_path(partition, schema) if spec.fields else "of no columns"
    return InvalidPredicateError(
        predicate,
        f"partition {where} (spec {spec.spec_id}) may have rows on both sides of it. {_WAY_OUT}",
    )


def _tests_with_values(predicate: PartitionPredicate) -> Iterator[tuple[Test, Any]]:
    for leaf in leaves_of(predicate.tree):
        match leaf:
            case In(name, listed):
                yield from ((In(name, (value,)), value) for value in listed)
            case Compare():
                yield leaf, leaf.value


def _cuts(test: Test, column: SourceColumn, spec: PartitionSpec, value: Any) -> str | None:
    """The transforms of the partition that a test cuts in two; None when it cuts none."""
    fields = [f for f in partitioning_fields(spec) if f.source_id == column.field_id]
    for field in fields:
        place = values_of(field, column.type, field.transform.transform(column.type)(value))
        if match_values(test, {column.name: place}) is not Match.SOME:
            return None
    return " and ".join(str(field.transform) for field in fields)
