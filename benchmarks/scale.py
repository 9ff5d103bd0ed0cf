"""Many files and long histories: icefloe and Iceberg's runtime in one session, on twin tables.

    make .venv-iceberg/.installed
    .venv-iceberg/bin/python -m benchmarks.scale                        # 100, 1,000, 10,000 files
    .venv-iceberg/bin/python -m benchmarks.scale --files 1000 --rows --snapshots
    .venv-iceberg/bin/python -m benchmarks.scale --only scan

A table has one file of 200 rows in each partition; small ones have one file. Every statement runs
on both tables, once after icefloe's caches were cleared (Iceberg's runtime has none here) and then
in turn; tables are rolled back after each change. Processor time is that of Python and of the JVM
together, Python workers included; bytes are those read through system calls. A run is a file of
`results/scale`; `python -m benchmarks.report` has them all.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from pyspark.sql import DataFrame, Row, SparkSession

import icefloe
from benchmarks.fixed_costs import SCALE
from benchmarks.machine import command_of, commit_of, machine
from benchmarks.measure import io_of_tree
from benchmarks.summary import RESULTS, to_text
from icefloe import Lake, Table
from icefloe.deletes import position_deletes
from icefloe.lake import EMBEDDED_CATALOG
from icefloe.metadata import manifest_cache, sql_catalog
from icefloe.scan import row_counts

_ROWS = 200  # of each file
_PACKAGES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.46.1.3",
)
_CATALOG = f"spark.sql.catalog.{EMBEDDED_CATALOG}"
_MODES = {f"write.{kind}.mode": "merge-on-read" for kind in ("delete", "update", "merge")}
ICEFLOE, ICEBERG = "icefloe", "iceberg"
_MERGE = (
    "MERGE INTO {t} t USING %s s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * "
    "WHEN NOT MATCHED THEN INSERT *"
)
Action = Callable[[], object]


@dataclass(slots=True)
class Samples:
    """One statement on one engine's table: the first is with cold caches."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    bytes_read: list[int] = field(default_factory=list)
    failure: str | None = None

    @property
    def best(self) -> float:
        """Seconds of the quickest repetition that was not the first."""
        return min(self.seconds[1:] or self.seconds)


@dataclass(frozen=True, slots=True)
class Case:
    """One statement, for both engines; it answers the same on twin tables."""

    name: str
    icefloe: Callable[[Table], object]
    sql: str  # with {t} for the table
    changes: bool = False
    repetitions: int | None = None  # None: as many as the run's options say


def cases(rows: int) -> tuple[Case, ...]:
    """The statements on a table of so many rows, whose ids are clustered by partition."""
    middle = rows // 2
    return (
        Case("scan of one partition", lambda t: t.scan(where="p = 77").count(),
             "SELECT count(n) FROM {t} WHERE p = 77"),
        Case("scan by id (bounds)", lambda t: t.scan(where=f"id = {middle}").count(),
             f"SELECT count(n) FROM {{t}} WHERE id = {middle}"),
        Case("count()", lambda t: t.count(), "SELECT count(*) FROM {t}"),
        Case("sum over everything", lambda t: t.scan().selectExpr("sum(n)").first()[0],
             "SELECT sum(n) FROM {t}"),
        Case("DELETE one row by id", lambda t: t.delete().where(f"id = {middle}").execute(),
             f"DELETE FROM {{t}} WHERE id = {middle}", True),
        Case("UPDATE 0.1 %, spread",
             lambda t: t.update().set("n", "n + 1").where("id % 1000 = 7").execute(),
             "UPDATE {t} SET n = n + 1 WHERE id % 1000 = 7", True),
        Case("MERGE of 1,000 rows, spread", lambda t: t.upsert(_frame("spread"), ["id"]).execute(),
             _MERGE % "spread", True),
        Case("MERGE of 10 rows in one file", lambda t: t.upsert(_frame("few"), ["id"]).execute(),
             _MERGE % "few", True),
        Case("append to every partition", lambda t: t.append(_frame("every")),
             "INSERT INTO {t} SELECT * FROM every", True, repetitions=0),
    )  # fmt: skip


def small_cases() -> tuple[Case, ...]:
    """Statements on few rows in one file: the fixed cost of each."""
    ten = [{"id": 100 * n, "p": n, "n": -1} for n in range(10)]
    return (
        Case("UPDATE by key", lambda t: t.update().set("n", "5").where("id = 77").execute(),
             "UPDATE {t} SET n = 5 WHERE id = 77", True),
        Case("UPDATE of 1 %",
             lambda t: t.update().set("n", "n + 1").where("id % 100 = 7").execute(),
             "UPDATE {t} SET n = n + 1 WHERE id % 100 = 7", True),
        Case("DELETE of 1 %", lambda t: t.delete().where("id % 100 = 7").execute(),
             "DELETE FROM {t} WHERE id % 100 = 7", True),
        Case("upsert of ten dicts", lambda t: t.upsert(ten, ["id"]).execute(),
             _MERGE % "ten", True),
        Case("upsert of a frame of ten rows", lambda t: t.upsert(_frame("ten"), ["id"]).execute(),
             _MERGE % "ten", True),
        Case("scan of 1 %", lambda t: _answer(t.scan(where="id % 100 = 7").collect()),
             "SELECT * FROM {t} WHERE id % 100 = 7"),
        Case("count()", lambda t: t.count(), "SELECT count(*) FROM {t}"),
    )  # fmt: skip


def _frame(view: str) -> object:
    return SparkSession.getActiveSession().table(view)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.scale", description=__doc__)
    parser.add_argument("--files", type=int, nargs="*", default=[100, 1000, 10_000])
    parser.add_argument("--snapshots", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--rows", type=int, nargs="*", default=[1000], help="of small tables")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument(
        "--repetition-seconds", type=float, default=60, help="of a statement; no more after these"
    )
    parser.add_argument("--only", default="", help="statements with this in their name")
    parser.add_argument("--engines", nargs="+", default=[ICEFLOE, ICEBERG])
    parser.add_argument("--memory", default="4g", help="of Spark's driver")
    parser.add_argument("--work", help="folder of the tables; kept for the next run")
    options = parser.parse_args()
    with _folder(options.work) as folder, _lake(folder, options.memory) as lake:
        runner = _Runner(
            lake,
            options.repetitions,
            options.repetition_seconds,
            options.only,
            tuple(options.engines),
        )
        for files in options.files:
            runner.many_files(files)
            _save(parser, options, runner)
        for rows in options.rows:
            runner.few_rows(rows)
            _save(parser, options, runner)
        for snapshots in options.snapshots:
            runner.long_history(snapshots)
            _save(parser, options, runner)
    _report(runner.results, options.engines)


@contextmanager
def _folder(kept: str | None) -> Iterator[Path]:
    if kept is not None:
        Path(kept).mkdir(parents=True, exist_ok=True)
        yield Path(kept)
        return
    with tempfile.TemporaryDirectory(prefix="icefloe-scale-") as folder:
        yield Path(folder)


@contextmanager
def _lake(folder: Path, memory: str) -> Iterator[Lake]:
    """A lake in a session that has Iceberg's runtime on the same catalog."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.jars.packages": ",".join(_PACKAGES),
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        _CATALOG: "org.apache.iceberg.spark.SparkCatalog",
        f"{_CATALOG}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{_CATALOG}.uri": f"jdbc:sqlite:{folder / 'lake' / 'catalog.db'}?busy_timeout=60000",
        f"{_CATALOG}.warehouse": (folder / "lake").as_uri(),
        f"{_CATALOG}.jdbc.schema-version": "V1",
        f"{_CATALOG}.cache-enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        with icefloe.connect(folder / "lake", spark=spark) as lake:
            yield lake
    finally:
        spark.stop()


@dataclass
class _Runner:
    lake: Lake
    repetitions: int
    repetition_seconds: float
    only: str
    engines: tuple[str, ...]
    results: dict[str, dict[str, dict[int, Samples]]] = field(default_factory=dict)
    manifests: dict[int, dict[str, int]] = field(default_factory=dict)  # of the last DELETE

    def many_files(self, files: int) -> None:
        """The statements on tables of so many partitions with a file each."""
        rows = files * _ROWS
        tables = {engine: self._partitioned(engine, files) for engine in self.engines}
        spark = self.lake.spark
        spark.range(0, rows, rows // 1000).selectExpr(
            "id", f"CAST(id DIV {_ROWS} AS INT) AS p", "-1L AS n"
        ).createOrReplaceTempView("spread")
        spark.range(rows // 2, rows // 2 + 10).selectExpr(
            "id", f"CAST(id DIV {_ROWS} AS INT) AS p", "-1L AS n"
        ).createOrReplaceTempView("few")
        self._rows(rows).createOrReplaceTempView("every")
        for case in cases(rows):
            if self.only in case.name:
                self._compare(case, f"{case.name}, files", files, tables)
        if ICEFLOE in tables:
            plan = tables[ICEFLOE].delete().where(f"id = {rows // 2}").explain()
            self.manifests[files] = {
                "read": plan.manifests_read,
                "cached": plan.manifests_cached,
                "skipped": plan.manifests_skipped,
            }
            print(f"manifests of a DELETE by id, {files} files: {self.manifests[files]}")

    def few_rows(self, rows: int) -> None:
        """Statements on small tables, merge-on-read and copy-on-write."""
        self._rows(rows).filter("id % 100 = 0").limit(10).selectExpr(
            "id", "p", "-1L AS n"
        ).createOrReplaceTempView("ten")
        for mode in ("merge-on-read", "copy-on-write"):
            tables = {engine: self._small(engine, rows, mode) for engine in self.engines}
            for case in small_cases():
                if self.only in case.name and (case.changes or mode == "merge-on-read"):
                    title = f"{case.name}, {mode}" if case.changes else case.name
                    self._compare(case, f"{title}, rows", rows, tables)

    def long_history(self, snapshots: int) -> None:
        """Statements on a table of so many snapshots."""
        tables = {engine: self._with_history(engine, snapshots) for engine in self.engines}
        row = {"id": -1, "n": 0}
        for case in (
            Case("append of one row", lambda t: t.append([row]),
                 "INSERT INTO {t} VALUES (-1L, 0L)", True),
            Case("scan", lambda t: t.scan(where="n >= 0").count(),
                 "SELECT count(id) FROM {t} WHERE n >= 0"),
            Case("UPDATE one row", lambda t: t.update().set("n", "5").where("id = 3").execute(),
                 "UPDATE {t} SET n = 5 WHERE id = 3", True),
        ):  # fmt: skip
            if self.only in case.name:
                self._compare(case, f"{case.name}, snapshots", snapshots, tables)

    def _partitioned(self, engine: str, files: int) -> Table:
        name = f"{engine}.files{files}"
        if self._has(engine, name):
            return self.lake.table(name)
        rows = self._rows(files * _ROWS)
        table = self.lake.create_table(name, rows, partition_by=["p"], properties=_MODES)
        started = time.perf_counter()
        table.append(rows)
        print(f"{name}: appended in {time.perf_counter() - started:.1f} s", flush=True)
        return table

    def _small(self, engine: str, rows: int, mode: str) -> Table:
        name = f"{engine}.rows{rows}_{mode.replace('-', '_')}"
        if self._has(engine, name):
            return self.lake.table(name)
        properties = dict.fromkeys(_MODES, mode)
        table = self.lake.create_table(name, "id BIGINT, p INT, n BIGINT", properties=properties)
        table.append(self._rows(rows).coalesce(1))
        return table

    def _rows(self, count: int) -> DataFrame:
        return self.lake.spark.range(count).selectExpr(
            "id", f"CAST(id DIV {_ROWS} AS INT) AS p", "id % 1000 AS n"
        )

    def _with_history(self, engine: str, snapshots: int) -> Table:
        name = f"{engine}.snapshots{snapshots}"
        if self._has(engine, name):
            return self.lake.table(name)
        table = self.lake.create_table(name, "id BIGINT, n BIGINT", properties=_MODES)
        for number in range(snapshots):
            table.append([{"id": number, "n": number}])
        return table

    def _has(self, namespace: str, table: str) -> bool:
        self.lake.create_namespace(namespace)
        return table in self.lake.tables(namespace)

    def _compare(self, case: Case, title: str, size: int, tables: dict[str, Table]) -> None:
        actions: dict[str, Action] = {
            ICEFLOE: lambda: case.icefloe(tables[ICEFLOE]),
            ICEBERG: lambda: self._sql(case, tables[ICEBERG]),
        }
        by_engine = self.results.setdefault(title, {})
        samples = {
            engine: by_engine.setdefault(engine, {}).setdefault(size, Samples())
            for engine in tables
        }
        answers: dict[str, object] = {}
        _clear_caches()
        started = time.perf_counter()
        for number in range(
            1 + (self.repetitions if case.repetitions is None else case.repetitions)
        ):
            if number > 1 and time.perf_counter() - started > self.repetition_seconds:
                break
            for engine, table in tables.items():
                if samples[engine].failure is not None:
                    continue
                before = table.snapshot_id
                answer = _timed(actions[engine], samples[engine])
                if case.changes:
                    answer = table.snapshot_id != before
                    table.rollback(snapshot_id=before)
                if samples[engine].failure is None:
                    answers[engine] = answer
        if len(set(map(str, answers.values()))) > 1:
            raise AssertionError(f"{title}: the engines answer {answers}")
        print(f"{title} {size}: " + _line(samples), flush=True)

    def _sql(self, case: Case, table: Table) -> object:
        spark = self.lake.spark
        done = spark.sql(case.sql.format(t=f"{EMBEDDED_CATALOG}.{table.name}")).collect()
        return _answer(done) if done and not case.changes else None


def _answer(rows: list[Row]) -> object:
    """A single value, or the rows in order, without the names of columns."""
    return rows[0][0] if len(rows) == len(rows[0]) == 1 else sorted(map(tuple, rows))


def _clear_caches() -> None:
    """Have icefloe read metadata, delete files and footers again."""
    sql_catalog.files.clear()
    for cache in (
        manifest_cache.manifests,
        manifest_cache.lists,
        position_deletes.delete_files,
        row_counts.seen,
    ):
        cache.clear()


def _timed(action: Action, samples: Samples) -> object:
    process = psutil.Process()
    before, cpu = io_of_tree(process), _cpu_of_tree(process)
    started = time.perf_counter()
    try:
        answer = action()
    except Exception as error:  # out of memory, which is a result
        samples.failure = str(error).strip().partition("\n")[0][:120]
        return None
    samples.seconds.append(round(time.perf_counter() - started, 4))
    samples.cpu_seconds.append(round(_cpu_of_tree(process) - cpu, 3))
    samples.bytes_read.append(
        io_of_tree(process).get("read_chars", 0) - before.get("read_chars", 0)
    )
    return answer


def _cpu_of_tree(process: psutil.Process) -> float:
    total = 0.0
    for member in (process, *process.children(recursive=True)):
        try:
            times = member.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


# -------------------------------------------------------------------------------------------------
# The report


def _line(samples: dict[str, Samples]) -> str:
    parts = [
        f"{engine} failed: {each.failure}"
        if each.failure is not None
        else f"{engine} first {each.seconds[0]:.2f} s, then {each.best:.2f} s "
        f"(cpu {statistics.median(each.cpu_seconds):.2f} s, "
        f"{statistics.median(each.bytes_read) / 2**20:.1f} MiB)"
        for engine, each in samples.items()
    ]
    return "; ".join(parts)


def _report(results: dict[str, dict[str, dict[int, Samples]]], engines: Sequence[str]) -> None:
    """Seconds at each size, and by how much they grow from the smallest to the largest."""
    for title, by_engine in results.items():
        print(f"\n{title}")
        for engine in engines:
            of_size = {n: s for n, s in by_engine.get(engine, {}).items() if s.seconds}
            if not of_size:
                continue
            shown = "  ".join(f"{size}: {s.best:7.3f} s" for size, s in of_size.items())
            first, last = min(of_size), max(of_size)
            growth = of_size[last].best / of_size[first].best
            print(f"  {engine:8} {shown}  grows {growth:.1f}x for {last // first}x")


def _save(parser: argparse.ArgumentParser, options: argparse.Namespace, runner: _Runner) -> None:
    """The results so far; a run of some statements only is not kept."""
    if options.only:
        return
    sizes = [
        f"{n}-{kind}" for kind in ("files", "rows", "snapshots") for n in getattr(options, kind)
    ]
    document = {
        "kind": SCALE,
        "command": command_of(parser, options),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit_of(RESULTS.parent.parent),
        "machine": machine(),
        "memory": options.memory,
        "manifests": {str(files): counts for files, counts in runner.manifests.items()},
        "results": {
            title: {e: {str(n): asdict(s) for n, s in sizes.items()} for e, sizes in each.items()}
            for title, each in runner.results.items()
        },
    }
    path = RESULTS / SCALE / f"{'-'.join(sizes)}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(to_text(document))


if __name__ == "__main__":
    main()
