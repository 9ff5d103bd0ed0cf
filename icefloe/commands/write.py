"""Tables that ask for an inline tier, which this version does not have."""

from __future__ import annotations

from icefloe.errors import UnsupportedTableError
from icefloe.metadata.table_state import TableState
from icefloe.settings import INLINE


def refuse_inline(state: TableState) -> None:
    """Refuse a table that is set to keep rows inline: whoever did so has them elsewhere."""
    if state.settings.inline_enabled:
        raise UnsupportedTableError(
            f"{state.name} has the property {INLINE} = true, but this version of icefloe has no "
            f"inline tier. Set {INLINE} to false, or add rows with append()."
        )
