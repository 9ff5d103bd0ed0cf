"""MERGE runs on tables without partitions and with three kinds of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

LAYOUTS = [
    pytest.param((), id="unpartitioned"),
    pytest.param(("region",), id="identity"),
    pytest.param(("bucket(4, id)",), id="bucket"),
    pytest.param(("days(ts)",), id="days"),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Files whose tables have the columns for it run in all layouts."""
    if "partition_by" in metafunc.fixturenames:
        layouts = LAYOUTS if _has_all_columns(metafunc.module) else LAYOUTS[:2]
        metafunc.parametrize("partition_by", layouts, indirect=True)


def _has_all_columns(module: object) -> bool:
    return "ts TIMESTAMP" in getattr(module, "SCHEMA", "")


@pytest.fixture
def partition_by(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return tuple(request.param)


@pytest.fixture
def shuffled(spark: SparkSession) -> Iterator[None]:
    """No side of a join may be broadcast."""
    setting = "spark.sql.autoBroadcastJoinThreshold"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "-1")
    yield
    spark.conf.set(setting, before)
