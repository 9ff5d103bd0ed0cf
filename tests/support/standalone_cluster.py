"""A Spark cluster on loopback: a master, two workers of one core each, and a Python for them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

WORKERS = 2
ON_WORKERS = ("pyarrow", "numpy", "pandas", "dateutil", "pytz", "six", "tzdata")


@dataclass(frozen=True)
class Cluster:
    """A running cluster."""

    url: str
    workers: Sequence[subprocess.Popen[bytes]]

    def kill_worker(self, number: int) -> None:
        """kill -9 a worker, its executors and their Python processes."""
        kill_tree(self.workers[number].pid)


def kill_tree(pid: int) -> None:
    """kill -9 a process and all that it started."""
    process = psutil.Process(pid)
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            each.kill()


def python_of_workers(folder: Path) -> str:
    """A Python for the workers: PyArrow and what PySpark needs with it, nothing of ours."""
    home = folder / "venv"
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


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Cluster]:
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
        yield Cluster(url, started[1:])
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
