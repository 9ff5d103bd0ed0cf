"""Programs that tests need and that no Python package has: built or downloaded once, then kept.

They are in a cache folder of the user, or in the folder that ICEFLOE_TEST_CACHE names.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import socket
import subprocess
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyspark
import requests


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name in the cache, which `make` fills at its first use.

    Runs at the same time wait for each other, and a run that was killed leaves no folder.
    """
    cache = Path(os.environ.get("ICEFLOE_TEST_CACHE") or Path.home() / ".cache" / "icefloe-tests")
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / name
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = cache / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


def built_with_go(name: str, package: str) -> Path:
    """A program that `go install` builds; raises CalledProcessError or FileNotFoundError."""

    def build(folder: Path) -> None:
        environment = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"}
        command = ["go", "install", package]
        subprocess.run(command, check=True, env=environment, capture_output=True, timeout=1200)

    program = package.partition("@")[0].rpartition("/")[2]
    return cached(name, build) / program


def installed_with_pip(name: str, python: str, *requirements: str) -> Path:
    """A virtual environment with these packages alone."""

    def install(folder: Path) -> None:
        # Scripts of an environment have its path in them, so it is addressed through its Python.
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements]
        subprocess.run(pip, check=True, timeout=1200)

    return cached(name, install)


def maven_jars(name: str, listed: Mapping[str, str]) -> list[Path]:
    """Jars of Maven Central by their paths there, checked against their SHA-256."""
    repository = _maven_repository()

    def fetch(folder: Path, path: str) -> None:
        answer = requests.get(repository + path, timeout=300)
        answer.raise_for_status()
        if hashlib.sha256(answer.content).hexdigest() != listed[path]:
            raise ValueError(f"{path} of Maven Central is not the file that it was.")
        (folder / path.rpartition("/")[2]).write_bytes(answer.content)

    def download(folder: Path) -> None:
        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(fetch, folder, path) for path in listed]:
                done.result()

    return sorted(cached(name, download).glob("*.jar"))


def _maven_repository() -> str:
    """Where Spark's packages come from: the default of Ivy, which PySpark has."""
    [ivy] = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    with zipfile.ZipFile(ivy) as jar:
        code = jar.read("org/apache/ivy/plugins/resolver/IBiblioResolver.class")
    [address] = re.findall(rb"https://[\w./-]+/maven2/", code)
    return bytes(address).decode()


# -------------------------------------------------------------------------------------------------
# Servers


def free_port() -> int:
    """A port of the loopback interface that nothing uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_server(
    command: Sequence[str], port: int, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a server and wait until it accepts connections on a port of 127.0.0.1."""
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, env={**os.environ, **environment}, cwd=log.parent,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    until = time.monotonic() + 60
    while time.monotonic() < until and server.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return server
        time.sleep(0.05)
    stop_server(server)
    raise RuntimeError(f"{command[0]} did not start: {log.read_text(errors='replace')[-2000:]}")


def stop_server(server: subprocess.Popen[bytes]) -> None:
    """End a server that `start_server` started, whatever it is doing."""
    server.terminate()
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
