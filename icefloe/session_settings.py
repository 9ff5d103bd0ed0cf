"""Settings of a Spark session that hold for a moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from pyspark.sql import SparkSession

_lock = Lock()
_held: dict[tuple[int, str], tuple[int, str]] = {}  # holders, and the value to go back to


@contextmanager
def held(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    """Set a session's setting for the time of the block, which may be run by several threads.

    The first holder keeps the value that was there, the last one brings it back.
    """
    own = (id(spark), key)
    with _lock:
        holders, before = _held.get(own, (0, ""))
        if not holders:
            before = str(spark.conf.get(key))
            spark.conf.set(key, value)
        _held[own] = (holders + 1, before)
    try:
        yield
    finally:
        with _lock:
            holders, before = _held.pop(own)
            if holders > 1:
                _held[own] = (holders - 1, before)
            else:
                spark.conf.set(key, before)
