"""Messages from tasks to the driver: their classes, their encoding, and the errors tasks raise.

Workers need not have icefloe installed, so an instance of a message class cannot be pickled there:
pickle would look up its module. `as_batch` turns messages into plain values and `from_bytes` turns
them back on the driver; every other module sees the classes only.
"""

from __future__ import annotations

import pickle
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Positions = npt.NDArray[np.int64]
FileKey = int | str  # identifies a data file within a statement

# What `mapInArrow` runs in each task.
Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def pack(positions: Positions) -> bytes:
    """Sorted positions as compressed differences: about two bytes each when dense."""
    return zlib.compress(np.diff(positions, prepend=np.int64(0)).tobytes(), 1)


def unpack(packed: bytes) -> Positions:
    """The inverse of `pack`."""
    return np.cumsum(np.frombuffer(zlib.decompress(packed), dtype=np.int64))


# -------------------------------------------------------------------------------------------------
# Message classes. Their fields hold plain values, other messages, and tuples of either.


@dataclass(frozen=True, slots=True)
class ColumnMetrics:
    """Metrics of one leaf column over all row groups of a file.

    Bounds have Parquet's physical form: the driver has the Iceberg types and encodes them.
    """

    path: str  # in the file's schema
    size: int
    values: int
    nulls: int | None  # None: some row group does not count them
    lower: Any = None  # None: there are no values, or some row group has no bounds
    upper: Any = None


@dataclass(frozen=True, slots=True)
class CopiedChunks:
    """What a rewritten file took from the file it replaces, as bytes."""

    bytes: int = 0
    row_groups: int = 0  # row groups of which every chunk was copied
    whole: frozenset[str] = frozenset()  # columns copied in every row group
    # Columns copied in some row groups -> NaN values the others gained, by leaf path.
    partly: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    drops_row_groups: bool = False  # some row group was removed without being decoded


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file that a task wrote."""

    path: str
    partition: tuple[object, ...]
    rows: int
    size: int
    columns: tuple[ColumnMetrics, ...]
    nans: Mapping[str, int]  # by leaf path
    split_offsets: tuple[int, ...]
    copied: CopiedChunks = CopiedChunks()
    not_indexed: tuple[str, ...] = ()  # why sidecars of indexes could not be written


@dataclass(frozen=True, slots=True)
class RewrittenFile:
    """A data file that a task replaced, and the rows of it by what happened to them."""

    file: FileKey
    replacements: tuple[WrittenFile, ...]
    rows_updated: int
    rows_deleted: int
    rows_copied: int
    not_copied_because: str | None = None  # why every row was encoded again


@dataclass(frozen=True, slots=True)
class DeclinedFile:
    """A data file whose columns a task cannot carry over: Spark has to read it."""

    file: FileKey
    reason: str
    positions: bytes | None = None  # packed: the rows to change; None: all of them start over


@dataclass(frozen=True, slots=True)
class RowPositions:
    """Rows of one data file that one action applies to; a row seen twice is in it twice."""

    action: int
    file: FileKey
    packed: bytes


@dataclass(frozen=True, slots=True)
class NewRowCount:
    """How many rows without a data file one action applies to."""

    action: int
    rows: int


@dataclass(frozen=True, slots=True)
class TextStatistics:
    """Numbers of some texts that the scores of a full text search depend on."""

    documents: int = 0  # texts with a token
    tokens: int = 0
    frequencies: tuple[int, ...] = ()  # how many texts have each term of the query


@dataclass(frozen=True, slots=True)
class SearchHits:
    """The best rows that a task found, in order: those with the smallest keys."""

    keys: tuple[float, ...]
    files: tuple[str, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UnsearchedFile:
    """A data file whose sidecar could not be searched."""

    file: str
    reason: str | None = None  # None: it has none


TaskMessage = (
    WrittenFile
    | RewrittenFile
    | DeclinedFile
    | RowPositions
    | NewRowCount
    | TextStatistics
    | SearchHits
    | UnsearchedFile
)

# -------------------------------------------------------------------------------------------------
# Encoding: one pickled message per row of a binary column.

RESULT_SCHEMA = "result binary"
_CLASSES: dict[str, Any] = {
    message.__name__: message
    for message in (
        ColumnMetrics,
        CopiedChunks,
        WrittenFile,
        RewrittenFile,
        DeclinedFile,
        RowPositions,
        NewRowCount,
        TextStatistics,
        SearchHits,
        UnsearchedFile,
    )
}
_FIELDS = {name: attrgetter(*cls.__match_args__) for name, cls in _CLASSES.items()}
_NESTED = {"WrittenFile", "RewrittenFile"}  # messages that have messages in their fields


def as_batch(messages: Iterable[TaskMessage]) -> pa.RecordBatch:
    """Messages as the rows that a task yields."""
    encoded = [pickle.dumps(_to_plain(message)) for message in messages]
    return pa.RecordBatch.from_arrays([pa.array(encoded, pa.binary())], names=["result"])


def from_bytes(encoded: bytes) -> TaskMessage:
    """One message, on the driver."""
    message: TaskMessage = _from_plain(pickle.loads(encoded))  # noqa: S301 - from our own task
    return message


def _to_plain(content: Any) -> Any:
    """A message as a list of its class name and its fields; plain values have no lists."""
    name = type(content).__name__
    if name in _FIELDS:
        values = _FIELDS[name](content)
        return [name, *(map(_to_plain, values) if name in _NESTED else values)]
    return tuple(map(_to_plain, content)) if name == "tuple" else content


def _from_plain(content: Any) -> Any:
    if type(content) is list:
        name, *values = content
        return _CLASSES[name](*(map(_from_plain, values) if name in _NESTED else values))
    return tuple(map(_from_plain, content)) if type(content) is tuple else content


# -------------------------------------------------------------------------------------------------
# Row positions, collected from the rows that pass through a task.


@dataclass(frozen=True)
class ChangeColumns:
    """Columns that identify the table row that a row stands for, and the action on it."""

    file: str
    pos: str
    action: str | None = None  # an integer column; without it every row has action 0
    written: frozenset[int] = frozenset({0})  # actions whose rows are written as new rows


class ChangeCollector:
    """Collects row positions by action, and counts the rows that have none."""

    def __init__(self, columns: ChangeColumns) -> None:
        self._columns = columns
        self._positions: dict[int, PositionCollector] = defaultdict(PositionCollector)
        self._new: dict[int, int] = defaultdict(int)

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows; those without a file are new ones."""
        table = pa.table([rows[self._columns.file], rows[self._columns.pos]], ["file", "pos"])
        for action, of_action in self._by_action(rows, table):
            old = of_action
            if of_action["file"].null_count:
                old = of_action.filter(pc.is_valid(of_action["file"]))
                self._new[action] += of_action.num_rows - old.num_rows
            for batch in old.to_batches():
                if batch.num_rows:
                    self._positions[action].add(batch.column(0), batch.column(1))

    def messages(self) -> list[TaskMessage]:
        """The collected rows, for the driver."""
        positions = [
            RowPositions(action, file, packed)
            for action, collector in self._positions.items()
            for file, packed in collector.packed().items()
        ]
        return [*positions, *(NewRowCount(action, rows) for action, rows in self._new.items())]

    def _by_action(
        self, rows: pa.RecordBatch | pa.Table, table: pa.Table
    ) -> Iterator[tuple[int, pa.Table]]:
        if self._columns.action is None:
            yield 0, table
            return
        actions = rows[self._columns.action]
        for action in actions.unique().to_pylist():
            yield action, table.filter(pc.equal(actions, action))


class PositionCollector:
    """Collects row positions by file, duplicates included."""

    def __init__(self) -> None:
        self._chunks: dict[FileKey, list[Positions]] = defaultdict(list)

    def add(self, files: pa.Array, positions: pa.Array) -> None:
        """Add one batch of rows."""
        encoded = files.dictionary_encode()
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        values = positions.to_numpy(zero_copy_only=False)
        for number, file in enumerate(encoded.dictionary.to_pylist()):
            self._chunks[file].append(values[indices == number])  # a copy, independent of the batch

    def packed(self) -> dict[FileKey, bytes]:
        """The positions of every file, sorted and packed."""
        return {file: pack(np.sort(np.concatenate(c))) for file, c in self._chunks.items()}


# -------------------------------------------------------------------------------------------------
# Errors of tasks. Only their text reaches the driver, which reads it between the markers.


class NullInRequiredError(ValueError):
    """A row has NULL in a required column."""

    def __init__(self, column: str) -> None:
        super().__init__(f"<icefloe-null>{column}</icefloe-null>")


class RowOutsideError(ValueError):
    """A row does not satisfy its predicate."""

    def __init__(self, predicate: str, row: str) -> None:
        super().__init__(
            f"<icefloe-outside>{predicate}</icefloe-outside><icefloe-row>{row}</icefloe-row>"
        )
