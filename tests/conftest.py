"""One local Spark session per run; a SQLite lake per test; behaviours run in every mode."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import icefloe
from icefloe import Lake, Table
from icefloe.commands import update_delete
from icefloe.commands.merge import local
from support.postgresql import running_server

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["TZ"] = "UTC"
os.environ["ICEFLOE_CLASS_ARCHIVES"] = "off"  # nothing is made in the background
# Short queries, in this JVM and in those of programs that tests start: compiling them well costs
# more than it saves. Most objects die young: a large young generation saves collections.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:NewRatio=1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    by_function: dict[str, list[pytest.Item]] = {}
    for item in items:
        # Tests that start Spark without this fixture have the mark in their module.
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            by_function.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, variants in by_function.items():
        for item in left_to_test_all(name, variants):
            item.add_marker(pytest.mark.slow)


def left_to_test_all(name: str, variants: list[pytest.Item]) -> list[pytest.Item]:
    """The variants of a test with Spark that only `make test-all` runs.

    `make test` runs every third case of a list, and of the combinations of several parameters
    (modes, layouts, times of the other writer, cases) one. Which one depends on the test's name, so
    that every mode and layout has its share of the tests. Tests with the mark `every_variant` are
    run in all of them.
    """
    quick = [item for item in variants if item.get_closest_marker("slow") is None]
    if len(quick) < 2 or quick[0].get_closest_marker("every_variant"):
        return []
    indexes = [item.callspec.indices for item in quick]
    # Parameters that vary together, as the values of one case, are one dimension.
    dimensions = {tuple(index[p] for index in indexes) for p in indexes[0]}
    number = zlib.crc32(name.encode())
    if len(dimensions) == 1 and len(quick) > 3:
        return [item for i, item in enumerate(quick) if i % 3 != number % 3]
    return [item for i, item in enumerate(quick) if i != number % len(quick)]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2]")
        .appName("icefloe tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
        .config("spark.driver.memory", "3g")
        # What Spark keeps of finished jobs and queries fills the heap.
        .config("spark.ui.retainedTasks", "1000")
        .config("spark.sql.ui.retainedExecutions", "5")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")  # results of more than 1 MB are fetched from it
        # As in sessions that icefloe starts: pages that few rows fill, and PySpark does not look at the stack for every column.
        .config("spark.buffer.pageSize", "2m")
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URI of a fresh PostgreSQL server, which asks for no password."""
    with running_server() as uri:
        yield uri


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    with icefloe.connect(tmp_path / "lake", spark=spark) as opened:
        yield opened


# Folders whose tests are about changes that Spark makes, and those of which every second test is.
BY_SPARK = {"dml", "merge", "indexes"}
BY_BOTH = {"concurrency", "interop", "properties"}


@pytest.fixture(autouse=True)
def changed_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who makes changes of few rows in small files, which both can: the driver or Spark.

    `@pytest.mark.changed_by("driver")` decides it for a test.
    """
    marker = request.node.get_closest_marker("changed_by")
    folder = request.path.parent.name
    if marker is not None:
        [who] = marker.args
    else:
        odd = zlib.crc32(request.node.name.encode()) % 2
        who = "spark" if folder in BY_SPARK or (folder in BY_BOTH and odd) else "driver"
    if who == "spark":
        leave_small_changes_to_spark(monkeypatch)
    return str(who)


def leave_small_changes_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_delete, "commits_locally", lambda _plan: False)
    monkeypatch.setattr(local, "may_be_read", lambda _files: False)


@pytest.fixture
def jobs(spark: SparkSession) -> Callable[[], int]:
    """Counts the jobs that the session has started; the status tracker forgets old ones."""
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    return lambda: int(scheduler.numTotalJobs())


@pytest.fixture(params=["copy-on-write", "merge-on-read"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[(), ("region",)], ids=["unpartitioned", "partitioned"])
def partition_by(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return tuple(request.param)


TableOf = Callable[..., Table]


@pytest.fixture
def table_of(lake: Lake) -> TableOf:
    """Makes a table of rows: `table_of("id BIGINT, region STRING", rows, mode=…)`."""
    numbers = iter(range(1000))

    def make(
        schema: str,
        *batches: list[dict[str, Any]],
        mode: str = "merge-on-read",
        partition_by: tuple[str, ...] = (),
        **options: Any,
    ) -> Table:
        modes = {f"write.{kind}.mode": mode for kind in ("delete", "update", "merge")}
        properties = {**modes, **options.pop("properties", {})}
        table = lake.create_table(
            f"t{next(numbers)}",
            schema,
            partition_by=partition_by,
            properties=properties,
            **options,
        )
        for rows in batches:
            table.append(rows)
        return table

    return make
