"""Sidecars of indexes that can go: those of data files that are deleted or that nothing reaches.

A sidecar that is deleted too early costs speed and loses no row.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable

from icefloe.errors import StorageError
from icefloe.indexes.definitions import definitions_of, folder_of, sidecars_of
from icefloe.maintenance.reachable_files import FileKind, TableFile
from icefloe.metadata.table_state import TableState
from icefloe.storage.files import ListedFile, delete_files, delete_listed, list_files
from icefloe.storage.locations import KnownFiles, name_of

log = logging.getLogger("icefloe")

_IN_ROOT = re.compile(r"[0-9a-f]{8,32}/[0-9a-f]{8}/[^/]+")
_IN_FOLDER = re.compile(r"[0-9a-f]{8}/[^/]+")


def delete_sidecars_of(state: TableState, files: Iterable[TableFile]) -> None:
    """Delete the sidecars of data files that are deleted; those that are missing do not matter."""
    data = [file.location for file in files if file.kind is FileKind.DATA]
    delete_files(state.io, sidecars_of(state, data))


def list_sidecars(state: TableState) -> list[ListedFile]:
    """The sidecars in folders that are the table's alone, those of dropped indexes too.

    A folder that a property names may be shared by tables: there, only the folders of the table's
    own indexes count.
    """
    if state.settings.index_location is None:
        folders, shape = [state.index_location], _IN_ROOT
    else:
        folders = [folder_of(state, each) for each in definitions_of(state.metadata)]
        shape = _IN_FOLDER
    listed = [file for folder in folders for file in list_files(state.io, folder)]
    return [file for file in listed if shape.fullmatch(file.relative)]


def unreachable_sidecars(
    state: TableState, listed: Iterable[ListedFile], reachable: Iterable[TableFile]
) -> list[ListedFile]:
    """The sidecars whose data file is not among those that the table reaches."""
    data = [file.location for file in reachable if file.kind is FileKind.DATA]
    kept = KnownFiles.of(map(name_of, sidecars_of(state, data)))
    return [file for file in listed if not kept.has(name_of(file.location))]


def purge_sidecars(state: TableState, kept: Collection[str]) -> None:
    """Delete the sidecars of a dropped table, except those of data files that were kept."""
    needed = KnownFiles.of(map(name_of, sidecars_of(state, kept)))
    try:
        listed = list_sidecars(state)
    except StorageError as error:
        log.warning("Sidecars of the indexes of %s were not deleted: %s", state.name, error)
        return
    delete_listed([file for file in listed if not needed.has(name_of(file.location))])
