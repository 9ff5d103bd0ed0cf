"""Changes that are in force for as long as someone holds them, in whichever thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

log = logging.getLogger("icefloe")


class Holds(Generic[K, V]):
    """Counts the holders of each key: the first changes something, the last restores it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._holders: dict[K, tuple[int, V]] = {}  # how many, and what to restore

    @contextmanager
    def hold(self, key: K, change: Callable[[], V], restore: Callable[[V], None]) -> Iterator[None]:
        """Run the block with the change in force.

        `change` returns what `restore` gets. Restoring must not hide the outcome of the block, so
        that its failure (the session has ended, most often) is only logged.
        """
        with self._lock:
            count, before = self._holders[key] if key in self._holders else (0, change())
            self._holders[key] = (count + 1, before)
        try:
            yield
        finally:
            with self._lock:
                count, before = self._holders.pop(key)
                if count > 1:
                    self._holders[key] = (count - 1, before)
                else:
                    _attempt(restore, before)


def _attempt(restore: Callable[[V], None], before: V) -> None:
    try:
        restore(before)
    except Exception as error:  # noqa: BLE001 - see `hold`
        log.debug("could not restore %r: %r", before, error)
