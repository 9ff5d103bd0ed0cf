"""The sidecars of a table's data files, as the driver opens them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from pyarrow.fs import FileType

from icefloe.indexes.definitions import IndexDefinition, to_write
from icefloe.metadata.files import LiveFile
from icefloe.metadata.table_state import TableState
from icefloe.tasks.sidecars import Sidecar, SidecarPlace, sidecar_path


def open_sidecar(
    state: TableState, definition: IndexDefinition, live: LiveFile
) -> AbstractContextManager[Sidecar]:
    """Open the sidecar of a data file; raises FileNotFoundError or DamagedSidecarError."""
    return place_of(state, definition, live).open()


def place_of(state: TableState, definition: IndexDefinition, live: LiveFile) -> SidecarPlace:
    """Where the sidecar of a data file is; tasks open it too."""
    [index] = to_write(state, [definition])
    return SidecarPlace.of(index, live.path, live.size, live.rows)


def have_sidecars(
    state: TableState, definition: IndexDefinition, files: Sequence[LiveFile]
) -> list[bool]:
    """Which data files have a sidecar, whether it is of use or not; one request for all."""
    if not files:
        return []
    [index] = to_write(state, [definition])
    paths = [sidecar_path(index.folder, live.path) for live in files]
    return [info.type == FileType.File for info in index.filesystem.get_file_info(paths)]
