"""Whether files of a table may be deleted at all."""

from __future__ import annotations

from pyiceberg.catalog import Catalog

from icefloe.errors import UnsupportedTableError
from icefloe.metadata.state import TableState

_LOADING_MODE = "snapshot-loading-mode"


def refuse_to_collect(catalog: Catalog, state: TableState, call: str) -> None:
    """Refuse a table whose files others may need, or of which not all snapshots are known."""
    refuse_without_gc(state, call)
    if str(catalog.properties.get(_LOADING_MODE, "all")).lower() != "all":
        raise UnsupportedTableError(
            f"The catalog {catalog.name!r} tells some snapshots only ({_LOADING_MODE} = "
            f"{catalog.properties[_LOADING_MODE]}), so {call} cannot tell which files are needed. "
            f"Connect with {_LOADING_MODE} = all."
        )


def refuse_without_gc(state: TableState, call: str) -> None:
    """Refuse a table with `gc.enabled` = `false`: its files may be another table's."""
    if not state.settings.gc_enabled:
        raise UnsupportedTableError(
            f"{state.name} has the property gc.enabled = false: its files may be those of another "
            f"table, so {call} deletes none. Set gc.enabled to true if they are its own."
        )
