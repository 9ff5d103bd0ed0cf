"""A MERGE's source, read once: later reads see the same rows in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from icefloe import columns


@contextmanager
def pinned(source: DataFrame) -> Iterator[DataFrame]:
    """The source with its rows numbered, kept by Spark (on disk where memory is short)."""
    numbered = source.select("*", F.monotonically_increasing_id().alias(columns.SOURCE_ROW))
    numbered.persist()
    try:
        yield numbered
    finally:
        numbered.unpersist()
