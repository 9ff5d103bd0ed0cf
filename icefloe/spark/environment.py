"""What Spark needs of this machine: Java, libraries, memory. Imports nothing of Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from icefloe.errors import SetupError

_JAVA = 17
_VERSIONS = {"pyspark": ("4.1", "4.4"), "pyiceberg": ("0.12", "0.13"), "pyarrow": ("21", "27")}
LIBRARIES = tuple(_VERSIONS)

_MEMORY_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def check_versions() -> None:
    """Refuse library versions that icefloe was not tested with."""
    for package in LIBRARIES:
        check_version(package)


def check_version(package: str) -> str:
    """The version of one of the LIBRARIES, if icefloe was tested with it."""
    least, below = _VERSIONS[package]
    advice = f"Install it with: pip install '{package}>={least},<{below}'"
    try:
        installed = version(package)
    except PackageNotFoundError as missing:
        raise SetupError(f"{package} is not installed. {advice}") from missing
    if not _numbers(least) <= _numbers(installed) < _numbers(below):
        raise SetupError(
            f"{package} {installed} is installed; icefloe needs {package}>={least},<{below}. "
            f"{advice}"
        )
    return installed


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


@dataclass(frozen=True, slots=True)
class Java:
    """The Java that Spark starts."""

    path: str
    version: str


def check_java() -> Java:
    """Raise a clear error if Spark would fail to start for lack of a suitable Java."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    advice = f"Spark needs Java {_JAVA} or newer: install it (on Debian: apt-get install "
    advice += f"openjdk-{_JAVA}-jre-headless) or set JAVA_HOME."
    if java is None:
        where = f"JAVA_HOME is {home}, which has no bin/java. " if home else ""
        raise SetupError(f"No Java was found. {where}{advice}")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as failed:
        raise SetupError(f"Java at {java} cannot be run: {failed}. {advice}") from failed
    found = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', answer.stderr + answer.stdout)
    if found is None or int(found[2]) < _JAVA:
        shown = found[2] if found else "of an unknown version"
        raise SetupError(f"Java {shown} was found at {java}. {advice}")
    return Java(java, found[1])


def heap_bytes(memory: int) -> int:
    """The heap of a session that icefloe starts: a quarter of the memory, from 1 GB to 4."""
    return min(max(memory // 4, 2**30), 2**32)


def memory_bytes() -> int:
    """The memory of this machine or container; 0 if it is unknown."""
    limits = []
    with suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in _MEMORY_LIMITS:
        with suppress(OSError, ValueError):  # "max" where there is no limit
            limits.append(int(file.read_text()))
    return min(limits, default=0)
