"""The sidecars of a table's data files, as the driver opens them."""

from __future__ import annotations

from contextlib import AbstractContextManager

from icefloe.indexes.definitions import IndexDefinition, to_write
from icefloe.metadata.files import LiveFile
from icefloe.metadata.table_state import TableState
from icefloe.tasks.sidecars import Sidecar, SidecarPlace


def open_sidecar(
    state: TableState, definition: IndexDefinition, live: LiveFile
) -> AbstractContextManager[Sidecar]:
    """Open the sidecar of a data file; raises FileNotFoundError or DamagedSidecarError."""
    return place_of(state, definition, live).open()


def place_of(state: TableState, definition: IndexDefinition, live: LiveFile) -> SidecarPlace:
    """Where the sidecar of a data file is; tasks open it too."""
    [index] = to_write(state, [definition])
    return SidecarPlace.of(index, live.path, live.size, live.rows)
