"""A standalone Spark cluster on this machine: a master and one worker."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

_DEPLOY = "org.apache.spark.deploy"
_HERE = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
_START_S = 60


@contextmanager
def standalone_cluster(folder: Path, *, cores: int, memory: str) -> Iterator[str]:
    """Start both processes, yield the master's address, and stop them."""
    folder.mkdir(parents=True, exist_ok=True)
    started: list[subprocess.Popen[bytes]] = []
    try:
        log = folder / "master.log"
        started.append(_spark_class(f"{_DEPLOY}.master.Master", *_HERE, log=log))
        url = _wait_for(log, r"Starting Spark master at (spark://\S+)", started[0])
        log = folder / "worker.log"
        limits = ("--cores", str(cores), "--memory", memory, "--work-dir", str(folder / "work"))
        started.append(_spark_class(f"{_DEPLOY}.worker.Worker", *_HERE, *limits, url, log=log))
        _wait_for(log, r"(Successfully registered)", started[1])
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
    settings = {
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with log.open("wb") as output:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), name, *arguments],
            cwd=log.parent,
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _wait_for(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and process.poll() is None:
        if match := re.search(pattern, log.read_text(errors="replace")):
            return match[1]
        time.sleep(0.2)
    raise RuntimeError(
        f"{log.name} has no line that matches {pattern!r}: "
        f"{log.read_text(errors='replace')[-2000:]}"
    )
