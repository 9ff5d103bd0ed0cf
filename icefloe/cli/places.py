"""Where the command line keeps its own files: the prompt's history, what Spark's JVM prints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STDERR = 2
_FOLDER, _FILE = 0o700, 0o600  # for the user alone: statements may hold what others must not see


def state_folder() -> Path | None:
    """`$XDG_STATE_HOME/icefloe`, made when missing; None where it cannot be."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        folder = Path(base).expanduser() / "icefloe"
        folder.mkdir(_FOLDER, parents=True, exist_ok=True)
        _restrict(folder, _FOLDER)
    except (OSError, RuntimeError):  # a read-only home, or none
        return None
    return folder if os.access(folder, os.W_OK) else None


def history_file() -> Path | None:
    """The prompt's history, made when missing; None where it cannot be."""
    folder = state_folder()
    if folder is None:
        return None
    path = folder / "history"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _FILE))
    except OSError:
        return None
    _restrict(path, _FILE)
    return path


def spark_log() -> Path:
    """The file that takes what Spark's JVM prints."""
    folder = state_folder()
    if folder is None:
        return Path(os.devnull)
    _restrict(folder / "spark.log", _FILE)
    return folder / "spark.log"


@contextmanager
def stderr_in(path: Path) -> Iterator[None]:
    """Processes started meanwhile write their stderr to a file, for as long as they run."""
    kept = os.dup(_STDERR)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, _FILE)
    os.dup2(log, _STDERR)
    os.close(log)
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)


def _restrict(path: Path, mode: int) -> None:
    """Take others' rights away from what an earlier version made; links are the user's own."""
    with suppress(OSError):  # another user's
        if not path.is_symlink() and path.stat().st_mode & 0o777 & ~mode:
            path.chmod(mode)
