"""A few exact numbers that differ when rows differ, the same from every engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

COLUMNS = ("id", "bucket", "value")
_WEIGHTS = 997  # weighing by id tells a value in the wrong row from one in the right row

# For engines that speak SQL; FROM is left to them.
AGGREGATES = (
    "count(*) AS row_count",
    "sum(id) AS id_sum",
    f"sum(bucket * (id % {_WEIGHTS})) AS bucket_sum",
    f"sum(value * (id % {_WEIGHTS})) AS value_sum",
)


@dataclass(frozen=True, slots=True)
class Digest:
    """The number of rows and sums over the key, a column left alone and the column changed."""

    row_count: int
    id_sum: int
    bucket_sum: int
    value_sum: int


def digest_of(batches: Iterable[pa.RecordBatch]) -> Digest:
    """The digest of Arrow batches that have `COLUMNS`."""
    row_count = id_sum = bucket_sum = value_sum = 0
    for batch in batches:
        ids, buckets, values = (batch.column(name).to_numpy().astype(np.int64) for name in COLUMNS)
        weights = ids % _WEIGHTS
        row_count += batch.num_rows
        id_sum += int(ids.sum())
        bucket_sum += int((buckets * weights).sum())
        value_sum += int((values * weights).sum())
    return Digest(row_count, id_sum, bucket_sum, value_sum)
