"""Cold: from the start of a Python program to the end of its first statement.

    make .venv-iceberg/.installed .venv-deltars/.installed
    .venv/bin/python -m benchmarks.cold                                 # narrow and wide
    .venv/bin/python -m benchmarks.cold --size narrow --engines icefloe icefloe-unarchived

Every run is a process of its own, which starts a JVM where the engine has one; engines run in turn.
Tables are merge-on-read (delta-rs has no other mode than copy-on-write), have 8 files and are
restored before each run. `icefloe` maps the archive of classes that earlier sessions made,
`icefloe-unarchived` is without it. Jars and files are in the page cache. Processor time is that of
the whole process tree until the end of the statement.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import dedent

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import SIZES, Size, input_files
from benchmarks.fixed_costs import COLD, cold_table
from benchmarks.machine import command_of, commit_of, machine
from benchmarks.summary import to_text

ROOT = Path(__file__).parent.parent
_DONE = "first statement done"
_SCAN = "sum(id), sum(value), sum(bucket)"
_ICEBERG = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0,org.xerial:sqlite-jdbc:3.46.1.3"
)
_MERGE_SQL = (
    "MERGE INTO {t} AS target USING source ON target.id = source.id "
    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)
_MODES = {f"write.{kind}.mode": "merge-on-read" for kind in ("delete", "update", "merge")}


@dataclass(frozen=True, slots=True)
class Engine:
    """How an engine opens its table, and its first statements, as Python."""

    python: str  # below the root
    folder: str  # of its table, below the size's folder
    start: str
    statements: dict[str, str]
    environment: dict[str, str]


_ICEFLOE_START = """
    import icefloe
    lake = icefloe.connect("{folder}")
    table = lake.table("bench.rows")
"""
_ICEFLOE_STATEMENTS = {
    "connect": "",
    "scan": f"table.scan().selectExpr(*'{_SCAN}'.split(', ')).first()",
    "update": 'table.update().set("value", "value + 1").where("bucket = 7").execute()',
    "merge": 'table.upsert(lake.spark.read.parquet("{source}"), ["id"]).execute()',
}
_ICEBERG_START = f"""
    from pyspark.sql import SparkSession
    catalog = "spark.sql.catalog.icefloe"
    settings = {{{{
        "spark.jars.packages": "{_ICEBERG}",
        "spark.sql.extensions":
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "16",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        catalog + ".catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        catalog + ".uri": "jdbc:sqlite:{{folder}}/catalog.db",
        catalog + ".warehouse": "file://{{folder}}",
        catalog + ".jdbc.schema-version": "V1",
    }}}}
    builder = SparkSession.builder.master("local[*]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
"""
_ICEBERG_STATEMENTS = {
    "connect": "",
    "scan": f'spark.sql("SELECT {_SCAN} FROM icefloe.bench.rows").first()',
    "update": 'spark.sql("UPDATE icefloe.bench.rows SET value = value + 1 WHERE bucket = 7")',
    "merge": 'spark.read.parquet("{source}").createOrReplaceTempView("source"); '
    f'spark.sql("{_MERGE_SQL.format(t="icefloe.bench.rows")}")',
}
_DELTARS_START = """
    import pyarrow.parquet as pq
    from deltalake import DeltaTable, QueryBuilder
    table = DeltaTable("{folder}")
"""
_DELTARS_STATEMENTS = {
    "connect": "",
    "scan": f'QueryBuilder().register("t", table).execute("SELECT {_SCAN} FROM t").read_all()',
    "update": 'table.update(updates={{"value": "value + 1"}}, predicate="bucket = 7")',
    "merge": 'table.merge(pq.read_table("{source}"), "target.id = source.id", '
    'source_alias="source", target_alias="target").when_matched_update_all()'
    ".when_not_matched_insert_all().execute()",
}
_CLASSES = "ICEFLOE_CLASS_ARCHIVES"


def _icefloe(archives: str) -> Engine:
    return Engine(".venv", "lake", _ICEFLOE_START, _ICEFLOE_STATEMENTS, {_CLASSES: archives})


ENGINES = {
    "icefloe": _icefloe("{work}/classes"),
    "icefloe-unarchived": _icefloe("off"),
    "iceberg": Engine(".venv-iceberg", "lake", _ICEBERG_START, _ICEBERG_STATEMENTS, {}),
    "deltars": Engine(".venv-deltars", "delta", _DELTARS_START, _DELTARS_STATEMENTS, {}),
}
_STATEMENTS = ("connect", "scan", "update", "merge")


@dataclass(frozen=True, slots=True)
class Run:
    """One process: its first statement, from the start of the process."""

    size: str
    engine: str
    statement: str
    seconds: float
    cpu_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.cold", description=__doc__)
    parser.add_argument("--size", nargs="+", default=["narrow", "wide"], choices=list(SIZES))
    parser.add_argument("--rows", type=int, help="fewer rows")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--statements", nargs="+", default=[*_STATEMENTS], choices=_STATEMENTS)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--work", type=Path, help="folder of the tables; kept for the next run")
    options = parser.parse_args()
    engines = [name for name in options.engines if _is_installed(name)]
    runs: list[Run] = []
    with _folder(options.work) as work:
        for name in options.size:
            bench = _Bench(work, SIZES[name].with_rows(options.rows))
            bench.set_up(engines)
            for _ in range(options.repetitions):
                for statement in options.statements:
                    for engine in engines:
                        runs.append(bench.run(engine, statement))
                        print(_line(runs[-1]), flush=True)
    print("\n".join(cold_table([asdict(run) for run in runs])))
    file = ROOT / "benchmarks" / "results" / "cold" / f"{'-'.join(options.size)}.json"
    file.parent.mkdir(exist_ok=True)
    document = {
        "kind": COLD,
        "machine": machine(),
        "commit": commit_of(ROOT),
        "command": command_of(parser, options),
        "date": time.strftime("%Y-%m-%d"),
        "runs": [asdict(run) for run in runs],
    }
    file.write_text(to_text(document))


@dataclass(frozen=True, slots=True)
class _Bench:
    """The tables of one size."""

    work: Path
    size: Size

    @property
    def _home(self) -> Path:
        return self.work / f"{self.size.rows}x{self.size.columns}"

    @property
    def _source(self) -> Path:
        return self._home / "source.parquet"

    def set_up(self, engines: list[str]) -> None:
        """Write what is missing: input, the source of a MERGE, tables, the archive of classes."""
        files = input_files(self.size, self.work)
        self._home.mkdir(exist_ok=True)
        if not self._source.exists():
            parts = [pq.read_table(file) for file in files]
            every_100th = [part.take([*range(7, part.num_rows, 100)]) for part in parts]
            pq.write_table(pa.concat_tables(every_100th), self._source)
        for folder in {ENGINES[name].folder for name in engines}:
            if not self._kept(folder).exists():
                _WRITERS[folder](self._home / folder, files)
                (self._home / folder).rename(self._kept(folder))
        if "icefloe" in engines:
            self._make_archive()

    def _make_archive(self) -> None:
        """Run each statement, so that the archive has the classes of all."""
        if [*(self.work / "classes").glob("*.jsa")]:
            return
        for statement in ("merge", "update", "scan"):
            self.run("icefloe", statement)
            while [*(self.work / "classes").glob("*.classes")]:
                time.sleep(1)

    def run(self, engine: str, statement: str) -> Run:
        """One process on a table as it was at first."""
        how = ENGINES[engine]
        folder = self._home / how.folder
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._kept(how.folder), folder)
        values = {"folder": str(folder), "source": str(self._source), "work": str(self.work)}
        program = dedent(how.start).format(**values) + how.statements[statement].format(**values)
        program += f"\nprint({_DONE!r}, flush=True)\ninput()\n"
        environment = {key: value.format(**values) for key, value in how.environment.items()}
        os.sync()
        begin = time.monotonic()
        process = subprocess.Popen(
            [_python(engine), "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, **environment},
            text=True,
        )
        while (line := process.stdout.readline()) and _DONE not in line:
            pass
        seconds, cpu = time.monotonic() - begin, _cpu_of_tree(process.pid) if line else 0.0
        process.communicate("\n")
        if not line:
            raise SystemExit(f"{engine}: {statement} failed:\n{program}")
        return Run(self.size.name, engine, statement, seconds, cpu)

    def _kept(self, folder: str) -> Path:
        return self._home / f"{folder}-kept"


def _write_lake(folder: Path, files: tuple[Path, ...]) -> None:
    program = f"""
        import icefloe
        with icefloe.connect({str(folder)!r}) as lake:
            lake.create_namespace("bench")
            files = {[str(file) for file in files]!r}
            read = lake.spark.read.parquet
            table = lake.create_table("bench.rows", read(files[0]).schema, properties={_MODES!r})
            for file in files:
                table.append(read(file).coalesce(1))
    """
    subprocess.run([_python("icefloe"), "-c", dedent(program)], check=True, cwd=ROOT)


def _write_delta(folder: Path, files: tuple[Path, ...]) -> None:
    program = f"""
        import pyarrow.parquet as pq
        from deltalake import write_deltalake
        for file in {[str(file) for file in files]!r}:
            write_deltalake({str(folder)!r}, pq.read_table(file), mode="append",
                            target_file_size=2**30)
    """
    subprocess.run([_python("deltars"), "-c", dedent(program)], check=True, cwd=ROOT)


_WRITERS = {"lake": _write_lake, "delta": _write_delta}


def _python(engine: str) -> str:
    own = ROOT / ENGINES[engine].python / "bin" / "python"
    return sys.executable if ENGINES[engine].python == ".venv" else str(own)


def _is_installed(engine: str) -> bool:
    if Path(_python(engine)).exists():
        return True
    print(f"{engine} is left out: {ENGINES[engine].python} does not exist")
    return False


def _cpu_of_tree(pid: int) -> float:
    """Processor seconds of a process, of its descendants, and of those that have ended."""
    root, total = psutil.Process(pid), 0.0
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _line(run: Run) -> str:
    return (
        f"{run.size} {run.statement} {run.engine}: {run.seconds:.2f} s, "
        f"{run.cpu_seconds:.2f} s of processor time"
    )


if __name__ == "__main__":
    main()
