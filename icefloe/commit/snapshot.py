"""One snapshot: manifests for what is added, rewritten ones for what is removed, the summary."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestFile,
)
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, UpdateMetrics

from icefloe.commit.manifest_layout import (
    SizedEntry,
    is_small,
    laid_out,
    live_entries,
    new_entry,
    packed,
)
from icefloe.errors import ConflictError, UnsupportedTableError
from icefloe.file_changes import (
    FileChanges,
    Removal,
    RemoveEverything,
    RemoveFiles,
    RemovePartitions,
)
from icefloe.metadata.files import LiveFile
from icefloe.metadata.manifests import (
    ManifestWriter,
    added_entry,
    as_live_file,
    deleted_entry,
    existing_entry,
    list_manifests,
    read_snapshot_files,
)
from icefloe.metadata.table_state import TableState
from icefloe.version import __version__

# -------------------------------------------------------------------------------------------------
# The snapshot summary: Iceberg's own entries

# total, what adds to it, what subtracts from it
_TOTALS = (
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
    ("total-records", "added-records", "deleted-records"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
    ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"),
)


def summarise(
    head: TableState,
    changes: ManifestChanges,
    removed_data: Sequence[LiveFile],
    removed_deletes: Sequence[LiveFile],
) -> dict[str, str]:
    """Counts of what this snapshot adds and removes, and the table's totals after it."""
    metrics = UpdateMetrics()
    partitions = set()
    for file in (*changes.added_data, *changes.added_deletes):
        metrics.add_file(file)
        partitions.add((file.spec_id, str(file.partition)))
    for live in (*removed_data, *removed_deletes):
        metrics.remove_file(live.file)
        partitions.add((live.spec_id, str(live.file.partition)))
    counted = metrics.to_dict()
    before = _totals_before(head)
    for total, adds, subtracts in _TOTALS:
        counted[total] = str(
            before[total] + int(counted.get(adds, 0)) - int(counted.get(subtracts, 0))
        )
    counted["changed-partition-count"] = str(len(partitions))
    counted["engine-name"] = "icefloe"
    counted["engine-version"] = __version__
    return counted


def _totals_before(head: TableState) -> dict[str, int]:
    """The totals of the head: from its summary, or counted where the summary lacks one."""
    if head.snapshot is None:
        return {total: 0 for total, _, _ in _TOTALS}
    summary = head.snapshot.summary
    stated = {total: summary.get(total) if summary else None for total, _, _ in _TOTALS}
    if all(value is not None and value.isdigit() for value in stated.values()):
        return {total: int(value) for total, value in stated.items() if value is not None}
    files = read_snapshot_files(head.io, head.snapshot)
    everything = [live.file for live in (*files.data, *files.deletes)]
    return {
        "total-data-files": len(files.data),
        "total-delete-files": len(files.deletes),
        "total-records": sum(live.rows for live in files.data),
        "total-files-size": sum(file.file_size_in_bytes for file in everything),
        "total-position-deletes": _rows_of(everything, DataFileContent.POSITION_DELETES),
        "total-equality-deletes": _rows_of(everything, DataFileContent.EQUALITY_DELETES),
    }


def _rows_of(files: Sequence[DataFile], content: DataFileContent) -> int:
    return sum(file.record_count for file in files if file.content == content)


@dataclass(frozen=True, slots=True)
class ManifestChanges:
    """What one snapshot adds to the table's manifests and removes from them."""

    added_data: tuple[DataFile, ...] = ()
    added_deletes: tuple[DataFile, ...] = ()
    removal: Removal = field(default_factory=RemoveFiles)
    data_sequence_number: int | None = None  # of added data; None: the snapshot's own
    compacts: bool = False

    @classmethod
    def of(cls, changes: FileChanges, deletes: Sequence[DataFile]) -> ManifestChanges:
        """The changes of a statement whose deleted rows are in these delete files."""
        return cls(
            changes.added_data,
            tuple(deletes),
            changes.removal,
            changes.data_sequence_number,
            changes.compacts,
        )

    @property
    def added_paths(self) -> list[str]:
        """Locations of the files that are added."""
        return [file.file_path for file in (*self.added_data, *self.added_deletes)]


@dataclass(frozen=True, slots=True)
class RemovedFiles:
    """The files that a snapshot removes from the table."""

    data: tuple[LiveFile, ...] = ()
    deletes: tuple[LiveFile, ...] = ()


@dataclass
class SnapshotDraft:
    """A snapshot being laid out on top of `head`; keeps the files it wrote for clean-up."""

    head: TableState
    snapshot_id: int
    written: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._attempt = uuid.uuid4().hex
        self._writer = ManifestWriter(
            self.head.io,
            self.head.metadata,
            self.snapshot_id,
            self.head.settings.manifest_compression,
        )

    def manifests_after(self, changes: ManifestChanges) -> tuple[list[ManifestFile], RemovedFiles]:
        """Every manifest of the new snapshot, and the files that it removes."""
        before = list_manifests(self.head.io, self.head.snapshot) if self.head.snapshot else ()
        remaining, removed = self._without(changes.removal, before)
        fresh = [
            *self._added(changes.added_data, ManifestContent.DATA, changes.data_sequence_number),
            *self._added(changes.added_deletes, ManifestContent.DELETES),
        ]
        return [*fresh, *self._merged(remaining)], removed

    def finish(
        self, manifests: list[ManifestFile], operation: Operation, summary: dict[str, str]
    ) -> Snapshot:
        """Write the manifest list and describe the snapshot."""
        metadata = self.head.metadata
        sequence_number = metadata.next_sequence_number()
        path = self._path(f"snap-{self.snapshot_id}-{self._attempt}.avro")
        parent = self.head.snapshot_id
        self._writer.write_list(path, manifests, parent, sequence_number)
        return Snapshot(
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=parent,
            sequence_number=sequence_number,
            timestamp_ms=max(int(time.time() * 1000), metadata.last_updated_ms),
            manifest_list=path,
            summary=Summary(operation=operation, **summary),
            schema_id=metadata.current_schema_id,
        )

    def summary_of(
        self, changes: ManifestChanges, removed: RemovedFiles, extra: dict[str, str]
    ) -> dict[str, str]:
        """Iceberg's own summary entries, totals included, and `extra`."""
        return {**extra, **summarise(self.head, changes, removed.data, removed.deletes)}

    def _added(
        self,
        files: Iterable[DataFile],
        content: ManifestContent,
        sequence_number: int | None = None,
    ) -> list[ManifestFile]:
        by_spec: dict[int, list[SizedEntry]] = {}
        for file in files:
            entry = added_entry(file, self.snapshot_id, sequence_number)
            by_spec.setdefault(file.spec_id, []).append(new_entry(entry))
        return [
            manifest
            for spec_id, entries in by_spec.items()
            for manifest in self.write(content, spec_id, entries)
        ]

    def _without(
        self, removal: Removal, manifests: Iterable[ManifestFile]
    ) -> tuple[list[ManifestFile], RemovedFiles]:
        """Manifests with the removed files marked as deleted; the others are kept as they are."""
        live = [m for m in manifests if m.has_added_files() or m.has_existing_files()]
        match removal:
            case RemoveFiles():
                return self._without_files(removal, live)
            case RemoveEverything():
                return self._rewrite_all(live, lambda _file: True)
            case RemovePartitions(keys):
                specs = {spec_id for spec_id, _ in keys}
                touched = [m for m in live if m.partition_spec_id in specs]
                untouched = [m for m in live if m.partition_spec_id not in specs]
                self._refuse_other_specs(untouched)
                after, removed = self._rewrite_all(touched, lambda f: f.partition_key in keys)
                return [*after, *untouched], removed

    def _refuse_other_specs(self, manifests: list[ManifestFile]) -> None:
        """Data files of another spec may hold rows of a partition that is to be replaced."""
        if any(m.content == ManifestContent.DATA for m in manifests):
            raise UnsupportedTableError(
                f"{self.head.name} has data files of another partition spec, whose partitions do "
                "not line up with those to replace. Nothing was changed."
            )

    def _without_files(
        self, removal: RemoveFiles, manifests: list[ManifestFile]
    ) -> tuple[list[ManifestFile], RemovedFiles]:
        """Look first in the manifests that held the files when they were read, then in others."""
        pending = {file.path for file in (*removal.data, *removal.deletes)}
        if not pending:
            return manifests, RemovedFiles()
        likely = {file.manifest_path for file in (*removal.data, *removal.deletes)}
        likely_first = sorted(manifests, key=lambda m: m.manifest_path not in likely)
        after: list[ManifestFile] = []
        removed: list[LiveFile] = []
        for manifest in likely_first:
            if not pending:
                after.append(manifest)
                continue
            rewritten, matches = self._rewrite(manifest, _is_one_of(frozenset(pending)))
            after.extend(rewritten)
            removed.extend(matches)
            pending -= {file.path for file in matches}
        missing = [file.path for file in removal.data if file.path in pending]
        if missing:
            raise ConflictError(
                f"{len(missing)} of {len(removal.data)} data files to replace are not found in "
                "the table's manifests",
                table=self.head.name,
                base_snapshot_id=None,
                current_snapshot_id=self.head.snapshot_id,
                files=missing,
            )
        return after, _as_removed(removed)

    def _rewrite_all(
        self, manifests: list[ManifestFile], removes: Callable[[LiveFile], bool]
    ) -> tuple[list[ManifestFile], RemovedFiles]:
        after: list[ManifestFile] = []
        removed: list[LiveFile] = []
        for manifest in manifests:
            rewritten, matches = self._rewrite(manifest, removes)
            after.extend(rewritten)
            removed.extend(matches)
        return after, _as_removed(removed)

    def _rewrite(
        self, manifest: ManifestFile, removes: Callable[[LiveFile], bool]
    ) -> tuple[list[ManifestFile], list[LiveFile]]:
        entries = live_entries(self.head.io, manifest)
        files = [as_live_file(sized.entry, manifest) for sized in entries]
        matches = [file for file in files if removes(file)]
        if not matches:
            return [manifest], []
        gone = {file.path for file in matches}
        marked = [
            sized.as_(
                deleted_entry(sized.entry, self.snapshot_id)
                if file.path in gone
                else existing_entry(sized.entry)
            )
            for sized, file in zip(entries, files, strict=True)
        ]
        return self.write(manifest.content, manifest.partition_spec_id, marked), matches

    def _merged(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Merge small manifests once there are many, so that planning stays quick."""
        target = self.head.settings.manifest_target_bytes
        settings = self.head.settings
        groups: dict[tuple[ManifestContent, int], list[ManifestFile]] = {}
        for manifest in manifests:
            groups.setdefault((manifest.content, manifest.partition_spec_id), []).append(manifest)
        after: list[ManifestFile] = []
        for (content, spec_id), group in groups.items():
            small = [
                m for m in group if m.added_snapshot_id != self.snapshot_id and is_small(m, target)
            ]
            if not settings.merge_manifests or len(small) < settings.min_manifests_to_merge:
                after.extend(group)
                continue
            merged = {m.manifest_path for m in small}
            after.extend(m for m in group if m.manifest_path not in merged)
            for group_of_small in packed(small, target):
                after.extend(
                    group_of_small
                    if len(group_of_small) == 1
                    else self._merge(content, spec_id, group_of_small)
                )
        return after

    def _merge(
        self, content: ManifestContent, spec_id: int, manifests: list[ManifestFile]
    ) -> list[ManifestFile]:
        entries = [
            sized.as_(existing_entry(sized.entry))
            for manifest in manifests
            for sized in live_entries(self.head.io, manifest)
        ]
        return self.write(content, spec_id, entries)

    def write(
        self, content: ManifestContent, spec_id: int, entries: Iterable[SizedEntry]
    ) -> list[ManifestFile]:
        """Write entries as manifests of a good size, under unique names."""
        written = []
        for manifest in laid_out(entries, self.head.settings.manifest_target_bytes):
            path = self._path(f"{self._attempt}-m{len(self.written)}.avro")
            sorted_entries = [sized.entry for sized in manifest]
            written.append(self._writer.write(path, content, spec_id, sorted_entries))
        return written

    def _path(self, name: str) -> str:
        path = f"{self.head.metadata_location}/{name}"
        self.written.append(path)
        return path


def operation_of(changes: ManifestChanges, removed: RemovedFiles) -> Operation:
    """Iceberg's operation for a commit, by its content."""
    if changes.compacts:
        return Operation.REPLACE
    deletes = bool(changes.added_deletes or removed.data or removed.deletes)
    if changes.added_data:
        return Operation.OVERWRITE if deletes else Operation.APPEND
    return Operation.DELETE


def _is_one_of(paths: frozenset[str]) -> Callable[[LiveFile], bool]:
    return lambda file: file.path in paths


def _as_removed(files: list[LiveFile]) -> RemovedFiles:
    return RemovedFiles(
        tuple(file for file in files if file.is_data),
        tuple(file for file in files if not file.is_data),
    )
