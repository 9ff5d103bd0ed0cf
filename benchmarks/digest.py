"""A few exact numbers that differ when rows differ, the same from every engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

COLUMNS = ("id", "bucket", "value", "name")
_NAME_PREFIX = len("customer-")
_WEIGHTS = 997  # weighing by id tells a value in the wrong row from one in the right row

# For engines that speak SQL; FROM is left to them.
AGGREGATES = (
    "count(*) AS row_count",
    "sum(id) AS id_sum",
    f"sum(bucket * (id % {_WEIGHTS})) AS bucket_sum",
    f"sum(value * (id % {_WEIGHTS})) AS value_sum",
    f"sum(CAST(substr(name, {_NAME_PREFIX + 1}) AS BIGINT) * (id % {_WEIGHTS})) AS name_sum",
)


@dataclass(frozen=True, slots=True)
class Digest:
    """The number of rows and sums over the key, two numbers and a text (UPDATE changes `value`)."""

    row_count: int
    id_sum: int
    bucket_sum: int
    value_sum: int
    name_sum: int


def digest_of(batches: Iterable[pa.RecordBatch]) -> Digest:
    """The digest of Arrow batches that have `COLUMNS`."""
    sums = np.zeros(len(COLUMNS), dtype=np.int64)
    row_count = 0
    for batch in batches:
        ids, buckets, values = (
            batch.column(name).to_numpy().astype(np.int64) for name in COLUMNS[:-1]
        )
        names = pc.cast(pc.utf8_slice_codeunits(batch.column("name"), _NAME_PREFIX), pa.int64())
        weights = ids % _WEIGHTS
        row_count += batch.num_rows
        sums += [
            ids.sum(),
            (buckets * weights).sum(),
            (values * weights).sum(),
            (names.to_numpy() * weights).sum(),
        ]
    return Digest(row_count, *map(int, sums))
