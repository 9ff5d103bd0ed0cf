"""Frames that a MERGE reads more than once: later reads see the same rows in the same order."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from icefloe.spark import columns
from icefloe.spark.errors import cleaning_up, translated
from icefloe.spark.session import held

_COMPRESSES = "spark.sql.inMemoryColumnarStorage.compressed"
_BATCH_ROWS = "spark.sql.inMemoryColumnarStorage.batchSize"


@contextmanager
def pinned(source: DataFrame) -> Iterator[DataFrame]:
    """The source with its rows numbered, kept by Spark."""
    # Spark keeps equal plans once, and drops them for all: a condition of its own makes it unequal.
    own = source.filter(F.lit(uuid.uuid4().hex).isNotNull())
    with kept(own.select("*", F.monotonically_increasing_id().alias(columns.SOURCE_ROW))) as rows:
        yield rows


@contextmanager
def kept(rows: DataFrame) -> Iterator[DataFrame]:
    """The rows, kept by Spark on disk once they are read.

    Spark would fill more than half of its heap with rows kept in memory, and the readers of wide
    files need that too. A small frame takes 10 ms longer this way.
    """
    spark = rows.sparkSession
    # Compressing what is kept takes longer than the rest of the keeping. Java's serialization,
    # by which batches go to disk, holds a hundred of them in memory: they must be small.
    with translated(), held(spark, _COMPRESSES, "false"), held(spark, _BATCH_ROWS, "500"):
        rows.persist(StorageLevel.DISK_ONLY)
    try:
        yield rows
    finally:
        with cleaning_up("releasing persisted rows"):
            rows.unpersist()
