"""A process that is killed at one step of an insert or a flush: `killed_writer.py LAKE OPERATION STEP`.

A step is `before` or `after` and the function that it is about; without Spark, which neither needs.
The lake is a folder, or a REST catalog and the database of its inline rows: `URI INLINE_URI`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from icefloe import Lake
from icefloe.commands import flush as flush_command
from icefloe.commands import inline_rows
from icefloe.commit import catalog, handover, publish
from icefloe.lake import open_catalog
from support.pyiceberg_tables import open_lake

FUNCTIONS: dict[str, tuple[Any, str]] = {
    "insert rows": (inline_rows, "insert_rows"),
    "write files": (flush_command, "write_local_rows"),
    "lay out manifests": (publish.SnapshotDraft, "finish"),
    "stage metadata": (handover, "stage_metadata"),
    "swap pointer": (handover, "swap_pointer"),
    "remove rows": (handover, "remove_versions"),
    "commit": (sa.Connection, "commit"),
    "announce": (handover.InlineHandover, "announce"),
    "ask the catalog": (catalog, "_publish"),
    "conclude": (handover.InlineHandover, "conclude"),
}


def open_place(place: str) -> Lake:
    """The lake of a folder or of a REST catalog."""
    uri, _, inline_uri = place.partition(" ")
    if not inline_uri:
        return open_lake(Path(place))
    return Lake(open_catalog(None, "prod", {"type": "rest", "uri": uri}), None, inline_uri)


def kill_at(when: str, name: str) -> None:
    """Kill this process before or after the first call of a function."""
    owner, attribute = FUNCTIONS[name]
    function: Callable[..., Any] = getattr(owner, attribute)

    def killing(*arguments: Any, **named: Any) -> Any:
        if when == "after":
            function(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, attribute, killing)


if __name__ == "__main__":
    place, operation, when, name = sys.argv[1:]
    with open_place(place) as lake:
        table = lake.table("t")
        assert table.inline is not None  # so that the store's tables are known
        kill_at(when, name)
        if operation == "insert":
            table.insert([{"id": 3, "s": "new"}])
        else:
            table.flush()
