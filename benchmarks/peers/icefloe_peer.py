"""icefloe, in one of its modes, in the session that it starts by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq
import pyspark

import icefloe
from benchmarks.digest import AGGREGATES, Digest
from benchmarks.peers.peer import Facts
from benchmarks.statements import ASSIGNED_COLUMN, ASSIGNED_EXPRESSION, BoundStatement, Kind

_ONE_SPLIT_BYTES = "1g"
_SPLIT_SETTINGS = ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")


class IcefloePeer:
    """Copy-on-write or merge-on-read."""

    def __init__(self, folder: Path, mode: str) -> None:
        self._mode = mode
        self._lake = icefloe.connect(folder / "lake")
        self._folder = folder / "lake"
        self._table: icefloe.Table | None = None
        self._base: int | None = None

    @property
    def table_folder(self) -> Path:
        return self._folder

    def setup(self, files: Sequence[Path]) -> None:
        spark = self._lake.spark
        self._table = self._lake.create_table("bench.rows", pq.read_schema(files[0]))
        usual = {key: spark.conf.get(key) for key in _SPLIT_SETTINGS}
        for key in usual:
            spark.conf.set(key, _ONE_SPLIT_BYTES)  # a file in two splits would lose its order
        for file in files:
            self._table.append(spark.read.parquet(str(file)))
        for key, value in usual.items():
            spark.conf.set(key, value)
        self._base = self._table.snapshot_id

    def reason_to_leave_out(self, bound: BoundStatement) -> str | None:
        known = bound.statement.kind in (Kind.DELETE, Kind.UPDATE)
        return None if known else f"no {bound.statement.kind} here yet"

    def run(self, bound: BoundStatement) -> Facts:
        if bound.statement.kind is Kind.DELETE:
            statement = self._table.delete()
        else:
            statement = self._table.update().set(ASSIGNED_COLUMN, ASSIGNED_EXPRESSION)
        result = statement.where(bound.where).with_options(mode=self._mode).execute()
        return Facts(result.total_affected, told=asdict(result))

    def settle(self, facts: Facts) -> Facts:
        return facts

    def restore(self) -> None:
        if self._table.snapshot_id != self._base:
            self._table.rollback(self._base)

    def digest(self) -> Digest:
        return Digest(*self._table.scan().selectExpr(*AGGREGATES).first())

    def versions(self) -> Mapping[str, str]:
        spark = self._lake.spark
        conf = spark.sparkContext.getConf()
        return {
            "icefloe": version("icefloe"),
            "pyspark": pyspark.__version__,
            "pyiceberg": version("pyiceberg"),
            "pyarrow": version("pyarrow"),
            "java": spark.sparkContext._jvm.System.getProperty("java.version"),
            "spark.master": conf.get("spark.master"),
            "spark.driver.memory": conf.get("spark.driver.memory", "1g (Spark's default)"),
            "mode": self._mode,
        }

    def close(self) -> None:
        self._lake.stop()
