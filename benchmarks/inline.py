"""Small writes: icefloe's inline tier, raw SQLite, delta-rs and PyIceberg appends, in one run.

python -m benchmarks.inline                                  # SQLite, in a temporary folder
python -m benchmarks.inline --postgresql                     # a server of its own, on loopback
python -m benchmarks.inline --uri postgresql+psycopg://user@localhost/db
python -m benchmarks.inline --inserts 1000000                # one row each: the last as quick?

Every figure is of calls as a user makes them, with the commit, in a warm process.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog

import icefloe
from benchmarks.inline_store import SCHEMA, rows_from, show, timed
from icefloe import Lake, Table
from icefloe.lake import open_catalog
from tests.support.postgresql import running_server

INLINE = {"icefloe.inline.enabled": "true", "icefloe.inline.row-limit": "10000000"}
MANY = 100_000
WRITERS, SECONDS = 8, 5

Work = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    catalog = parser.add_mutually_exclusive_group()
    catalog.add_argument("--uri", help="catalog database; a SQLite file by default")
    catalog.add_argument("--postgresql", action="store_true", help="start a server for this run")
    parser.add_argument("--rows", type=int, default=MANY, help="inline rows that scans read")
    parser.add_argument("--inserts", type=int, help="only so many inserts of one row, with flushes")
    arguments = parser.parse_args()
    server = running_server(durable=True) if arguments.postgresql else nullcontext(arguments.uri)
    with tempfile.TemporaryDirectory(prefix="icefloe-inline-") as folder, server as uri:
        run(Path(folder), {"uri": uri} if uri else {}, arguments)


def run(folder: Path, where: dict[str, str], arguments: argparse.Namespace) -> None:
    if arguments.inserts:
        many_inserts(folder, where, arguments.inserts)
        return
    peers(folder)
    with icefloe.connect(folder / "lake", **where) as lake:
        inserts(lake)
        writers(folder / "lake", where)
        reads_and_changes(lake, arguments.rows)
        rows_of_files(lake)
        flushes(lake, arguments.rows)


def peers(folder: Path) -> None:
    """What the same rows cost elsewhere."""
    one = rows_from(0, 1)
    database = sqlite3.connect(folder / "raw.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, document TEXT)")
    text = json.dumps(one.to_pylist(), default=str)

    def insert_raw() -> None:
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO t (document) VALUES (?)", (text,))
        database.execute("COMMIT")

    show("raw SQLite: 1 row", timed(300, insert_raw))
    show("delta-rs append: 1 row", timed(40, lambda: write_delta(folder, one)))
    catalog = load_catalog(
        "peer", type="sql", uri=f"sqlite:///{folder}/peer.db", warehouse=f"file://{folder}/peer"
    )
    catalog.create_namespace("a")
    table = catalog.create_table("a.t", SCHEMA)
    show("PyIceberg append: 1 row", timed(40, lambda: table.append(one)))


def write_delta(folder: Path, rows: pa.Table) -> None:
    write_deltalake(str(folder / "delta"), rows, mode="append")


def inserts(lake: Lake) -> None:
    table = lake.create_table("b.inserts", SCHEMA, properties=INLINE)
    plain = lake.create_table("b.appends", SCHEMA)
    for size, repeats in ((1, 500), (100, 200), (10_000, 12)):
        rows = rows_from(0, size)
        table.insert(rows)
        show(f"icefloe insert: {size:,} rows", timed(repeats, lambda rows=rows: table.insert(rows)))
    one = rows_from(0, 1)
    show("icefloe append: 1 row", timed(40, lambda: plain.append(one)))


def writers(folder: Path, where: dict[str, str]) -> None:
    """Eight processes that insert at once for some seconds."""
    spawn = multiprocessing.get_context("spawn")
    with icefloe.connect(folder, **where) as lake:
        lake.create_table("b.writers", SCHEMA, properties=INLINE).insert(rows_from(0, 1))
    for size in (1, 100):
        start, results = spawn.Barrier(WRITERS), spawn.Queue()
        arguments = (folder, where, size, start, results)
        processes = [spawn.Process(target=insert_for, args=arguments) for _ in range(WRITERS)]
        for process in processes:
            process.start()
        waits = [wait for _ in processes for wait in results.get()]
        for process in processes:
            process.join()
        show(f"{WRITERS} processes, insert of {size} rows each", waits)
        rate = len(waits) / SECONDS
        print(f"  {rate:,.0f} inserts, {size * rate:,.0f} rows a second")


def insert_for(folder: Path, where: dict[str, str], size: int, start: Any, results: Any) -> None:
    lake = Lake(open_catalog(folder, None, where))  # without Spark
    table, rows, waits = lake.table("b.writers"), rows_from(0, size), []
    table.insert(rows)
    start.wait()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        waits += timed(1, lambda: table.insert(rows))
    results.put(waits)


def many_inserts(folder: Path, where: dict[str, str], count: int) -> None:
    """Whether the last inserts are as quick as the first, and what is left of them."""
    lake = Lake(open_catalog(folder / "lake", None, where))
    lake.create_namespace("b")
    properties = {"icefloe.inline.enabled": "true", "icefloe.inline.row-limit": str(count // 10)}
    table, rows = lake.create_table("b.many", SCHEMA, properties=properties), rows_from(0, 1)
    table.insert(rows)

    def insert_1000(name: str) -> None:
        before = time.thread_time()
        show(name, timed(1000, lambda: table.insert(rows)))
        # Other processes do not change it as they change the time that passes.
        print(f"  {time.thread_time() - before:.2f} ms of CPU each, without flushes", flush=True)

    insert_1000("the first 1,000 inserts")
    for tenth in range(1, 11):
        for _ in range(count // 10 - 1000 - (tenth == 1) * 1001):
            table.insert(rows)
        name = "the last 1,000" if tenth == 10 else f"  1,000 before {tenth * count // 10:,}"
        insert_1000(name)
    lake.stop()
    files = len(list(table.iceberg.scan().plan_files()))
    size = sum(path.stat().st_size for path in (folder / "lake").glob("catalog.db*"))
    print(f"{table.count():,} rows, {files} data files, {size / 2**20:.1f} MB of database")


def full_table(lake: Lake, name: str, count: int) -> Table:
    table = lake.create_table(name, SCHEMA, properties=INLINE)
    for start in range(0, count, 10_000):
        table.insert(rows_from(start, min(10_000, count - start)))
    return table


def reads_and_changes(lake: Lake, count: int) -> None:
    empty = lake.create_table("b.empty", SCHEMA, properties=INLINE)
    without = lake.create_table("b.without", SCHEMA)
    for table in (empty, without):
        table.append(rows_from(0, 100))
    full = full_table(lake, "b.full", count)
    full.append(rows_from(10 * count, 100))
    scans: dict[str, Work] = {
        "scan without the tier": lambda: without.scan().toArrow(),
        "scan, 0 inline rows": lambda: empty.scan().toArrow(),
        f"scan all, {count:,} inline rows": lambda: full.scan().toArrow(),
        "scan id = k without the tier": lambda: without.scan(where="id = 54").toArrow(),
        f"scan id = k, {count:,} inline rows": lambda: full.scan(where="id = 54321").toArrow(),
    }
    scans |= {
        "count": full.count,
        "count id = k": lambda: full.count("id = 54321"),
        "to_arrow id = k, an inline row": lambda: full.to_arrow(where="id = 54321"),
        "to_arrow id = k, a row of a file": lambda: full.to_arrow(where=f"id = {10 * count + 7}"),
        "to_pandas id = k": lambda: full.to_pandas(["id", "n"], "id = 54321"),
    }
    for name, scan in scans.items():
        scan()
        show(name, timed(10, scan))
    numbers = iter(range(1000))
    show(
        "DELETE of one inline row by key",
        timed(20, lambda: full.delete().where(f"id = {next(numbers)}").execute()),
    )
    show(
        "UPDATE of one inline row by key",
        timed(20, lambda: full.update().set("n", "5").where(f"id = {next(numbers)}").execute()),
    )


def rows_of_files(lake: Lake) -> None:
    """One row of a file of 100,000: as a transaction of the database, and as a commit."""
    for name, inline in (("in the database", "true"), ("as a commit", "false")):
        properties = {**INLINE, "icefloe.inline.deletes": inline}
        table = lake.create_table(f"b.files_{inline}", SCHEMA, properties=properties)
        table.append(rows_from(0, MANY))
        change_rows_of(table, name)


def change_rows_of(table: Table, how: str) -> None:
    keys = iter(range(0, MANY, 97))
    statements: dict[str, Work] = {
        "DELETE": lambda: table.delete().where(f"id = {next(keys)}").execute(),
        "UPDATE": lambda: table.update().set("n", "5").where(f"id = {next(keys)}").execute(),
    }
    for name, run in statements.items():
        run()
        show(f"{name} of one row of a file by key, {how}", timed(10, run))
    show(f"flush of these, {how}", timed(1, table.flush))


def flushes(lake: Lake, count: int) -> None:
    table = full_table(lake, "b.flushed", count)
    waits: list[float] = []
    done = threading.Event()

    def write() -> None:
        other = lake.table("b.flushed")
        while not done.is_set():
            waits.extend(timed(1, lambda: other.insert(rows_from(0, 1))))

    writer = threading.Thread(target=write)
    writer.start()
    results: list[Any] = []
    show(f"flush of {count:,} rows", timed(1, lambda: results.append(table.flush())))
    done.set()
    writer.join()
    show("  inserts beside the flush", waits)
    files, snapshots = results[0].data_files_added, len(table.iceberg.metadata.snapshots)
    print(f"{results[0].rows_copied:,} rows in {files} data files, {snapshots} snapshots")


if __name__ == "__main__":
    main()
