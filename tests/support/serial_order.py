"""Look for a serial order of concurrent operations that explains their results (Wing and Gong).

Operations of one thread come one after the other; an operation that began after another one had
ended comes later. Among the orders that are left, one has to give every operation the result it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Row: TypeAlias = tuple[int, str]  # a key, which several rows may have, and a value
State: TypeAlias = tuple[Row, ...]  # sorted


@dataclass(frozen=True)
class Done:
    """An operation, its result, and when it began and ended."""

    kind: str  # insert, update, delete, read or count
    key: int | None = None  # of the rows that it is about; None: all
    rows: State = ()  # inserted ones
    value: str = ""  # the new one of an update
    result: Any = None  # the rows that a read found; how many rows others found
    began: int = 0
    ended: int = 0


def serial_order(threads: Sequence[Sequence[Done]]) -> list[Done] | None:
    """An order of all operations from an empty table; None if none explains their results."""
    seen: set[tuple[tuple[int, ...], State]] = set()
    path: list[Done] = []

    def search(progress: tuple[int, ...], state: State) -> bool:
        if (progress, state) in seen:
            return False
        seen.add((progress, state))
        heads = [
            (thread, operations[progress[thread]])
            for thread, operations in enumerate(threads)
            if progress[thread] < len(operations)
        ]
        if not heads:
            return True
        first_end = min(operation.ended for _, operation in heads)
        for thread, operation in heads:
            if operation.began > first_end:
                continue
            after = applied(operation, state)
            if after is None:
                continue
            path.append(operation)
            further = (*progress[:thread], progress[thread] + 1, *progress[thread + 1 :])
            if search(further, after):
                return True
            path.pop()
        return False

    return path if search((0,) * len(threads), ()) else None


def applied(operation: Done, state: State) -> State | None:
    """The rows after an operation; None if its result is another one than it had."""
    about = [row for row in state if operation.key in (None, row[0])]
    match operation.kind:
        case "insert":
            return tuple(sorted((*state, *operation.rows)))
        case "read":
            return state if tuple(about) == operation.result else None
        case "count":
            return state if len(about) == operation.result else None
        case "delete" if len(about) == operation.result:
            return tuple(row for row in state if row not in about)
        case "update" if len(about) == operation.result:
            new = (
                (key, operation.value) if operation.key in (None, key) else (key, value)
                for key, value in state
            )
            return tuple(sorted(new))
        case _:
            return None
