"""Settings of a Spark session that hold for a moment."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from pyspark.sql import SparkSession

from icefloe.holds import Holds

_held: Holds[tuple[str, str], str] = Holds()


def held(spark: SparkSession, key: str, value: str) -> AbstractContextManager[None]:
    """Set a session's setting for the time of the block, which may be run by several threads.

    The first holder keeps the value that was there, the last one brings it back.
    """

    def change() -> str:
        before = str(spark.conf.get(key))
        spark.conf.set(key, value)
        return before

    return _held.hold((_identity(spark), key), change, lambda before: spark.conf.set(key, before))


def _identity(spark: Any) -> str:
    """What all Python objects of one session share."""
    java = getattr(spark, "_jsparkSession", None)  # Spark Connect refuses it as an attribute
    return str(spark.session_id if java is None else java.sessionUUID())
