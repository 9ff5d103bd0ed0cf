"""How well the bounds of columns tell files apart, and which files a condition would open."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from itertools import groupby
from math import isfinite
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import PrimitiveType

from icefloe.errors import StatementError
from icefloe.indexes.lookup import look_up
from icefloe.inspection.file_health import partition_label
from icefloe.inspection.timeline import type_text
from icefloe.metadata.files import Leaf, LiveFile, SnapshotFiles, ids_of_columns, leaves
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import Candidate, choose_files
from icefloe.pruning.conditions import lower
from icefloe.pruning.file_matcher import FileMatcher

SAMPLE = 400  # files whose bounds are compared for the overview of all columns
_MOST_COUNTED = 1_000_000  # counts of columns in files; of more files, some stand for all
_LINES = 160
_STEPS = 96
_LEAST_SHARE = 0.3  # of a linear axis that nine tenths of the bounds take
_MOST_LOOKED_UP = 200  # files whose sidecars are opened
_SHOWN = 60


def columns_overview(state: TableState, files: SnapshotFiles) -> list[dict[str, Any]]:
    """Each column with its bytes, its NULLs, and how many files an equality opens on average."""
    data = files.data
    step = max(1, len(data) // SAMPLE)
    sample = data[::step]
    overview = []
    for name, leaf in _bounded(state.schema).items():
        intervals = _intervals(sample, leaf)
        overview.append(
            {
                "column": name,
                "type": type_text(leaf.type),
                "with_bounds": len(intervals) / max(1, len(sample)),
                "opened": _share_opened(intervals, len(sample)),
                "sampled": len(sample) < len(data),
            }
        )
    by_column = {column["column"]: column for column in overview}
    every = max(1, len(data) * len(state.schema.fields) // _MOST_COUNTED)
    counted = data[::every]
    total = sum(live.size for live in counted)
    columns_of = _columns_of_snapshots(state.metadata)
    rows = []
    for column in state.schema.fields:
        [ids] = ids_of_columns(state.schema, (column.name,))
        size = sum((live.file.column_sizes or {}).get(i, 0) for live in counted for i in ids)
        values, nulls = _counts(counted, column.field_id, columns_of)
        rows.append(
            {
                "name": column.name,
                "id": column.field_id,
                "type": type_text(column.field_type),
                "required": column.required,
                "doc": column.doc,
                "bytes": size * len(data) // max(1, len(counted)),
                "share": size / total if total else 0,
                "nulls": nulls / values if values else None,
                **{k: v for k, v in by_column.get(column.name, {}).items() if k != "column"},
            }
        )
    return rows


def _counts(
    data: Sequence[LiveFile], field_id: int, columns_of: Mapping[int | None, Set[int]]
) -> tuple[int, int]:
    """The values of a column and the NULLs among them, without files that do not count them.

    A file that was written before the column was added has NULL in every row.
    """
    values = nulls = 0
    for live in data:
        count = (live.file.value_counts or {}).get(field_id)
        if count is not None:
            values += count
            nulls += (live.file.null_value_counts or {}).get(field_id, 0)
        elif field_id not in columns_of.get(live.snapshot_id, {field_id}):
            values += live.rows
            nulls += live.rows
    return values, nulls


def _columns_of_snapshots(metadata: TableMetadata) -> dict[int | None, Set[int]]:
    """The ids of the columns that the table had in each snapshot, as far as that is known."""
    schemas = {schema.schema_id: frozenset(schema.field_ids) for schema in metadata.schemas}
    return {
        snapshot.snapshot_id: schemas[snapshot.schema_id]
        for snapshot in metadata.snapshots
        if snapshot.schema_id in schemas
    }


def _bounded(schema: Schema) -> dict[str, Leaf]:
    """Columns whose files have bounds that apply to rows; nested ones by their dotted path."""
    return {name: leaf for name, leaf in leaves(schema).items() if not leaf.repeated}


@dataclass(frozen=True, slots=True)
class _Interval:
    lower: Any
    upper: Any
    live: LiveFile


def _intervals(files: Sequence[LiveFile], leaf: Leaf) -> list[_Interval]:
    """The bounds of files that have both, and can be read as the column's type."""
    found = []
    for live in files:
        lower_bound, upper_bound = _bounds(live.file, leaf.field_id)
        if lower_bound is None or upper_bound is None:
            continue
        try:
            pair = from_bytes(leaf.type, lower_bound), from_bytes(leaf.type, upper_bound)
        except (ValueError, ArithmeticError, LookupError, TypeError, OSError):
            continue
        if all(map(_is_ordered, pair)):
            found.append(_Interval(*pair, live))
    return found


def _is_ordered(value: Any) -> bool:
    return not isinstance(value, float) or isfinite(value)


def _bounds(file: DataFile, field_id: int) -> tuple[bytes | None, bytes | None]:
    return (file.lower_bounds or {}).get(field_id), (file.upper_bounds or {}).get(field_id)


def _share_opened(intervals: Sequence[_Interval], files: int) -> float | None:
    """The share of files that an equality with a file's lower bound opens, on average.

    Files without bounds are always opened.
    """
    if not intervals:
        return None
    lows = sorted(interval.lower for interval in intervals)
    highs = sorted(interval.upper for interval in intervals)
    opened = sum(bisect_right(lows, low) - bisect_left(highs, low) for low in lows)
    return (opened / len(intervals) + files - len(intervals)) / max(1, files)


# -------------------------------------------------------------------------------------------------
# One column


def column_overlap(state: TableState, files: SnapshotFiles, name: str) -> dict[str, Any]:
    """The bounds of a column as intervals of files, and how many of them lie over each other."""
    bounded = _bounded(state.schema)
    if name not in bounded:
        raise StatementError(
            f"{state.name} has no column {name!r} with bounds. Such columns are: "
            f"{', '.join(bounded) or '(none)'}."
        )
    leaf = bounded[name]
    intervals = sorted(_intervals(files.data, leaf), key=lambda i: (i.lower, i.upper))
    axis = _Axis.of(intervals)
    step = max(1, -(-len(intervals) // _LINES))
    return {
        "column": name,
        "type": type_text(leaf.type),
        "files": len(files.data),
        "with_bounds": len(intervals),
        "opened": _share_opened(intervals, len(files.data)),
        "scale": "linear" if axis.linear else "rank",
        "least": _text(min(i.lower for i in intervals), leaf.type) if intervals else None,
        "greatest": _text(max(i.upper for i in intervals), leaf.type) if intervals else None,
        "lines": [
            {
                "from": axis.place(interval.lower),
                "to": axis.place(interval.upper),
                "lower": _text(interval.lower, leaf.type),
                "upper": _text(interval.upper, leaf.type),
                "file": interval.live.path.rpartition("/")[2],
            }
            for interval in intervals[::step]
        ],
        "every": step,
        "depth": _depth(intervals, axis),
    }


@dataclass(frozen=True, slots=True)
class _Axis:
    """Places values between 0 and 1: numbers and times by value, others and uneven ones by rank."""

    linear: bool
    values: Sequence[Any]  # all bounds, sorted; of a linear axis the least and the greatest

    @classmethod
    def of(cls, intervals: Sequence[_Interval]) -> _Axis:
        bounds = sorted([i.lower for i in intervals] + [i.upper for i in intervals])
        numbers = [number for value in bounds if (number := _number(value)) is not None]
        if numbers and _is_even(numbers):
            return cls(True, [bounds[0], bounds[-1]])
        return cls(False, [value for value, _ in groupby(bounds)])

    def place(self, value: Any) -> float:
        if not self.linear:
            return bisect_left(self.values, value) / max(1, len(self.values) - 1)
        least, greatest, at = (_number(v) or 0.0 for v in (*self.values, value))
        return (at - least) / (greatest - least) if greatest > least else 0.5


def _is_even(numbers: Sequence[float]) -> bool:
    """Whether a few extreme values do not push all others together."""
    outside = len(numbers) // 20
    most = numbers[-1 - outside] - numbers[outside]
    return most >= _LEAST_SHARE * (numbers[-1] - numbers[0])


def _number(value: Any) -> float | None:
    match value:
        case bool():
            return float(value)
        case int() | float() | Decimal():
            return float(value)
        case datetime():
            return value.timestamp()
        case date():
            return float(value.toordinal())
        case time():
            return float((value.hour * 60 + value.minute) * 60 + value.second)
        case _:
            return None


def _depth(intervals: Sequence[_Interval], axis: _Axis) -> list[int]:
    """How many files each step of the axis is within the bounds of."""
    changes = [0] * (_STEPS + 1)
    for interval in intervals:
        first = min(_STEPS - 1, int(axis.place(interval.lower) * _STEPS))
        last = min(_STEPS - 1, int(axis.place(interval.upper) * _STEPS))
        changes[first] += 1
        changes[last + 1] -= 1
    depth, running = [], 0
    for change in changes[:_STEPS]:
        running += change
        depth.append(running)
    return depth


def _text(value: Any, kind: PrimitiveType) -> str:
    if isinstance(value, date | time | Decimal):
        return str(value)
    return str(IdentityTransform().to_human_string(kind, value))


# -------------------------------------------------------------------------------------------------
# Which files a condition would open


def files_opened(
    state: TableState, files: SnapshotFiles, where: str, time_zone: str = "UTC"
) -> dict[str, Any]:
    """The files that may hold rows of a SQL condition, by partitions, bounds and indexes.

    No data file is opened. Timestamps without an offset are read in `time_zone`.
    """
    lowered = lower(
        where,
        state.schema,
        time_zone=time_zone,
        qualifiers=frozenset({state.alias.lower(), state.name.lower()}),
    )
    plan = choose_files(state, FileMatcher(lowered, state.schema, state.metadata.specs()), files)
    reasons: dict[str, int] = {}
    for skipped in plan.skipped:
        reasons[skipped.reason] = reasons.get(skipped.reason, 0) + 1
    opened = list(plan.candidates)
    notes: tuple[str, ...] = ()
    if len(opened) <= _MOST_LOOKED_UP:
        found = look_up(state, lowered.inclusive, [c.live for c in opened if not c.covered])
        notes = found.notes
        empty = {path for path, answer in found.answers.items() if not answer.positions}
        if empty:
            reasons["index " + ", ".join(found.indexes)] = len(empty)
            opened = [candidate for candidate in opened if candidate.path not in empty]
    return {
        "where": where,
        "understood": not isinstance(lowered.inclusive, AlwaysTrue),
        "files": len(files.data),
        "bytes": sum(live.size for live in files.data),
        "opened": len(opened),
        "opened_bytes": sum(candidate.live.size for candidate in opened),
        "opened_rows": sum(candidate.live.rows for candidate in opened),
        "covered": sum(candidate.covered for candidate in opened),
        "skipped": reasons,
        "notes": list(notes),
        "shown": [_opened(state, candidate) for candidate in opened[:_SHOWN]],
    }


def _opened(state: TableState, candidate: Candidate) -> dict[str, Any]:
    live = candidate.live
    return {
        "file": live.path.rpartition("/")[2],
        "partition": partition_label(state, live),
        "rows": live.rows,
        "bytes": live.size,
        "covered": candidate.covered,
    }
