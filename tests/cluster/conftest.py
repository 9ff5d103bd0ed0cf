"""The same suite on a standalone cluster or over Spark Connect, as ICEFLOE_TEST_BACKEND says.

Either way the workers' Python has PyArrow and NumPy but not icefloe. A classic session and a
Connect session do not share a process, so each backend is a run of its own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

WORKERS = 2
SETTINGS = {
    "spark.log.level": "OFF",  # errors are raised, and told in our words
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
ON_WORKERS = ("pyarrow", "numpy", "pandas", "dateutil", "pytz", "six", "tzdata")


@pytest.fixture(scope="session")
def backend() -> str:
    chosen = os.environ.get("ICEFLOE_TEST_BACKEND", "")
    if chosen not in ("cluster", "connect"):
        pytest.skip("set ICEFLOE_TEST_BACKEND to cluster or connect")
    return chosen


@pytest.fixture(scope="session")
def worker_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python for the workers: PyArrow and what PySpark needs with it, nothing of ours."""
    home = tmp_path_factory.mktemp("workers") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    for name in ON_WORKERS:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin)
        found = origin.parent if origin.name == "__init__.py" else origin
        for path in (found, found.parent / f"{name}.libs"):
            if path.exists():
                (packages / path.name).symlink_to(path)
    return str(home / "bin" / "python")


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
            builder = SparkSession.builder.master(stack.enter_context(standalone_cluster(folder)))
            builder = builder.config("spark.executor.memory", "1g")
        for key, value in SETTINGS.items():
            builder = builder.config(key, value)
        with warnings.catch_warnings():
            # A Connect session starts its server with all settings, then fails to set some again.
            warnings.filterwarnings("ignore", "Failed to set spark")
            session = builder.getOrCreate()
        stack.callback(session.stop)
        yield session


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """A master and its workers on loopback, stopped in any case."""
    started: list[subprocess.Popen[bytes]] = []
    deploy = "org.apache.spark.deploy"
    here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    try:
        log = folder / "master.log"
        started.append(_spark_class(f"{deploy}.master.Master", *here, log=log))
        url = _wait_for(log, r"Starting Spark master at (spark://\S+)", started[0])
        for number in range(WORKERS):
            log = folder / f"worker{number}.log"
            work = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work{number}"))
            started.append(_spark_class(f"{deploy}.worker.Worker", *here, *work, url, log=log))
        for number, worker in enumerate(started[1:]):
            _wait_for(folder / f"worker{number}.log", r"(Successfully registered)", worker)
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _spark_class(name: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    left_out = ("PYTHONPATH", "SPARK_HOME")
    environment = {key: value for key, value in os.environ.items() if key not in left_out}
    environment |= {
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
    }
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    with log.open("wb") as output:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), name, *arguments],
            cwd=log.parent, env=environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip


def _wait_for(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.2)
    raise RuntimeError(f"{pattern!r} was not said: {log.read_text(errors='replace')[-2000:]}")
