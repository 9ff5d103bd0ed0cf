"""Which lakes use the Spark sessions that icefloe started; the last of them stops its session."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import RLock
from typing import Any
from weakref import WeakSet

from pyspark import SparkContext
from pyspark.sql import SparkSession

log = logging.getLogger("icefloe")


class StartedSessions:
    """Sessions that icefloe started and may stop; lakes are held weakly."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._users: list[tuple[SparkSession, WeakSet[object]]] = []

    def add(self, session: SparkSession) -> None:
        """Take a session that was just started; those that have ended are forgotten."""
        with self._lock:
            self._users = [(one, users) for one, users in self._users if _is_running(one)]
            if self._users_of(session) is None:
                self._users.append((session, WeakSet()))

    def hand_over(self, session: SparkSession) -> None:
        """The caller passed the session in: it is theirs from now on, whoever started it."""
        with self._lock:
            self._users = [pair for pair in self._users if not _same(pair[0], session)]

    def used_by(self, user: object, find: Callable[[], SparkSession]) -> SparkSession:
        """The session that `find` finds or starts, which `user` uses until it is released."""
        with self._lock:
            session = find()
            users = self._users_of(session)
            if users is not None and user is not None:
                users.add(user)
            return session

    def release(self, user: object) -> None:
        """End a lake's use of its session; the last one's stops a session that icefloe started."""
        with self._lock:
            for session, users in list(self._users):
                if user not in users:
                    continue
                users.discard(user)
                if not users:
                    self.hand_over(session)
                    _stop(session)

    def _users_of(self, session: SparkSession) -> WeakSet[object] | None:
        return next((users for one, users in self._users if _same(one, session)), None)


def _same(one: SparkSession, other: SparkSession) -> bool:
    """Whether stopping one stops the other: classic sessions share their application."""
    return one is other or _application(one) == _application(other)


def _application(session: Any) -> object:
    context = getattr(session, "sparkContext", None)  # Spark Connect refuses it as an attribute
    return session.session_id if context is None else context


def _is_running(session: Any) -> bool:
    context = getattr(session, "sparkContext", None)
    if context is None:
        return not session.is_stopped
    return SparkContext._active_spark_context is context


def _stop(session: SparkSession) -> None:
    """Stop a session; stopping one that has ended already would end its successor."""
    try:
        if _is_running(session):
            session.stop()
    except Exception as error:  # noqa: BLE001 - its JVM has ended, and the lake is closed anyway
        log.debug("could not stop the Spark session: %r", error)
