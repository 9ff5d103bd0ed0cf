"""What a statement publishes: files added, rows deleted, files removed, metadata changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyroaring import BitMap64

from icefloe.metadata.files import LiveFile, PartitionKey
from icefloe.metadata.table_state import MetadataUpdates


@dataclass(frozen=True, slots=True)
class RemoveFiles:
    """Remove these files; all data files must still be live."""

    data: tuple[LiveFile, ...] = ()
    deletes: tuple[LiveFile, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoveEverything:
    """Remove whatever is live when the commit lands."""


@dataclass(frozen=True, slots=True)
class RemovePartitions:
    """Remove whatever is live in these partitions when the commit lands."""

    keys: frozenset[PartitionKey]


Removal: TypeAlias = RemoveFiles | RemoveEverything | RemovePartitions


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """Rows of one data file that are deleted without rewriting the file."""

    file: LiveFile
    positions: BitMap64


RowVersion: TypeAlias = tuple[int, int]  # of an inline row: its id and the change that wrote it
# Where new files have some of the inline rows: positions by data file location.
LocateRows: TypeAlias = Callable[[Collection[RowVersion]], Mapping[str, BitMap64]]


@dataclass(frozen=True, slots=True)
class InlineChanges:
    """Changes of inline rows; each row must still be of the version that was read."""

    removed: tuple[RowVersion, ...] = ()
    replaced: tuple[RowVersion, ...] = ()
    new_values: pa.Table | None = None  # of the replaced rows, in their order
    read: frozenset[RowVersion] = frozenset()  # every version that the statement looked at
    # Not changed, but the statement relies on them: they must be as they were read.
    relied_on: tuple[RowVersion, ...] = ()
    # The last change of the database that the statement saw, where its number tells: if this is the
    # next one, no row was inserted or changed in between.
    read_at: int | None = None
    # `removed` are all rows that there were at this change, where `read_at` would tell.
    all_read_at: int | None = None
    everything: bool = False  # `removed` are all rows that there were at the head
    # Catalogs in another database: `removed` are all rows of changes up to this one.
    through: int | None = None
    # Rows of files that are deleted in the database, and those that take the place of some of them.
    deleted: Mapping[str, DeletedRows] = field(default_factory=dict)  # by data file location
    added: pa.Table | None = None
    # Such deletes of before, which the commit has in delete files.
    consumed: Mapping[str, BitMap64] = field(default_factory=dict)
    # All that is inline gets into files: earlier snapshots are shown as they are from then on.
    forgets_former: bool = False
    # Where the files of a flush have the removed rows: those that others change before it are
    # deleted there instead.
    located: LocateRows | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is changed."""
        return not (self.removed or self.replaced or self.deleted or self.forgets_former)


@dataclass(frozen=True, slots=True)
class FileChanges:
    """One statement's changes to a table.

    Deleted rows are positions, not delete files: publishing writes them in the table's delete
    format, on top of what the head of the branch has deleted already where the format asks for it.
    """

    added_data: tuple[DataFile, ...] = ()
    deleted_rows: Mapping[str, DeletedRows] = field(default_factory=dict)  # by data file location
    # Those of the deleted rows that have new versions in `added_data`.
    replaced_rows: Mapping[str, BitMap64] = field(default_factory=dict)
    removal: Removal = RemoveFiles()
    metadata_updates: MetadataUpdates | None = None  # committed together with the files
    # A compaction: the same rows in other files, as old as the snapshot they were read from.
    compacts: bool = False
    data_sequence_number: int | None = None
    inline: InlineChanges = InlineChanges()  # published together with the files

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to publish, whatever the head of the branch holds."""
        return self.inline.is_empty and not self.changes_files

    @property
    def changes_files(self) -> bool:
        """Whether a snapshot is needed, whatever the head of the branch holds."""
        return bool(self.added_data or self.deleted_rows) or self.removes_files

    @property
    def removes_files(self) -> bool:
        """Whether files may be removed."""
        match self.removal:
            case RemoveFiles(data, deletes):
                return bool(data or deletes)
            case RemovePartitions(keys):
                return bool(keys)
            case RemoveEverything():
                return True

    @property
    def removed_data(self) -> tuple[LiveFile, ...]:
        """Data files that the statement names for removal."""
        return self.removal.data if isinstance(self.removal, RemoveFiles) else ()

    @property
    def files_with_deleted_rows(self) -> frozenset[str]:
        """Data files that stay and lose rows, by delete files or in the inline tier."""
        return frozenset(self.deleted_rows) | frozenset(self.inline.deleted)
