"""Where the command line keeps its own files: the prompt's history, what Spark's JVM prints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STDERR = 2


def state_folder() -> Path | None:
    """`$XDG_STATE_HOME/icefloe`, made when missing; None where it cannot be."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        folder = Path(base).expanduser() / "icefloe"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a read-only home, or none
        return None
    return folder if os.access(folder, os.W_OK) else None


def spark_log() -> Path:
    """The file that takes what Spark's JVM prints."""
    folder = state_folder()
    return folder / "spark.log" if folder else Path(os.devnull)


@contextmanager
def stderr_in(path: Path) -> Iterator[None]:
    """Processes started meanwhile write their stderr to a file, for as long as they run."""
    kept = os.dup(_STDERR)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(log, _STDERR)
    os.close(log)
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
