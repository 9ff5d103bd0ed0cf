"""The join of a MERGE: no wider than its clauses need, and the reason for the choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from pyspark.sql import Column, SparkSession

from icefloe.commands.merge.bind import BoundMerge
from icefloe.commands.merge.files import MergeFiles
from icefloe.commands.plan import Plan, plan_rows
from icefloe.metadata.table_state import TableState
from icefloe.settings import UpdateKind
from icefloe.spark.column_trees import ColumnReader
from icefloe.statements import MergeStatement, When

# What may be broadcast; it passes through the driver's memory.
_BROADCAST_BYTES = 64 * 1024 * 1024
# Up to here a broadcast always pays; above, only where it saves the shuffle of a larger table.
_SMALL_BYTES = 16 * 1024 * 1024
_LARGER = 4
_TASK_BYTES = 32 * 1024 * 1024  # of source rows that one task writes
_LARGE_TASK_BYTES = 128 * 1024 * 1024  # the same of rows that are shuffled anyway
_BROADCAST_SETTING = "spark.sql.autoBroadcastJoinThreshold"


class JoinShape(StrEnum):
    """How the two sides are joined."""

    NONE = "none"  # no file can hold a match
    SOURCE_ANTI = "anti"  # source rows that match nothing
    INNER = "inner"
    PROBE = "probe"  # inner with the source broadcast, then the few matches back to the source
    RIGHT = "right outer"
    TARGET_ANTI = "target anti"  # rows of the table that match nothing
    LEFT = "left outer"
    FULL = "full outer"


_WHY = {
    JoinShape.NONE: "no file can hold a match, so every source row is new",
    JoinShape.SOURCE_ANTI: "rows are only inserted",
    JoinShape.INNER: "only matched rows are changed",
    JoinShape.PROBE: "the source is small: the table is probed once and never shuffled",
    JoinShape.RIGHT: "every source row is updated or inserted",
    JoinShape.TARGET_ANTI: "only rows not matched by source are changed",
    JoinShape.LEFT: "rows not matched by source are changed, none is inserted",
    JoinShape.FULL: "rows not matched by either side are changed or inserted",
}


@dataclass(frozen=True, slots=True)
class Join:
    """The shape of the join, and whether the source is broadcast."""

    shape: JoinShape
    broadcast: bool
    tasks: int | None = None  # that write the rows; None: as Spark decides
    new_tasks: int = 1  # over which new rows are spread that are written with rewritten files

    @property
    def gathers(self) -> bool:
        """Whether changed rows are in few tasks already, so that few files need no shuffle."""
        return self.tasks is not None or self.shape is JoinShape.RIGHT

    def __str__(self) -> str:
        how = "source broadcast" if self.broadcast else "shuffled as Spark decides"
        if self.shape is JoinShape.NONE:
            return f"join none: {_WHY[self.shape]}"
        return f"join {self.shape.value} ({how}): {_WHY[self.shape]}"


def choose_join(
    statement: MergeStatement, files: MergeFiles, columns: ColumnReader, *, unpartitioned: bool
) -> Join:
    """The narrowest join that returns every row the clauses change."""
    # Only a probe joins back to the source; in other joins all of its columns are broadcast.
    small = _pays(files, files.facts.key_bytes, columns.session())
    whole = _pays(files, files.facts.bytes, columns.session())
    matched, inserts = statement.has(When.MATCHED), statement.has(When.NOT_MATCHED)
    new_tasks = 1 + files.facts.bytes // _LARGE_TASK_BYTES
    if statement.has(When.NOT_MATCHED_BY_SOURCE):
        if inserts:
            return Join(JoinShape.FULL, False, new_tasks=new_tasks)
        if not matched:
            return Join(JoinShape.TARGET_ANTI, small)
        return Join(JoinShape.LEFT, whole)
    if not inserts:
        return Join(JoinShape.INNER, whole)
    # Rows of a partitioned table are shuffled once more, by partition.
    tasks = 1 + files.facts.bytes // _TASK_BYTES if unpartitioned and small else None
    if not files.plan.candidates:
        return Join(JoinShape.NONE, False, tasks)
    # A Column bound to the source's DataFrame is ambiguous where the source is joined twice.
    if not small or not all(map(columns.is_unbound, statement.columns)):
        shape = JoinShape.RIGHT if matched else JoinShape.SOURCE_ANTI
        return Join(shape, False, new_tasks=new_tasks)
    shape = JoinShape.PROBE if matched else JoinShape.SOURCE_ANTI
    return Join(shape, True, tasks, new_tasks)


def plan_merge(
    statement: MergeStatement, bound: BoundMerge, state: TableState, files: MergeFiles, join: Join
) -> Plan:
    """What the MERGE will do to each file; raises where the table does not support the mode."""
    on = statement.on
    shown = str(on) if isinstance(on, str | Column) else " and ".join(f"{n} = {n}" for n in on)
    plan = plan_rows(UpdateKind.MERGE, statement.options, state, files.plan, bound.updated_columns)
    return replace(
        plan,
        where=shown,
        reasons=(
            *plan.reasons,
            str(join),
            *files.reasons,
            *(("a subquery reads other rows",) if bound.has_subquery else ()),
            *(("the source reads the table itself",) if statement.source_reads_target else ()),
        ),
        join=join.shape.value,
        clauses=tuple(map(str, statement.clauses)),
        dpp_applied=files.dpp_applied,
        dpp_partition_count=files.dpp_partition_count,
        source_rows=files.facts.rows,
    )


def _pays(files: MergeFiles, size: int, spark: SparkSession) -> bool:
    """Whether to broadcast so many bytes of the source rather than shuffle both sides."""
    if str(spark.conf.get(_BROADCAST_SETTING)).startswith("-1"):
        return (
            False  # the session forbids broadcasts; otherwise the limit here applies, not Spark's
        )
    rows = sum(candidate.live.rows for candidate in files.plan.candidates)
    much_larger = rows >= _LARGER * files.facts.rows
    return size <= (_BROADCAST_BYTES if much_larger else _SMALL_BYTES)
