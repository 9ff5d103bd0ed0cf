"""How a task tells the driver what it did: pickled plain values in one binary column."""

from __future__ import annotations

import pickle
from collections.abc import Iterable

import pyarrow as pa

RESULT_SCHEMA = "result binary"


def as_batch(results: Iterable[dict[str, object]]) -> pa.RecordBatch:
    """Results as the rows a `mapInArrow` task yields."""
    packed = [pickle.dumps(result) for result in results]
    return pa.RecordBatch.from_arrays([pa.array(packed, pa.binary())], names=["result"])


def from_bytes(packed: bytes) -> dict[str, object]:
    """One result, back on the driver."""
    loaded: dict[str, object] = pickle.loads(packed)  # noqa: S301 - written by our own task
    return loaded


class NullInRequiredError(ValueError):
    """A row has NULL in a required column; the driver finds the name between the markers."""

    def __init__(self, column: str) -> None:
        super().__init__(f"<icefloe-null>{column}</icefloe-null>")


class RowOutsideError(ValueError):
    """A row does not satisfy its predicate; the driver finds both between the markers."""

    def __init__(self, predicate: str, row: str) -> None:
        super().__init__(
            f"<icefloe-outside>{predicate}</icefloe-outside><icefloe-row>{row}</icefloe-row>"
        )
