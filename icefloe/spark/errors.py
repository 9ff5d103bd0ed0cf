"""Spark's errors as icefloe's: by what the caller can do, without Java's stack traces."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from subprocess import TimeoutExpired
from typing import Any

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.logger import PySparkLogger

from icefloe.errors import (
    RESTORE,
    ColumnNotFoundError,
    ConstraintError,
    IcefloeError,
    NullabilityError,
    ParseError,
    SetupError,
    StatementError,
    StorageError,
    TypeMismatchError,
    UnknownTableError,
    UnsupportedTableError,
)
from icefloe.redaction import reveals
from icefloe.spark.session import Holds
from icefloe.storage.s3 import with_advice
from icefloe.storage.spark_files import with_plain_schemes

log = logging.getLogger("icefloe")

_CONTEXTS = ("SQL", "DataFrame")
_quiet: Holds[str, list[int]] = Holds()
_NULL = re.compile(r"<icefloe-null>(.*?)</icefloe-null>")
_OVERFLOW = re.compile(r"<icefloe-overflow>(.*?)\|(.*?)\|(.*?)</icefloe-overflow>")
_OUTSIDE = re.compile(
    r"<icefloe-outside>(.*?)</icefloe-outside><icefloe-row>(.*?)</icefloe-row>", re.DOTALL
)
_NO_PYARROW = re.compile(r"No module named '?(pyarrow|numpy)|PyArrow >= |PACKAGE_NOT_INSTALLED")
_MISSING = re.compile(
    r"(?:File|Path|path|file) (?:does not exist:? |not found:? )?((?:file|s3a?|hdfs|gs|abfss?):\S+)"
)
# The last line of a worker's traceback about a file.
_WORKER_IO = re.compile(
    r"^(?:OSError|IOError|Permission\w*|FileExists\w*|FileNotFound\w*|NotADir\w*|IsADir\w*): (.*)$",
    re.MULTILINE,
)
# Errors of Hadoop's connector for S3, and what they name.
_OF_STORE = re.compile(r"software\.amazon\.awssdk|com\.amazonaws|\.s3a\.|\bAWS\w*Exception")
_IN_STORE = re.compile(r"\bs3a?://\S+")
_REASON = re.compile(
    r"(?:SdkClientException|S3Exception|AwsServiceException|StsException): (.+?)"
    r"(?: \((?:SDK Attempt|Service:)|:null|\n|$)"
)
_CODE = re.compile(r"\):([A-Z]\w+): ")  # of S3, as in AccessDenied
_LONGEST_REASON = 300
_POSITION = re.compile(r"\(line (\d+), pos (\d+)\)")
_CARET = re.compile(r"-*\^+")
_CONDITION = re.compile(r"^\[[\w.]+\] ")
_DAMAGED = re.compile(r"^\S*DamagedFileError: (.*)$", re.MULTILINE)
_ENCRYPTED = re.compile(r"^\S*EncryptedFileError: (.*)$", re.MULTILINE)
_JAVA_CLASS = re.compile(r"^[\w.$]+: ")
_NO_MEMORY = re.compile(r"(?:java\.lang\.|Spark)OutOfMemoryError(?!: unable to create):? ?([^\n]*)")
_MORE_MEMORY = "Give it more with spark.driver.memory, on a cluster with spark.executor.memory too"
_STOPPED = ("SparkContext was shut down", "stopped SparkContext")
_EXIT_S = 5  # how long a JVM may take to exit after its connections closed
_AGGREGATES = (
    "GROUP_BY_AGGREGATE",
    "INVALID_WHERE_CONDITION",
    "MISSING_GROUP_BY",
    "UNSUPPORTED_GROUPING_EXPRESSION",
    "UNSUPPORTED_EXPR_FOR_OPERATOR",
)
# Columns that icefloe adds to rows; Spark shows some in the plans below its messages.
_OUR_COLUMN = re.compile(r"`?_icefloe_\w+`?(?:#\d+L?)?")
_FIRST_LINE = re.compile(r"^(.*?)(?:\n\n|;\n|\nJVM stacktrace|\n\tat |\n== SQL)", re.DOTALL)


@contextmanager
def translate_spark_errors(available: Iterable[str] = ()) -> Iterator[None]:
    """Run Spark calls; their errors are raised as an IcefloeError."""
    with _quiet.hold("levels", _silence, _set_levels):
        try:
            yield
        except IcefloeError:
            raise
        except PySparkException as error:
            raise _translated(error, tuple(available)) from _shown(error)
        except Py4JJavaError as error:  # PySpark has no class for it, as for an unreadable file
            raise _from_java(error) from _shown(error)


@contextmanager
def translate_task_errors(folder: str) -> Iterator[None]:
    """Run a task in this process; its errors are raised as if Spark had run it."""
    try:
        yield
    except ValueError as error:
        if (marked := _marked(error, str(error), "", ())) is None:
            raise
        raise marked from error
    except OSError as failed:
        reason = with_advice(str(failed))
        raise StorageError(f"Cannot write a file in {folder}: {reason}") from failed


def _silence() -> list[int]:
    """Silence PySpark, which also logs every error as JSON; returns the levels that were set."""
    before = [logger.level for logger in _loggers()]
    _set_levels([logging.CRITICAL] * len(before))
    return before


def _set_levels(levels: list[int]) -> None:
    for logger, level in zip(_loggers(), levels, strict=True):
        logger.setLevel(level)


def _loggers() -> list[logging.Logger]:
    # By PySpark's own class: a plain logger of that name would break every error it logs.
    return [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in _CONTEXTS]


@contextmanager
def detect_jvm_exit() -> Iterator[None]:
    """Run a statement or a part of it; raises SetupError if Spark's JVM exits while it runs."""
    try:
        yield
    except Py4JJavaError:
        raise  # the JVM has answered
    except (Py4JError, ConnectionError, EOFError) as error:
        if not _has_jvm_exited():
            raise
        raise _jvm_exited() from error


def _jvm_exited() -> SetupError:
    return SetupError(
        "The Spark JVM exited, usually because it ran out of memory. Nothing was committed. "
        f"Restart the program. {_MORE_MEMORY}."
    )


def _has_jvm_exited() -> bool:
    """Whether the JVM that this process started has exited."""
    jvm = getattr(SparkContext._gateway, "proc", None)
    if jvm is None:
        return False
    try:
        jvm.wait(_EXIT_S)
    except TimeoutExpired:
        return False
    return True


def _shown(error: Exception) -> Exception | None:
    """The cause shown in the traceback; None if it contains a secret, which Spark's errors keep."""
    return None if reveals(error) else error


@contextmanager
def cleaning_up(what: str) -> Iterator[None]:
    """Release what a statement used; an error is logged and never raised.

    The statement is published by then, or has an error of its own: neither may be hidden.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the session may have ended in any way
        log.warning("After the statement: %s failed: %s", what, _short(str(error)))


@contextmanager
def of_one_row(what: str) -> Iterator[None]:
    """Have Spark analyse an expression as a condition; refuse what is not a value of one row.

    Spark accepts generators, aggregates and window functions in a SELECT only.
    """
    try:
        yield
    except PySparkException as error:
        kind = _of_other_rows(error.getCondition() or "", str(error))
        if kind is None:
            raise
        raise StatementError(
            f"{what} has {kind}: it must be a value of one row alone. Compute it in a table, a "
            "view or the source of a MERGE first."
        ) from error


def _of_other_rows(condition: str, text: str) -> str | None:
    if "GENERATOR" in condition:
        return "a generator, such as explode()"
    if "WINDOW" in condition or " OVER (" in text.split(";\n", maxsplit=1)[0]:
        return "a window function"
    if condition in _AGGREGATES:
        return "an aggregate function"
    return None


def _message_of(error: JavaObject) -> str:
    """The message of an exception, or of its cause if it only says that a result was awaited."""
    text = str(error.toString())
    cause = error.getCause()
    return _message_of(cause) if "awaitResult" in text and cause is not None else text


def _translated(error: PySparkException, available: tuple[str, ...]) -> IcefloeError:
    text = with_plain_schemes(str(error))
    condition = error.getCondition() or ""
    for translate in (_marked, _environment, _by_condition, _storage):
        translated = translate(error, text, condition, available)
        if translated is not None:
            return translated
    if isinstance(error, AnalysisException):
        return StatementError(_short(text))
    return _unfinished(text, text)


def _from_java(error: Py4JJavaError) -> IcefloeError:
    text = with_plain_schemes(_message_of(error.java_exception))
    for translate in (_marked, _environment, _storage):
        translated = translate(error, text, "", ())
        if translated is not None:
            return translated
    shown = _JAVA_CLASS.sub("", text)
    if "FAILED_READ_FILE" in text or "CANNOT_READ_FILE" in text:
        return StorageError(_with_cause(_short(shown), error.java_exception.getCause()))
    return _unfinished(text, shown)


def _unfinished(text: str, shown: str) -> IcefloeError:
    """Why a correct statement failed."""
    if any(message in text for message in _STOPPED):
        return _jvm_exited()
    if memory := _NO_MEMORY.search(text):
        kind = f" ({memory[1].strip()})" if memory[1] else ""
        return SetupError(f"Spark has too little memory for the statement{kind}. {_MORE_MEMORY}.")
    return StatementError(f"Spark could not run the statement: {_short(shown)}")


def _marked(
    _error: Exception, text: str, _condition: str, _available: tuple[str, ...]
) -> IcefloeError | None:
    """Errors of our own expressions and tasks, with the details between markers."""
    if null := _NULL.search(text):
        return NullabilityError(null[1])
    if outside := _OUTSIDE.search(text):
        return ConstraintError(outside[1], outside[2])
    if overflow := _OVERFLOW.search(text):
        column, expected, actual = overflow.groups()
        return TypeMismatchError(
            column, expected, actual, "A value is out of range; nothing was changed."
        )
    return None


def _environment(
    _error: Exception, text: str, _condition: str, _available: tuple[str, ...]
) -> IcefloeError | None:
    if _NO_PYARROW.search(text):
        return SetupError(
            "Spark's Python workers lack PyArrow. Start the session with "
            "spark.pyspark.python set to a Python that has it (for a local session: "
            "sys.executable), or install pyarrow on the workers."
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        return SetupError(
            "Spark's workers run another Python version than this program. Set "
            "spark.pyspark.python to a Python of the same minor version."
        )
    return None


def _by_condition(
    error: PySparkException, text: str, condition: str, available: tuple[str, ...]
) -> IcefloeError | None:
    facts = error.getMessageParameters() or {}
    if isinstance(error, ParseException):
        return _parse_error(text)
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        name = str(facts.get("relationName", "?")).replace("`", "")
        return UnknownTableError(
            f"Table {name} does not exist: the lake has no table, the statement no source and the "
            "session no view of that name."
        )
    if condition.startswith("UNRESOLVED_COLUMN"):
        name = str(facts.get("objectName", "?")).replace("`", "")
        return ColumnNotFoundError(name, available or _proposals(facts))
    if condition == "AMBIGUOUS_REFERENCE":
        name = str(facts.get("name", "?")).replace("`", "")
        meant = str(facts.get("referenceNames", "")).strip("[]").replace("`", "")
        return StatementError(
            f"Column {name!r} is ambiguous: it may be any of {meant}. Qualify it."
        )
    if condition.endswith(("NOT_BOOLEAN", "NOT_BOOLEAN_TYPE")):
        shown = str(facts.get("filter", facts.get("joinCondition", "?"))).strip('"')
        kind = str(facts.get("type", facts.get("conditionType", "?"))).strip('"')
        return TypeMismatchError(shown, "BOOLEAN", kind, "A condition must be true or false.")
    if condition in ("ARITHMETIC_OVERFLOW", "CAST_OVERFLOW", "NUMERIC_VALUE_OUT_OF_RANGE"):
        return StatementError(f"A value overflowed its type: {_short(text)}")
    return None


def _parse_error(text: str) -> ParseError:
    """Spark's message, shown at its position in the text."""
    position, sql = _POSITION.search(text), text.partition("== SQL ==\n")[2]
    if position is None or not sql:
        return ParseError(_short(text, keep_sql=True))
    # Spark adds a line of dashes and a caret below the line with the error.
    lines = sql.split("\nJVM stacktrace")[0].split("\n")
    lines = [line for line in lines if not _CARET.fullmatch(line)]
    line_number, column = int(position[1]), int(position[2])
    start = sum(len(above) + 1 for above in lines[: line_number - 1])
    reason = text[: position.start()].partition("SQLSTATE")[0].strip()
    return ParseError(_CONDITION.sub("", reason), "\n".join(lines), start + column)


def _storage(
    error: Exception, text: str, condition: str, _available: tuple[str, ...]
) -> IcefloeError | None:
    if condition == "PATH_NOT_FOUND" or "FileNotFoundException" in text or "FILE_NOT_EXIST" in text:
        path = _MISSING.search(text)
        named = path[1].rstrip(".") if path else _short(text)
        return StorageError(f"A data file of the table is missing: {named}")
    if "field id" in text.lower() and "Parquet" in text:
        return UnsupportedTableError(
            "A data file has no field ids and the table has no name mapping. Set the table "
            "property schema.name-mapping.default so that its columns can be found by name."
        )
    if damaged := _DAMAGED.search(text):
        return StorageError(f"{damaged[1]}. {RESTORE}")
    if encrypted := _ENCRYPTED.search(text):
        return UnsupportedTableError(f"{encrypted[1]}, which icefloe cannot change.")
    if in_task := _WORKER_IO.search(text):
        reason = with_advice(in_task[1])
        return StorageError(f"A task could not read or write a file: {reason}")
    if "FAILED_READ_FILE" in condition or "CANNOT_READ_FILE" in condition:
        return StorageError(_with_cause(_short(text), getattr(error, "_cause", None)))
    if _OF_STORE.search(text) and (place := _IN_STORE.search(text)):
        named = place[0].rstrip(".:,")
        return StorageError(f"Spark cannot read {named}: {with_advice(_reason(text))}")
    return None


def _with_cause(message: str, cause: Any) -> str:
    """A message of Spark's with the reason of its cause, which it leaves out.

    A cause is an exception of PySpark's, or one of the JVM's.
    """
    message = message.partition("SQLSTATE:")[0].rstrip()
    reason = ""
    while cause is not None:
        is_java = isinstance(cause, JavaObject)
        reason = _reason(str(cause.toString() if is_java else cause)) or reason
        cause = cause.getCause() if is_java else getattr(cause, "_cause", None)
    return with_advice(f"{message} Cause: {with_plain_schemes(reason)}") if reason else message


def _reason(text: str) -> str:
    """What a store answered, without the details of the client's."""
    message, code = _REASON.search(text), _CODE.search(text)
    reason = _short(message[1] if message else text)[:_LONGEST_REASON]
    return f"{code[1]}: {reason}" if code else reason


def _proposals(facts: dict[str, str]) -> list[str]:
    return [part.strip(" `") for part in str(facts.get("proposal", "")).split(",") if part]


def _short(text: str, *, keep_sql: bool = False) -> str:
    """The message without stack traces."""
    first = _FIRST_LINE.match(text) if not keep_sql else None
    short = (
        first[1]
        if first
        else text.split("\nJVM stacktrace", maxsplit=1)[0].split("\n\tat ", maxsplit=1)[0]
    )
    return _OUR_COLUMN.sub("(a column of icefloe)", short.split(";\n'")[0]).strip()
