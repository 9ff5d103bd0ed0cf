"""The files that snapshots reach: manifest lists, manifests, and the live files in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icefloe.commit.catalog import refuse_partial_history
from icefloe.errors import IcefloeError, StatementError, UnsupportedTableError
from icefloe.metadata.manifests import list_manifests, live_files
from icefloe.metadata.table_state import TableState
from icefloe.storage.locations import Name, name_of

_THREADS = 8


class FileKind(StrEnum):
    """The role of a file in a table."""

    DATA = "data"
    DELETES = "deletes"
    MANIFEST = "manifest"
    MANIFEST_LIST = "manifest list"
    STATISTICS = "statistics"
    METADATA = "metadata"


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table, with its size where metadata records one."""

    location: str
    kind: FileKind
    bytes: int | None = None


FilesByName = dict[Name, TableFile]


@dataclass(slots=True)
class ReachableFiles:
    """Reads the files that snapshots reach; each manifest is read once and cached."""

    io: FileIO
    _lists: dict[str, tuple[ManifestFile, ...]] = field(default_factory=dict)
    _contents: dict[str, FilesByName] = field(default_factory=dict)

    def manifests(self, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
        """Return the manifests of snapshots by location.

        Raises StorageError when a manifest list cannot be read.
        """
        unread = [s for s in snapshots if s.manifest_list not in self._lists]
        with ThreadPoolExecutor(_THREADS) as pool:
            lists = pool.map(lambda snapshot: list_manifests(self.io, snapshot), unread)
            for snapshot, manifests in zip(unread, lists, strict=True):
                self._lists[snapshot.manifest_list] = manifests
        return {m.manifest_path: m for s in snapshots for m in self._lists[s.manifest_list]}

    def contents(self, manifests: Mapping[str, ManifestFile]) -> FilesByName:
        """Return the live files of manifests; raises StorageError when one cannot be read."""
        unread = [m for path, m in manifests.items() if path not in self._contents]
        with ThreadPoolExecutor(_THREADS) as pool:
            for manifest, files in zip(unread, pool.map(self._read, unread), strict=True):
                self._contents[manifest.manifest_path] = files
        return {n: f for path in manifests for n, f in self._contents[path].items()}

    def readable_manifests(self, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
        """Return the manifests of expired snapshots, without those of unreadable lists."""
        manifests: dict[str, ManifestFile] = {}
        for snapshot in snapshots:
            try:
                manifests |= self.manifests([snapshot])
            except IcefloeError:
                continue
        return manifests

    def readable_contents(self, manifests: Mapping[str, ManifestFile]) -> FilesByName:
        """Return the live files of manifests, without those of unreadable manifests."""
        files: FilesByName = {}
        for path, manifest in manifests.items():
            try:
                files |= self.contents({path: manifest})
            except IcefloeError:
                continue
        return files

    def _read(self, manifest: ManifestFile) -> FilesByName:
        return {
            name_of(live.path): TableFile(
                live.path, FileKind.DATA if live.is_data else FileKind.DELETES, live.size
            )
            for live in live_files(self.io, manifest)
        }


def reachable_names(metadata: TableMetadata, reachable: ReachableFiles) -> set[Name]:
    """Every file that the table's metadata refers to, except the metadata files themselves."""
    manifests = reachable.manifests(metadata.snapshots)
    locations = [*(snapshot.manifest_list for snapshot in metadata.snapshots), *manifests]
    return {
        *map(name_of, locations),
        *statistics_files(metadata),
        *reachable.contents(manifests),
    }


def newly_unreachable(
    reachable: ReachableFiles, before: TableMetadata, after: TableMetadata
) -> FilesByName:
    """Files of the snapshots that `after` lacks and that no snapshot in `after` reaches.

    All remaining snapshots count, not only the ancestors of the current one. Raises StorageError
    when one of them cannot be read.
    """
    remaining_ids = {snapshot.snapshot_id for snapshot in after.snapshots}
    removed = [s for s in before.snapshots if s.snapshot_id not in remaining_ids]
    remaining_manifests = {name_of(path) for path in reachable.manifests(after.snapshots)}
    candidates = readable_files(reachable, removed, remaining_manifests) | statistics_files(before)
    needed = reachable_names(after, reachable) if candidates else ()
    return {name: file for name, file in candidates.items() if name not in needed}


def readable_files(
    reachable: ReachableFiles, snapshots: Sequence[Snapshot], excluded: Collection[Name] = ()
) -> FilesByName:
    """Files of snapshots as far as they can be read, without the manifests in `excluded`."""
    manifests = {
        path: manifest
        for path, manifest in reachable.readable_manifests(snapshots).items()
        if name_of(path) not in excluded
    }
    files = reachable.readable_contents(manifests)
    files |= {
        name_of(path): TableFile(path, FileKind.MANIFEST, manifest.manifest_length)
        for path, manifest in manifests.items()
    }
    return files | {
        name_of(s.manifest_list): TableFile(s.manifest_list, FileKind.MANIFEST_LIST)
        for s in snapshots
    }


def statistics_files(metadata: TableMetadata) -> FilesByName:
    """Table and partition statistics files that the metadata refers to."""
    return {
        name_of(file.statistics_path): TableFile(
            file.statistics_path, FileKind.STATISTICS, file.file_size_in_bytes
        )
        for file in (*metadata.statistics, *metadata.partition_statistics)
    }


# -------------------------------------------------------------------------------------------------
# Checks before files are deleted


def refuse_unsafe_gc(catalog: Catalog, state: TableState, call: str) -> None:
    """Refuse a table whose files others may need, or whose snapshots are not all visible."""
    refuse_without_gc(state, call)
    refuse_partial_history(catalog)


def refuse_without_gc(state: TableState, call: str) -> None:
    """Refuse a table with `gc.enabled` = `false`: other tables may share its files."""
    if not state.settings.gc_enabled:
        raise UnsupportedTableError(
            f"{state.name} has the table property gc.enabled = false: other tables may share its "
            f"files, so {call} deletes none of them. Set gc.enabled to true if the files belong to "
            "this table alone."
        )


def check_older_than(older_than: object) -> None:
    """Refuse an `older_than` that is not a datetime."""
    if older_than is not None and not isinstance(older_than, datetime):
        raise StatementError(f"Invalid value {older_than!r} for older_than: expected a datetime.")
