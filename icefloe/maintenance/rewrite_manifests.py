"""Rewrite manifests: the same files in fewer manifests, entries of one partition together."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import groupby

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.snapshots import Operation

from icefloe.commit.catalog import (
    CatalogUnavailableError,
    commit_with_retries,
    load_table,
    refuse_partial_history,
    stage,
    swap,
)
from icefloe.commit.handover import LostRaceError
from icefloe.commit.manifest_layout import MOST_ENTRIES, laid_out, live_count, live_entries
from icefloe.commit.snapshot import ManifestChanges, RemovedFiles, SnapshotDraft
from icefloe.errors import StorageError
from icefloe.metadata.manifests import existing_entry, list_manifests
from icefloe.metadata.table_state import TableState, state_of
from icefloe.results import RewriteManifestsResult
from icefloe.storage.files import delete_after_failure

OPERATION = "rewrite_manifests"


def rewrite_manifests(catalog: Catalog, state: TableState) -> RewriteManifestsResult:
    """Publish one snapshot with better manifests; no data or delete file is touched.

    After a concurrent commit the next attempt starts from the new table state.
    """
    refuse_partial_history(catalog)
    started = time.monotonic()
    snapshot_id = state.metadata.new_snapshot_id()
    result = commit_with_retries(
        state, lambda number: _attempt(catalog, state, snapshot_id, number)
    )
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
        summary = draft.summary_of(ManifestChanges(), RemovedFiles(), _summary_entries(clustered))
        snapshot = draft.finish(list(clustered.manifests), Operation.REPLACE, summary)
    except BaseException:
        delete_after_failure(head.io, draft.written)
        raise
    try:
        swap(catalog, stage(table, head, snapshot))
    except CatalogUnavailableError:
        raise
    except (LostRaceError, StorageError):
        delete_after_failure(head.io, draft.written)
        raise
    return replace(result, snapshot_id=snapshot_id)


def _result(clustered: ClusteredManifests, number: int) -> RewriteManifestsResult:
    return RewriteManifestsResult(
        manifests_before=len(clustered.before),
        manifests_after=len(clustered.manifests if clustered.added else clustered.before),
        manifests_removed=len(clustered.removed),
        manifests_added=len(clustered.added),
        entries_rewritten=clustered.entries,
        bytes_written=sum(manifest.manifest_length for manifest in clustered.added),
        attempts=number,
    )


def _summary_entries(clustered: ClusteredManifests) -> dict[str, str]:
    """The summary keys that Iceberg's own manifest rewrite writes."""
    return {
        "icefloe.operation": OPERATION,
        "manifests-created": str(len(clustered.added)),
        "manifests-kept": str(len(clustered.manifests) - len(clustered.added)),
        "manifests-replaced": str(len(clustered.removed)),
        "entries-processed": str(clustered.entries),
    }


# -------------------------------------------------------------------------------------------------
# Clustering: entries sorted by partition, in manifests of the target size

_SPLIT_FACTOR = 2  # a manifest larger than this many times the target is split


@dataclass(frozen=True, slots=True)
class ClusteredManifests:
    """The manifests of a snapshot before and after clustering."""

    before: tuple[ManifestFile, ...]
    manifests: tuple[ManifestFile, ...]
    removed: tuple[ManifestFile, ...] = ()
    added: tuple[ManifestFile, ...] = ()

    @property
    def entries(self) -> int:
        """The number of rewritten entries."""
        return sum(manifest.existing_files_count or 0 for manifest in self.added)


def cluster_manifests(draft: SnapshotDraft) -> ClusteredManifests:
    """Rewrite the data manifests of the head where that gives fewer or better ones."""
    head = draft.head
    before = list_manifests(head.io, head.snapshot) if head.snapshot else ()
    live = [m for m in before if m.has_added_files() or m.has_existing_files()]
    by_spec: dict[int, list[ManifestFile]] = {}
    for manifest in live:
        if manifest.content == ManifestContent.DATA:
            by_spec.setdefault(manifest.partition_spec_id, []).append(manifest)
    removed: list[ManifestFile] = []
    added: list[ManifestFile] = []
    for spec_id, manifests in by_spec.items():
        rewritten = _rewrite_spec(draft, spec_id, manifests)
        if rewritten:
            removed += manifests
            added += rewritten
    removed_paths = {manifest.manifest_path for manifest in removed}
    unchanged = [manifest for manifest in live if manifest.manifest_path not in removed_paths]
    return ClusteredManifests(before, (*added, *unchanged), tuple(removed), tuple(added))


def _rewrite_spec(
    draft: SnapshotDraft, spec_id: int, manifests: list[ManifestFile]
) -> list[ManifestFile]:
    """Write new manifests for one partition spec; none when the present ones are good."""
    target = draft.head.settings.manifest_target_bytes
    chunks = laid_out([e for m in manifests for e in live_entries(draft.head.io, m)], target)
    entries = [entry for chunk in chunks for entry in chunk]
    runs = sum(1 for _ in groupby(entries, key=lambda e: e.manifest))
    is_clustered = runs == len({e.manifest for e in entries})
    has_large = any(
        live_count(m) > 1
        and (
            m.manifest_length > _SPLIT_FACTOR * target
            or live_count(m) > _SPLIT_FACTOR * MOST_ENTRIES
        )
        for m in manifests
    )
    if len(manifests) <= len(chunks) and is_clustered and not has_large:
        return []
    return draft.write(
        ManifestContent.DATA, spec_id, [e.as_(existing_entry(e.entry)) for e in entries]
    )
