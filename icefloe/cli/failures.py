"""How a failure is told, and the exit status it becomes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from rich.text import Text

from icefloe.cli.output import stderr
from icefloe.cli.worker import INTERRUPTED, CancelledError
from icefloe.errors import IcefloeError
from icefloe.redaction import redacted

FAILED = 1
_PY4J = "An error occurred while calling"  # the line above what Java says


def guarded(work: Callable[[], None], *, debug: bool) -> int:
    """Run `work`; the exit status, after telling on stderr what went wrong."""
    try:
        work()
    except (CancelledError, KeyboardInterrupt) as error:
        _tell(str(error) or "Cancelled.", error, debug=debug)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except IcefloeError as error:
        _tell(str(error), error, debug=debug)
        return FAILED
    except Exception as error:  # noqa: BLE001  the last place that can tell it
        hint = "" if debug else " (--debug shows where)"
        _tell(f"{type(error).__name__}: {_first_line(error)}{hint}", error, debug=debug)
        return FAILED
    return 0


def _tell(message: str, error: BaseException, *, debug: bool) -> None:
    sys.stdout.flush()
    if debug:
        sys.stderr.write(redacted("".join(traceback.format_exception(error))))
    lines = [message, *getattr(error, "__notes__", ())]
    stderr().print(Text(redacted("\n".join(lines)), style="red"))


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if not line.startswith(_PY4J)]
    return lines[0].removeprefix(": ") if lines else repr(error)
