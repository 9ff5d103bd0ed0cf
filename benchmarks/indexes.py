"""A btree index on ids in random order, which bounds cannot prune: with it and without, in one run.

    python -m benchmarks.indexes                       # a smoke test, its times mean nothing
    python -m benchmarks.indexes --size narrow         # 4 million rows of 4 columns in 8 files
    python -m benchmarks.indexes --size narrow-gb      # 35.2 million rows of 8 columns, 1 GiB
    python -m benchmarks.indexes --size narrow-gb --only mor
    python -m benchmarks.indexes --size wide --appends # only what writing the sidecars costs

Every statement runs on both tables in turn, on the wall clock, and the tables are rolled back
before each repetition. Bytes are those that the whole process tree reads through system calls.
Rows and sums of both tables are compared after each statement.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from pyspark.sql import DataFrame, SparkSession

import icefloe
from benchmarks.data import FILES, SIZES, Size
from benchmarks.measure import io_of_tree, memory_of_tree
from icefloe import DmlResult, Lake, Table

_MULTIPLIER = 1_000_003  # a prime: ids are a permutation of the row numbers
_SAMPLE_S = 0.02
Run = Callable[[Table], DmlResult | int | None]


@dataclass(slots=True)
class Samples:
    """The repetitions of one statement on one table."""

    seconds: list[float] = field(default_factory=list)
    bytes_read: list[int] = field(default_factory=list)
    peak: int = 0

    def __str__(self) -> str:
        read = statistics.median(self.bytes_read) / 2**20
        return f"{statistics.median(self.seconds):8.3f} s {read:9.1f} MiB {self.peak / 2**20:7.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=[*SIZES], default="tiny")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--appends", action="store_true", help="only appends")
    parser.add_argument("--only", default="", help="statements with this in their name")
    parser.add_argument("--memory", default="4g", help="of Spark's driver")
    options = parser.parse_args()
    size = SIZES[options.size]
    with (
        tempfile.TemporaryDirectory(prefix="icefloe-indexes-") as folder,
        _lake(Path(folder), options.memory) as lake,
    ):
        compare_appends(lake, size, options.repetitions)
        if not options.appends:
            compare_statements(lake, size, options.repetitions, options.only)


@contextmanager
def _lake(folder: Path, memory: str) -> Iterator[Lake]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", memory)
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        with icefloe.connect(folder / "lake", spark=spark) as lake:
            yield lake
    finally:
        spark.stop()


def rows_of(lake: Lake, size: Size, start: int, end: int, tasks: int) -> DataFrame:
    """Rows with shuffled ids and `size.columns` columns."""
    texts = (size.columns - 2) // 3
    numbers = size.columns - 2 - texts
    shuffled = f"(id * {_MULTIPLIER}L) % {size.rows}L"
    columns = [
        f"{shuffled} AS id",
        f"{shuffled} % 1000 / 2 AS v",
        *(f"hash(id, {i}) AS n{i}" for i in range(numbers)),
        *(f"concat('text-', abs(hash(id, {i})) % 100000) AS s{i}" for i in range(texts)),
    ]
    return lake.spark.range(start, end, 1, tasks).selectExpr(*columns)


# -------------------------------------------------------------------------------------------------
# What writing sidecars costs


def compare_appends(lake: Lake, size: Size, repetitions: int) -> None:
    """The same rows appended to a table with an index and to one without, in turn."""
    staged = Path(tempfile.mkdtemp(dir=Path(lake.catalog.properties["warehouse"][7:])))
    rows = min(size.rows, 4_000_000)
    rows_of(lake, size, 0, rows, FILES).write.mode("overwrite").parquet(f"{staged}/rows")
    source = lake.spark.read.parquet(f"{staged}/rows")
    samples = {name: Samples() for name in ("index", "none")}
    for number in range(repetitions + 1):
        for name, sample in samples.items():
            table = lake.create_table(f"appends.{name}{number}", source)
            if name == "index":
                table.create_index("by_id", "btree", "id")
            with measuring(sample, count=number > 0):
                table.append(source)
            lake.drop_table(table.name, purge=True)
    print(f"{'':34}{'seconds, bytes read, peak MiB':^60}")
    report(f"append of {rows:,} rows", samples)
    print(f"{'':34}sidecars cost {_ratio(samples) - 1:+.1%}\n", flush=True)


def _ratio(samples: dict[str, Samples]) -> float:
    """Seconds with the index, relative to those without."""
    return min(samples["index"].seconds) / min(samples["none"].seconds)


# -------------------------------------------------------------------------------------------------
# Statements


def compare_statements(lake: Lake, size: Size, repetitions: int, only: str) -> None:
    """Each statement on a table with the index and on one without."""
    tables = {}
    for name in ("index", "none"):
        table = lake.create_table(f"b.{name}", rows_of(lake, size, 0, 1, 1))
        step = size.rows // FILES
        for number in range(FILES):
            table.append(rows_of(lake, size, number * step, (number + 1) * step, 1))
        tables[name] = table
    bytes_ = sum(row.file_size_in_bytes for row in tables["none"].files().collect())
    print(f"{size.name}: {size.rows:,} rows, {FILES} files, {bytes_ / 2**30:.2f} GiB")
    started = time.perf_counter()
    built = tables["index"].create_index("by_id", "btree", "id")
    seconds = time.perf_counter() - started
    print(
        f"create_index: {seconds:.2f} s, {built.bytes / built.rows:.2f} bytes a key, "
        f"{built.files_covered} of {built.files} files\n",
        flush=True,
    )
    for name, run in statements(lake, size):
        if only in name:
            compare(name, run, tables, repetitions)


def statements(lake: Lake, size: Size) -> Iterator[tuple[str, Run]]:
    """What is run on both tables."""
    some = ", ".join(str(i * (size.rows // 100)) for i in range(100))
    one = f"id = {size.rows // 3}"
    yield "scan(where id = x)", lambda t: len(t.scan(where=one).collect())
    yield "to_arrow(where id = x)", lambda t: t.to_arrow(where=one).num_rows
    yield "count(id = x)", lambda t: t.count(one)
    yield "scan of 100 ids", lambda t: len(t.scan(where=f"id IN ({some})").collect())
    for mode in ("merge-on-read", "copy-on-write"):
        short = "mor" if mode == "merge-on-read" else "cow"
        options = {"mode": mode}
        yield (
            f"{short} DELETE of 100 ids",
            lambda t, o=options: t.delete().where(f"id IN ({some})").with_options(**o).execute(),
        )
        yield (
            f"{short} UPDATE of 1 id",
            lambda t, o=options: (
                t.update().set("v", "v + 1").where(one).with_options(**o).execute()
            ),
        )
        for part, rows in (("0.1 %", size.rows // 1000), ("1 %", size.rows // 100)):
            frame = _changes(lake, size, rows).cache()
            frame.count()
            sources = {"DataFrame": frame}
            if part == "0.1 %":
                sources["Arrow"] = frame.toArrow()
            for kind, source in sources.items():
                yield (
                    f"{short} upsert of {part} ({kind})",
                    lambda t, o=options, s=source: t.upsert(s, ["id"]).with_options(**o).execute(),
                )


def _changes(lake: Lake, size: Size, rows: int) -> DataFrame:
    """So many rows of the table, spread over all files, and a tenth as many new ones."""
    step = size.rows // rows
    known = rows_of(lake, size, 0, size.rows, 2).filter(f"id % {step} = 0")
    new = rows_of(lake, size, 0, rows // 10, 1).selectExpr(
        f"id + {size.rows}L AS id", *known.columns[1:]
    )
    return known.union(new).withColumn("v", known.v + 1)


def compare(name: str, run: Run, tables: dict[str, Table], repetitions: int) -> None:
    """One statement on both tables in turn; both must have the same rows afterwards."""
    samples = {key: Samples() for key in tables}
    heads = {key: table.snapshot_id for key, table in tables.items()}
    for number in range(repetitions + 1):
        results = {}
        for key, table in tables.items():
            with measuring(samples[key], count=number > 0):
                results[key] = run(table)
        if number == 0:
            check(name, tables, results)
        for key, table in tables.items():
            if table.snapshot_id != heads[key]:
                table.rollback(heads[key])
    report(name, samples)


def check(name: str, tables: dict[str, Table], results: dict[str, object]) -> None:
    """Refuse a result that the index changed."""
    sums = [
        t.scan(["id", "v"]).selectExpr("count(*)", "sum(id)", "sum(v)").collect()
        for t in tables.values()
    ]
    counts = [r.total_affected if isinstance(r, DmlResult) else r for r in results.values()]
    if sums[0] != sums[1] or counts[0] != counts[1]:
        raise SystemExit(f"{name}: the tables differ: {sums}, {counts}")


@contextmanager
def measuring(sample: Samples, *, count: bool) -> Iterator[None]:
    """Add the time, the bytes read and the peak memory of the block, if it counts."""
    process, done = psutil.Process(), threading.Event()
    peaks = [0]

    def watch() -> None:
        while not done.wait(_SAMPLE_S):
            peaks.append(memory_of_tree(process)["total"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    before, started = io_of_tree(process), time.perf_counter()
    try:
        yield
    finally:
        seconds, after = time.perf_counter() - started, io_of_tree(process)
        done.set()
        watcher.join()
    if count:
        sample.seconds.append(seconds)
        sample.bytes_read.append(after.get("read_chars", 0) - before.get("read_chars", 0))
        sample.peak = max(sample.peak, *peaks)


def report(name: str, samples: dict[str, Samples]) -> None:
    """One line: both tables, and how many times as fast the index is."""
    factor = statistics.median(samples["none"].seconds) / statistics.median(
        samples["index"].seconds
    )
    columns: Sequence[str] = [f"{key} {samples[key]}" for key in ("index", "none")]
    print(f"{name:34}{'   '.join(columns)}   x{factor:.2f}", flush=True)


if __name__ == "__main__":
    main()
