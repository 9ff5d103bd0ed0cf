"""`table.scan` and `table.count`: the live rows of a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pandas as pd
import pyarrow as pa
from pyiceberg.schema import Schema
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from icefloe.commands.bind import columns_named, has_subquery, lower_condition, readable
from icefloe.commands.context import Context
from icefloe.commands.local_bind import lower_locally
from icefloe.commands.lost_deletes import with_inline_deletes
from icefloe.errors import ColumnNotFoundError, StatementError
from icefloe.inline.cut import INLINE_FILE, Cut, PointerMovedError
from icefloe.metadata.table_state import TableState, at_snapshot, snapshot_as_of
from icefloe.pruning.candidates import Candidate, plan_files
from icefloe.pruning.comparisons import FilePredicate
from icefloe.scan.arrow_rows import ArrowRead, find_arrow_rows, read_arrow_rows
from icefloe.scan.columns import nullable
from icefloe.scan.file_keys import refuse_unplain
from icefloe.scan.read_guard import guarded
from icefloe.scan.scan import Scan, read_deleted_rows
from icefloe.schema.to_spark import spark_schema
from icefloe.spark import columns as names
from icefloe.spark.column_trees import ColumnReader
from icefloe.spark.columns import quote, quoted, selected
from icefloe.spark.errors import of_one_row, translate_spark_errors
from icefloe.spark.expressions import expression
from icefloe.spark.frames import frame_of, frame_of_read_rows
from icefloe.spark.session import time_zone
from icefloe.spark.sql_text import SqlText
from icefloe.statements import Condition
from icefloe.storage.locations import spark_uri
from icefloe.tasks.arrow import fitted

_LOCATION = f"{names.PREFIX}location"
_META = {names.META_FILE: _LOCATION, names.META_POS: names.POS}
_PLACE = (names.FILE, names.POS)


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """Which rows and columns to read, and as of when; None is no restriction."""

    columns: Sequence[str] | None = None
    where: Condition | None = None
    limit: int | None = None
    snapshot_id: int | None = None
    as_of: datetime | None = None


EVERY_ROW = ScanRequest()


def count_rows(context: Context, state: TableState, where: Condition | None = None) -> int:
    """How many live rows there are; only files that metadata cannot count are read."""
    while True:
        try:
            state = with_inline_deletes(context, state)
            counted = _count_by_metadata(context, state, where)
            break
        except PointerMovedError:
            state = context.read_state(state.branch)
    if counted is None:
        return read_rows(context, state, ScanRequest(where=where)).count()
    return counted.rows + _count_in_files(context, state, where, counted)


@dataclass(frozen=True, slots=True)
class _Counted:
    """The rows that metadata and the database count, and the files with the others."""

    rows: int
    lowered: FilePredicate  # exact for rows
    uncounted: tuple[Candidate, ...]


def _count_by_metadata(
    context: Context, state: TableState, where: Condition | None
) -> _Counted | None:
    """Rows of files by their manifests, less deleted positions, and inline rows; None in doubt."""
    lowered = lower_exactly(context, where, state)
    if lowered is None:
        return None
    candidates = plan_files(state, lowered).candidates
    inline = context.tier.count_matching(state, lowered.inclusive)
    if inline is None:
        return None
    counted = [
        c for c in candidates if _can_count(c) and (where is None or c.covered or _is_known(c))
    ]
    deleted, _ = read_deleted_rows(state, counted)
    live = sum(_live_matches(c, deleted.get(c.path, BitMap64())) for c in counted)
    _flush_when_old(context, state)
    known = {c.path for c in counted}
    return _Counted(live + inline, lowered, tuple(c for c in candidates if c.path not in known))


def _count_in_files(
    context: Context, state: TableState, where: Condition | None, counted: _Counted
) -> int:
    """Matching rows of the files that metadata could not count: by the driver if they are few."""
    files = counted.uncounted
    if not files:
        return 0
    found = find_arrow_rows(ArrowRead(state, counted.lowered.inclusive, ()), files)
    if found is not None:
        return sum(len(file.positions) for file in found)
    with translate_spark_errors([field.name for field in state.schema.fields]):
        scan = Scan.of(context.spark, state, files)
        request = ScanRequest(columns=(), where=where)
        rows = guarded(scan, _live_rows(scan, request, context.columns))
        return _matching(context, state, rows, where).count()


def _can_count(candidate: Candidate) -> bool:
    """Whether metadata has the number of live rows; some writers leave a row count out."""
    return candidate.live.rows > 0 and not candidate.equality_deletes


def _is_known(candidate: Candidate) -> bool:
    """Whether indexes have exactly the rows that the condition is TRUE for."""
    return candidate.answer is not None and candidate.answer.exact


def _live_matches(candidate: Candidate, deleted: BitMap64) -> int:
    """How many live rows match, where the file or an index says it."""
    if candidate.covered or candidate.answer is None:
        return candidate.live.rows - len(deleted)
    return len(candidate.answer.positions - deleted)


def lower_exactly(
    context: Context, where: Condition | None, state: TableState
) -> FilePredicate | None:
    """A condition that is exact for rows; None in doubt.

    Spark is asked for its time zone alone, and only where the condition is in doubt without it.
    """
    condition = readable(where, context.columns)
    lowered = lower_locally(condition, state)
    if lowered is None and isinstance(where, str | Column):
        lowered = lower_locally(condition, state, time_zone(context.spark))
    return lowered


def _flush_when_old(context: Context, state: TableState) -> None:
    if state.has_inline_tier and state.settings.inline_max_age_ms is not None:
        context.flush_soon(state, 0, 0)


def read_rows(context: Context, state: TableState, request: ScanRequest = EVERY_ROW) -> DataFrame:
    """Plan the files that the condition needs and read their live rows, and the inline rows."""
    if isinstance(request.where, str):
        request = replace(request, where=SqlText.of(request.where))
    while True:
        try:
            current = with_inline_deletes(context, _as_requested(state, request))
            if current.has_inline_tier and has_subquery(request.where, context.columns):
                current = context.tier.pin(current)
            return _read_rows(context, current, request)
        except PointerMovedError:
            state = context.read_state(state.branch)


def read_once(context: Context, state: TableState) -> TableState:
    """The state with its deletes and inline rows: whatever reads it sees the same rows."""
    while True:
        try:
            return context.tier.pin(with_inline_deletes(context, state))
        except PointerMovedError:
            state = context.read_state(state.branch)


def _read_rows(context: Context, state: TableState, request: ScanRequest) -> DataFrame:
    columns, where = request.columns, request.where
    lowered = lower_condition(where, state, context.columns)
    cut = context.tier.cut(state, lowered.inclusive)
    _flush_when_old(context, state)
    files = plan_files(state, lowered)
    available = [field.name for field in state.schema.fields]
    with translate_spark_errors(available):
        scan = Scan.of(context.spark, state, files.candidates)
        rows = guarded(scan, _live_rows(scan, request, context.columns))
        if cut is not None and len(cut.rows):
            inline = inline_frame(context.spark, cut)
            rows = rows.unionByName(inline.select(*map(quoted, rows.columns)))
        rows = _matching(context, state, rows, where)
        if columns is not None and names.META_FILE in columns:
            rows = _with_locations(rows, files.candidates)
        if columns is not None:
            rows = selected(rows, _selected_columns(columns, available))
        _ = rows.schema  # over Spark Connect, only this makes Spark analyse it
        return rows if request.limit is None else rows.limit(request.limit)


def _matching(
    context: Context, state: TableState, rows: DataFrame, where: Condition | None
) -> DataFrame:
    """The rows for which the condition is TRUE, under the table's alias."""
    rows = rows.alias(state.alias)
    if where is None:
        return rows
    text = context.resolve(SqlText.of(where), state) if isinstance(where, str) else None
    with of_one_row(f"The condition {str(where)!r}"):
        rows = rows.filter(where if text is None else expression(text))
        _ = rows.schema
    return rows


def _live_rows(scan: Scan, request: ScanRequest, columns: ColumnReader) -> DataFrame:
    """Rows of files; those that an index found have only the columns that the request may name."""
    with_places = bool(set(request.columns or ()) & set(_META))
    if not scan.reads_by_position:
        return scan.rows() if with_places else scan.plain_rows()
    names = [field.name for field in scan.state.schema.fields]
    named = columns_named([*(request.columns or ()), request.where], names, columns)
    read = names if request.columns is None or named is None else named
    places = _PLACE if with_places else ()
    return scan.candidate_rows(read).selectExpr(*map(quote, read), *places)


# -------------------------------------------------------------------------------------------------
# Small reads without a Spark job


def read_arrow(context: Context, state: TableState, request: ScanRequest) -> pa.Table:
    """Live rows as an Arrow table, in the types of `DataFrame.toArrow`."""
    rows = _read_few_rows(context, state, request)
    return read_rows(context, state, request).toArrow() if rows is None else rows


def read_pandas(context: Context, state: TableState, request: ScanRequest) -> pd.DataFrame:
    """Live rows as a pandas frame; Spark converts the values also of those it did not read.

    PySpark converts numbers in structs batch by batch, so these are read in Spark's batches.
    """
    fields = [f for f in state.schema.fields if not request.columns or f.name in request.columns]
    is_plain = all(field.field_type.is_primitive for field in fields)
    rows = _read_few_rows(context, state, request) if is_plain else None
    if rows is None:
        return read_rows(context, state, request).toPandas()
    return frame_of(context.spark, rows).toPandas()


def _read_few_rows(context: Context, state: TableState, request: ScanRequest) -> pa.Table | None:
    """Rows of an exact condition, inline and of a few small files; None if Spark has to read."""
    while True:
        names = _plain_names(request, state)
        lowered = lower_exactly(context, request.where, state) if names else None
        if names is None or lowered is None:
            return None
        try:
            current = with_inline_deletes(context, state)
            return _few_rows(context, current, lowered, names, request.limit)
        except PointerMovedError:
            state = context.read_state(state.branch)


def _few_rows(
    context: Context,
    state: TableState,
    lowered: FilePredicate,
    names: Sequence[str],
    limit: int | None,
) -> pa.Table | None:
    target = _spark_arrow_schema(context.spark, state, names)
    read = ArrowRead(state, lowered.inclusive, names, limit)
    rows = read_arrow_rows(read, plan_files(state, lowered).candidates)
    if rows is None:
        return None
    fields = {field.name: field for field in state.schema.fields}
    selected = Schema(*(fields[name] for name in names))
    cut = context.tier.cut(state, lowered.inclusive, selected, limit)
    _flush_when_old(context, state)
    if cut is not None and not cut.is_exact:
        return None
    parts = [rows] if cut is None else [rows, cut.arrow()]
    return pa.concat_tables([_in_types(part, target) for part in parts]).slice(0, limit)


def _in_types(rows: pa.Table, target: pa.Schema) -> pa.Table:
    columns = [fitted(c, field.type) for c, field in zip(rows.columns, target, strict=True)]
    return pa.table(columns, schema=target)


def _plain_names(request: ScanRequest, state: TableState) -> list[str] | None:
    """The table's columns that are asked for; None for what only Spark selects, or refuses."""
    available = [field.name for field in state.schema.fields]
    names = available if request.columns is None else list(request.columns)
    is_limit = request.limit is None or (type(request.limit) is int and request.limit >= 0)
    is_plain = not isinstance(request.columns, str) and set(names) <= set(available)
    once = len({name.lower() for name in names}) == len(names) > 0
    return names if is_limit and is_plain and once else None


def _spark_arrow_schema(spark: SparkSession, state: TableState, names: Sequence[str]) -> pa.Schema:
    """The Arrow types that Spark gives these columns; refuses tables that Spark cannot read."""
    by_name = {field.name: field.dataType for field in spark_schema(state.schema).fields}
    fields = [T.StructField(name, nullable(by_name[name])) for name in names]
    large = spark.conf.get("spark.sql.execution.arrow.useLargeVarTypes") == "true"
    return to_arrow_schema(T.StructType(fields), timezone="UTC", prefers_large_types=large)


# -------------------------------------------------------------------------------------------------


def inline_frame(spark: SparkSession, cut: Cut, only: Sequence[int] | None = None) -> DataFrame:
    """Inline rows with the table's columns, then `inline` as file and the row id as position.

    With `only`, those rows of the cut.
    """
    arrow, row_ids = cut.arrow(), pa.array(cut.rows.row_ids, pa.int64())
    if only is not None:
        rows = pa.array(only, pa.int64())
        arrow, row_ids = arrow.take(rows), row_ids.take(rows)
    places = {names.FILE: pa.repeat(pa.scalar(INLINE_FILE, pa.string()), len(row_ids))}
    places[names.POS] = row_ids
    table = pa.table([*arrow.columns, *places.values()], names=[*arrow.column_names, *places])
    as_read = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    outputs: list[str | Column] = [
        quote(f.name)
        if as_read[f.name].dataType == f.dataType
        else quoted(f.name).cast(f.dataType).alias(f.name)
        for f in spark_schema(cut.schema).fields
    ]
    return selected(frame_of_read_rows(spark, table), [*outputs, *places])


def _as_requested(state: TableState, request: ScanRequest) -> TableState:
    snapshot_id = request.snapshot_id
    if snapshot_id is not None and request.as_of is not None:
        raise StatementError("Use snapshot_id or as_of, not both.")
    if request.as_of is not None:
        snapshot_id = snapshot_as_of(state, request.as_of)
    return state if snapshot_id is None else at_snapshot(state, snapshot_id)


def _with_locations(rows: DataFrame, files: Sequence[Candidate]) -> DataFrame:
    """Add the location of each row's file as Iceberg spells it, which differs from Spark's."""
    refuse_unplain(files)
    uris = [INLINE_FILE, *(spark_uri(c.path) for c in files)]
    table = pa.table(
        {
            names.FILE: pa.array(uris, pa.string()),
            _LOCATION: pa.array([INLINE_FILE, *(c.path for c in files)], pa.string()),
        }
    )
    locations = frame_of(rows.sparkSession, table)
    return rows.join(F.broadcast(locations), names.FILE, "left")


def _selected_columns(columns: Sequence[str], available: list[str]) -> list[str | Column]:
    if isinstance(columns, str):
        raise StatementError(f"columns must be a list of names, not the str {columns!r}.")
    return [_column(name, available) for name in columns]


def _column(name: str, available: list[str]) -> Column:
    if name in available:
        return quoted(name)
    if name in _META:
        return F.col(_META[name]).alias(name)
    same = [column for column in available if column.lower() == name.lower()]
    if len(same) == 1:
        return quoted(same[0])
    if name.partition(".")[0].lower() in {column.lower() for column in available}:
        return F.col(name)  # a field of a struct
    raise ColumnNotFoundError(name, [*available, *_META])
