"""Whether files of a table may be deleted at all."""

from __future__ import annotations

from pyiceberg.catalog import Catalog

from icefloe.commit.catalog import refuse_partial_history
from icefloe.errors import UnsupportedTableError
from icefloe.metadata.table_state import TableState


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
