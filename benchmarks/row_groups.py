"""The size of row groups: its effect on copy-on-write statements and on scans.

    python -m benchmarks.row_groups                       # a smoke test, its times mean nothing
    python -m benchmarks.row_groups --size wide --save    # writes results/row_groups/wide.json

The same rows in tables that differ in `write.parquet.row-group-size-bytes` alone. Copy-on-write
statements, spread and in one file, and three scans are timed on the wall clock; tables take turns,
and the first round only warms up. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

import icefloe
from benchmarks.data import SIZES, input_files
from benchmarks.machine import commit_of, machine
from benchmarks.summary import RESULTS, save, seconds_of

ROOT = Path(__file__).parent.parent
MEBIBYTE = 1024 * 1024
GROUP_MEBIBYTES = (4, 8, 16, 32, 64, 128)
FEW_COLUMNS = ["id", "bucket", "value", "name"]


class Sized:
    """A copy-on-write table whose row groups have one size."""

    def __init__(self, lake: icefloe.Lake, mebibytes: int, files: tuple[Path, ...]) -> None:
        self.mebibytes = mebibytes
        self._lake = lake
        self._rows = sum(pq.read_metadata(file).num_rows for file in files)
        self._table = lake.create_table(
            f"groups_of_{mebibytes}",
            pq.read_schema(files[0]),
            properties={
                "write.parquet.row-group-size-bytes": str(mebibytes * MEBIBYTE),
                **{f"write.{k}.mode": "copy-on-write" for k in ("delete", "update", "merge")},
            },
        )
        for file in files:
            self._table.append(lake.spark.read.parquet(str(file)).coalesce(1))
        self._base = self._table.snapshot_id
        self.works: dict[str, Callable[[], object]] = {
            "delete 1 %, spread": lambda: self._delete("bucket = 7"),
            "delete 1 %, in one file": lambda: self._delete(self._range()),
            "update one column, 1 %, spread": lambda: self._update("bucket = 7"),
            "update one column, 1 %, in one file": lambda: self._update(self._range()),
            "upsert 0.1 %, in one file": self._upsert,
            "scan, all columns": lambda: _read(self._table.scan()),
            "scan, four columns": lambda: _read(self._table.scan(FEW_COLUMNS)),
            "scan, 1 % by id": lambda: _read(self._table.scan(where=self._range())),
            "DuckDB, four columns": self._duckdb,
        }

    def facts(self) -> dict[str, int]:
        """Bytes and row groups of the table's files."""
        self.restore()
        files = self._paths()
        groups = sum(pq.read_metadata(path).num_row_groups for path in files)
        return {"bytes": sum(Path(path).stat().st_size for path in files), "row_groups": groups}

    def restore(self) -> None:
        self._table.rollback(self._base)

    def _range(self) -> str:
        """One percent of the rows, in the middle of the third file."""
        first = self._rows * 5 // 16
        return f"id >= {first} AND id < {first + self._rows // 100}"

    def _delete(self, predicate: str) -> None:
        self._table.delete().where(predicate).execute()

    def _update(self, predicate: str) -> None:
        self._table.update().set("value", "value + 1").where(predicate).execute()

    def _upsert(self) -> None:
        first = self._rows * 5 // 16
        keys = self._lake.spark.range(first, first + self._rows // 1000)
        source = keys.selectExpr("id", "id AS value")
        merge = self._table.merge(source, on=["id"]).when_matched()
        merge.update({"value": "source.value"}).execute()

    def _duckdb(self) -> None:
        with duckdb.connect() as connection:
            connection.execute(
                "SELECT sum(id), sum(bucket), sum(value), max(name) FROM read_parquet(?)",
                [self._paths()],
            ).fetchall()

    def _paths(self) -> list[str]:
        rows = self._table.files().where("content = 0").select("file_path").collect()
        return [row.file_path.removeprefix("file://") for row in rows]


def _read(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def measure(tables: list[Sized], repetitions: int) -> dict[str, dict[int, list[float]]]:
    """Seconds of every repetition, by work and by the size of row groups."""
    seconds: dict[str, dict[int, list[float]]] = {}
    for number in range(repetitions + 1):
        for name in tables[0].works:
            for table in tables:
                table.restore()
                started = time.perf_counter()
                table.works[name]()
                elapsed_s = time.perf_counter() - started
                if number:
                    of_work = seconds.setdefault(name, {})
                    of_work.setdefault(table.mebibytes, []).append(elapsed_s)
    return seconds


def markdown(seconds: dict[str, dict[int, list[float]]], facts: dict[int, dict[str, int]]) -> str:
    lines = ["| row groups of, MiB | " + " | ".join(str(size) for size in facts) + " |"]
    lines.append("|---|" + "---|" * len(facts))
    for name, values in seconds.items():
        lines.append(
            f"| {name}, s | " + " | ".join(f"{min(v):.2f}" for v in values.values()) + " |"
        )
    sizes = (f"{table['bytes'] / MEBIBYTE:.0f}" for table in facts.values())
    lines.append("| table, MiB | " + " | ".join(sizes) + " |")
    groups = (str(table["row_groups"]) for table in facts.values())
    lines.append("| row groups in the table | " + " | ".join(groups) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--mebibytes", type=int, nargs="+", default=GROUP_MEBIBYTES)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--work", type=Path, help="folder with the input rows (a temporary one)")
    parser.add_argument("--save", action="store_true", help="write the result file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, icefloe.connect(Path(folder) / "lake") as lake:
        files = input_files(SIZES[args.size], (args.work or Path(folder)) / "input")
        tables = [Sized(lake, mebibytes, files) for mebibytes in args.mebibytes]
        facts = {table.mebibytes: table.facts() for table in tables}
        seconds = measure(tables, args.repetitions)
    print(markdown(seconds, facts))
    if args.save:
        _save(args.size, seconds, facts)


def _save(
    size: str, seconds: dict[str, dict[int, list[float]]], tables: dict[int, dict[str, int]]
) -> None:
    facts = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit_of(ROOT),
        "command": f"python -m benchmarks.row_groups --size {size} --save",
        "machine": machine(),
        "load_average_at_end": os.getloadavg(),
        "size": size,
        "tables": tables,
    }
    summary = {
        work: {group_mib: seconds_of(samples) for group_mib, samples in by_size.items()}
        for work, by_size in seconds.items()
    }
    path = RESULTS / "row_groups" / f"{size}.json"
    save(path, {**facts, "seconds": summary}, {**facts, "seconds": seconds})


if __name__ == "__main__":
    main()
