"""Compaction: the same rows in fewer, well-sized files without deletes, in one commit."""

from __future__ import annotations

from dataclasses import replace

from icefloe.commands.bind import bind_condition, lower_condition
from icefloe.commands.context import (
    Context,
    added_bytes,
    publish_changes,
    statement_files,
    with_statement_retries,
)
from icefloe.commit.conflicts import ConflictCheck
from icefloe.commit.snapshot import RemovedFiles
from icefloe.deletes.dangling import dangling_deletes
from icefloe.errors import StatementError
from icefloe.file_changes import FileChanges, RemoveFiles
from icefloe.maintenance.packing import Packing, pack_files, write_packed
from icefloe.metadata.files import SnapshotFiles, unpartitioned_specs
from icefloe.metadata.manifests import read_snapshot_files
from icefloe.metadata.table_state import MAIN, TableState
from icefloe.pruning.candidates import choose_files
from icefloe.pruning.comparisons import UNKNOWN
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.results import DmlResult
from icefloe.scan.file_keys import refuse_unplain
from icefloe.scan.scan import Scan
from icefloe.schema.to_spark import spark_schema
from icefloe.settings import Isolation
from icefloe.spark import columns
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.session import reading_by_id
from icefloe.statements import Condition, Options
from icefloe.storage.files import spark_uri

OPERATION = "compact"


def compact(context: Context, where: Condition | None, target_file_bytes: int | None) -> DmlResult:
    """Rewrite small, too large and dented files that may hold rows of `where`; rows stay the same.

    Files that another writer changed meanwhile are a ConflictError; rows added meanwhile are not.
    """
    return with_statement_retries(
        context, Options(), lambda: _compact(context, where, target_file_bytes)
    )


def _compact(context: Context, where: Condition | None, target: int | None) -> DmlResult:
    state = context.read_state(MAIN)
    target = state.settings.target_file_bytes if target is None else _checked(target)
    files = read_snapshot_files(state.io, state.snapshot)
    scan = _chosen(context, state, files, where)
    spec = state.metadata.spec()
    packing = pack_files(
        scan.candidates,
        scan.live_rows,
        spec.spec_id,
        target,
        partitioned=not spec.is_unpartitioned(),
    )
    removed = tuple(source.candidate.live for source in packing.sources)
    result = DmlResult(
        operation=OPERATION,
        files_scanned=len(removed),
        files_skipped=len(files.data) - len(removed),
    )
    if not removed:
        return result
    refuse_unplain(source.candidate for source in packing.sources)
    with statement_files(state) as statement_id:
        changes = _changes(scan, files, packing, statement_id, target)

        def describe(gone: RemovedFiles) -> DmlResult:
            written = added_bytes(changes)
            return replace(
                result,
                rows_copied=sum(file.record_count for file in changes.added_data),
                data_files_added=len(changes.added_data),
                data_files_removed=len(gone.data),
                delete_files_removed=len(gone.deletes),
                bytes_written=written,
                bytes_encoded=written,
            )

        return publish_changes(context, state, changes, _guard(state), Options(), describe)


def _checked(target: int) -> int:
    if not isinstance(target, int) or isinstance(target, bool) or target < 1:
        raise StatementError(f"target_file_bytes is {target!r}: use a number of bytes from 1.")
    return target


def _chosen(
    context: Context, state: TableState, files: SnapshotFiles, where: Condition | None
) -> Scan:
    """The files that may hold rows of `where`; Spark looks where metadata cannot tell."""
    matcher = FileMatcher(
        lower_condition(where, state, context.spark), state.schema, state.metadata.specs()
    )
    nothing = context.spark.createDataFrame([], spark_schema(state.schema)).alias(state.alias)
    names = [field.name for field in state.schema.fields]
    condition = bind_condition(where, nothing, names, lambda text: context.resolve(text, state))
    scan = Scan.of(context.spark, state, choose_files(state, matcher, files).candidates)
    if condition is None or matcher.tells or not scan.candidates:
        return scan
    refuse_unplain(scan.candidates)
    with translate_spark_errors(names), reading_by_id(context.spark):
        rows = scan.rows().alias(state.alias).filter(condition)
        found = {row[0] for row in rows.select(columns.FILE).distinct().collect()}
    return scan.restrict_to([c for c in scan.candidates if spark_uri(c.path) in found])


def _changes(
    scan: Scan, files: SnapshotFiles, packing: Packing, statement_id: str, target: int
) -> FileChanges:
    state = scan.state
    written = write_packed(scan, packing, statement_id, target)
    removed = tuple(source.candidate.live for source in packing.sources)
    everywhere = unpartitioned_specs(state.metadata)
    dangling = dangling_deletes(files, removed, scan.delete_contents, everywhere)
    # As old as what was read: deletes that others publish meanwhile still apply to the new files.
    snapshot = state.snapshot
    return FileChanges(
        added_data=written.files,
        removal=RemoveFiles(removed, dangling),
        compacts=True,
        data_sequence_number=(snapshot.sequence_number or 0) if snapshot else None,
    )


def _guard(state: TableState) -> ConflictCheck:
    """Rows that come meanwhile do not matter, deletes of the rows rewritten do."""
    everything = FileMatcher(UNKNOWN, state.schema, state.metadata.specs())
    return ConflictCheck(Isolation.SNAPSHOT, everything, columns=frozenset(state.schema.field_ids))
