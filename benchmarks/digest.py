"""A checksum of rows that every engine can compute exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

COLUMNS = ("id", "bucket", "value", "name")
_NAME_PREFIX = len("customer-")
_WEIGHTS = 997  # weights by id reveal values that are in the wrong row

# For SQL engines, which add FROM.
AGGREGATES = (
    "count(*) AS row_count",
    "sum(id) AS id_sum",
    f"sum(bucket * (id % {_WEIGHTS})) AS bucket_sum",
    f"sum(value * (id % {_WEIGHTS})) AS value_sum",
    f"sum(CAST(substr(name, {_NAME_PREFIX + 1}) AS BIGINT) * (id % {_WEIGHTS})) AS name_sum",
)


Numbers = Mapping[str, np.ndarray]  # the columns; `name` as the number in its text


@dataclass(frozen=True, slots=True)
class Digest:
    """The number of rows and sums over the key, two numbers and a text (UPDATE changes `value`)."""

    row_count: int = 0
    id_sum: int = 0
    bucket_sum: int = 0
    value_sum: int = 0
    name_sum: int = 0

    def __add__(self, other: Digest) -> Digest:
        """The digest of the rows of both."""
        return Digest(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def digest_of(batches: Iterable[pa.RecordBatch]) -> Digest:
    """The digest of Arrow batches that have `COLUMNS`."""
    return sum((digest_of_numbers(numbers_of(batch)) for batch in batches), Digest())


def numbers_of(rows: pa.RecordBatch | pa.Table) -> dict[str, np.ndarray]:
    """The columns of a digest as numbers."""
    numbers = {name: _array(rows.column(name)) for name in COLUMNS[:-1]}
    digits = pc.utf8_slice_codeunits(rows.column("name"), _NAME_PREFIX)
    return {**numbers, "name": _array(pc.cast(digits, pa.int64()))}


def digest_of_numbers(numbers: Numbers) -> Digest:
    """The digest of columns that `numbers_of` returned."""
    ids, *others = (numbers[name] for name in COLUMNS)
    weights = ids % _WEIGHTS
    sums = (int((column * weights).sum()) for column in others)
    return Digest(len(ids), int(ids.sum()), *sums)


def _array(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    return column.to_numpy().astype(np.int64)
