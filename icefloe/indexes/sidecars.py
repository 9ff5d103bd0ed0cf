"""The sidecars of a table's data files, as the driver opens them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from pyarrow.fs import FileType

from icefloe.indexes.definitions import IndexDefinition, to_write
from icefloe.metadata.files import LiveFile
from icefloe.metadata.table_state import TableState
from icefloe.storage.files import locate
from icefloe.tasks.sidecars import Sidecar, SidecarPlace, change_in_place, sidecar_path


def open_sidecar(
    state: TableState, definition: IndexDefinition, live: LiveFile
) -> AbstractContextManager[Sidecar]:
    """Open the sidecar of a data file; raises FileNotFoundError or DamagedSidecarError."""
    return place_of(state, definition, live).open()


def place_of(state: TableState, definition: IndexDefinition, live: LiveFile) -> SidecarPlace:
    """Where the sidecar of a data file is; tasks open it too."""
    [index] = to_write(state, [definition])
    place = SidecarPlace.of(index, live.path, live.size, live.rows)
    return replace(place, problem=_problem(state, live))


def have_sidecars(
    state: TableState, definition: IndexDefinition, files: Sequence[LiveFile]
) -> list[bool]:
    """Which data files have a sidecar, whether it is of use or not; one request for all."""
    if not files:
        return []
    [index] = to_write(state, [definition])
    paths = [sidecar_path(index.folder, live.path) for live in files]
    stored = index.filesystem.get_file_info(paths)
    return [
        info.type == FileType.File and _problem(state, live) is None
        for live, info in zip(files, stored, strict=True)
    ]


def _problem(state: TableState, live: LiveFile) -> str | None:
    """Why no sidecar of a data file may be used; None if there is no reason."""
    place = locate(state.io, live.path)
    return change_in_place(place.filesystem, place.path, live.size)
