"""Whether files of a table may be deleted at all."""

from __future__ import annotations

from icefloe.errors import UnsupportedTableError
from icefloe.metadata.state import TableState


def refuse_without_gc(state: TableState, call: str) -> None:
    """Refuse a table whose files others may need, as `gc.enabled` = false says."""
    if not state.settings.gc_enabled:
        raise UnsupportedTableError(
            f"{state.name} has the property gc.enabled = false: its files may be those of another "
            f"table, so {call} deletes none. Set gc.enabled to true if they are its own."
        )
