"""Flush inline rows in a thread of the lake, when there are many or they are old.

Writers do not wait for it. Only when there are four times as many rows as the limit does an insert
flush them itself, before it stores its own, so that a flush that keeps failing cannot fill the
database.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeAlias
from uuid import uuid4

from icefloe.commands.context import Context
from icefloe.commands.run import flush
from icefloe.errors import IcefloeError
from icefloe.inline.bookkeeping import acquire_lease, release_lease
from icefloe.inline.facts import count_inline, is_old, read_inline_facts
from icefloe.inline.tier import InlineTier
from icefloe.metadata.table_state import MAIN, TableState

log = logging.getLogger("icefloe")

BACK_PRESSURE = 4  # times the limits
MOST_BYTES = 64 * 2**20  # of the inline rows of a table
_LEASE_MS = 60_000
_STOP_S = 30

OpenContext: TypeAlias = Callable[[], Context]


class BackgroundFlush:
    """One thread that flushes the tables it is woken for."""

    def __init__(self, tier: InlineTier) -> None:
        self._tier = tier
        self._owner = uuid4().hex
        self._spans: dict[str, int] = {}  # at most how many inline rows a table had, by name
        self._bytes: dict[str, int] = {}  # inserted by this process since they were last looked at
        self._waiting: dict[str, OpenContext] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def make_room(self, state: TableState, context: OpenContext) -> None:
        """Flush now, and raise what that raises, if a table has far too many inline rows."""
        name, most = state.name, BACK_PRESSURE * state.settings.inline_row_limit
        is_large = self._bytes.get(name, 0) >= BACK_PRESSURE * MOST_BYTES
        if self._spans.get(name, 0) < most and not is_large:
            return
        rows = sum(count_inline(self._tier, state))
        if rows >= most or (is_large and self._is_large(state)):
            flush(context())
            rows = 0
        self._spans[name] = rows
        self._bytes.pop(name, None)

    def flush_soon(self, state: TableState, rows: int, size: int, context: OpenContext) -> None:
        """Wake the thread if a table may have too many inline rows, too large or too old ones.

        The rows are stored, so nothing here is a reason to fail.

        Args:
            state: The state of the table.
            rows: At most how many inline rows it has.
            size: The bytes of those that were just inserted.
            context: Opens what a flush runs with.
        """
        name, limit = state.name, state.settings.inline_row_limit
        self._spans[name] = max(rows, self._spans.get(name, 0))
        self._bytes[name] = added = size + self._bytes.get(name, 0)
        try:
            is_due = rows >= limit or added >= MOST_BYTES or is_old(self._tier, state)
        except IcefloeError as error:
            log.warning("The age of the inline rows of %s is unknown: %s", state.name, error)
            return
        if is_due:
            self._wake(state.name, context)

    def stop(self) -> None:
        """Finish what is under way and start nothing more."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_S)

    def _wake(self, name: str, context: OpenContext) -> None:
        with self._changed:
            if self._stopped:
                return
            self._waiting[name] = context
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="icefloe-flush", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while (woken := self._next()) is not None:
            name, context = woken
            try:
                self._flush_if_due(context())
            except IcefloeError as error:
                log.warning("Inline rows of %s were not flushed: %s", name, error)
            except Exception:
                log.exception("Inline rows of %s were not flushed", name)
            del woken, context  # they keep the lake alive

    def _next(self) -> tuple[str, OpenContext] | None:
        with self._changed:
            while not (self._waiting or self._stopped):
                self._changed.wait()
            return None if self._stopped else self._waiting.popitem()

    def _flush_if_due(self, context: Context) -> None:
        """Flush whole multiples of the row limit, or everything that is too old or too large.

        Rows of files that are deleted inline are flushed whenever something is.
        """
        state = context.read_state(MAIN)
        limit, (count, deletes) = state.settings.inline_row_limit, count_inline(self._tier, state)
        all_of_it = is_old(self._tier, state) or self._is_large(state)
        rows = count if all_of_it else count // limit * limit
        is_due = rows or deletes >= limit or (deletes and all_of_it)
        if not is_due or not self._lease(state):
            return
        try:
            flush(context, rows)
            self._bytes.pop(state.name, None)
        finally:
            self._release(state)

    def _is_large(self, state: TableState) -> bool:
        """Whether the inline rows have too many bytes; those of other processes count as well."""
        if self._bytes.get(state.name, 0) < MOST_BYTES:
            return False
        facts = read_inline_facts(self._tier, state)
        return facts is not None and facts.bytes >= MOST_BYTES

    def _lease(self, state: TableState) -> bool:
        """Whether no other process flushes the table; two would only waste work."""
        with self._tier.store.writing() as connection:
            table = self._tier.find(connection, state)
            return table is not None and acquire_lease(connection, table, self._owner, _LEASE_MS)

    def _release(self, state: TableState) -> None:
        with self._tier.store.writing() as connection:
            table = self._tier.find(connection, state)
            if table is not None:
                release_lease(connection, table, self._owner)
