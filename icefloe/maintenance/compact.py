"""Compaction: the same rows in fewer, well-sized files without deletes, in one commit."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from icefloe.commands.bind import analysed_once, bind_condition, lower_condition
from icefloe.commands.context import Command, Context, Outcome
from icefloe.commands.run import run_command
from icefloe.commit.conflicts import ConflictCheck
from icefloe.deletes.dangling import dangling_deletes
from icefloe.errors import StatementError
from icefloe.file_changes import FileChanges, RemoveFiles
from icefloe.maintenance.packing import Packing, pack_files, write_packed
from icefloe.metadata.files import SnapshotFiles, unpartitioned_specs
from icefloe.metadata.manifests import read_snapshot_files
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import choose_files
from icefloe.pruning.comparisons import UNKNOWN
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.results import DmlResult, RowCounts
from icefloe.scan.file_keys import refuse_unplain
from icefloe.scan.scan import Scan
from icefloe.schema.to_spark import spark_schema
from icefloe.settings import Isolation
from icefloe.spark import columns
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.session import reading_by_id
from icefloe.statements import Condition, Options
from icefloe.storage.locations import spark_uri

OPERATION = "compact"


def compact(context: Context, where: Condition | None, target_file_bytes: int | None) -> DmlResult:
    """Rewrite files of the wrong size or with deletes that may hold rows of `where`.

    The rows of the table stay the same. Raises ConflictError if another writer changed rows of
    these files since the snapshot was read; concurrent appends do not conflict.
    """
    return run_command(CompactCommand(context, where, target_file_bytes), context)


@dataclass(frozen=True, slots=True)
class _CompactPlan:
    state: TableState
    target_file_bytes: int
    files: SnapshotFiles
    scan: Scan
    packing: Packing


@dataclass(frozen=True, slots=True)
class CompactCommand(Command[_CompactPlan]):
    """Compaction of a table's main branch."""

    context: Context
    where: Condition | None
    target_file_bytes: int | None

    @property
    def options(self) -> Options:
        """Compaction has no options of its own."""
        return Options()

    def plan(self, state: TableState, _resources: ExitStack) -> _CompactPlan:
        """Choose the files to rewrite and pack them."""
        target = state.settings.target_file_bytes
        if self.target_file_bytes is not None:
            target = _check_target(self.target_file_bytes)
        files = read_snapshot_files(state.io, state.snapshot)
        scan = _scan_of(self.context, state, files, self.where)
        spec = state.metadata.spec()
        packing = pack_files(
            scan.candidates,
            scan.live_rows,
            spec.spec_id,
            target,
            partitioned=not spec.is_unpartitioned(),
        )
        return _CompactPlan(state, target, files, scan, packing)

    def work(self, plan: _CompactPlan, statement_id: str) -> Outcome:
        """Write the packed rows."""
        packed = len(plan.packing.sources)
        report = DmlResult(
            operation=OPERATION,
            files_scanned=packed,
            files_skipped=len(plan.files.data) - packed,
        )
        check = _conflict_check(plan.state)
        if not packed:
            return Outcome(report, FileChanges(), check)
        refuse_unplain(source.candidate for source in plan.packing.sources)
        changes = _changes(plan, statement_id)
        counts = RowCounts(
            rows_copied=sum(file.record_count for file in changes.added_data),
            bytes_encoded=sum(file.file_size_in_bytes for file in changes.added_data),
        )
        return Outcome(report.counting(counts), changes, check)


def _check_target(target: int) -> int:
    if not isinstance(target, int) or isinstance(target, bool) or target < 1:
        raise StatementError(
            f"Invalid value {target!r} for target_file_bytes: expected an integer >= 1."
        )
    return target


def _scan_of(
    context: Context, state: TableState, files: SnapshotFiles, where: Condition | None
) -> Scan:
    """Scan the files that may hold rows of `where`; Spark decides where metadata cannot."""
    where = analysed_once(where)
    matcher = FileMatcher(
        lower_condition(where, state, context.columns), state.schema, state.metadata.specs()
    )
    empty = context.spark.createDataFrame([], spark_schema(state.schema)).alias(state.alias)
    names = [field.name for field in state.schema.fields]
    condition = bind_condition(where, empty, names, lambda text: context.resolve(text, state))
    scan = Scan.of(context.spark, state, choose_files(state, matcher, files).candidates)
    if condition is None or matcher.is_selective or not scan.candidates:
        return scan
    refuse_unplain(scan.candidates)
    with translate_spark_errors(names), reading_by_id(context.spark):
        rows = scan.rows().alias(state.alias).filter(condition)
        paths = {row[0] for row in rows.select(columns.FILE).distinct().collect()}
    return scan.restrict_to([c for c in scan.candidates if spark_uri(c.path) in paths])


def _changes(plan: _CompactPlan, statement_id: str) -> FileChanges:
    state = plan.state
    written = write_packed(plan.scan, plan.packing, statement_id, plan.target_file_bytes)
    removed = tuple(source.candidate.live for source in plan.packing.sources)
    everywhere = unpartitioned_specs(state.metadata)
    dangling = dangling_deletes(plan.files, removed, plan.scan.delete_contents, everywhere)
    # With the sequence number of the snapshot that was read, later equality deletes still apply.
    snapshot = state.snapshot
    return FileChanges(
        added_data=written.files,
        removal=RemoveFiles(removed, dangling),
        compacts=True,
        data_sequence_number=(snapshot.sequence_number or 0) if snapshot else None,
    )


def _conflict_check(state: TableState) -> ConflictCheck:
    """Concurrent deletes of rewritten rows conflict; concurrent appends do not."""
    everything = FileMatcher(UNKNOWN, state.schema, state.metadata.specs())
    return ConflictCheck(Isolation.SNAPSHOT, everything, columns=frozenset(state.schema.field_ids))
