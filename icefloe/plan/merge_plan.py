"""How a MERGE will run: no wider join than its clauses need, and the reason for each choice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import Column, SparkSession

from icefloe.metadata.state import TableState
from icefloe.plan.merge_bind import BoundMerge
from icefloe.plan.merge_files import MergeFiles
from icefloe.plan.plan import Plan, plan_rows
from icefloe.settings import UpdateKind
from icefloe.statements import MergeStatement, When

# Of the source's columns that a probe needs; they pass through the driver's memory.
_BROADCAST_BYTES = 64 * 1024 * 1024
_TASK_BYTES = 32 * 1024 * 1024  # of source rows that one task writes
_BROADCAST_SETTING = "spark.sql.autoBroadcastJoinThreshold"


class JoinShape(StrEnum):
    """How the two sides meet."""

    NONE = "none"  # no file can hold a match
    SOURCE_ANTI = "anti"  # source rows that match nothing
    INNER = "inner"
    PROBE = "probe"  # inner with the source broadcast, then the few matches back to the source
    RIGHT = "right outer"
    TARGET_ANTI = "target anti"  # rows of the table that match nothing
    LEFT = "left outer"
    FULL = "full outer"


_WHY = {
    JoinShape.NONE: "no file can hold a match, so that every source row is new",
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
    tasks: int | None = None  # that write the rows; None leaves it to Spark

    @property
    def gathers(self) -> bool:
        """Whether changed rows come out together, so that they need no shuffle to be few files."""
        return self.tasks is not None or self.shape is JoinShape.RIGHT

    def __str__(self) -> str:
        how = "source broadcast" if self.broadcast else "shuffled as Spark sees fit"
        if self.shape is JoinShape.NONE:
            return f"join none: {_WHY[self.shape]}"
        return f"join {self.shape.value} ({how}): {_WHY[self.shape]}"


def choose_join(
    statement: MergeStatement, files: MergeFiles, spark: SparkSession, *, unpartitioned: bool
) -> Join:
    """The narrowest join that shows every row the clauses change."""
    small = files.facts.key_bytes <= _BROADCAST_BYTES and _may_broadcast(spark)
    matched, inserts = statement.has(When.MATCHED), statement.has(When.NOT_MATCHED)
    if statement.has(When.NOT_MATCHED_BY_SOURCE):
        if inserts:
            return Join(JoinShape.FULL, False)
        return Join(JoinShape.LEFT if matched else JoinShape.TARGET_ANTI, small)
    if not inserts:
        return Join(JoinShape.INNER, small)
    # Rows of a partitioned table are shuffled once more, by partition.
    tasks = 1 + files.facts.bytes // _TASK_BYTES if unpartitioned and small else None
    if not files.plan.candidates:
        return Join(JoinShape.NONE, False, tasks)
    # A Column bound to the source's frame has two meanings where the source is joined twice.
    if not small or statement.uses_columns:
        return Join(JoinShape.RIGHT if matched else JoinShape.SOURCE_ANTI, False)
    return Join(JoinShape.PROBE if matched else JoinShape.SOURCE_ANTI, True, tasks)


def plan_merge(
    statement: MergeStatement, bound: BoundMerge, state: TableState, files: MergeFiles, join: Join
) -> Plan:
    """What the MERGE will do to each file; raises where the table cannot have it that way."""
    on = statement.on
    shown = str(on) if isinstance(on, str | Column) else " and ".join(f"{n} = {n}" for n in on)
    return plan_rows(
        UpdateKind.MERGE,
        statement.options,
        state,
        files.plan,
        where=shown,
        assignments=(),
        assigned=bound.updated_columns,
        reasons=(
            str(join),
            *files.reasons,
            *(("a subquery reads other rows",) if bound.has_subquery else ()),
        ),
        join=join.shape.value,
        clauses=tuple(map(str, statement.clauses)),
        dpp_applied=files.dpp_applied,
        dpp_partition_count=files.dpp_partition_count,
        source_rows=files.facts.rows,
    )


def _may_broadcast(spark: SparkSession) -> bool:
    """Whether the session allows broadcasts at all; our own limit is not Spark's."""
    return not str(spark.conf.get(_BROADCAST_SETTING)).startswith("-1")
