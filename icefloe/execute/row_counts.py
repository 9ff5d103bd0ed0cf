"""Whether files have as many rows as the table's metadata says, looked at while Spark reads them.

Readers take a footer's word for it. Of a file whose footer lost rows, a rewriting would lose them
for good, and a MERGE would insert them a second time; of a file with deletes, gone rows come back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from icefloe.metadata.files import LiveFile
from icefloe.metadata.storage import locate, naming_unreadable_file
from icefloe.parquet.footer import DamagedFileError
from icefloe.plan.files import Candidate

_THREADS = 16


@contextmanager
def counted(io: FileIO, candidates: Sequence[Candidate]) -> Iterator[None]:
    """Work with files; at the end a StorageError if one lacks rows, its equality deletes included.

    Their footers are read meanwhile.
    """
    files = {f.path: f for c in candidates for f in (c.live, *c.equality_deletes)}
    pool = ThreadPoolExecutor(_THREADS)
    try:
        looks = [pool.submit(_check, io, file) for file in files.values()]
        yield
        for look in looks:
            look.result()
    finally:
        pool.shutdown(cancel_futures=True)


def check_rows(file: LiveFile, rows: int) -> None:
    """Refuse a file that has more or fewer rows than the table's metadata says."""
    if rows != file.rows:
        raise DamagedFileError(file.path, f"it has {rows} rows, the table says {file.rows}")


def _check(io: FileIO, file: LiveFile) -> None:
    place = locate(io, file.path)
    with naming_unreadable_file(file.path), place.filesystem.open_input_file(place.path) as source:
        footer = pq.read_metadata(source)
        # The sum over row groups, by which Spark reads, and not what the footer says of the file.
        groups = range(footer.num_row_groups)
        check_rows(file, sum(footer.row_group(number).num_rows for number in groups))
