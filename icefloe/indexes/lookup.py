"""From a condition to row positions: what the indexes of a table say of its data files.

The condition is an expression as `FilePredicate.inclusive`. A test that no index answers may be
TRUE for any row; AND needs one side that an index answers, OR needs both.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import (
    AlwaysFalse,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    Or,
    Reference,
    StartsWith,
    UnboundPredicate,
)
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyroaring import BitMap64

from icefloe.deletes.row_positions import as_array, as_bitmap
from icefloe.indexes.definitions import IndexDefinition, answering
from icefloe.indexes.sidecars import open_sidecar
from icefloe.metadata.files import LiveFile
from icefloe.metadata.table_state import TableState
from icefloe.tasks.btree import LAST_CODE, CodeTable
from icefloe.tasks.index_codes import (
    CODE_BYTES,
    EXACT,
    HASH,
    ORDER,
    Coder,
    encode,
    float_codes,
    integer_codes,
)
from icefloe.tasks.sidecars import DamagedSidecarError

log = logging.getLogger("icefloe")

_THREADS = 16
_MOST = 10  # where more than one row in so many may match, reading the file is as good
_MOST_READ = 50  # rows are read by position up to one in so many
_LEAST_ROWS = 65_536  # that are looked up whatever the file's size
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class IndexAnswer:
    """What indexes say of one data file; deleted rows are among the positions."""

    positions: BitMap64  # every row that the condition may be TRUE for
    exact: bool  # ... and no other
    reading_pays: bool  # whether to read these rows by position, not the whole file
    indexes: tuple[str, ...]  # the names of those that were used


@dataclass(frozen=True, slots=True)
class LookupResult:
    """What the indexes say of several data files."""

    indexes: tuple[str, ...] = ()  # the names of those that the condition could use
    answers: Mapping[str, IndexAnswer] = field(default_factory=dict)  # by data file location
    notes: tuple[str, ...] = ()  # for people


def look_up(
    state: TableState, expression: BooleanExpression, files: Sequence[LiveFile]
) -> LookupResult:
    """What the table's indexes say of data files.

    Files that no index covers, and those of which too many rows may match, have no answer.
    """
    definitions = _of_condition(answering(state), expression, state.schema)
    if not definitions or not files:
        return LookupResult()
    with ThreadPoolExecutor(_THREADS) as pool:
        answers = pool.map(lambda live: _look_up(state, definitions, expression, live), files)
        by_file = {
            live.path: answer
            for live, answer in zip(files, answers, strict=True)
            if answer is not None
        }
    names = ", ".join(each.name for each in definitions)
    reason = _why_not_read(files, by_file)
    if reason is not None:
        by_file = {path: replace(each, reading_pays=False) for path, each in by_file.items()}
    notes = (*_notes(names, len(files), by_file), *([f"index {names} {reason}"] if reason else ()))
    return LookupResult(tuple(each.name for each in definitions), by_file, notes)


def _notes(names: str, files: int, answers: Mapping[str, IndexAnswer]) -> Iterator[str]:
    """For how many of the files an index was used."""
    skipped = sum(not answer.positions for answer in answers.values())
    rows = sum(len(answer.positions) for answer in answers.values())
    yield f"index {names}: {skipped} files skipped, {rows} rows in {len(answers) - skipped} files"
    if without := files - len(answers):
        yield (
            f"index {names} not used for {without} files: they have no sidecar, or too many rows "
            "may match"
        )


def _why_not_read(files: Sequence[LiveFile], answers: Mapping[str, IndexAnswer]) -> str | None:
    """Why rows are not read by position; None where that reads less than whole files."""
    covered = [live for live in files if live.path in answers]
    rows = sum(live.rows for live in covered)
    hits = sum(len(answers[live.path].positions) for live in covered)
    if hits * _MOST_READ > rows:
        return f"not used to read rows: {hits} of {rows} rows may match"
    groups = sum(_row_groups(live) for live in covered)
    hit = sum(_groups_hit(live, answers[live.path].positions) for live in covered)
    if 2 * hit > groups:
        return f"not used to read rows: {hit} of {groups} row groups have a match"
    return None


def _row_groups(live: LiveFile) -> int:
    return max(1, len(live.file.split_offsets or ()))


def _groups_hit(live: LiveFile, positions: BitMap64) -> int:
    """In how many row groups of a file positions are, if these are of one size."""
    size = max(1, live.rows // _row_groups(live))
    return len(np.unique(as_array(positions) // size))


def _of_condition(
    definitions: Sequence[IndexDefinition], expression: BooleanExpression, schema: Schema
) -> list[IndexDefinition]:
    """The indexes whose columns the condition tests."""
    names = {name.lower() for name in _names(expression)}
    tested = {column.field_id for column in schema.fields if column.name.lower() in names}
    return [each for each in definitions if tested.issuperset(each.field_ids)]


def _names(expression: BooleanExpression) -> Iterator[str]:
    pending = [expression]
    while pending:
        match pending.pop():
            case And(left=left, right=right) | Or(left=left, right=right):
                pending += [left, right]
            case UnboundPredicate(term=Reference(name=name)):
                yield name


def _look_up(
    state: TableState,
    definitions: Sequence[IndexDefinition],
    expression: BooleanExpression,
    live: LiveFile,
) -> IndexAnswer | None:
    try:
        with ExitStack() as opened:
            sidecars = _Sidecars(state, live, definitions, opened)
            answer = _Evaluation(state.schema, sidecars).answer(expression)
    except DamagedSidecarError as damaged:  # sidecars raise it when they are closed, too
        log.warning("A sidecar of %s is not used: %s", live.path, damaged)
        return None
    if answer is None:
        return None
    positions, exact = answer
    return IndexAnswer(positions, exact, True, tuple(sorted(sidecars.used)))


@dataclass(slots=True)
class _Sidecars:
    """The sidecars of one data file, opened when they are needed."""

    state: TableState
    live: LiveFile
    definitions: Sequence[IndexDefinition]
    opened: ExitStack
    used: set[str] = field(default_factory=set)
    _open: dict[str, CodeTable | None] = field(default_factory=dict)

    def of(self, definition: IndexDefinition) -> CodeTable | None:
        """The sidecar of an index; None if it does not cover the file."""
        if definition.name not in self._open:
            self._open[definition.name] = self._opened(definition)
        return self._open[definition.name]

    def _opened(self, definition: IndexDefinition) -> CodeTable | None:
        context = open_sidecar(self.state, definition, self.live)
        types = [str(column.field_type) for column in definition.fields(self.state.schema) or ()]
        try:
            return CodeTable.of(self.opened.enter_context(context), types)
        except FileNotFoundError:
            return None
        except (DamagedSidecarError, ValueError, LookupError, TypeError, zlib.error) as error:
            log.warning("The sidecar of %s is not used: %s", self.live.path, error)
            return None


_Found = tuple[BitMap64, bool]  # rows, and whether a test is TRUE for exactly these


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """Evaluates conditions on one data file."""

    schema: Schema
    sidecars: _Sidecars

    def answer(self, expression: BooleanExpression) -> _Found | None:
        """The rows that an expression may be TRUE for; None if no index says."""
        match expression:
            case AlwaysFalse():
                return BitMap64(), True
            case And():
                return self._all(list(_conjuncts(expression)))
            case Or(left=left, right=right):
                return self._any(left, right)
            case UnboundPredicate():
                return self._test(expression)
            case _:
                return None

    def _any(self, left: BooleanExpression, right: BooleanExpression) -> _Found | None:
        first = self.answer(left)
        second = self.answer(right) if first is not None else None
        if first is None or second is None:
            return None
        return first[0] | second[0], first[1] and second[1]

    def _all(self, parts: Sequence[BooleanExpression]) -> _Found | None:
        answers = [self.answer(part) for part in parts]
        answers += [self._composite(each, parts) for each in self.sidecars.definitions]
        known = [answer for answer in answers if answer is not None]
        if not known:
            return None
        rows = known[0][0]
        for positions, _ in known[1:]:
            rows = rows & positions
        exact = all(answer is not None and answer[1] for answer in answers[: len(parts)])
        return rows, exact

    def _composite(
        self, definition: IndexDefinition, parts: Sequence[BooleanExpression]
    ) -> _Found | None:
        """The rows of an index of several columns, each of which is compared with one value."""
        fields = definition.fields(self.schema) or []
        if len(fields) < 2:
            return None
        columns = []
        for column in fields:
            values = [
                part.literal.value
                for part in parts
                if isinstance(part, EqualTo) and self._column(part) == column
            ]
            array = _array_of(values[0], column) if values else None
            if array is None:
                return None
            columns.append(array)
        sidecar = self.sidecars.of(definition)
        if sidecar is None or sidecar.coder.kind != HASH:
            return None
        self.sidecars.used.add(definition.name)
        return as_bitmap(sidecar.among(encode(columns, sidecar.coder))), False

    def _test(self, test: UnboundPredicate) -> _Found | None:
        column = self._column(test)
        if column is None:
            return None
        for definition in self.sidecars.definitions:
            if definition.field_ids != (column.field_id,):
                continue
            sidecar = self.sidecars.of(definition)
            answer = None if sidecar is None else _test_rows(sidecar, column, test)
            if answer is not None:
                self.sidecars.used.add(definition.name)
                return answer
        return None

    def _column(self, test: UnboundPredicate) -> NestedField | None:
        if not isinstance(test.term, Reference):
            return None
        fields = [column for column in self.schema.fields if column.name == test.term.name]
        return fields[0] if len(fields) == 1 else None


def _conjuncts(expression: BooleanExpression) -> Iterator[BooleanExpression]:
    pending = [expression]
    while pending:
        match pending.pop():
            case And(left=left, right=right):
                pending += [right, left]
            case part:
                yield part


# -------------------------------------------------------------------------------------------------
# One test of one column


def _test_rows(sidecar: CodeTable, column: NestedField, test: UnboundPredicate) -> _Found | None:
    coder = sidecar.coder
    match test:
        case IsNull():
            return None if sidecar.nulls is None else (as_bitmap(sidecar.nulls), True)
        case IsNaN() if isinstance(column.field_type, FloatType | DoubleType):
            return as_bitmap(sidecar.among(float_codes(np.array([np.nan])))), True
        case EqualTo():
            return _equal(sidecar, column, [test.literal.value])
        case In():
            return _equal(sidecar, column, [literal.value for literal in test.literals])
        case StartsWith() if coder.kind == ORDER and isinstance(column.field_type, StringType):
            return _in_range(sidecar, _starting_with(coder.prefix, test.literal.value.encode()))
        case LessThan() | LessThanOrEqual() | GreaterThan() | GreaterThanOrEqual():
            bounds = _bounds(coder, column, test)
            return None if bounds is None else _in_range(sidecar, bounds)
        case _:
            return None


def _equal(sidecar: CodeTable, column: NestedField, values: Sequence[Any]) -> _Found | None:
    arrays = [_array_of(value, column) for value in values]
    if any(array is None for array in arrays):
        return None
    known = [array for array in arrays if array is not None and len(array)]
    if not known:
        return BitMap64(), True
    joined = pa.concat_arrays(known)
    coder = sidecar.coder
    if coder.kind == ORDER:
        prefix = coder.prefix
        joined = pa.array([v for v in joined.to_pylist() if v.startswith(prefix)], joined.type)
    elif coder.kind == EXACT and isinstance(column.field_type, DecimalType):
        unscaled = [int(v.scaleb(column.field_type.scale)) for v in joined.to_pylist()]
        joined = pa.array([v for v in unscaled if v in _INT64], pa.int64())
    if not len(joined):
        return BitMap64(), True
    return as_bitmap(sidecar.among(np.unique(encode([joined], coder)))), coder.is_exact


def _array_of(value: Any, column: NestedField) -> pa.Array | None:
    """A literal as its column has it in files; empty if no row can be equal to it."""
    kind = column.field_type
    match kind:
        case IntegerType() | LongType() | DateType() | TimestampType() | TimestamptzType():
            if isinstance(value, bool) or not isinstance(value, int):
                return None
            return pa.array([value] if value in _INT64 else [], pa.int64())
        case FloatType() | DoubleType() if isinstance(value, float):
            return pa.array([value], pa.float64())
        case DecimalType(scale=scale) if isinstance(value, Decimal):
            return _decimal_array(value, scale)
        case StringType() if isinstance(value, str):
            return pa.array([value.encode()], pa.large_binary())
        case _:
            return None


def _decimal_array(value: Decimal, scale: int) -> pa.Array | None:
    try:
        return pa.array([value], pa.decimal128(38, scale))
    except pa.ArrowInvalid:
        return None


_Bounds = tuple[int, int]  # the first and the last code
_NO_CODE = (1, 0)


def _in_range(sidecar: CodeTable, bounds: _Bounds) -> _Found | None:
    """The rows with codes in a range; None if they may be too many to be worth it."""
    first, last = bounds
    if sidecar.estimate(first, last) > max(_LEAST_ROWS, sidecar.rows // _MOST):
        return None
    return as_bitmap(sidecar.between(first, last)), sidecar.coder.is_exact


def _bounds(coder: Coder, column: NestedField, test: LiteralPredicate) -> _Bounds | None:
    value = test.literal.value
    if coder.kind == EXACT:
        place = _exact_place(value, column)
    elif coder.kind == ORDER and isinstance(value, str):
        place = _order_place(coder.prefix, value.encode())
    else:
        return None
    if place is None:
        return None
    below, code = place
    # Values with the code are not all on one side of the literal unless the code is exact.
    open_ended = int(coder.kind == EXACT)
    match test:
        case LessThan():
            return (0, below if code is None else code - open_ended)
        case LessThanOrEqual():
            return (0, below if code is None else code)
        case GreaterThan():
            return (below + 1 if code is None else code + open_ended, LAST_CODE)
        case _:
            return (below + 1 if code is None else code, LAST_CODE)


# The last code below the literal, where no value has the literal's own code; or that code.
_Place = tuple[int, int | None]
_BEFORE_ALL: _Place = (-1, None)
_AFTER_ALL: _Place = (LAST_CODE, None)


def _exact_place(value: Any, column: NestedField) -> _Place | None:
    kind = column.field_type
    if isinstance(kind, FloatType | DoubleType):
        if not isinstance(value, float):
            return None
        return 0, int(float_codes(np.array([value]))[0])
    if isinstance(kind, DecimalType):
        if not isinstance(value, Decimal):
            return None
        scaled = value.scaleb(kind.scale)
        if scaled != scaled.to_integral_value():
            return None
        value = int(scaled)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    if value not in _INT64:
        return _BEFORE_ALL if value < 0 else _AFTER_ALL
    return 0, int(integer_codes(np.array([value], np.int64))[0])


def _order_place(prefix: bytes, value: bytes) -> _Place:
    if value.startswith(prefix):
        return 0, _padded(value[len(prefix) :], b"\0")
    return _BEFORE_ALL if value < prefix else _AFTER_ALL


def _starting_with(prefix: bytes, start: bytes) -> _Bounds:
    if prefix.startswith(start):
        return 0, LAST_CODE
    if not start.startswith(prefix):
        return _NO_CODE
    rest = start[len(prefix) :]
    return _padded(rest, b"\0"), _padded(rest, b"\xff")


def _padded(rest: bytes, filler: bytes) -> int:
    return int(struct.unpack(">Q", rest[:CODE_BYTES].ljust(CODE_BYTES, filler))[0])
