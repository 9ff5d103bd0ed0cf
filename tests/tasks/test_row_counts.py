"""Row counts of footers, read by tasks."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from icefloe.tasks.row_counts import FileToCount, count_rows


def test_rows_and_bytes_of_files_and_none_of_those_that_cannot_be_read(tmp_path):
    for name, rows in (("a", 5), ("b", 0), ("c", 7)):
        table = pa.table({"id": pa.array(range(rows), pa.int64())})
        pq.write_table(table, tmp_path / name, row_group_size=3)
    (tmp_path / "c").write_bytes((tmp_path / "c").read_bytes()[:-3])
    files = [FileToCount(LocalFileSystem(), str(tmp_path / name)) for name in "abcd"]
    batches = [pa.record_batch([pa.array(numbers)], ["id"]) for numbers in ([0, 2], [3, 1])]

    counted = pa.Table.from_batches(list(count_rows(files)(iter(batches)))).to_pylist()

    size = {name: (tmp_path / name).stat().st_size for name in "ab"}
    assert counted == [
        {"number": 0, "rows": 5, "bytes": size["a"]},
        {"number": 2, "rows": None, "bytes": None},
        {"number": 3, "rows": None, "bytes": None},
        {"number": 1, "rows": 0, "bytes": size["b"]},
    ]
