"""Iceberg's own runtime for Spark 4.1, in its own environment; statements are SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from benchmarks.digest import AGGREGATES, Digest
from benchmarks.peers.peer import COPY_ON_WRITE, NOTHING_TO_READ, Facts
from benchmarks.peers.spark_sql import run_sql
from benchmarks.statements import BoundStatement, Kind

_SPARK = "4.1"
_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_SQLITE = "org.xerial:sqlite-jdbc:3.46.1.3"  # the same kind of catalog as icefloe's
_CATALOG = "bench"
_TABLE = "rows"
_NAME = f"{_CATALOG}.db.{_TABLE}"
_MERGED = "spark.merge-into.num-target-rows-"

# The same settings as in icefloe's session.
_SESSION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "16",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


class IcebergPeer:
    """Copy-on-write or merge-on-read, format version 2 as icefloe's tables."""

    def __init__(self, folder: Path, mode: str) -> None:
        if not pyspark.__version__.startswith(f"{_SPARK}."):
            raise RuntimeError(f"PySpark {pyspark.__version__} is installed, expected {_SPARK}")
        self._mode = mode
        self._folder = folder / "warehouse"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._spark = _session(folder)
        self._base = 0

    @property
    def table_folder(self) -> Path:
        return self._folder

    def setup(self, files: Sequence[Path]) -> None:
        modes = ", ".join(
            f"'write.{kind}.mode' = '{self._mode}'" for kind in ("delete", "update", "merge")
        )
        rows = self._spark.read.parquet(str(files[0]))
        columns = ", ".join(
            f"{field.name} {field.dataType.simpleString()}" for field in rows.schema
        )
        self._spark.sql(f"CREATE NAMESPACE {_CATALOG}.db")
        self._spark.sql(
            f"CREATE TABLE {_NAME} ({columns}) USING iceberg "
            f"TBLPROPERTIES ('format-version' = '2', {modes})"
        )
        for file in files:
            self._spark.read.parquet(str(file)).coalesce(1).writeTo(_NAME).append()
        self._base = self._snapshot()[0]

    def reason_to_leave_out(self, bound: BoundStatement) -> str | None:
        if bound.statement.kind is Kind.SCAN and self._mode == COPY_ON_WRITE:
            return NOTHING_TO_READ
        return None

    def run(self, bound: BoundStatement) -> Facts:
        if bound.statement.kind is Kind.SCAN:
            return Facts(answer=self.digest(bound.where))
        run_sql(self._spark, _NAME, bound)
        return Facts(reported={"kind": str(bound.statement.kind)})

    def settle(self, facts: Facts) -> Facts:
        """Counts are in the snapshot's summary; copy-on-write has none for an UPDATE."""
        if facts.answer is not None:
            return facts
        _, operation, summary = self._snapshot()
        reported = {**facts.reported, "operation": operation, **summary}
        return replace(facts, reported=reported, rows_changed=_rows_changed(facts, summary))

    def restore(self) -> None:
        if self._snapshot()[0] != self._base:
            self._spark.sql(
                f"CALL {_CATALOG}.system.rollback_to_snapshot("
                f"table => 'db.{_TABLE}', snapshot_id => {self._base})"
            )

    def live_files(self) -> frozenset[str] | None:
        return None  # copy-on-write has no scans

    def digest(self, where: str = "") -> Digest:
        rows = self._spark.table(_NAME)
        rows = rows.where(where) if where else rows
        return Digest(*rows.selectExpr(*AGGREGATES).first())

    def versions(self) -> Mapping[str, str]:
        conf = self._spark.sparkContext.getConf()
        return {
            "iceberg": _RUNTIME.rpartition(":")[2],
            "pyspark": pyspark.__version__,
            "pyarrow": version("pyarrow"),
            "java": self._spark.sparkContext._jvm.System.getProperty("java.version"),
            "spark.master": conf.get("spark.master"),
            "spark.driver.memory": conf.get("spark.driver.memory"),
            "mode": self._mode,
        }

    def close(self) -> None:
        self._spark.stop()

    def _snapshot(self) -> tuple[int, str, dict[str, str]]:
        """The current snapshot's id, operation and summary."""
        snapshot = self._spark.sql(
            f"SELECT s.snapshot_id, s.operation, s.summary FROM {_NAME}.refs r "
            f"JOIN {_NAME}.snapshots s ON s.snapshot_id = r.snapshot_id WHERE r.name = 'main'"
        ).first()
        return snapshot.snapshot_id, snapshot.operation, dict(snapshot.summary)


def _session(folder: Path) -> SparkSession:
    catalog = f"spark.sql.catalog.{_CATALOG}"
    settings = {
        **_SESSION,
        "spark.jars.packages": f"{_RUNTIME},{_SQLITE}",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{catalog}.uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
        f"{catalog}.warehouse": (folder / "warehouse").as_uri(),
        f"{catalog}.jdbc.schema-version": "V1",
    }
    builder = SparkSession.builder.master("local[*]").appName("benchmark")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _rows_changed(facts: Facts, summary: Mapping[str, str]) -> int | None:
    def number(key: str) -> int:
        return int(summary.get(key, "0"))

    match facts.reported["kind"]:
        case Kind.DELETE:
            removed = number("deleted-records") - number("added-records")
            return removed + number("added-position-deletes")
        case Kind.UPDATE:
            return number("added-position-deletes") or None
    if f"{_MERGED}inserted" not in summary:  # an insert-only MERGE is an append
        return number("added-records")
    return sum(number(f"{_MERGED}{kind}") for kind in ("inserted", "updated", "deleted"))
