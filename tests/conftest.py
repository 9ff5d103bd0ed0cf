"""One local Spark session per run; a SQLite lake per test; behaviours run in every mode."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import icefloe
from icefloe import Lake, Table

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["TZ"] = "UTC"
# Short queries, in this JVM and in those of programs that tests start: compiling them well costs
# more than it saves.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


# Of the tests in both modes and several layouts, `make test` runs each mode, and partitioned or not.
QUICK = [("copy-on-write", ()), ("merge-on-read", ("region",))]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_slow_combination(item):
            item.add_marker(pytest.mark.slow)
        # Tests that start Spark without this fixture have the mark in their module.
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


def is_slow_combination(item: pytest.Item) -> bool:
    """Whether only `make test-all` runs this combination of mode and partitions."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if not {"mode", "partition_by"} <= set(params):
        return False
    return (params["mode"], tuple(params["partition_by"])) not in QUICK


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
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    with icefloe.connect(tmp_path / "lake", spark=spark) as opened:
        yield opened


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
