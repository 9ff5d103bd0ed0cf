"""The same suite on a standalone cluster or over Spark Connect, as ICEFLOE_TEST_BACKEND says.

Either way the workers' Python has PyArrow and NumPy but not icefloe. A classic session and a
Connect session do not share a process, so each backend is a run of its own.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, chdir

import pytest
from pyspark.sql import SparkSession

from support.standalone_cluster import python_of_workers, standalone_cluster

SETTINGS = {
    "spark.log.level": "OFF",  # errors are raised, and told in our words
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


@pytest.fixture(scope="session")
def backend() -> str:
    chosen = os.environ.get("ICEFLOE_TEST_BACKEND", "")
    if chosen not in ("cluster", "connect"):
        pytest.skip("set ICEFLOE_TEST_BACKEND to cluster or connect")
    return chosen


@pytest.fixture(scope="session")
def worker_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return python_of_workers(tmp_path_factory.mktemp("workers"))


@pytest.fixture(scope="session")
def spark(
    backend: str, worker_python: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    with ExitStack() as stack:
        os.environ["PYSPARK_PYTHON"] = worker_python
        # Workers of a local server look for modules where the server was started: not here.
        stack.enter_context(chdir(folder))
        if backend == "connect":
            builder = SparkSession.builder.remote("local[2]")
        else:
            cluster = stack.enter_context(standalone_cluster(folder))
            builder = SparkSession.builder.master(cluster.url)
            builder = builder.config("spark.executor.memory", "1g")
        for key, value in SETTINGS.items():
            builder = builder.config(key, value)
        with warnings.catch_warnings():
            # A Connect session starts its server with all settings, then fails to set some again.
            warnings.filterwarnings("ignore", "Failed to set spark")
            session = builder.getOrCreate()
        stack.callback(session.stop)
        yield session
