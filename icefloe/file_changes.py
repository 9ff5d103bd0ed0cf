"""What a statement wants published: files added, files removed, and what it relies on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pyiceberg.manifest import DataFile
from pyroaring import BitMap64

from icefloe.metadata.files import LiveFile, PartitionKey


@dataclass(frozen=True, slots=True)
class RemoveFiles:
    """Remove these files; all must still be there."""

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
class FileChanges:
    """One statement's changes to the set of live files."""

    added_data: tuple[DataFile, ...] = ()
    added_deletes: tuple[DataFile, ...] = ()
    removal: Removal = RemoveFiles()
    # Rows of data files that new deletes name, and rows that were copied forward with new values.
    deleted_rows: Mapping[str, BitMap64] = field(default_factory=dict)
    replaced_rows: Mapping[str, BitMap64] = field(default_factory=dict)
    # A compaction: the same rows in other files, as old as the snapshot they were read from.
    compacts: bool = False
    data_sequence_number: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is surely nothing to publish."""
        match self.removal:
            case RemoveFiles(data, deletes):
                removes = bool(data or deletes)
            case RemovePartitions(keys):
                removes = bool(keys)
            case RemoveEverything():
                removes = True
        return not (self.added_data or self.added_deletes or removes)

    @property
    def added_paths(self) -> list[str]:
        """Every file the statement wrote."""
        return [file.file_path for file in (*self.added_data, *self.added_deletes)]
