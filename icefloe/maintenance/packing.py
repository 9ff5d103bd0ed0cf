"""Packing for compaction: choose the files to rewrite, then write their rows to new files.

Files are chosen by size, by deletes and by partition spec. One Spark job writes the live rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from icefloe.indexes.definitions import to_write, usable
from icefloe.metadata.files import PartitionKey
from icefloe.pruning.candidates import Candidate
from icefloe.scan.row_counts import verify_row_counts
from icefloe.scan.scan import Scan
from icefloe.schema.partition_values import partition_columns
from icefloe.spark import columns
from icefloe.spark.frames import frame_of
from icefloe.storage.locations import spark_uri
from icefloe.tasks.write import FileLayout, write_rows
from icefloe.writing.carried_values import check_carried_values
from icefloe.writing.data_files import (
    WrittenRows,
    as_written,
    file_layout,
    run_task,
    sort_columns,
    written_names,
    written_rows,
)
from icefloe.writing.rewrite import row_count_mismatch

SMALL = 0.75  # a file below this fraction of the target size is merged with others
LARGE = 1.8  # a file above this fraction is split
_ROUND_UP = 0.6  # a remainder of at least this fraction becomes a file of its own


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to rewrite, with the estimated number and size of its live rows."""

    candidate: Candidate
    rows: int  # rows that position deletes do not delete
    bytes: float  # of the live rows


@dataclass(frozen=True, slots=True)
class Pack:
    """Files of one partition whose rows are written, in this order, to `outputs` new files."""

    sources: tuple[SourceFile, ...]
    outputs: int

    @property
    def bytes(self) -> float:
        """The size of all live rows."""
        return sum(source.bytes for source in self.sources)


@dataclass(frozen=True, slots=True)
class Packing:
    """The files that a compaction rewrites: in packs of one partition each, or repartitioned.

    Rows in files of an old partition spec may belong to any partition of the current one. If there
    are such files, all rows are repartitioned, so that rows of one partition end in one file.
    """

    packs: tuple[Pack, ...] = ()
    repartitioned: tuple[SourceFile, ...] = ()

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """Every file that is rewritten."""
        return tuple(s for pack in self.packs for s in pack.sources) + self.repartitioned


def pack_files(
    candidates: Iterable[Candidate],
    live_rows: Callable[[Candidate], int],
    spec_id: int,
    target_bytes: int,
    *,
    partitioned: bool,
) -> Packing:
    """Choose the files to rewrite under the spec `spec_id`, leaving those that cannot improve."""
    sources = [_source_file(candidate, live_rows(candidate)) for candidate in candidates]
    sources = [s for s in sources if _is_worth_rewriting(s, spec_id, target_bytes)]
    sources.sort(key=lambda s: s.candidate.live.sequence_number)  # stable: ties as in manifests
    if partitioned and any(s.candidate.live.spec_id != spec_id for s in sources):
        return Packing(repartitioned=tuple(sources))
    groups: dict[PartitionKey, list[SourceFile]] = {}
    for source in sources:
        key = source.candidate.live.partition_key
        groups.setdefault(key if key[0] == spec_id else (spec_id, ()), []).append(source)
    packs = [Pack(tuple(group), _outputs(group, target_bytes)) for group in groups.values()]
    return Packing(tuple(p for p in packs if _improves(p, spec_id, target_bytes)))


def _source_file(candidate: Candidate, rows: int) -> SourceFile:
    live = candidate.live
    return SourceFile(candidate, rows, live.size * rows / max(1, live.rows))


def _is_worth_rewriting(source: SourceFile, spec_id: int, target_bytes: int) -> bool:
    live = source.candidate.live
    return (
        _must_rewrite(source, spec_id)
        or live.size < SMALL * target_bytes
        or _is_too_large(source, target_bytes)
    )


def _must_rewrite(source: SourceFile, spec_id: int) -> bool:
    """Whether the file has deletes, or is of an old spec."""
    candidate = source.candidate
    has_deletes = source.rows < candidate.live.rows or bool(candidate.equality_deletes)
    return has_deletes or candidate.live.spec_id != spec_id


def _is_too_large(source: SourceFile, target_bytes: int) -> bool:
    return source.candidate.live.size > LARGE * target_bytes and source.rows > 1


def _outputs(group: Sequence[SourceFile], target_bytes: int) -> int:
    """The number of files of about the target size that hold the rows of `group`."""
    size = sum(source.bytes for source in group)
    rows = sum(source.rows for source in group)
    return max(1, min(int(size / target_bytes + 1 - _ROUND_UP), rows))


def _improves(pack: Pack, spec_id: int, target_bytes: int) -> bool:
    return len(pack.sources) > pack.outputs or any(
        _must_rewrite(source, spec_id) or _is_too_large(source, target_bytes)
        for source in pack.sources
    )


# -------------------------------------------------------------------------------------------------
# Write the packed rows, with deletes applied, in file order or in the table's sort order

_MAX_TASKS = 1000
_START = f"{columns.PREFIX}start"  # offset of the file's first row in its pack, in bytes
_ROW_BYTES = f"{columns.PREFIX}row_bytes"
_SHARE = f"{columns.PREFIX}share"  # bytes of each output of the pack
_FIRST = f"{columns.PREFIX}first"  # index of the pack's first output
_LAST = f"{columns.PREFIX}last"


def write_packed(scan: Scan, packing: Packing, statement_id: str, target_bytes: int) -> WrittenRows:
    """Write the live rows of the files under the current spec in one Spark job."""
    sources = packing.sources
    packed = scan.restrict_to([source.candidate for source in sources])
    names = [columns.partition_field(i) for i in range(len(scan.state.metadata.spec().fields))]
    rows = packed.rows()
    values = partition_columns(scan.state.metadata.spec(), scan.state.schema)
    for name, value in zip(names, values, strict=True):
        rows = rows.withColumn(name, value)
    layout = file_layout(scan.state, statement_id)
    layout = replace(layout, indexes=to_write(scan.state, usable(scan.state)))
    if packing.repartitioned:
        rows = _join_file_facts(rows, _facts_of_repartitioned(packing.repartitioned))
        rows = rows.repartition(*map(F.col, names))
        layout = replace(layout, target_file_bytes=target_bytes)
        grouping = [F.col(name) for name in names]
    else:
        rows = _join_file_facts(rows, _facts_of_packs(packing.packs))
        rows = rows.withColumn(columns.OUTPUT, _output_index())
        rows = rows.repartition(_task_count(packing.packs), F.col(columns.OUTPUT))
        # Each output is one file, unless its rows need far more bytes than before.
        limit = int(LARGE * target_bytes)
        layout = replace(layout, target_file_bytes=limit, cut=columns.OUTPUT)
        grouping = [F.col(name) for name in (columns.OUTPUT, *names)]
    order = sort_columns(scan.state) or [F.col(columns.ORDER), F.col(columns.POS)]
    with verify_row_counts(scan, packed.candidates):
        written = _write(scan, rows.sortWithinPartitions(*grouping, *order), layout, names)
    expected = sum(source.rows for source in sources)
    # The rows that equality deletes remove are known only after reading.
    is_upper_bound = any(source.candidate.equality_deletes for source in sources)
    if written.rows != expected and (not is_upper_bound or written.rows > expected):
        raise row_count_mismatch(written.rows, expected, packed.candidates)
    read = [candidate.live.file for candidate in packed.candidates]
    check_carried_values(scan.state.schema, read, written.files)
    return written


def _write(scan: Scan, rows: DataFrame, layout: FileLayout, names: list[str]) -> WrittenRows:
    cut = [layout.cut] if layout.cut else []
    selected = rows.selectExpr(*as_written(scan.state), *names, *cut)
    task = write_rows(layout, written_names(scan.state))
    return written_rows(scan.state, run_task(selected, task))


def _facts_of_packs(packs: tuple[Pack, ...]) -> pa.Table:
    """The offset of each file in its pack, and the outputs of the pack."""
    facts: list[dict[str, object]] = []
    first = 0
    for pack in packs:
        start = 0.0
        for source in pack.sources:
            facts.append(
                {
                    columns.FILE: spark_uri(source.candidate.path),
                    columns.ORDER: len(facts),
                    _START: start,
                    _ROW_BYTES: source.bytes / max(1, source.candidate.live.rows),
                    _SHARE: max(1.0, pack.bytes) / pack.outputs,
                    _FIRST: first,
                    _LAST: first + pack.outputs - 1,
                }
            )
            start += source.bytes
        first += pack.outputs
    schema = pa.schema(
        [
            (columns.FILE, pa.string()),
            (columns.ORDER, pa.int64()),
            (_START, pa.float64()),
            (_ROW_BYTES, pa.float64()),
            (_SHARE, pa.float64()),
            (_FIRST, pa.int64()),
            (_LAST, pa.int64()),
        ]
    )
    return pa.Table.from_pylist(facts, schema=schema)


def _facts_of_repartitioned(sources: tuple[SourceFile, ...]) -> pa.Table:
    return pa.table(
        {
            columns.FILE: pa.array([spark_uri(s.candidate.path) for s in sources], pa.string()),
            columns.ORDER: pa.array(range(len(sources)), pa.int64()),
        }
    )


def _join_file_facts(rows: DataFrame, facts: pa.Table) -> DataFrame:
    """Join each row with the facts of its file; an unknown file raises and drops no row."""
    facts_frame = frame_of(rows.sparkSession, facts)
    joined = rows.join(F.broadcast(facts_frame), columns.FILE, "left")
    message = F.concat(F.lit("Spark read a file that is not packed: "), F.col(columns.FILE))
    checked = F.when(F.col(columns.ORDER).isNull(), F.raise_error(message))
    return joined.withColumn(columns.ORDER, checked.otherwise(F.col(columns.ORDER)))


def _output_index() -> Column:
    """The new file of a row, by the bytes of the pack before it."""
    before = F.col(_START) + F.col(columns.POS) * F.col(_ROW_BYTES)
    number = F.col(_FIRST) + F.floor(before / F.col(_SHARE))
    return F.least(number, F.col(_LAST)).cast("int")


def _task_count(packs: tuple[Pack, ...]) -> int:
    """Twice the number of outputs, because hashing may assign several outputs to one task."""
    outputs = sum(pack.outputs for pack in packs)
    return min(2 * outputs, _MAX_TASKS) if outputs > 1 else 1
