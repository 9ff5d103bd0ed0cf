"""How much faster the bytes of a Parquet file are copied than encoded, for mode `auto`.

python -m benchmarks.copying --size wide
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.data import SIZES, input_files
from icefloe.parquet.footer import NEAR

_MEBIBYTE = 2**20
_REPETITIONS = 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.copying", description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    size = SIZES[parser.parse_args().size]
    with tempfile.TemporaryDirectory(prefix="icefloe-bench-") as folder:
        rows = pq.read_table(input_files(size, Path(folder) / "input")[0])
        encoded, copied = Path(folder) / "encoded.parquet", Path(folder) / "copied.parquet"
        for _ in range(_REPETITIONS):
            started = time.perf_counter()
            pq.write_table(rows, encoded, compression="zstd")
            between = time.perf_counter()
            _copy(encoded, copied)
            ended = time.perf_counter()
            mebibytes = encoded.stat().st_size / _MEBIBYTE
            print(
                f"{mebibytes:.1f} MiB: encoded at {mebibytes / (between - started):.0f} MiB/s, "
                f"copied at {mebibytes / (ended - between):.0f}, "
                f"{(between - started) / (ended - between):.1f} times as fast"
            )


def _copy(source: Path, target: Path) -> None:
    """Copy in the chunks that icefloe uses for local files."""
    with source.open("rb") as read, target.open("wb") as written:
        while piece := read.read(NEAR):
            written.write(piece)


if __name__ == "__main__":
    main()
