"""Run SQL text statement by statement, write each result, report errors."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, Row
from pyspark.sql import types as T
from rich.text import Text

from icefloe.cli.output import Format, Output, stderr
from icefloe.cli.records import Records
from icefloe.cli.worker import INTERRUPTED, CancelledError, ProgressLine, Worker
from icefloe.errors import IcefloeError
from icefloe.lake import Lake
from icefloe.redaction import redacted
from icefloe.results import DmlResult
from icefloe.spark.errors import translate_spark_errors
from icefloe.sql.cursor import split_statements
from icefloe.sql.parse import parse_statements


@dataclass(frozen=True, slots=True)
class NoResult:
    """A statement that returns no rows and no counts."""

    duration_s: float


StatementOutput: TypeAlias = DmlResult | Records | NoResult | None  # None: already written


@dataclass(frozen=True, slots=True)
class Shell:
    """A lake, the thread that runs its statements, and the output of results."""

    lake: Lake
    worker: Worker
    output: Output

    def run(self, text: str, file: str | None = None) -> None:
        """Parse all statements of a text, then run them until one fails."""
        pieces = split_statements(text)
        if pieces:
            parse_statements(text)
        for piece in pieces:
            try:
                self.run_one(piece.text)
            except Exception as error:
                if file is not None:
                    error.add_note(f"The statement starts at line {piece.line} of {file}.")
                raise

    def run_one(self, statement: str) -> None:
        """Run one statement and write its result."""
        self.write(self.execute(statement))

    def execute(self, statement: str) -> StatementOutput:
        """Run one statement; rows for programs are written as they arrive."""
        return self.worker.run(lambda progress: self._work(statement, progress))

    def write(self, output: StatementOutput) -> None:
        """Write what a statement returned, for people or programs."""
        match output:
            case DmlResult():
                self.output.result(output)
            case Records():
                self.output.records(output)
            case NoResult():
                self.output.note(f"done in {output.duration_s:.1f} s")
        self.worker.check("Ctrl-C came too late for this statement.")

    def _work(self, statement: str, progress: ProgressLine) -> StatementOutput:
        """Runs in the worker's thread."""
        started = monotonic()
        result = self.lake.sql(statement)
        if isinstance(result, DmlResult):
            return result
        with translate_spark_errors():
            if result.columns and self.output.format is Format.TABLE:
                return self._first_rows(result)
            if result.columns:
                self._stream(result, progress)
                return None
        return NoResult(monotonic() - started)

    def _first_rows(self, frame: DataFrame) -> Records:
        """Take the rows to show and one more, to know whether there are more."""
        records = of_frame(frame, frame.take(self.output.table_rows + 1))
        return replace(records, rows=list(records.rows))

    def _stream(self, frame: DataFrame, progress: ProgressLine) -> None:
        """Write rows as they arrive; neither the driver nor this process holds all of them."""
        limited = frame if self.output.limit is None else frame.limit(self.output.limit)
        records = of_frame(limited, limited.toLocalIterator())
        self.output.records(replace(records, rows=self._read(records, progress)))

    def _read(self, records: Records, progress: ProgressLine) -> Iterator[Sequence[object]]:
        for row in records.rows:
            progress.stop()
            self.worker.check()
            yield row


# -------------------------------------------------------------------------------------------------
# Rows of DataFrames

Converter = Callable[[Any], object]


def of_frame(frame: DataFrame, rows: Iterable[Row]) -> Records:
    """Records of `rows`, which are rows of `frame`."""
    fields = frame.schema.fields
    converters = [_converter(field.dataType) for field in fields]
    return Records(
        tuple(field.name for field in fields),
        tuple(isinstance(field.dataType, T.NumericType) for field in fields),
        _converted(rows, converters),
    )


def _converted(
    rows: Iterable[Row], converters: Sequence[Converter]
) -> Iterator[tuple[object, ...]]:
    for row in rows:
        yield tuple(
            None if value is None else convert(value)
            for value, convert in zip(row, converters, strict=True)
        )


def _converter(data_type: T.DataType) -> Converter:
    """Convert values of a Spark type to plain Python: timestamps in UTC, structs as dicts."""
    match data_type:
        case T.TimestampType():
            return _in_utc
        case T.StructType():
            inner = [_optional(_converter(field.dataType)) for field in data_type.fields]
            names = data_type.names
            return lambda row: {
                name: convert(value) for name, convert, value in zip(names, inner, row, strict=True)
            }
        case T.ArrayType():
            element = _optional(_converter(data_type.elementType))
            return lambda values: [element(value) for value in values]
        case T.MapType():
            key = _converter(data_type.keyType)
            value = _optional(_converter(data_type.valueType))
            return lambda pairs: {key(k): value(v) for k, v in pairs.items()}
        case T.VariantType():
            return lambda variant: variant.toPython()
        case _:
            return lambda plain: plain


def _optional(convert: Converter) -> Converter:
    return lambda value: None if value is None else convert(value)


def _in_utc(value: datetime) -> datetime:
    """PySpark returns timestamps as local times without a zone."""
    return value.astimezone(UTC)


# -------------------------------------------------------------------------------------------------
# Errors and exit statuses

FAILED = 1
_PY4J = "An error occurred while calling"  # Py4J's line before the message of the JVM


def run_reporting_errors(work: Callable[[], None], *, debug: bool) -> int:
    """Run `work`, print its error to stderr, and return the exit status."""
    try:
        work()
    except (CancelledError, KeyboardInterrupt) as error:
        _print_error(str(error) or "Cancelled.", error, debug=debug)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has exited, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except IcefloeError as error:
        _print_error(str(error), error, debug=debug)
        return FAILED
    except Exception as error:  # noqa: BLE001  nothing above reports it
        hint = "" if debug else " (--debug shows a traceback)"
        _print_error(f"{type(error).__name__}: {_first_line(error)}{hint}", error, debug=debug)
        return FAILED
    return 0


def _print_error(message: str, error: BaseException, *, debug: bool) -> None:
    sys.stdout.flush()
    if debug:
        sys.stderr.write(redacted("".join(traceback.format_exception(error))))
    lines = [message, *getattr(error, "__notes__", ())]
    stderr().print(Text(redacted("\n".join(lines)), style="red"))


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if not line.startswith(_PY4J)]
    return lines[0].removeprefix(": ") if lines else repr(error)
