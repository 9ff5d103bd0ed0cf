"""Runs SQL text statement by statement and writes each result."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TypeAlias

from pyspark.sql import DataFrame
from rich.text import Text

from icefloe.cli.output import Format, Output, stderr
from icefloe.cli.records import Records, of_frame
from icefloe.cli.worker import INTERRUPTED, CancelledError, ProgressLine, Worker
from icefloe.errors import IcefloeError
from icefloe.lake import Lake
from icefloe.redaction import redacted
from icefloe.results import DmlResult
from icefloe.spark.errors import translate_spark_errors
from icefloe.sql.cursor import split_statements
from icefloe.sql.parse import parse_statements


@dataclass(frozen=True, slots=True)
class Done:
    """A statement that has no result."""

    duration_s: float


Found: TypeAlias = DmlResult | Records | Done | None  # None: the rows are written already


@dataclass(frozen=True, slots=True)
class Shell:
    """A lake, the thread that works on it, and where results go."""

    lake: Lake
    worker: Worker
    output: Output

    def run(self, text: str, file: str | None = None) -> None:
        """Run the statements of a text, once all are parsed; the first that fails is the last."""
        pieces = split_statements(text)
        if pieces:
            parse_statements(text)
        for piece in pieces:
            try:
                self.run_one(piece.text)
            except Exception as error:
                if file is not None:
                    error.add_note(f"The statement begins at line {piece.line} of {file}.")
                raise

    def run_one(self, statement: str) -> None:
        """Run one statement and write its result."""
        self.write(self.found_by(statement))

    def found_by(self, statement: str) -> Found:
        """Run one statement; rows for programs are written as they come."""
        return self.worker.run(lambda progress: self._work(statement, progress))

    def write(self, found: Found) -> None:
        """Write what a statement gave, for people or programs."""
        match found:
            case DmlResult():
                self.output.result(found)
            case Records():
                self.output.records(found)
            case Done():
                self.output.note(f"done in {found.duration_s:.1f} s")
        self.worker.check("Ctrl-C came too late for this statement.")

    def _work(self, statement: str, progress: ProgressLine) -> Found:
        """In the worker's thread."""
        started = monotonic()
        found = self.lake.sql(statement)
        if isinstance(found, DmlResult):
            return found
        with translate_spark_errors():
            if found.columns and self.output.format is Format.TABLE:
                return self._first_rows(found)
            if found.columns:
                self._stream(found, progress)
                return None
        return Done(monotonic() - started)

    def _first_rows(self, frame: DataFrame) -> Records:
        """As many rows as are shown and one more, which tells that there are more."""
        records = of_frame(frame, frame.take(self.output.table_rows + 1))
        return replace(records, rows=list(records.rows))

    def _stream(self, frame: DataFrame, progress: ProgressLine) -> None:
        """Write rows as they come; neither Spark's driver nor this process holds all of them."""
        limited = frame if self.output.limit is None else frame.limit(self.output.limit)
        records = of_frame(limited, limited.toLocalIterator())
        self.output.records(replace(records, rows=self._read(records, progress)))

    def _read(self, records: Records, progress: ProgressLine) -> Iterator[Sequence[object]]:
        for row in records.rows:
            progress.stop()
            self.worker.check()
            yield row


# -------------------------------------------------------------------------------------------------
# How a failure is told, and the exit status it becomes.

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
