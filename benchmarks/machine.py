"""What the numbers were measured on."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import psutil


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
    """The commit that was measured, with `-dirty` when files were changed since."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=10"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip() or None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "")
