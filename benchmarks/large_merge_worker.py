"""The process that `benchmarks.large_merge` measures: creates the tables, upserts, checks.

Spark writes, reads and checks table and source: no row passes through this process.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import icefloe
from benchmarks.cluster import standalone_cluster
from benchmarks.large_merge import UPSERT
from benchmarks.worker import Parent, WrongResultError, plain, take_stdout

_SCHEMA = "id BIGINT, version INT, value BIGINT, amount DOUBLE, name STRING, note STRING"


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    parent = Parent(take_stdout(), sys.stdin)
    with ExitStack() as stack:
        spark = _cluster_session(job, stack) if job["cluster"] else None
        lake = icefloe.connect(Path(job["folder"]) / "lake", spark=spark)
        stack.callback(lake.stop)
        _run(lake, job, parent)
    parent.send("end")


def _cluster_session(job: dict[str, Any], stack: ExitStack) -> SparkSession:
    """A session on its own cluster, so that driver and executor have separate JVMs."""
    folder = Path(job["folder"]) / "cluster"
    cluster = standalone_cluster(folder, cores=job["cores"], memory=job["worker_memory"])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master(stack.enter_context(cluster))
        .config("spark.executor.memory", job["memory"])
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def _run(lake: icefloe.Lake, job: dict[str, Any], parent: Parent) -> None:
    spark, rows = lake.spark, job["rows"]
    if not hasattr(icefloe.Table, "upsert"):
        parent.send("result", status="left out", reason="this version of icefloe has no MERGE")
        return
    parent.send("progress", text=f"writing the table: {rows:,} rows")
    parent.enter("table")
    table = lake.create_table("bench.large", _SCHEMA)
    table.append(_rows(spark.range(0, rows, 1, job["files"]), version=1))
    parent.enter(None)
    parent.send("progress", text=f"writing the source: {rows:,} rows, half of them new")
    parent.enter("source")
    source = Path(job["folder"]) / "source"
    _source_rows(spark, rows, job["files"]).write.parquet(str(source))
    parent.enter(None)
    parent.send(
        "tables",
        target_files=_data_files(job)[0],
        target_bytes=_data_files(job)[1],
        source_bytes=sum(file.stat().st_size for file in source.glob("*.parquet")),
        versions=_versions(spark),
    )
    _upsert(table, spark.read.parquet(str(source)), job, parent)


def _upsert(table: icefloe.Table, source: DataFrame, job: dict[str, Any], parent: Parent) -> None:
    _, bytes_before = _data_files(job)
    parent.send("progress", text=f"upsert, {job['mode']}")
    parent.enter(UPSERT)
    started = time.perf_counter()
    try:
        result = table.upsert(source, on=["id"]).with_options(mode=job["mode"]).execute()
        seconds = time.perf_counter() - started
        parent.enter(None)
        parent.send("progress", text=f"{seconds:.1f} s; checking")
        parent.enter("check")
        _check(table, result, job["rows"])
        parent.enter(None)
    except Exception as failed:
        traceback.print_exc()
        parent.enter(None)
        parent.send("result", status="failed", reason=f"{type(failed).__name__}: {failed}")
        return
    parent.send(
        "result",
        status="ok",
        seconds=seconds,
        bytes_written=_data_files(job)[1] - bytes_before,
        reported=plain(asdict(result)),
    )


def _rows(ids: DataFrame, version: int) -> DataFrame:
    """All columns are computed from the id, so no second table is needed to check them."""
    return ids.selectExpr(
        "id",
        f"{version} AS version",
        f"id * 3 + {version} AS value",
        "cast(xxhash64(id) AS DOUBLE) / 1000 AS amount",
        "concat('customer-', lpad(cast(pmod(xxhash64(id, 1), 100000) AS STRING), 6, '0')) AS name",
        "substr(sha2(cast(id AS STRING), 256), 1, 24) AS note",
    )


def _source_rows(spark: SparkSession, rows: int, files: int) -> DataFrame:
    """Every other id of the table and as many new ids, shuffled."""
    half = rows // 2
    ids = spark.range(0, rows, 1, files).selectExpr(
        f"CASE WHEN id < {half} THEN id * 2 ELSE id + {half} END AS id"
    )
    return _rows(ids.repartition(files, "id"), version=2)


def _check(table: icefloe.Table, result: icefloe.DmlResult, rows: int) -> None:
    half = rows // 2
    counts = (result.rows_updated, result.rows_inserted, result.rows_deleted)
    if counts != (half, half, 0):
        raise WrongResultError(f"updated, inserted, deleted: {counts}, expected {(half, half, 0)}")
    actual = tuple(
        table.scan()
        .selectExpr(
            "count(*)",
            "count_if(version = 2)",
            "count_if(value <> id * 3 + version)",
            f"count_if(version <> if(id >= {rows} OR id % 2 = 0, 2, 1))",
            "sum(id)",
        )
        .first()
    )
    last = rows + half - 1
    expected = (rows + half, rows, 0, 0, last * (last + 1) // 2)
    if actual != expected:
        raise WrongResultError(
            f"count, of version 2, wrong values, wrong versions, sum of ids: "
            f"{actual}, expected {expected}"
        )


def _data_files(job: dict[str, Any]) -> tuple[int, int]:
    """Number and bytes of all Parquet files in the lake."""
    sizes = [file.stat().st_size for file in (Path(job["folder"]) / "lake").rglob("*.parquet")]
    return len(sizes), sum(sizes)


def _versions(spark: SparkSession) -> dict[str, str]:
    conf = spark.sparkContext.getConf()
    settings = ("spark.driver.memory", "spark.executor.memory")
    return {
        **{name: version(name) for name in ("icefloe", "pyspark", "pyiceberg", "pyarrow")},
        **{key: conf.get(key) for key in settings if conf.contains(key)},
        "spark.sql.shuffle.partitions": spark.conf.get("spark.sql.shuffle.partitions"),
    }


if __name__ == "__main__":
    main()
