"""One Spark session with Iceberg's own runtime, on the same catalog database as icefloe's lake.

The catalog's name is the one that icefloe's embedded catalog has: both engines find their tables
in the database under it. A runtime exists for Spark 4.1 only, so `make test-iceberg` runs these
tests in an environment of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import icefloe
from icefloe import Lake
from icefloe.lake import EMBEDDED_CATALOG
from support.two_engines import Both

_SPARK = "4.1"
_PACKAGES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.46.1.3",
)
_CATALOG = f"spark.sql.catalog.{EMBEDDED_CATALOG}"


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("iceberg") / "lake"


@pytest.fixture(scope="session")
def spark(warehouse: Path) -> Iterator[SparkSession]:
    if not pyspark.__version__.startswith(f"{_SPARK}."):
        pytest.fail(
            f"PySpark {pyspark.__version__} is installed, and Iceberg's runtime is made for "
            f"{_SPARK}. Use `make test-iceberg`."
        )
    if SparkSession.getActiveSession() is not None:
        pytest.fail(
            "A Spark session without Iceberg's runtime is running. Use `make test-iceberg`."
        )
    session = (
        SparkSession.builder.master("local[2]")
        .appName("icefloe and Iceberg take turns")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")  # jars are fetched from it
        .config("spark.driver.extraJavaOptions", "-Duser.timezone=UTC")
        .config("spark.jars.packages", ",".join(_PACKAGES))
        .config(
            "spark.sql.extensions",
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        )
        .config(_CATALOG, "org.apache.iceberg.spark.SparkCatalog")
        .config(f"{_CATALOG}.catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog")
        .config(f"{_CATALOG}.uri", f"jdbc:sqlite:{warehouse / 'catalog.db'}?busy_timeout=60000")
        .config(f"{_CATALOG}.warehouse", warehouse.as_uri())
        .config(f"{_CATALOG}.jdbc.schema-version", "V1")
        .config(f"{_CATALOG}.cache-enabled", "false")  # icefloe's commits must be seen at once
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def lake(spark: SparkSession, warehouse: Path) -> Iterator[Lake]:
    """One lake for all tests, since the session's catalog has one place; tables are a test's own."""
    with icefloe.connect(warehouse, spark=spark) as opened:
        opened.create_namespace("turns")
        yield opened


MakeBoth = Callable[..., Both]


@pytest.fixture
def both(lake: Lake, request: pytest.FixtureRequest) -> MakeBoth:
    """Names a table of the test's own: `both()`, or `both("id BIGINT, n INT")`."""
    test = re.sub(r"\W+", "_", request.node.name).strip("_").lower()
    numbers = iter(range(1000))
    return lambda *schema: Both(lake, f"turns.{test}_{next(numbers)}", *schema)
