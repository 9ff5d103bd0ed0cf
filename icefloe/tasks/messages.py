"""Row positions on their way from workers to the driver and back: sorted, packed, per file."""

from __future__ import annotations

import pickle
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Positions = npt.NDArray[np.int64]
FileKey = int | str  # which file a row is of


def pack(positions: Positions) -> bytes:
    """Sorted positions as compressed differences: about two bytes each when dense."""
    return zlib.compress(np.diff(positions, prepend=np.int64(0)).tobytes(), 1)


def unpack(packed: bytes) -> Positions:
    """The inverse of `pack`."""
    return np.cumsum(np.frombuffer(zlib.decompress(packed), dtype=np.int64))


@dataclass(frozen=True)
class ChangeColumns:
    """Columns that tell which row of the table a row stands for, and what happens to it."""

    file: str
    pos: str
    action: str | None = None  # a whole number; without it every row is of action 0
    written: frozenset[int] = frozenset({0})  # actions whose rows are written as new rows


class PositionCollector:
    """Gathers the positions of the rows that pass through a task, by file; repeated ones stay."""

    def __init__(self) -> None:
        self._chunks: dict[FileKey, list[Positions]] = defaultdict(list)

    def add(self, files: pa.Array, positions: pa.Array) -> None:
        """Take one batch of rows."""
        encoded = files.dictionary_encode()
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        values = positions.to_numpy(zero_copy_only=False)
        for number, file in enumerate(encoded.dictionary.to_pylist()):
            self._chunks[file].append(values[indices == number])  # a copy: the batch may go

    def packed(self) -> dict[FileKey, bytes]:
        """Every file's positions, sorted and packed."""
        return {file: pack(np.sort(np.concatenate(c))) for file, c in self._chunks.items()}


class ChangeCollector:
    """Gathers what happens to rows: positions by action, and how many rows have none."""

    def __init__(self, columns: ChangeColumns) -> None:
        self._columns = columns
        self._positions: dict[int, PositionCollector] = defaultdict(PositionCollector)
        self._new: dict[int, int] = defaultdict(int)

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Take some rows; those without a file are new ones."""
        table = pa.table([rows[self._columns.file], rows[self._columns.pos]], ["file", "pos"])
        for action, chosen in self._by_action(rows, table):
            known = chosen
            if chosen["file"].null_count:
                known = chosen.filter(pc.is_valid(chosen["file"]))
                self._new[action] += chosen.num_rows - known.num_rows
            for batch in known.to_batches():
                if batch.num_rows:
                    self._positions[action].add(batch.column(0), batch.column(1))

    def results(self) -> list[dict[str, object]]:
        """What was gathered, for the driver."""
        told: list[dict[str, object]] = [
            {"positions": (file, packed), "action": action}
            for action, seen in self._positions.items()
            for file, packed in seen.packed().items()
        ]
        told += [{"new": count, "action": action} for action, count in self._new.items()]
        return told

    def _by_action(
        self, rows: pa.RecordBatch | pa.Table, table: pa.Table
    ) -> Iterator[tuple[int, pa.Table]]:
        if self._columns.action is None:
            yield 0, table
            return
        actions = rows[self._columns.action]
        for action in actions.unique().to_pylist():
            yield action, table.filter(pc.equal(actions, action))


# -------------------------------------------------------------------------------------------------
# How a task tells the driver what it did: pickled plain values in one binary column.

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
