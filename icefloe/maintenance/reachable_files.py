"""Which files snapshots reach: manifest lists, manifests, and the files that are live in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icefloe.commit.catalog import refuse_partial_history
from icefloe.errors import IcefloeError, UnsupportedTableError
from icefloe.metadata.manifests import list_manifests, live_files
from icefloe.metadata.table_state import TableState
from icefloe.storage.locations import Name, name_of

_THREADS = 8


class Kind(StrEnum):
    """What a file of a table is."""

    DATA = "data"
    DELETES = "deletes"
    MANIFEST = "manifest"
    MANIFEST_LIST = "manifest list"
    STATISTICS = "statistics"
    METADATA = "metadata"


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of a table: where it is, what it is, and its size where metadata has it."""

    location: str
    kind: Kind
    bytes: int | None = None


Files = dict[Name, Stored]


@dataclass(slots=True)
class ReachableFiles:
    """Reads what snapshots reach; a manifest is read once, however many snapshots have it."""

    io: FileIO
    _lists: dict[str, tuple[ManifestFile, ...]] = field(default_factory=dict)
    _contents: dict[str, Files] = field(default_factory=dict)

    def manifests(self, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
        """The manifests of snapshots, by location; raises StorageError where a list is lost."""
        wanted = [s for s in snapshots if s.manifest_list not in self._lists]
        with ThreadPoolExecutor(_THREADS) as pool:
            for snapshot, found in zip(
                wanted, pool.map(lambda s: list_manifests(self.io, s), wanted), strict=True
            ):
                self._lists[snapshot.manifest_list] = found
        return {m.manifest_path: m for s in snapshots for m in self._lists[s.manifest_list]}

    def contents(self, manifests: Mapping[str, ManifestFile]) -> Files:
        """The live files of manifests; raises StorageError where a manifest cannot be read."""
        wanted = [m for path, m in manifests.items() if path not in self._contents]
        with ThreadPoolExecutor(_THREADS) as pool:
            for manifest, found in zip(wanted, pool.map(self._read, wanted), strict=True):
                self._contents[manifest.manifest_path] = found
        return {n: f for path in manifests for n, f in self._contents[path].items()}

    def readable(self, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
        """The manifests of snapshots that are to go; one whose list is lost has none."""
        found: dict[str, ManifestFile] = {}
        for snapshot in snapshots:
            try:
                found |= self.manifests([snapshot])
            except IcefloeError:
                continue
        return found

    def readable_contents(self, manifests: Mapping[str, ManifestFile]) -> Files:
        """The live files of manifests that are to go; one that is lost has none."""
        found: Files = {}
        for path, manifest in manifests.items():
            try:
                found |= self.contents({path: manifest})
            except IcefloeError:
                continue
        return found

    def _read(self, manifest: ManifestFile) -> Files:
        return {
            name_of(live.path): Stored(
                live.path, Kind.DATA if live.is_data else Kind.DELETES, live.size
            )
            for live in live_files(self.io, manifest)
        }


def everything(metadata: TableMetadata, reach: ReachableFiles) -> set[Name]:
    """Every file that the table's metadata leads to, other than metadata files themselves."""
    manifests = reach.manifests(metadata.snapshots)
    locations = [
        *(snapshot.manifest_list for snapshot in metadata.snapshots),
        *manifests,
        *(file.statistics_path for file in metadata.statistics),
        *(file.statistics_path for file in metadata.partition_statistics),
    ]
    return {*map(name_of, locations), *reach.contents(manifests)}


def no_longer_reached(reach: ReachableFiles, before: TableMetadata, after: TableMetadata) -> Files:
    """Files of snapshots that `after` lacks and that none of its snapshots needs.

    Judged by what the remaining snapshots reach, whatever line they are in. Raises StorageError
    when that cannot be read.
    """
    kept_ids = {snapshot.snapshot_id for snapshot in after.snapshots}
    gone = [s for s in before.snapshots if s.snapshot_id not in kept_ids]
    kept = reach.manifests(after.snapshots)
    kept_names = {name_of(path) for path in kept}
    candidates = readable_files(reach, gone, kept_names) | statistics_files(before)
    live = everything(after, reach) if candidates else ()
    return {name: file for name, file in candidates.items() if name not in live}


def readable_files(
    reach: ReachableFiles, snapshots: Sequence[Snapshot], kept: Collection[Name] = ()
) -> Files:
    """Files of snapshots that are to be deleted, but for those of the manifests `kept`."""
    manifests = {p: m for p, m in reach.readable(snapshots).items() if name_of(p) not in kept}
    files = reach.readable_contents(manifests)
    files |= {
        name_of(path): Stored(path, Kind.MANIFEST, manifest.manifest_length)
        for path, manifest in manifests.items()
    }
    return files | {
        name_of(s.manifest_list): Stored(s.manifest_list, Kind.MANIFEST_LIST) for s in snapshots
    }


def statistics_files(metadata: TableMetadata) -> Files:
    """The statistics files that metadata names."""
    return {
        name_of(file.statistics_path): Stored(
            file.statistics_path, Kind.STATISTICS, file.file_size_in_bytes
        )
        for file in (*metadata.statistics, *metadata.partition_statistics)
    }


# -------------------------------------------------------------------------------------------------
# Whether files of a table may be deleted at all.


def refuse_to_collect(catalog: Catalog, state: TableState, call: str) -> None:
    """Refuse a table whose files others may need, or of which not all snapshots are known."""
    refuse_without_gc(state, call)
    refuse_partial_history(catalog)


def refuse_without_gc(state: TableState, call: str) -> None:
    """Refuse a table with `gc.enabled` = `false`: its files may be another table's."""
    if not state.settings.gc_enabled:
        raise UnsupportedTableError(
            f"{state.name} has the property gc.enabled = false: its files may be those of another "
            f"table, so {call} deletes none. Set gc.enabled to true if they are its own."
        )
