"""Replacing 1 of 100 partitions, and rows of several files, compared to overwriting and delta-rs.

    python -m benchmarks.replace                           # a smoke test, its times mean nothing
    python -m benchmarks.replace --rows 2000000 --save     # writes results/replace/replace.json

Prints a Markdown table. Every peer loads the same rows, one file per partition. Only the statement
is timed, on the wall clock; before each repetition the table is rolled back. Rows and sums
afterwards are compared to the expected ones, which are computed without any peer.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder, write_deltalake

import icefloe
from benchmarks.machine import commit_of, machine
from benchmarks.summary import RESULTS, save, seconds_of

PARTITIONS = 100
ONE = "part = 42"
STRADDLING = "part >= 40 AND part < 50 AND value < 500"  # half of the rows of ten partitions
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Case:
    """A statement: the rows that it replaces, and the new rows."""

    name: str
    predicate: str
    new: pa.Table
    after: tuple[int, int]  # rows, and the sum of `value`


@dataclass(slots=True)
class Samples:
    """The repetitions of one case with one peer."""

    seconds: list[float] = field(default_factory=list)
    bytes_written: int = 0


Results = dict[str, dict[str, Samples]]  # by case and peer


def table_of(rows: int) -> pa.Table:
    """Rows in order of their partition; `value` below 1000, half of them below 500."""
    ids = np.arange(rows, dtype=np.int64)
    rng = np.random.default_rng(20240229)
    return pa.table(
        {
            "id": ids,
            "part": (ids * PARTITIONS // rows).astype(np.int32),
            "value": rng.integers(0, 1000, rows, dtype=np.int64),
            "note": pa.array(ids % 1000).cast(pa.string()),
        }
    )


def cases_of(rows: pa.Table) -> list[Case]:
    part, value = rows["part"], rows["value"]
    one = pc.equal(part, 42)
    some = pc.and_(pc.and_(pc.greater_equal(part, 40), pc.less(part, 50)), pc.less(value, 500))
    return [
        _case("1 of 100 partitions", ONE, rows, one),
        _case("rows that straddle 10 partitions", STRADDLING, rows, some),
    ]


def _case(name: str, predicate: str, rows: pa.Table, replaced: pa.ChunkedArray) -> Case:
    """The new rows are the old ones with a new `value` for which the predicate still holds."""
    old = rows.filter(replaced)
    changed = pc.add(old["value"], 1) if predicate == ONE else pc.subtract(499, old["value"])
    new = old.set_column(2, "value", changed)
    total = pc.sum(rows["value"]).as_py() - pc.sum(old["value"]).as_py()
    return Case(name, predicate, new, (rows.num_rows, total + pc.sum(new["value"]).as_py()))


class IcefloePeer:
    """icefloe: replaces partitions by metadata, or rows in a mode, or overwrites the table."""

    def __init__(self, folder: Path, rows: pa.Table, scope: str, mode: str) -> None:
        self._lake = icefloe.connect(folder)
        self._table = self._lake.create_table(
            "rows", rows.schema, partition_by=["part"], properties={"write.delete.mode": mode}
        )
        self._table.append(rows)
        self._base = self._table.snapshot_id
        self._scope, self.folder = scope, folder

    def run(self, case: Case) -> None:
        if self._scope == "table":
            unchanged = f"NOT ({case.predicate})"
            frame = self._lake.spark.createDataFrame(case.new)
            self._table.overwrite(self._table.scan(where=unchanged).unionByName(frame))
            return
        statement = self._table.replace_where(case.predicate, case.new)
        statement.with_options(scope=self._scope).execute()

    def restore(self) -> None:
        self._table.rollback(self._base)

    def rows_and_sum(self) -> tuple[int, int]:
        row = self._table.scan().selectExpr("count(*)", "sum(value)").first()
        return row[0], row[1]


class DeltaRsPeer:
    """delta-rs: `write_deltalake(mode="overwrite", predicate=…)`."""

    def __init__(self, folder: Path, rows: pa.Table) -> None:
        self.folder = folder / "delta"
        write_deltalake(self.folder, rows, partition_by=["part"])
        self._base = DeltaTable(self.folder).version()

    def run(self, case: Case) -> None:
        write_deltalake(self.folder, case.new, mode="overwrite", predicate=case.predicate)

    def restore(self) -> None:
        table = DeltaTable(self.folder)
        if table.version() > self._base:
            table.restore(self._base)

    def rows_and_sum(self) -> tuple[int, int]:
        query = "SELECT count(*) AS n, sum(value) AS s FROM t"
        table = DeltaTable(self.folder)
        answer = pa.table(QueryBuilder().register("t", table).execute(query).read_all())
        return answer["n"][0].as_py(), answer["s"][0].as_py()


Peer = IcefloePeer | DeltaRsPeer


def peers_of(folder: Path, rows: pa.Table) -> Mapping[str, Callable[[], Peer]]:
    cow, mor = "copy-on-write", "merge-on-read"
    return {
        "replace_where": lambda: IcefloePeer(folder / "partitions", rows, "partitions", mor),
        "overwrite of the table": lambda: IcefloePeer(folder / "table", rows, "table", mor),
        "scope rows, copy-on-write": lambda: IcefloePeer(folder / "cow", rows, "rows", cow),
        "scope rows, merge-on-read": lambda: IcefloePeer(folder / "mor", rows, "rows", mor),
        "delta-rs predicate": lambda: DeltaRsPeer(folder, rows),
    }


def measure(peers: Mapping[str, Peer], cases: list[Case], repetitions: int) -> Results:
    """Time every case with every peer; wrong rows are an error.

    Peers take turns, so that all see the same load, and the first round warms up the session.
    """
    results: Results = {case.name: {} for case in cases}
    for number in range(repetitions + 1):
        for name, peer in peers.items():
            for case in cases:
                if name == "replace_where" and case.predicate != ONE:
                    continue  # not on partition boundaries
                seconds, bytes_written = _timed(peer, case)
                if number:
                    samples = results[case.name].setdefault(name, Samples())
                    samples.seconds.append(seconds)
                    samples.bytes_written = bytes_written
    return results


def _timed(peer: Peer, case: Case) -> tuple[float, int]:
    """Seconds of the statement, and the size of the Parquet files that it added."""
    peer.restore()
    before = set(peer.folder.rglob("*.parquet"))
    started = time.perf_counter()
    peer.run(case)
    seconds = time.perf_counter() - started
    new = set(peer.folder.rglob("*.parquet")) - before
    actual = peer.rows_and_sum()
    if actual != case.after:
        raise AssertionError(f"{case.name}: rows and sum {actual}, expected {case.after}")
    return seconds, sum(file.stat().st_size for file in new)


def markdown(results: Results) -> str:
    lines = ["| | " + " | ".join(results) + " |", "|---|" + "---|" * len(results)]
    names = list(dict.fromkeys(name for by_peer in results.values() for name in by_peer))
    for name in names:
        cells = [
            f"{min(by_peer[name].seconds):.2f} s" if name in by_peer else "–"
            for by_peer in results.values()
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write the result file")
    args = parser.parse_args()
    rows = table_of(args.rows)
    with tempfile.TemporaryDirectory() as folder:
        peers = {name: make() for name, make in peers_of(Path(folder), rows).items()}
        results = measure(peers, cases_of(rows), args.repetitions)
    print(markdown(results))
    if args.save:
        _save(results, args.rows, args.repetitions)


def _save(results: Results, rows: int, repetitions: int) -> None:
    facts = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit_of(ROOT),
        "command": f"python -m benchmarks.replace --rows {rows} --repetitions {repetitions} --save",
        "machine": machine(),
        "load_average_at_end": os.getloadavg(),
        "versions": {p: version(p) for p in ("pyspark", "pyiceberg", "pyarrow", "deltalake")},
        "rows": rows,
        "partitions": PARTITIONS,
        "repetitions": repetitions,
    }
    summary = {
        case: {
            peer: {**seconds_of(samples.seconds), "bytes_written": samples.bytes_written}
            for peer, samples in by_peer.items()
        }
        for case, by_peer in results.items()
    }
    raw = {
        case: {peer: asdict(samples) for peer, samples in by_peer.items()}
        for case, by_peer in results.items()
    }
    save(
        RESULTS / "replace" / "replace.json",
        {**facts, "results": summary},
        {**facts, "results": raw},
    )


if __name__ == "__main__":
    main()
