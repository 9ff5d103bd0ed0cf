"""MERGE runs on tables without partitions and with three kinds of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

LAYOUTS = [
    pytest.param((), id="unpartitioned"),
    pytest.param(("region",), id="identity"),
    pytest.param(("bucket(4, id)",), id="bucket", marks=pytest.mark.slow),
    pytest.param(("days(ts)",), id="days", marks=pytest.mark.slow),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Files whose tables have all columns for it run in every layout; two of them are slow."""
    has_columns = "ts TIMESTAMP" in getattr(metafunc.module, "SCHEMA", "")
    if has_columns and "partition_by" in metafunc.fixturenames:
        metafunc.parametrize("partition_by", LAYOUTS)


@pytest.fixture
def shuffled(spark: SparkSession) -> Iterator[None]:
    """No side of a join may be broadcast."""
    setting = "spark.sql.autoBroadcastJoinThreshold"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "-1")
    yield
    spark.conf.set(setting, before)
