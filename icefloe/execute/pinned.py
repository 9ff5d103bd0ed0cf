"""A MERGE's source, read once: later reads see the same rows in the same order."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from icefloe import columns
from icefloe.session_settings import held

_COMPRESSES = "spark.sql.inMemoryColumnarStorage.compressed"


@contextmanager
def pinned(source: DataFrame) -> Iterator[DataFrame]:
    """The source with its rows numbered, kept by Spark (on disk where memory is short)."""
    # Spark keeps equal plans once, and drops them for all: a condition of its own makes it unequal.
    own = source.filter(F.lit(uuid.uuid4().hex).isNotNull())
    numbered = own.select("*", F.monotonically_increasing_id().alias(columns.SOURCE_ROW))
    # Compressing what is kept takes longer than the rest of the keeping.
    with held(source.sparkSession, _COMPRESSES, "false"):
        numbered.persist()
    try:
        yield numbered
    finally:
        numbered.unpersist()
