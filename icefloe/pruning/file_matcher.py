"""Which manifests and files may hold rows that match a condition, from their metadata.

PyIceberg evaluates; its pitfalls are dealt with here: strict evaluation reads a missing null count
as "no NULLs", and projections raise on types that they do not support. An error of an evaluator
proves nothing, so the file is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, partial
from math import inf
from typing import Protocol, TypeVar
from uuid import UUID

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundPredicate,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    NotNull,
    Or,
    Reference,
    UnaryPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import DateLiteral, LongLiteral, TimestampLiteral
from pyiceberg.expressions.visitors import (
    IN_PREDICATE_LIMIT,
    BooleanExpressionVisitor,
    expression_evaluator,
    inclusive_projection,
    strict_projection,
    visit,
)
from pyiceberg.manifest import DataFile, ManifestFile, PartitionFieldSummary
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    IcebergType,
    IntegerType,
    LongType,
    TimestampType,
    TimestamptzType,
)

from icefloe.metadata.files import (
    inclusive_metrics_test,
    partition_summaries_test,
    strict_metrics_test,
)
from icefloe.pruning.comparisons import FilePredicate

T = TypeVar("T")
Test = Callable[[T], bool]

# The types of partition values that PyIceberg compares. A date would be unequal to every day.
_PARTITION_VALUES = frozenset({type(None), bool, int, float, str, bytes, Decimal, UUID})


class Matcher(Protocol):
    """Decides which files cannot hold rows of interest; in doubt, a file may."""

    @property
    def row_condition(self) -> BooleanExpression:
        """TRUE for every row of interest, and maybe for more."""
        ...

    def may_match_manifest(self, manifest: ManifestFile) -> bool:
        """Whether a manifest may list a file of interest."""
        ...

    def may_match(self, file: DataFile, spec_id: int) -> bool:
        """Whether the file may hold a row of interest."""
        ...

    def why_not(self, file: DataFile, spec_id: int) -> str | None:
        """What rules the file out; None when it may hold a row of interest."""
        ...

    def matches_every_row(self, file: DataFile, spec_id: int) -> bool:
        """Whether every row is provably of interest."""
        ...


class FileMatcher:
    """Which manifests and files may hold, or provably hold only, rows a condition is TRUE for.

    Expressions are bound and projected once, for the first file, or the first of a spec.
    """

    def __init__(
        self,
        lowered: FilePredicate,
        schema: Schema,
        specs: Mapping[int, PartitionSpec],
    ) -> None:
        self._lowered = lowered
        self._table_schema = schema
        self._specs = specs
        self._partition_tests: dict[int, _PartitionTests] = {}

    @cached_property
    def _schema(self) -> Schema:
        return _with_optional_columns(self._table_schema)

    @cached_property
    def _conjuncts(self) -> tuple[BooleanExpression, ...]:
        return tuple(_conjuncts(_demand_values(self._lowered.exact)))

    @cached_property
    def _metrics_may_match(self) -> Test[DataFile] | None:
        return _prepare(self._inclusive_metrics)

    @cached_property
    def _metrics_prove_match(self) -> tuple[Test[DataFile] | None, ...]:
        return tuple(
            _prepare(partial(strict_metrics_test, self._schema, part)) for part in self._conjuncts
        )

    @cached_property
    def _ranges(self) -> tuple[_Range, ...]:
        """What column bounds are compared with first: PyIceberg needs several times as long."""
        fields = {field.name: field for field in self._table_schema.fields}
        ranges = []
        for part in _conjuncts(self._lowered.inclusive):
            match part:
                case UnboundPredicate(term=Reference(name=name)) if name in fields:
                    values = _values_between(part, fields[name].field_type)
                    ranges += [_Range(fields[name].field_id, *values)] if values else []
        return tuple(ranges)

    @property
    def row_condition(self) -> BooleanExpression:
        """TRUE for every row the condition is TRUE for, and maybe for more."""
        return self._lowered.inclusive

    @property
    def is_selective(self) -> bool:
        """Whether it can rule out any file."""
        return not isinstance(self._lowered.inclusive, AlwaysTrue)

    def may_match_manifest(self, manifest: ManifestFile) -> bool:
        """Whether the partition summaries allow a matching file."""
        tests = self._tests_of(manifest.partition_spec_id)
        return _answer(tests.manifest_may_match, manifest, in_doubt=True)

    def may_match(self, file: DataFile, spec_id: int) -> bool:
        """Whether the file may hold a row the condition is TRUE for."""
        return self.why_not(file, spec_id) is None

    def why_not(self, file: DataFile, spec_id: int) -> str | None:
        """What rules the file out, "partition" or "column bounds"; None when it may match."""
        if file.record_count <= 0:
            return None
        if not _answer(self._tests_of(spec_id).may_match, file, in_doubt=True):
            return "partition"
        for part in self._ranges:
            if part.misses(file):
                return "column bounds"
        if not _answer(self._metrics_may_match, file, in_doubt=True):
            return "column bounds"
        return None

    def matches_every_row(self, file: DataFile, spec_id: int) -> bool:
        """Whether the condition is TRUE for every row: each part by partition or by bounds."""
        if self._lowered.exact is None or file.record_count <= 0:
            return False
        by_partition = self._tests_of(spec_id).prove_match
        return all(
            _answer(partition_test, file, in_doubt=False)
            or _answer(metrics_test, file, in_doubt=False)
            for partition_test, metrics_test in zip(
                by_partition, self._metrics_prove_match, strict=True
            )
        )

    def _inclusive_metrics(self) -> Test[DataFile]:
        expression = visit(self._lowered.inclusive, _LargeInAsRange())
        return inclusive_metrics_test(self._schema, expression)

    def _tests_of(self, spec_id: int) -> _PartitionTests:
        if spec_id not in self._partition_tests:
            self._partition_tests[spec_id] = self._partition_tests_of(self._specs.get(spec_id))
        return self._partition_tests[spec_id]

    def _partition_tests_of(self, spec: PartitionSpec | None) -> _PartitionTests:
        """An unknown spec proves nothing, nor does one without fields."""
        if spec is None or spec.is_unpartitioned():
            return _PartitionTests(None, None, (None,) * len(self._conjuncts))
        return _PartitionTests(
            _prepare(partial(self._manifest_test, spec)),
            _prepare(partial(self._inclusive_test, spec)),
            tuple(_prepare(partial(self._strict_test, spec, part)) for part in self._conjuncts),
        )

    def _manifest_test(self, spec: PartitionSpec) -> Test[ManifestFile]:
        partition_schema = Schema(*spec.partition_type(self._schema).fields)
        projected = inclusive_projection(self._schema, spec)(self._lowered.inclusive)
        summaries_may_match = partition_summaries_test(partition_schema, projected)

        def may_match(manifest: ManifestFile) -> bool:
            summaries = manifest.partitions
            if summaries is None or len(summaries) != len(spec.fields):
                return True
            if not all(_is_complete(summary) for summary in summaries):
                return True
            return summaries_may_match(manifest)

        return may_match

    def _inclusive_test(self, spec: PartitionSpec) -> Test[DataFile]:
        projected = inclusive_projection(self._schema, spec)(self._lowered.inclusive)
        return _on_partition(spec, self._schema, projected, in_doubt=True)

    def _strict_test(self, spec: PartitionSpec, part: BooleanExpression) -> Test[DataFile]:
        projected = strict_projection(self._schema, spec)(part)
        return _on_partition(spec, self._schema, projected, in_doubt=False)


@dataclass(frozen=True, slots=True)
class _PartitionTests:
    """The tests for files of one spec; None for a test that could not be prepared."""

    manifest_may_match: Test[ManifestFile] | None
    may_match: Test[DataFile] | None
    prove_match: tuple[Test[DataFile] | None, ...]  # one per conjunct


def _prepare(build: Callable[[], T]) -> T | None:
    """A test, or None when PyIceberg cannot bind or project the condition."""
    try:
        return build()
    except Exception:  # noqa: BLE001 - evaluators raise any error; no test means doubt
        return None


def _answer(test: Test[T] | None, subject: T, *, in_doubt: bool) -> bool:
    """The result of the test; `in_doubt` without a test, or if it fails on the metadata."""
    if test is None:
        return in_doubt
    try:
        return test(subject)
    except Exception:  # noqa: BLE001 - evaluators raise any error on unexpected metadata
        return in_doubt


def _on_partition(
    spec: PartitionSpec,
    schema: Schema,
    projected: BooleanExpression,
    *,
    in_doubt: bool,
) -> Test[DataFile]:
    if isinstance(projected, AlwaysTrue if in_doubt else AlwaysFalse):
        return lambda _file: in_doubt  # partitions say nothing: there may be thousands of files
    partition_schema = Schema(*spec.partition_type(schema).fields)
    evaluate = expression_evaluator(partition_schema, projected, case_sensitive=True)

    def test(file: DataFile) -> bool:
        partition = file.partition
        return evaluate(partition) if is_plain(partition, len(spec.fields)) else in_doubt

    return test


def is_plain(partition: Record, length: int) -> bool:
    """Whether the tuple has as many fields as the spec, of types that PyIceberg compares."""
    return len(partition) == length and all(
        type(partition[position]) in _PARTITION_VALUES for position in range(length)
    )


def _is_complete(summary: PartitionFieldSummary) -> bool:
    """Whether missing bounds mean that there are no values, as PyIceberg assumes."""
    if (summary.lower_bound is None) != (summary.upper_bound is None):
        return False
    return summary.lower_bound is not None or summary.contains_null or bool(summary.contains_nan)


def _with_optional_columns(schema: Schema) -> Schema:
    """Make IS NULL testable: a column may have become required after files were written."""
    fields = [field.model_copy(update={"required": False}) for field in schema.fields]
    return Schema(*fields, schema_id=schema.schema_id)


def _conjuncts(expression: BooleanExpression) -> Iterator[BooleanExpression]:
    """The parts of an AND; a row matches when it matches each."""
    if isinstance(expression, And):
        yield from _conjuncts(expression.left)
        yield from _conjuncts(expression.right)
    else:
        yield expression


def _demand_values(exact: BooleanExpression | None) -> BooleanExpression:
    """`exact` with NOT NULL beside each comparison, for strict evaluation.

    PyIceberg's strict comparison passes when the file has no null count at all; its NOT NULL does
    not. None is never proven.
    """
    demanding = _prepare(partial(visit, exact, _WithNotNull())) if exact is not None else None
    return demanding if demanding is not None else AlwaysFalse()


# -------------------------------------------------------------------------------------------------
# Ranges of whole numbers, whose bounds are compared without PyIceberg

_WHOLE_NUMBERS: Mapping[type[IcebergType], type] = {
    IntegerType: LongLiteral,
    LongType: LongLiteral,
    DateType: DateLiteral,
    TimestampType: TimestampLiteral,
    TimestamptzType: TimestampLiteral,
}
_WIDTHS = (4, 8)  # in bytes; a column may have been widened since


@dataclass(frozen=True, slots=True)
class _Range:
    """Values of which a column has one in each row that a condition is TRUE for."""

    field_id: int
    least: float  # an integer, or infinity
    greatest: float

    def misses(self, file: DataFile) -> bool:
        """Whether all values of the file are provably less, or all are greater."""
        lower = (file.lower_bounds or {}).get(self.field_id)
        if lower is not None and len(lower) in _WIDTHS and self.greatest < _integer(lower):
            return True
        upper = (file.upper_bounds or {}).get(self.field_id)
        return upper is not None and len(upper) in _WIDTHS and self.least > _integer(upper)


def _integer(bound: bytes) -> int:
    return int.from_bytes(bound, "little", signed=True)


def _values_between(predicate: UnboundPredicate, kind: IcebergType) -> tuple[float, float] | None:
    """The least and the greatest value that a comparison may be TRUE for; None if unknown."""
    literals = getattr(predicate, "literals", None) or {getattr(predicate, "literal", None)}
    if {type(literal) for literal in literals} != {_WHOLE_NUMBERS.get(type(kind))}:
        return None
    values = [literal.value for literal in literals]
    match predicate:
        case EqualTo() | In():
            return min(values), max(values)
        case LessThan() | LessThanOrEqual():
            return -inf, values[0]
        case GreaterThan() | GreaterThanOrEqual():
            return values[0], inf
        case _:
            return None


# -------------------------------------------------------------------------------------------------
# Conditions in other forms


class _Rewrite(BooleanExpressionVisitor[BooleanExpression]):
    """Rewrites the predicates of an unbound expression without NOT nodes."""

    def visit_true(self) -> BooleanExpression:
        return AlwaysTrue()

    def visit_false(self) -> BooleanExpression:
        return AlwaysFalse()

    def visit_not(self, child_result: BooleanExpression) -> BooleanExpression:
        raise TypeError(child_result)  # a lowered condition has no NOT

    def visit_and(
        self, left_result: BooleanExpression, right_result: BooleanExpression
    ) -> BooleanExpression:
        return And(left_result, right_result)

    def visit_or(
        self, left_result: BooleanExpression, right_result: BooleanExpression
    ) -> BooleanExpression:
        return Or(left_result, right_result)

    def visit_bound_predicate(self, predicate: BoundPredicate) -> BooleanExpression:
        raise TypeError(predicate)  # a lowered condition is not bound


class _WithNotNull(_Rewrite):
    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> BooleanExpression:
        if isinstance(predicate, UnaryPredicate):
            return predicate
        return And(NotNull(term=predicate.term), predicate)


class _LargeInAsRange(_Rewrite):
    """Replace long IN lists, which PyIceberg does not compare with bounds, by their range."""

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> BooleanExpression:
        if not isinstance(predicate, In) or len(predicate.literals) <= IN_PREDICATE_LIMIT:
            return predicate
        smallest = min(predicate.literals, key=lambda literal: literal.value)
        largest = max(predicate.literals, key=lambda literal: literal.value)
        return And(
            GreaterThanOrEqual(term=predicate.term, value=smallest),
            LessThanOrEqual(term=predicate.term, value=largest),
        )
