"""Read and write Parquet footers with icefloe's codec of Thrift's compact protocol and thriftpy2.

python -m benchmarks.footers

thriftpy2 needs an IDL and drops fields that are not in it: the table has the bytes lost.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import thriftpy2
from thriftpy2.protocol.compact import TCompactProtocol

from icefloe.parquet.thrift import read_struct, write_struct

T = TypeVar("T")

_IDL = Path(__file__).resolve().parent.parent / "tests" / "support" / "parquet_footer.thrift"
_SHAPES = ((8, 8), (60, 8), (60, 32))  # columns and row groups
_REPETITIONS = 7


def footer_of(columns: int, groups: int) -> bytes:
    """The footer that PyArrow writes for a small file with so many columns and row groups."""
    rows = pa.table({f"c{i}": np.arange(groups * 100) + i for i in range(columns)})
    out = io.BytesIO()
    pq.write_table(rows, out, row_group_size=100, write_page_index=True)
    file = out.getvalue()
    length = int.from_bytes(file[-8:-4], "little")
    return file[-8 - length : -8]


def best(work: Callable[[], T]) -> tuple[float, T]:
    """The fastest of a few runs, in milliseconds, and the result of the last one."""
    seconds = []
    for _ in range(_REPETITIONS):
        started = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - started)
    return min(seconds) * 1000, result


def main() -> None:
    print(
        "columns  row groups    bytes   thriftpy2: read, write ms, bytes lost   icefloe: the same"
    )
    for columns, groups in _SHAPES:
        data = footer_of(columns, groups)
        cells = [f"{columns:7} {groups:11} {len(data):8,}"]
        for read, write in (_thriftpy2(), (lambda data: read_struct(data)[0], write_struct)):
            read_ms, footer = best(partial(read, data))
            write_ms, written = best(partial(write, footer))
            cells.append(f"{read_ms:14.1f} {write_ms:6.1f} {len(data) - len(written):7,}")
        print(" ".join(cells))


def _thriftpy2() -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    kinds = thriftpy2.load(str(_IDL), module_name="footers_thrift")

    def read(data: bytes) -> Any:
        footer = kinds.FileMetaData()
        TCompactProtocol(io.BytesIO(data)).read_struct(footer)
        return footer

    def write(footer: Any) -> bytes:
        out = io.BytesIO()
        TCompactProtocol(out).write_struct(footer)
        return out.getvalue()

    return read, write


if __name__ == "__main__":
    main()
