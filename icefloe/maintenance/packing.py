"""Which files a compaction rewrites, and into how many: by partition, sizes and deletes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from icefloe.metadata.files import PartitionKey
from icefloe.pruning.candidates import Candidate
from icefloe.scan.row_counts import verify_row_counts
from icefloe.scan.scan import Scan
from icefloe.schema.partition_values import partition_columns
from icefloe.spark import columns
from icefloe.spark.frames import frame_of
from icefloe.storage.files import spark_uri
from icefloe.tasks.write import FileLayout, write_rows
from icefloe.write.carried_values import check_carried_values
from icefloe.write.data_files import (
    WrittenRows,
    as_written,
    file_layout,
    run_task,
    sort_columns,
    written_names,
    written_rows,
)
from icefloe.write.rewrite import row_count_mismatch

SMALL = 0.75  # of the target size: a file below it is worth joining with others
LARGE = 1.8  # a file above it is worth splitting
_ROUND_UP = 0.6  # part of a target that is worth a file of its own


@dataclass(frozen=True, slots=True)
class Source:
    """A file to be rewritten, and what its live rows are about."""

    candidate: Candidate
    rows: int  # live, as far as position deletes tell
    bytes: float  # of the live rows


@dataclass(frozen=True, slots=True)
class Pack:
    """Files of one partition whose rows go, in this order, into so many new files."""

    sources: tuple[Source, ...]
    outputs: int

    @property
    def bytes(self) -> float:
        """The size of all live rows."""
        return sum(source.bytes for source in self.sources)


@dataclass(frozen=True, slots=True)
class Packing:
    """What a compaction rewrites: packs of one partition each, or rows that find their partition.

    Rows of files of an old partition spec may belong to any partition of the current one. Where
    there are such files, all that is rewritten goes the second way, so that they meet.
    """

    packs: tuple[Pack, ...] = ()
    moving: tuple[Source, ...] = ()

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every file that is rewritten."""
        return tuple(s for pack in self.packs for s in pack.sources) + self.moving


def pack_files(
    candidates: Iterable[Candidate],
    live_rows: Callable[[Candidate], int],
    spec_id: int,
    target_bytes: int,
    *,
    partitioned: bool,
) -> Packing:
    """Choose what to rewrite under the spec `spec_id`; rewriting must make something better."""
    sources = [_source(c, live_rows(c)) for c in candidates]
    chosen = [s for s in sources if _is_worth_it(s, spec_id, target_bytes)]
    chosen.sort(key=lambda s: s.candidate.live.sequence_number)  # stable: else as manifests have it
    if partitioned and any(s.candidate.live.spec_id != spec_id for s in chosen):
        return Packing(moving=tuple(chosen))
    groups: dict[PartitionKey, list[Source]] = {}
    for source in chosen:
        key = source.candidate.live.partition_key
        groups.setdefault(key if key[0] == spec_id else (spec_id, ()), []).append(source)
    packs = [Pack(tuple(group), _outputs(group, target_bytes)) for group in groups.values()]
    return Packing(tuple(p for p in packs if _improves(p, spec_id, target_bytes)))


def _source(candidate: Candidate, rows: int) -> Source:
    live = candidate.live
    return Source(candidate, rows, live.size * rows / max(1, live.rows))


def _is_worth_it(source: Source, spec_id: int, target_bytes: int) -> bool:
    live = source.candidate.live
    return (
        _must_go(source, spec_id)
        or live.size < SMALL * target_bytes
        or _is_too_large(source, target_bytes)
    )


def _must_go(source: Source, spec_id: int) -> bool:
    """Whether the file has deletes, or is of an old spec."""
    candidate = source.candidate
    hidden = source.rows < candidate.live.rows or bool(candidate.equality_deletes)
    return hidden or candidate.live.spec_id != spec_id


def _is_too_large(source: Source, target_bytes: int) -> bool:
    return source.candidate.live.size > LARGE * target_bytes and source.rows > 1


def _outputs(group: Sequence[Source], target_bytes: int) -> int:
    """How many files of about the target size; none has to be much smaller."""
    size = sum(source.bytes for source in group)
    rows = sum(source.rows for source in group)
    return max(1, min(int(size / target_bytes + 1 - _ROUND_UP), rows))


def _improves(pack: Pack, spec_id: int, target_bytes: int) -> bool:
    return len(pack.sources) > pack.outputs or any(
        _must_go(source, spec_id) or _is_too_large(source, target_bytes) for source in pack.sources
    )


# -------------------------------------------------------------------------------------------------
# Rows of many files written as few: in their order, or in the table's, with deletes applied.

_MAX_TASKS = 1000
_START = f"{columns.PREFIX}start"  # where the file's rows begin, in bytes of its pack
_ROW_BYTES = f"{columns.PREFIX}row_bytes"
_SHARE = f"{columns.PREFIX}share"  # bytes that go into each output of the pack
_FIRST = f"{columns.PREFIX}first"  # number of the pack's first output
_LAST = f"{columns.PREFIX}last"


def write_packed(scan: Scan, packing: Packing, statement_id: str, target_bytes: int) -> WrittenRows:
    """Write the live rows of the files anew under the current spec; one Spark job."""
    sources = packing.sources
    over = scan.restrict_to([source.candidate for source in sources])
    names = [columns.partition_field(i) for i in range(len(scan.state.metadata.spec().fields))]
    rows = over.rows()
    values = partition_columns(scan.state.metadata.spec(), scan.state.schema)
    for name, value in zip(names, values, strict=True):
        rows = rows.withColumn(name, value)
    layout = file_layout(scan.state, statement_id)
    if packing.moving:
        rows = _with_facts(rows, _facts_of_moving(packing.moving))
        rows = rows.repartition(*map(F.col, names))
        layout = replace(layout, target_file_bytes=target_bytes)
        first = [F.col(name) for name in names]
    else:
        rows = _with_facts(rows, _facts_of_packs(packing.packs))
        rows = rows.withColumn(columns.OUTPUT, _output())
        rows = rows.repartition(_tasks(packing.packs), F.col(columns.OUTPUT))
        # Each output is one file, unless its rows turn out to need far more than before.
        limit = int(LARGE * target_bytes)
        layout = replace(layout, target_file_bytes=limit, cut=columns.OUTPUT)
        first = [F.col(name) for name in (columns.OUTPUT, *names)]
    order = sort_columns(scan.state) or [F.col(columns.ORDER), F.col(columns.POS)]
    with verify_row_counts(scan, over.candidates):
        written = _write(scan, rows.sortWithinPartitions(*first, *order), layout, names)
    expected = sum(source.rows for source in sources)
    hidden = any(source.candidate.equality_deletes for source in sources)
    if written.rows != expected and (not hidden or written.rows > expected):
        raise row_count_mismatch(written.rows, expected, over.candidates)
    read = [candidate.live.file for candidate in over.candidates]
    check_carried_values(scan.state.schema, read, written.files)
    return written


def _write(scan: Scan, rows: DataFrame, layout: FileLayout, names: list[str]) -> WrittenRows:
    cut = [layout.cut] if layout.cut else []
    told = rows.selectExpr(*as_written(scan.state), *names, *cut)
    return written_rows(scan.state, run_task(told, write_rows(layout, written_names(scan.state))))


def _facts_of_packs(packs: tuple[Pack, ...]) -> pa.Table:
    """Where each file's rows lie in its pack, and which outputs the pack has."""
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


def _facts_of_moving(sources: tuple[Source, ...]) -> pa.Table:
    return pa.table(
        {
            columns.FILE: pa.array([spark_uri(s.candidate.path) for s in sources], pa.string()),
            columns.ORDER: pa.array(range(len(sources)), pa.int64()),
        }
    )


def _with_facts(rows: DataFrame, facts: pa.Table) -> DataFrame:
    """Look up each row's file; a row whose file is not known is an error, never dropped."""
    found = frame_of(rows.sparkSession, facts)
    joined = rows.join(F.broadcast(found), columns.FILE, "left")
    unknown = F.concat(F.lit("icefloe lost track of the file "), F.col(columns.FILE))
    known = F.when(F.col(columns.ORDER).isNull(), F.raise_error(unknown))
    return joined.withColumn(columns.ORDER, known.otherwise(F.col(columns.ORDER)))


def _output() -> Column:
    """The new file of a row, by how many bytes of the pack come before it."""
    before = F.col(_START) + F.col(columns.POS) * F.col(_ROW_BYTES)
    number = F.col(_FIRST) + F.floor(before / F.col(_SHARE))
    return F.least(number, F.col(_LAST)).cast("int")


def _tasks(packs: tuple[Pack, ...]) -> int:
    """Twice as many as there are outputs, since several may fall to one task by chance."""
    outputs = sum(pack.outputs for pack in packs)
    return min(2 * outputs, _MAX_TASKS) if outputs > 1 else 1
