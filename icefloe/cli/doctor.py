"""`icefloe doctor`: what this machine and a lake lack, with the way out.

Nothing of Spark is imported before Java and the libraries are known to be there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from rich.text import Text

from icefloe.cli.output import Format, Output, size, stdout
from icefloe.cli.records import of_dicts
from icefloe.errors import IcefloeError
from icefloe.redaction import redacted
from icefloe.spark.environment import LIBRARIES, check_java, check_version, heap_bytes, memory_bytes
from icefloe.version import __version__

PYTHONS = ((3, 11), (3, 12), (3, 13))  # tested, and declared in pyproject.toml
_EXTRAS = {
    "connect": ("grpc", "google.rpc", "zstandard"),
    "postgresql": ("psycopg",),
    "s3": ("boto3",),
    "text": ("snowballstemmer",),
    "ui": ("starlette", "uvicorn"),
    "vector": ("usearch",),
}
_LEAST_MEMORY = 2 * 2**30
_NAME_WIDTH = 9


class Status(StrEnum):
    """The outcome of a check; only FAILED makes the exit status 1."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


_STYLES = {
    Status.OK: "green",
    Status.WARNING: "yellow",
    Status.FAILED: "red",
    Status.SKIPPED: "dim",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report: what was found, or what is wrong and the way out."""

    check: str
    status: Status
    message: str


@dataclass(frozen=True, slots=True)
class Target:
    """The lake to look at; `is_named` if the user named it."""

    warehouse: Path | None
    catalog: str | None
    is_named: bool


def run_doctor(target: Target, output: Output, *, start_spark: bool) -> int:
    """Write one line for each check as it ends; returns the exit status."""
    checks = []
    for check in all_checks(target, start_spark=start_spark):
        checks.append(check)
        if output.format is Format.TABLE:
            _write_line(check)
    if output.format is not Format.TABLE:
        output.records(of_dicts([asdict(check) for check in checks]))
    return int(any(check.status is Status.FAILED for check in checks))


def all_checks(target: Target, *, start_spark: bool) -> Iterator[Check]:
    """Each check in the order in which one needs the other."""
    failed = []
    for name, check in _MACHINE.items():
        yield (one := run_check(name, check))
        if one.status is Status.FAILED:
            failed.append(name)
    if set(failed) & set(LIBRARIES):
        first = f"not looked at: first see {', '.join(failed)}"
        yield from (Check(name, Status.SKIPPED, first) for name in ("catalog", "store", "spark"))
        return
    try:
        with_libraries = import_module("icefloe.cli.lake_checks")
    except Exception as error:  # noqa: BLE001 - libraries are there, and broken
        message = f"icefloe cannot be imported: {type(error).__name__}: {error}. Reinstall it."
        yield Check("import", Status.FAILED, _one_line(message))
        return
    why_not = None if start_spark else "not started, as --no-spark says"
    if failed:
        why_not = f"not started: first see {', '.join(failed)}"
    yield from with_libraries.library_checks(target, why_not)


def run_check(name: str, check: Callable[[], tuple[Status, str] | str]) -> Check:
    """Run one check; every error is a failure of it."""
    try:
        found = check()
    except IcefloeError as error:
        return Check(name, Status.FAILED, _one_line(str(error)))
    except Exception as error:  # noqa: BLE001 - of any library: the report goes on
        return Check(name, Status.FAILED, _one_line(f"{type(error).__name__}: {error}"))
    status, message = (Status.OK, found) if isinstance(found, str) else found
    return Check(name, status, _one_line(message))


def _one_line(text: str) -> str:
    lines = [line.strip() for line in redacted(text).strip().splitlines() if line.strip()]
    return " ".join(lines[:3])


def _write_line(check: Check) -> None:
    name = f"{check.check:{_NAME_WIDTH}} "
    status = (f"{check.status:8}", _STYLES[check.status])
    stdout().print(Text.assemble(status, (name, "bold"), check.message))


# -------------------------------------------------------------------------------------------------
# The machine


def _icefloe() -> str:
    return f"{__version__} in {Path(__file__).parents[1]}"


def _python() -> tuple[Status, str] | str:
    running = f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}"
    if sys.version_info[:2] in PYTHONS:
        return running
    tested = ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    return Status.WARNING, f"{running} is not tested. Use one of {tested}."


def _java() -> tuple[Status, str] | str:
    if _is_remote():
        return Status.SKIPPED, "not needed: SPARK_REMOTE names a Spark Connect server"
    java = check_java()
    return f"{java.version} at {java.path}"


def _is_remote() -> bool:
    """Whether Spark runs elsewhere."""
    return os.environ.get("SPARK_REMOTE", "").startswith("sc:")


def _memory() -> tuple[Status, str]:
    memory = memory_bytes()
    if not memory:
        return Status.WARNING, "unknown; set SPARK_DRIVER_MEMORY if Spark needs more than 1 GB"
    given = os.environ.get("SPARK_DRIVER_MEMORY")
    heap = f"{given} as SPARK_DRIVER_MEMORY says" if given else size(heap_bytes(memory))
    text = f"{size(memory)}; a session that icefloe starts has a heap of {heap}"
    if memory < _LEAST_MEMORY:
        return Status.WARNING, f"{text}. Less than 2 GB is tight: give the machine more."
    return Status.OK, text


def _extras() -> str:
    installed = [extra for extra, modules in _EXTRAS.items() if all(map(_is_there, modules))]
    missing = [extra for extra in _EXTRAS if extra not in installed]
    text = f"installed: {', '.join(installed) or 'none'}"
    if missing:
        text += f"; not installed: {', '.join(missing)} (pip install 'icefloe[{missing[0]}]')"
    return text


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False


_MACHINE: dict[str, Callable[[], tuple[Status, str] | str]] = {
    "icefloe": _icefloe,
    "python": _python,
    "java": _java,
    **{package: partial(check_version, package) for package in LIBRARIES},
    "memory": _memory,
    "extras": _extras,
}
