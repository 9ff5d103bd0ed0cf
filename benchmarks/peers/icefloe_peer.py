"""icefloe in one of its modes, in the session that it starts itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark

import icefloe
from benchmarks.digest import AGGREGATES, Digest
from benchmarks.merges import ON, Action, Clause, When
from benchmarks.peers.peer import COPY_ON_WRITE, NOTHING_TO_READ, Facts
from benchmarks.statements import BoundStatement, Kind

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
        defaults = {key: spark.conf.get(key) for key in _SPLIT_SETTINGS}
        for key in defaults:
            spark.conf.set(key, _ONE_SPLIT_BYTES)  # a file in two splits would lose its order
        for file in files:
            self._table.append(spark.read.parquet(str(file)))
        for key, value in defaults.items():
            spark.conf.set(key, value)
        self._base = self._table.snapshot_id

    def reason_to_leave_out(self, bound: BoundStatement) -> str | None:
        if bound.statement.kind is Kind.MERGE and not hasattr(icefloe.Table, "merge"):
            return "this version of icefloe has no MERGE"
        if bound.statement.kind is Kind.SCAN and self._mode == COPY_ON_WRITE:
            return NOTHING_TO_READ
        return None

    def run(self, bound: BoundStatement) -> Facts:
        if bound.statement.kind is Kind.SCAN:
            return Facts(answer=self.digest(bound.where))
        statement = self._statement(bound).with_options(mode=self._mode)
        result = statement.execute()
        return Facts(result.total_affected, reported=asdict(result))

    def _statement(self, bound: BoundStatement) -> Any:
        match bound.statement.kind:
            case Kind.DELETE:
                return self._table.delete().where(bound.where)
            case Kind.UPDATE:
                update = self._table.update()
                for column, expression in bound.assignments.items():
                    update = update.set(column, expression)
                return update.where(bound.where)
        merge = self._table.merge(self._lake.spark.read.parquet(bound.source), on=ON)
        for clause in bound.statement.merge.clauses:
            merge = _with_clause(merge, clause)
        return merge

    def settle(self, facts: Facts) -> Facts:
        return facts

    def restore(self) -> None:
        self._lake.spark.conf.get("spark.app.name")  # raises when the JVM has exited
        if self._table.snapshot_id != self._base:
            self._table.rollback(self._base)

    def live_files(self) -> frozenset[str] | None:
        return None  # copy-on-write has no scans

    def digest(self, where: str = "") -> Digest:
        rows = self._table.scan(where=where or None)
        return Digest(*rows.selectExpr(*AGGREGATES).first())

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
            "spark.driver.memory": conf.get("spark.driver.memory"),
            "mode": self._mode,
        }

    def close(self) -> None:
        self._lake.stop()


def _with_clause(merge: Any, clause: Clause) -> Any:
    condition = () if clause.condition is None else (str(clause.condition),)
    match clause.when:
        case When.MATCHED:
            when = merge.when_matched(*condition)
        case When.NOT_MATCHED:
            when = merge.when_not_matched(*condition)
        case When.NOT_MATCHED_BY_SOURCE:
            when = merge.when_not_matched_by_source(*condition)
    match clause.action:
        case Action.UPDATE_ALL:
            return when.update_all()
        case Action.INSERT_ALL:
            return when.insert_all()
        case Action.DELETE:
            return when.delete()
