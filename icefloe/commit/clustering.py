"""Manifests laid out anew: entries of one partition together, manifests of the target size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil

from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.typedef import Record

from icefloe.commit.snapshot import SnapshotDraft
from icefloe.metadata.manifests import kept, list_manifests, read_entries

_TOO_LARGE = 2  # times the target: such a manifest is split


@dataclass(frozen=True, slots=True)
class Clustered:
    """Every manifest of a snapshot after it, and what was done for it."""

    before: tuple[ManifestFile, ...]
    manifests: tuple[ManifestFile, ...]
    removed: tuple[ManifestFile, ...] = ()
    added: tuple[ManifestFile, ...] = ()

    @property
    def entries(self) -> int:
        """Entries that were written anew."""
        return sum(manifest.existing_files_count or 0 for manifest in self.added)


@dataclass(frozen=True, slots=True)
class _Entry:
    entry: ManifestEntry
    manifest: str
    bytes: float  # about


def cluster_manifests(draft: SnapshotDraft) -> Clustered:
    """Write the data manifests of the head anew where that makes fewer, or better ones."""
    head = draft.head
    before = list_manifests(head.io, head.snapshot) if head.snapshot else ()
    live = [m for m in before if m.has_added_files() or m.has_existing_files()]
    by_spec: dict[int, list[ManifestFile]] = {}
    for manifest in live:
        if manifest.content == ManifestContent.DATA:
            by_spec.setdefault(manifest.partition_spec_id, []).append(manifest)
    removed: list[ManifestFile] = []
    added: list[ManifestFile] = []
    for spec_id, group in by_spec.items():
        written = _clustered(draft, spec_id, group)
        if written:
            removed += group
            added += written
    gone = {manifest.manifest_path for manifest in removed}
    rest = [manifest for manifest in live if manifest.manifest_path not in gone]
    return Clustered(before, (*added, *rest), tuple(removed), tuple(added))


def _clustered(
    draft: SnapshotDraft, spec_id: int, manifests: list[ManifestFile]
) -> list[ManifestFile]:
    """New manifests of one spec; none where the old ones are good."""
    target = draft.head.settings.manifest_target_bytes
    entries = _sorted([e for m in manifests for e in _entries(draft, m)])
    fewest = max(1, ceil(sum(e.bytes for e in entries) / target))
    runs = sum(1 for _ in groupby(entries, key=lambda e: e.manifest))
    present = len({e.manifest for e in entries})
    large = any(
        m.manifest_length > _TOO_LARGE * target and (m.existing_files_count or 2) > 1
        for m in manifests
    )
    if len(manifests) <= fewest and runs == present and not large:
        return []
    return [
        draft.write(ManifestContent.DATA, spec_id, [kept(e.entry) for e in chunk])
        for chunk in _chunks(entries, target)
    ]


def _entries(draft: SnapshotDraft, manifest: ManifestFile) -> list[_Entry]:
    found = read_entries(draft.head.io, manifest)
    size = manifest.manifest_length / max(1, len(found))
    return [
        _Entry(entry, manifest.manifest_path, size)
        for entry in found
        if entry.status != ManifestEntryStatus.DELETED
    ]


def _sorted(entries: list[_Entry]) -> list[_Entry]:
    """By partition; values that cannot be compared are ordered by how they are written."""
    try:
        return sorted(entries, key=lambda e: _key(e.entry.data_file.partition))
    except TypeError:
        return sorted(entries, key=lambda e: repr(e.entry.data_file.partition))


def _key(partition: Record) -> list[tuple[int, object]]:
    values = [partition[i] for i in range(len(partition))]
    return [
        (0, 0) if value is None else (2, 0) if value != value else (1, value)  # noqa: PLR0124 - NaN
        for value in values
    ]


def _chunks(entries: Sequence[_Entry], target: int) -> list[list[_Entry]]:
    chunks: list[list[_Entry]] = []
    size = 0.0
    for entry in entries:
        if not chunks or size + entry.bytes > target:
            chunks.append([])
            size = 0.0
        chunks[-1].append(entry)
        size += entry.bytes
    return chunks
