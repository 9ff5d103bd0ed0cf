"""A process that is killed at one step of a statement.

`killed_writer.py LAKE OPERATION STEP` runs an insert or a flush. A step is `before` or `after` and the
function that it is about. The lake is one of `support.inline_lakes.open_place`.

`killed_writer.py serve` reads lines of a lake, a statement of `support.inline_lakes`, a table, the
number of a call to the database or to a file, and how to reach the JVM of a Spark session, if the
statement needs that. For each it forks, and the child is killed before that call: what takes the
time, the imports, is done once. Without a number, the child goes on to the end and says how many
calls there were.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from icefloe import Lake
from icefloe.commands import flush as flush_command
from icefloe.commands import inline_rows
from icefloe.commit import catalog, handover, publish
from support.attached_session import Gateway, attached_session
from support.inline_lakes import EVERY_OPERATION, open_place
from support.watched_calls import Call, Watch, watching

FUNCTIONS: dict[str, tuple[Any, str]] = {
    "insert rows": (inline_rows, "insert_rows"),
    "write files": (flush_command, "write_local_rows"),
    "lay out manifests": (publish.SnapshotDraft, "finish"),
    "stage metadata": (handover, "stage_metadata"),
    "swap pointer": (handover, "swap_pointer"),
    "remove rows": (handover, "remove_unchanged"),
    "commit": (sa.Connection, "commit"),
    "announce": (handover.InlineHandover, "announce"),
    "ask the catalog": (catalog, "_publish"),
    "conclude": (handover.InlineHandover, "conclude"),
}


def kill_at(when: str, name: str) -> None:
    """Kill this process before or after the first call of a function."""
    owner, attribute = FUNCTIONS[name]
    function: Callable[..., Any] = getattr(owner, attribute)

    def killing(*arguments: Any, **named: Any) -> Any:
        if when == "after":
            function(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, attribute, killing)


def serve() -> None:
    """Fork for each request; says how the child ended."""
    for line in sys.stdin:
        place, name, table, number, gateway = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                run_until(place, name, table, number, gateway)
            except BaseException:  # noqa: BLE001 - its parent has only the status
                traceback.print_exc()
            finally:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        say(f"ended {status}")


def run_until(
    place: str, name: str, table: str, number: int | None, gateway: Gateway | None
) -> None:
    """Run a statement until the call of this number, and be killed there."""

    def kill(call: Call) -> None:
        if call.number == number:
            os.kill(os.getpid(), signal.SIGKILL)

    lake = open_place(place)
    if gateway is not None:
        lake = Lake(lake.catalog, attached_session(gateway))
    with watching(Watch(before=kill)) as watch:
        EVERY_OPERATION[name].run(lake, table)
    if number is None:
        say(f"calls {len(watch.calls)}")
    os._exit(0)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
        sys.exit()
    place, operation, when, name = sys.argv[1:]
    with open_place(place) as lake:
        table = lake.table("t")
        assert table.inline is not None  # so that the store's tables are known
        kill_at(when, name)
        if operation == "insert":
            table.insert([{"id": 3, "s": "new"}])
        else:
            table.flush()
