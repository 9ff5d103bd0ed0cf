"""Sail, a Spark Connect server in Rust, inside the peer's process; statements are SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession

from benchmarks.digest import AGGREGATES, Digest
from benchmarks.peers.peer import COPY_ON_WRITE, NOTHING_TO_READ, Facts
from benchmarks.peers.spark_sql import run_sql
from benchmarks.statements import BoundStatement, Kind
from benchmarks.table_state import is_metadata

_NAME = "rows"
_TARGET_FILE_BYTES = 2**30  # one file for each input file; statements use its default
# Before version 3, merge-on-read has no UPDATE, and no DELETE where columns are floating-point.
_ICEBERG_PROPERTIES = {"format-version": "3"}


class SailPeer:
    """Copy-on-write on a Delta table, or merge-on-read on an Iceberg table of version 3."""

    def __init__(self, folder: Path, table_format: str, mode: str) -> None:
        self._format = table_format
        self._mode = mode
        self._folder = folder / _NAME
        self._server = SparkConnectServer()
        self._server.start(background=True)
        host, port = self._server.listening_address
        self._spark = SparkSession.builder.remote(f"sc://{host}:{port}").getOrCreate()
        self._base: dict[Path, bytes] = {}

    @property
    def table_folder(self) -> Path:
        return self._folder

    def setup(self, files: Sequence[Path]) -> None:
        schema = self._spark.read.parquet(str(files[0])).schema
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
        self._spark.sql(
            f"CREATE TABLE {_NAME} ({columns}) USING {self._format} "
            f"LOCATION '{self._folder.as_uri()}'{self._properties()}"
        )
        for file in files:
            rows = self._spark.read.parquet(str(file)).coalesce(1)
            writer = rows.write.format(self._format).mode("append")
            writer.option("target_file_size", _TARGET_FILE_BYTES).save(self._folder.as_uri())
        self._base = self._metadata()

    def _properties(self) -> str:
        if self._mode == COPY_ON_WRITE:
            return ""
        modes = {f"write.{kind}.mode": self._mode for kind in ("delete", "update", "merge")}
        properties = {**_ICEBERG_PROPERTIES, **modes}
        clauses = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        return f" TBLPROPERTIES ({clauses})"

    def reason_to_leave_out(self, bound: BoundStatement) -> str | None:
        if bound.statement.kind is Kind.SCAN and self._mode == COPY_ON_WRITE:
            return NOTHING_TO_READ
        return None

    def run(self, bound: BoundStatement) -> Facts:
        if bound.statement.kind is Kind.SCAN:
            return Facts(answer=self.digest(bound.where))
        run_sql(self._spark, _NAME, bound)
        return Facts()

    def settle(self, facts: Facts) -> Facts:
        return facts

    def restore(self) -> None:
        """Restore the files of the table's log: Sail has no rollback."""
        for path, content in self._metadata().items():
            if path not in self._base:
                path.unlink()
            elif content != self._base[path]:
                path.write_bytes(self._base[path])
        for path in self._base.keys() - self._metadata().keys():
            path.write_bytes(self._base[path])

    def _metadata(self) -> dict[Path, bytes]:
        return {
            path: path.read_bytes()
            for path in self._folder.rglob("*")
            if path.is_file() and is_metadata(path)
        }

    def live_files(self) -> frozenset[str] | None:
        return None  # copy-on-write has no scans

    def digest(self, where: str = "") -> Digest:
        rows = self._spark.table(_NAME)
        rows = rows.where(where) if where else rows
        return Digest(*(int(value) for value in rows.selectExpr(*AGGREGATES).first()))

    def versions(self) -> Mapping[str, str]:
        return {
            "pysail": version("pysail"),
            "pyspark": version("pyspark"),
            "pyarrow": version("pyarrow"),
            "table": self._format + (" version 3" if self._mode != COPY_ON_WRITE else ""),
            "mode": self._mode,
        }

    def close(self) -> None:
        self._spark.stop()
        self._server.stop()
