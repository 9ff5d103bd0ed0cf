"""Processes that insert into one table at once: `inserting_processes.py LAKE TABLE PROCESSES ROWS`.

Each switches the inline tier on if it is off. One process imports what they need and forks them.
"""

from __future__ import annotations

import os
import sys

from icefloe.errors import ConflictError
from support.inline_lakes import INLINE, open_place, row


def insert_rows(place: str, name: str, process: int, rows: int) -> None:
    with open_place(place) as lake:
        table = lake.table(name)
        while table.inline is None:
            try:
                table.set_properties(INLINE)
            except ConflictError:
                continue
        for number in range(rows):
            assert table.insert([row(process * rows + number)]).mode == "inline"


def main(place: str, name: str, processes: str, rows: str) -> int:
    children = []
    for process in range(int(processes)):
        child = os.fork()
        if child == 0:
            try:
                insert_rows(place, name, process, int(rows))
                os._exit(0)
            finally:
                sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
                os._exit(1)
        children.append(child)
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
