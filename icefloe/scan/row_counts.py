"""Row counts of files: their live rows, and whether they have as many rows as the metadata says.

Readers rely on a file's footer. If a footer has lost rows, a rewrite would lose them for good, a
MERGE would insert them a second time, and rows that a lost delete file deleted would reappear.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyspark.sql import SparkSession

from icefloe.metadata.files import DeleteIndex, LiveFile, unpartitioned_specs
from icefloe.metadata.table_state import TableState
from icefloe.parquet.footer import check_rows, group_rows, open_parquet
from icefloe.pruning.candidates import Candidate
from icefloe.scan.scan import Scan
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.session import reading_by_id
from icefloe.storage.files import open_input

_THREADS = 16


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


@contextmanager
def verify_row_counts(scan: Scan, candidates: Sequence[Candidate]) -> Iterator[None]:
    """Run the block while the footers of its files are read, equality deletes included.

    Raises StorageError after the block if a file lacks rows, and SetupError if the session no
    longer reads by field id.
    """
    io = scan.state.io
    files = {f.path: f for c in candidates for f in (c.live, *c.equality_deletes)}
    pool = ThreadPoolExecutor(_THREADS)
    try:
        checks = [pool.submit(_check, io, file) for file in files.values()]
        with reading_by_id(scan.spark):
            yield
        for check in checks:
            check.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _check(io: FileIO, file: LiveFile) -> None:
    with open_input(io, file.path) as source:
        check_rows(file.path, _rows(file.path, source), file.rows)


def _rows(path: str, source: pa.NativeFile) -> int:
    """The rows of all row groups, which is what Spark reads; the footer's total may differ."""
    try:
        footer = pq.read_metadata(source)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeError):
        # Spark may read a schema that PyArrow rejects: our slower reader ignores the schema.
        size = source.size()
        file = open_parquet(path, size, lambda at, length: source.read_at(length, at))
        return sum(group_rows(group) for group in file.groups)
    return sum(footer.row_group(number).num_rows for number in range(footer.num_row_groups))
