"""The rows that the footers of data files have, which are the rows that readers find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from icefloe.parquet.footer import group_rows, open_parquet
from icefloe.storage.filesystem import open_end
from icefloe.tasks.messages import Task

THREADS = 16  # footers that a process reads at once: from an object store each takes a while
COUNTED = "number BIGINT, rows BIGINT, bytes BIGINT"


@dataclass(frozen=True)
class FileToCount:
    """A data file of which the footer is read."""

    filesystem: pafs.FileSystem
    path: str


def count_rows(files: Sequence[FileToCount]) -> Task:
    """A task that returns the rows and bytes of the files whose numbers it gets.

    Both are NULL for a file that cannot be read: the driver finds out why.
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ThreadPoolExecutor(THREADS) as pool:
            for batch in batches:
                numbers = batch.column(0)
                counted = list(pool.map(lambda n: _count(files[n]), numbers.to_pylist()))
                rows = pa.array([rows for rows, _ in counted], pa.int64())
                sizes = pa.array([size for _, size in counted], pa.int64())
                yield pa.record_batch([numbers, rows, sizes], ["number", "rows", "bytes"])

    return task


def _count(file: FileToCount) -> tuple[int, int] | tuple[None, None]:
    try:
        with open_end(file.filesystem, file.path) as source:
            return rows_in_footer(file.path, source), source.size()
    except Exception:  # noqa: BLE001 - see `count_rows`
        return None, None


def rows_in_footer(path: str, source: pa.NativeFile) -> int:
    """The rows of all row groups, which is what Spark reads; the footer's total may differ."""
    try:
        footer = pq.read_metadata(source)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeError):
        # Spark may read a schema that PyArrow rejects: our slower reader ignores the schema.
        size = source.size()
        file = open_parquet(path, size, lambda at, length: source.read_at(length, at))
        return sum(group_rows(group) for group in file.groups)
    return sum(footer.row_group(number).num_rows for number in range(footer.num_row_groups))
