"""Row counts of files: their live rows, and whether they have as many rows as the metadata says.

Readers rely on a file's footer. If a footer has lost rows, a rewrite would lose them for good, a
MERGE would insert them a second time, and rows that a lost delete file deleted would reappear.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyspark.sql import SparkSession

from icefloe.errors import StorageError
from icefloe.metadata.files import DeleteIndex, LiveFile, unpartitioned_specs
from icefloe.metadata.table_state import TableState
from icefloe.parquet.footer import check_rows
from icefloe.pruning.candidates import Candidate
from icefloe.scan.scan import Scan
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.frames import numbers
from icefloe.spark.session import reading_by_id
from icefloe.storage.file_cache import FileCache, FileKey, file_keys
from icefloe.storage.files import locate, open_input
from icefloe.tasks.row_counts import COUNTED, THREADS, FileToCount, count_rows, rows_in_footer


def count_live_rows(scan: Scan) -> int:
    """Live rows of the files of a scan; Spark counts only files with equality deletes."""
    by_metadata = [c for c in scan.candidates if not c.equality_deletes]
    by_spark = [c for c in scan.candidates if c.equality_deletes]
    rows = sum(scan.live_rows(c) for c in by_metadata)
    if not by_spark:
        return rows
    with translate_spark_errors(), reading_by_id(scan.spark):
        return rows + scan.restrict_to(by_spark).rows().count()


def count_rows_of_files(
    spark: SparkSession,
    state: TableState,
    data: Sequence[LiveFile],
    deletes: Sequence[LiveFile],
) -> int:
    """Rows of some data files that none of these deletes deletes."""
    index = DeleteIndex.of(tuple(deletes), unpartitioned_specs(state.metadata))
    candidates = [
        Candidate(file, index.position_deletes(file), index.equality_deletes(file)) for file in data
    ]
    return count_live_rows(Scan.of(spark, state, candidates))


# -------------------------------------------------------------------------------------------------
# Verification. A file that was found right is not read again in this process.

_MOST_BY_DRIVER = 256  # files whose footers the driver reads; those of more are read by tasks
_SEEN_BYTES, _ENTRY_BYTES = 32 * 2**20, 600  # held at most, and for each file
seen: FileCache[int] = FileCache(lambda _rows: _ENTRY_BYTES)


@contextmanager
def verify_row_counts(scan: Scan, candidates: Sequence[Candidate]) -> Iterator[None]:
    """Run the block while the footers of its files are read, equality deletes included.

    Raises StorageError after the block if a file lacks rows, and SetupError if the session no
    longer reads by field id.
    """
    files = {f.path: f for c in candidates for f in (c.live, *c.equality_deletes)}
    keys = file_keys(scan.state.io, {path: file.size for path, file in files.items()})
    unseen = [
        _Footer(scan.state.io, file, keys[path])
        for path, file in files.items()
        if (key := keys[path]) is None or seen.get(key) != file.rows
    ]
    pool = ThreadPoolExecutor(THREADS)
    try:
        if len(unseen) > _MOST_BY_DRIVER:
            checks = [pool.submit(_check_by_tasks, scan.spark, unseen)]
        else:
            checks = [pool.submit(_check, footer) for footer in unseen]
        with reading_by_id(scan.spark):
            yield
        for check in checks:
            check.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Footer:
    """The footer of a file, not seen yet."""

    io: FileIO
    file: LiveFile
    key: FileKey | None

    def found(self, rows: int, size: int) -> None:
        """Hold the file as right, if it is the one that the key stands for."""
        if self.key is not None and size == self.file.size:
            seen.put(self.key, rows, _SEEN_BYTES)


def _check(footer: _Footer) -> None:
    path = footer.file.path
    with open_input(footer.io, path) as source:
        rows = rows_in_footer(path, source)
        check_rows(path, rows, footer.file.rows)
        footer.found(rows, source.size())


def _check_by_tasks(spark: SparkSession, footers: Sequence[_Footer]) -> None:
    """Read footers in a Spark job; the driver reads again those that are wrong or unreadable."""
    places = [locate(footer.io, footer.file.path) for footer in footers]
    files = [FileToCount(place.filesystem, place.path) for place in places]
    with translate_spark_errors():
        counted = numbers(spark, len(files)).mapInArrow(count_rows(files), COUNTED).toArrow()
    for number, rows, size in zip(*(column.to_pylist() for column in counted.columns), strict=True):
        if rows == footers[number].file.rows:
            footers[number].found(rows, size)
        else:
            _check(footers[number])
    if counted.num_rows != len(files):
        raise StorageError(f"The row counts of {counted.num_rows} of {len(files)} files were read.")
