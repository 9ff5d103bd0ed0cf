"""The machine, the commit and the command of a result."""

from __future__ import annotations

import argparse
import platform
import subprocess
from pathlib import Path

import psutil

_PATH_OPTIONS = ("work", "output", "python", "keep")


def machine() -> dict[str, object]:
    """Processor, memory and system; no host name."""
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def commit_of(repository: Path) -> str | None:
    """The commit that is measured, with `-dirty` when files have changed since."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=10"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or None


def command_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> str:
    """The command that repeats a run: the options that differ from their defaults, but no paths."""
    words = [f"python -m {parser.prog}"]
    for name, value in vars(args).items():
        if name in _PATH_OPTIONS or value == parser.get_default(name):
            continue
        values = value if isinstance(value, list) else [] if value is True else [value]
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return " ".join(words)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "")
