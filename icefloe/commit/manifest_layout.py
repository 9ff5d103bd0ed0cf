"""How entries are laid out in manifests: those of one partition together, about 1,000 in each.

Readers skip manifests by the partitions in them, and read a manifest whole: one of ten thousand
partitions makes every query of one partition read ten thousand entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.typedef import Record

from icefloe.metadata.manifests import read_entries

MOST_ENTRIES = 1000
_ENTRY_BYTES, _PAIR_BYTES = 60, 4  # of a file and of a column's metric, compressed


@dataclass(frozen=True, slots=True)
class SizedEntry:
    """A manifest entry and its size in a manifest, estimated."""

    entry: ManifestEntry
    bytes: float
    manifest: str = ""  # where it is now

    def as_(self, entry: ManifestEntry) -> SizedEntry:
        """The same file with another status."""
        return replace(self, entry=entry)


def new_entry(entry: ManifestEntry) -> SizedEntry:
    """An entry that is in no manifest yet."""
    return SizedEntry(entry, _ENTRY_BYTES + _PAIR_BYTES * _metrics(entry.data_file))


def live_entries(io: FileIO, manifest: ManifestFile) -> list[SizedEntry]:
    """The entries of a manifest that it does not delete."""
    entries = read_entries(io, manifest)
    size = manifest.manifest_length / max(1, len(entries))
    return [
        SizedEntry(entry, size, manifest.manifest_path)
        for entry in entries
        if entry.status != ManifestEntryStatus.DELETED
    ]


def laid_out(entries: Iterable[SizedEntry], target_bytes: int) -> list[list[SizedEntry]]:
    """The entries of each manifest, sorted by partition."""
    manifests: list[list[SizedEntry]] = []
    size = 0.0
    for entry in _sorted_by_partition(entries):
        is_full = not manifests or len(manifests[-1]) >= MOST_ENTRIES
        if is_full or size + entry.bytes > target_bytes:
            manifests.append([])
            size = 0.0
        manifests[-1].append(entry)
        size += entry.bytes
    return manifests


def packed(manifests: Sequence[ManifestFile], target_bytes: int) -> list[list[ManifestFile]]:
    """Manifests in groups to merge, each no larger than one manifest should be."""
    groups: list[list[ManifestFile]] = []
    size = count = 0
    for manifest in manifests:
        entries = live_count(manifest)
        fits = size + manifest.manifest_length <= target_bytes and count + entries <= MOST_ENTRIES
        if not groups or not fits:
            groups.append([])
            size = count = 0
        groups[-1].append(manifest)
        size += manifest.manifest_length
        count += entries
    return groups


def is_small(manifest: ManifestFile, target_bytes: int) -> bool:
    """Whether a manifest is so small that merging it with others pays."""
    is_short = live_count(manifest) <= MOST_ENTRIES // 2
    return is_short and manifest.manifest_length <= target_bytes // 2


def live_count(manifest: ManifestFile) -> int:
    """How many files a manifest lists as live."""
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _metrics(file: DataFile) -> int:
    maps = (
        file.column_sizes,
        file.value_counts,
        file.null_value_counts,
        file.lower_bounds,
        file.upper_bounds,
    )
    return sum(len(each) for each in maps if each)


def _sorted_by_partition(entries: Iterable[SizedEntry]) -> list[SizedEntry]:
    """Sorted by partition value, or by its text when values cannot be compared."""
    entries = list(entries)
    try:
        return sorted(entries, key=lambda e: _partition_sort_key(e.entry.data_file.partition))
    except TypeError:
        return sorted(entries, key=lambda e: repr(e.entry.data_file.partition))


def _partition_sort_key(partition: Record) -> list[tuple[int, object]]:
    values = [partition[i] for i in range(len(partition))]
    return [
        (0, 0) if value is None else (2, 0) if value != value else (1, value)  # noqa: PLR0124 - NaN
        for value in values
    ]
