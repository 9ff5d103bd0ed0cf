"""Rewrite manifests: the same files, listed in fewer manifests with one partition's together."""

from __future__ import annotations

import time
from dataclasses import replace

from pyiceberg.catalog import Catalog
from pyiceberg.table.snapshots import Operation

from icefloe.commit.catalog import (
    LostRaceError,
    load_table,
    race_lost,
    refuse_partial_history,
    swap,
    with_retries,
)
from icefloe.commit.clustering import Clustered, cluster_manifests
from icefloe.commit.snapshot import Removed, SnapshotDraft
from icefloe.errors import StorageError
from icefloe.file_changes import FileChanges
from icefloe.metadata.table_state import TableState, state_of
from icefloe.results import RewriteManifestsResult
from icefloe.storage.files import remove_files

OPERATION = "rewrite_manifests"


def rewrite_manifests(catalog: Catalog, state: TableState) -> RewriteManifestsResult:
    """Publish one snapshot with better manifests; no file of rows is touched.

    A lost race is tried again on the table as it then is.
    """
    refuse_partial_history(catalog)
    started = time.monotonic()
    snapshot_id = state.metadata.new_snapshot_id()
    try:
        result = with_retries(
            lambda number: _attempt(catalog, state, snapshot_id, number),
            state.settings.retry,
        )
    except LostRaceError as lost:
        raise race_lost(state) from lost
    return replace(result, duration_s=time.monotonic() - started)


def _attempt(
    catalog: Catalog, base: TableState, snapshot_id: int, number: int
) -> RewriteManifestsResult:
    table = load_table(catalog, base.name, base.metadata.table_uuid)
    head = state_of(table, base.name)
    draft = SnapshotDraft(head, snapshot_id)
    try:
        clustered = cluster_manifests(draft)
        result = _result(clustered, number)
        if not clustered.added:
            return result
        summary = draft.summary_of(FileChanges(), Removed(), _facts(clustered))
        snapshot = draft.finish(list(clustered.manifests), Operation.REPLACE, summary)
    except BaseException:
        remove_files(head.io, draft.written)
        raise
    try:
        swap(catalog, table, head, snapshot)
    except (LostRaceError, StorageError):
        remove_files(head.io, draft.written)
        raise
    return replace(result, snapshot_id=snapshot_id)


def _result(clustered: Clustered, number: int) -> RewriteManifestsResult:
    return RewriteManifestsResult(
        manifests_before=len(clustered.before),
        manifests_after=len(clustered.manifests if clustered.added else clustered.before),
        manifests_removed=len(clustered.removed),
        manifests_added=len(clustered.added),
        entries_rewritten=clustered.entries,
        bytes_written=sum(manifest.manifest_length for manifest in clustered.added),
        attempts=number,
    )


def _facts(clustered: Clustered) -> dict[str, str]:
    """What Iceberg's own rewrite writes into the summary."""
    return {
        "icefloe.operation": OPERATION,
        "manifests-created": str(len(clustered.added)),
        "manifests-kept": str(len(clustered.manifests) - len(clustered.added)),
        "manifests-replaced": str(len(clustered.removed)),
        "entries-processed": str(clustered.entries),
    }
