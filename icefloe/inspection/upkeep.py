"""What compaction, expiry and a flush would do and save; nothing is changed or written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pyiceberg.table.update import update_table_metadata

from icefloe.errors import IcefloeError
from icefloe.indexes.definitions import definitions_of
from icefloe.indexes.sidecars import have_sidecars
from icefloe.inline.facts import read_inline_facts
from icefloe.inline.tier import InlineTier
from icefloe.inspection.file_health import FileFacts
from icefloe.maintenance.expire import (
    ExpiredHistory,
    RetentionLimits,
    find_expired,
    removal_updates,
)
from icefloe.maintenance.packing import Packing, pack_files
from icefloe.maintenance.reachable_files import ReachableFiles, newly_unreachable, refuse_without_gc
from icefloe.metadata.files import SnapshotFiles
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import choose_files
from icefloe.pruning.comparisons import UNKNOWN
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.tasks.index_files import needs_sidecar


def compaction(
    state: TableState, files: SnapshotFiles, facts: Sequence[FileFacts]
) -> dict[str, Any]:
    """The files that `compact` would rewrite, and what the table would have after it.

    Rows that are deleted are estimated where a delete file is for several data files.
    """
    target = state.settings.target_file_bytes
    spec = state.metadata.spec()
    live_rows = {each.live.path: each.live_rows for each in facts}
    try:
        everything = FileMatcher(UNKNOWN, state.schema, state.metadata.specs())
        candidates = choose_files(state, everything, files).candidates
    except IcefloeError as refused:
        return {"refused": str(refused)}
    packing = pack_files(
        candidates,
        lambda candidate: live_rows[candidate.path],
        spec.spec_id,
        target,
        partitioned=not spec.is_unpartitioned(),
    )
    sources = packing.sources
    before = sum(source.candidate.live.size for source in sources)
    after = round(sum(source.bytes for source in sources))
    outputs = _outputs(packing, target)
    return {
        "target": target,
        "files": len(files.data),
        "files_in": len(sources),
        "files_out": outputs,
        "files_after": len(files.data) - len(sources) + outputs,
        "bytes_in": before,
        "bytes_out": after,
        "rows_dropped": sum(s.candidate.live.rows - s.rows for s in sources),
        "with_deletes": sum(s.candidate.has_deletes for s in sources),
        "delete_files": len(files.deletes),
        "repartitioned": len(packing.repartitioned),
    }


def _outputs(packing: Packing, target: int) -> int:
    """New files; of repartitioned rows at least one for each old partition is assumed."""
    outputs = sum(pack.outputs for pack in packing.packs)
    sizes: Counter[object] = Counter()
    for source in packing.repartitioned:
        sizes[source.candidate.live.partition_key] += round(source.bytes)
    return outputs + sum(max(1, round(size / target)) for size in sizes.values())


def expiry(state: TableState, now_ms: int | None = None) -> dict[str, Any]:
    """The snapshots that `expire_snapshots()` would remove, by the table's properties."""
    metadata = state.metadata
    expired = _expired(state, now_ms)
    kept = [s for s in metadata.snapshots if s.snapshot_id not in set(expired.snapshots)]
    return {
        "snapshots": len(metadata.snapshots),
        "expired": len(expired.snapshots),
        "refs": list(expired.refs),
        "oldest": min((s.timestamp_ms for s in metadata.snapshots), default=None),
        "oldest_kept": min((s.timestamp_ms for s in kept), default=None),
        "max_age_ms": state.settings.max_snapshot_age_ms,
        "min_snapshots": state.settings.min_snapshots_to_keep,
        "refused": _refusal(state),
    }


def expired_files(state: TableState, now_ms: int | None = None) -> dict[str, Any]:
    """The files that only expired snapshots need, by kind: at most these would be deleted.

    Reads the manifests of every snapshot.
    """
    expired = _expired(state, now_ms)
    if not expired:
        return {"files": 0, "bytes": 0, "by_kind": {}}
    before = state.metadata
    after = update_table_metadata(before, removal_updates(before, expired.snapshots, expired.refs))
    unreachable = newly_unreachable(ReachableFiles(state.io), before, after).values()
    kinds = Counter(file.kind.value for file in unreachable)
    return {
        "files": len(unreachable),
        "bytes": sum(file.bytes or 0 for file in unreachable),
        "by_kind": dict(kinds),
    }


def _expired(state: TableState, now_ms: int | None) -> ExpiredHistory:
    now = int(time.time() * 1000) if now_ms is None else now_ms
    return find_expired(state.metadata, RetentionLimits.of(state.settings, now, None, 1))


def _refusal(state: TableState) -> str | None:
    try:
        refuse_without_gc(state, "expire_snapshots")
    except IcefloeError as refused:
        return str(refused)
    return None


def inline_rows(tier: InlineTier, state: TableState) -> dict[str, Any] | None:
    """What `flush` would move to files; None without the inline tier."""
    facts = read_inline_facts(tier, state)
    if facts is None:
        return None
    oldest = facts.oldest
    return {
        **asdict(facts),
        "oldest": None if oldest is None else round(oldest.timestamp() * 1000),
        "row_limit": state.settings.inline_row_limit,
        "max_age_ms": state.settings.inline_max_age_ms,
    }


def index_coverage(state: TableState, files: SnapshotFiles) -> list[dict[str, Any]]:
    """The indexes with the files and rows that each of them covers, by one listing each.

    Whether a sidecar is whole is looked at by `Table.indexes`.
    """
    listed = []
    for definition in definitions_of(state.metadata):
        problem = definition.problem(state.schema)
        covered = [False] * len(files.data)
        if problem is None:
            stored = have_sidecars(state, definition, files.data)
            covered = [
                is_there or not needs_sidecar(definition.kind, definition.params, live.rows)
                for live, is_there in zip(files.data, stored, strict=True)
            ]
        fields = definition.fields(state.schema) or []
        listed.append(
            {
                "name": definition.name,
                "kind": definition.kind,
                "columns": [column.name for column in fields],
                "problem": problem,
                "files": len(files.data),
                "files_covered": sum(covered),
                "rows": sum(live.rows for live in files.data),
                "rows_covered": sum(
                    live.rows for live, has in zip(files.data, covered, strict=True) if has
                ),
            }
        )
    return listed
