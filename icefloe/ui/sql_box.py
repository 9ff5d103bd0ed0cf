"""The SQL box of the page: queries and EXPLAIN of one statement, and nothing that writes.

What is refused is refused before Spark is started where the text alone shows it. Names are resolved
by the lake alone, and the session reads no files by path while a statement of the page runs.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import date, datetime
from datetime import time as time_of_day
from threading import Lock
from typing import Any, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from icefloe.commands.plan import Plan, PlannedFile
from icefloe.errors import StatementError
from icefloe.lake import Lake
from icefloe.redaction import redacted
from icefloe.spark.columns import quoted
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.session import spark_conf
from icefloe.spark.tokens import tokenize
from icefloe.sql.dml import explain_dml
from icefloe.sql.names import Names
from icefloe.sql.parse import parse_statements
from icefloe.sql.queries import run_query
from icefloe.sql.show import run_show
from icefloe.sql.syntax import (
    Describe,
    Explain,
    Query,
    Show,
    ShowCreateTable,
    ShowIndexes,
    ShowNamespaces,
    ShowProperties,
    ShowTables,
    WithDml,
)

Answer: TypeAlias = dict[str, Any]
ReadOnly: TypeAlias = Query | Explain | Show
MOST_ROWS = 200
MOST_FILES = 200
_MOST_CHARACTERS = 2000
# Functions that call any code of the JVM, or read a file or an address that their arguments name.
RUN_CODE = (
    *("reflect", "try_reflect", "java_method", "from_protobuf", "to_protobuf"),
    *("from_xml", "schema_of_xml", "from_avro", "schema_of_avro"),
)
_RUN_CODE = re.compile(rf"\b({'|'.join(RUN_CODE)})\b", re.IGNORECASE)
_INSERT = re.compile(r"\binsert\b", re.IGNORECASE)
_USING = re.compile(r"\busing\b", re.IGNORECASE)
_IDENTIFIER = re.compile(r"\bidentifier\s*(\(|/\*|--)", re.IGNORECASE)
_FILES_BY_PATH = "spark.sql.runSQLOnFiles"


class SqlBox:
    """Runs one statement at a time in a thread of its own; Spark is started for the first one."""

    def __init__(self, lake: Lake, start_spark: Callable[[], SparkSession] | None = None) -> None:
        self._lake = lake
        self._start = start_spark or (lambda: lake.spark)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="icefloe-page")
        self._lock = Lock()
        self._session: SparkSession | None = None
        self._running: Future[Answer] | None = None

    @property
    def is_started(self) -> bool:
        """Whether Spark is running for the page."""
        return self._session is not None

    def run(self, text: str) -> Answer:
        """The answer to a statement; raises IcefloeError for what is wrong or refused."""
        statement = read_only(text)
        with self._lock:
            if self._running is not None and not self._running.done():
                raise StatementError("Another statement is running. Wait for it, or cancel it.")
            self._running = future = self._pool.submit(self._work, statement, text)
        return future.result()

    def cancel(self) -> None:
        """Cancel the jobs of the running statement."""
        if self._session is not None and self._running is not None and not self._running.done():
            with suppress(PySparkException):
                self._session.interruptAll()

    def stop(self) -> None:
        """End the thread; a running statement is cancelled."""
        while self._running is not None and not self._running.done():
            self.cancel()
            with suppress(Exception):
                self._running.exception(timeout=0.2)
        self._pool.shutdown()

    def _work(self, statement: ReadOnly, text: str) -> Answer:
        started = time.monotonic()
        names = Names(self._lake, lake_only=True)
        match statement:
            case Query(query) | Explain(Query(query)):  # Spark need not start for what is refused
                for name in query.text.query_tables:
                    names.check(name)
        if self._session is None:
            self._session = self._start()
        with spark_conf(self._session, _FILES_BY_PATH, "false"), translate_spark_errors():
            answer = self._answer(statement, names, text)
        return {**answer, "seconds": round(time.monotonic() - started, 3)}

    def _answer(self, statement: ReadOnly, names: Names, whole: str) -> Answer:
        match statement:
            case Query(text):
                return _rows_json(run_query(text, names, whole))
            case Explain():
                return self._explain(statement, names, whole)
            case _:
                return _rows_json(run_show(statement, self._lake))

    def _explain(self, explain: Explain, names: Names, whole: str) -> Answer:
        match explain.statement:
            case Query(text):
                plan = run_query(text, names, whole, f"EXPLAIN {explain.how} ").first()
                return {"kind": "text", "text": redacted(str(plan[0] if plan else ""))}
            case WithDml() as dml:
                planned = explain_dml(dml, names, whole)
                if isinstance(planned, Plan):
                    return plan_json(planned, self._lake.load(planned.table).location())
                return {"kind": "text", "text": redacted(planned)}


# -------------------------------------------------------------------------------------------------
# What the page runs


def read_only(text: str) -> ReadOnly:
    """The one statement of a text, if it only reads; raises StatementError for any other."""
    if "${" in text:
        raise StatementError("The page is read-only: variables such as ${name} are refused.")
    if called := _RUN_CODE.search(text):
        raise StatementError(
            f"The page is read-only: {called[0]} can run any code or read any file of this "
            f"machine. Refused wherever the words occur: {', '.join(RUN_CODE)}."
        )
    statements = parse_statements(text)
    if len(statements) > 1:
        raise StatementError("The page runs one statement at a time: remove the others.")
    parsed = statements[0].parsed
    _refuse_scripts(text)
    match parsed:
        case Query() if _INSERT.search(text):
            raise StatementError("The page is read-only: INSERT is refused, wherever it occurs.")
        case Query() | Explain():
            return parsed
        case Describe() | ShowTables() | ShowNamespaces():
            return parsed
        case ShowCreateTable() | ShowProperties() | ShowIndexes():
            return parsed
        case WithDml():
            raise StatementError(
                "The page is read-only: put EXPLAIN before the statement to see what it would do. "
                "To run it use lake.sql() or `icefloe sql`."
            )
        case _:
            words = " ".join(token.word for token in tokenize(text)[:2])
            raise StatementError(
                f"The page is read-only: {words} is refused. It takes queries, EXPLAIN, DESCRIBE "
                "and SHOW. To run other statements use lake.sql() or `icefloe sql`."
            )


def _refuse_scripts(text: str) -> None:
    """Refuse TRANSFORM, MAP and REDUCE … USING 'command', and names that are computed.

    A word that is not a token of the text, but in a string, say, is refused too: Spark may see it
    as one.
    """
    tokens = tokenize(text)
    after = [*tokens[1:], None]
    joined = 0
    for token, following in zip(tokens, after, strict=True):
        is_name = following is not None and (following.word == "(" or following.name is not None)
        joined += token.word == "USING" and is_name
    if len(_USING.findall(text)) > joined:
        raise StatementError(
            "The page is read-only: scripts are refused, so USING is only accepted in JOIN … USING "
            "(columns) and MERGE … USING table."
        )
    if _IDENTIFIER.search(text):
        raise StatementError(
            "The page is read-only: IDENTIFIER(…), which computes names, is refused."
        )


# -------------------------------------------------------------------------------------------------
# Plans


def plan_json(plan: Plan, location: str) -> Answer:
    """A plan of a DML statement, with its files by what happens to them, and why."""
    actions = Counter(file.action.value for file in plan.files)
    reasons = Counter(file.reason for file in plan.skipped)
    unread = plan.files_skipped - len(plan.skipped)
    if unread:
        reasons["partition, with their manifests"] = unread
    return {
        "kind": "plan",
        "operation": plan.operation,
        "table": plan.table,
        "snapshot": None if plan.snapshot_id is None else str(plan.snapshot_id),
        "mode": plan.mode.value,
        "isolation": plan.isolation.value,
        "where": redacted(plan.where),
        "assignments": [redacted(text) for text in plan.assignments],
        "clauses": [redacted(text) for text in plan.clauses],
        "join": plan.join,
        "stages": list(plan.stages),
        "reasons": [redacted(text) for text in plan.reasons],
        "inline": None if plan.inline is None else str(plan.inline),
        "candidates": len(plan.files),
        "skipped": plan.files_skipped,
        "skipped_by": dict(reasons),
        "actions": dict(actions),
        "bytes_read": plan.estimated_bytes_read,
        "bytes_written": plan.estimated_bytes_written,
        "manifests_read": plan.manifests_read,
        "manifests_cached": plan.manifests_cached,
        "manifests_skipped": plan.manifests_skipped,
        "files": [_planned(file, location) for file in plan.files[:MOST_FILES]],
        "skipped_files": [
            {"path": _relative(file.path, location), "reason": file.reason}
            for file in plan.skipped[:MOST_FILES]
        ],
        "text": str(plan),
    }


def _planned(file: PlannedFile, location: str) -> Answer:
    return {
        "path": _relative(file.path, location),
        "rows": file.rows,
        "bytes": file.bytes,
        "action": file.action.value,
        "reason": file.reason,
    }


def _relative(path: str, location: str) -> str:
    return redacted(path.removeprefix(location.rstrip("/") + "/"))


# -------------------------------------------------------------------------------------------------
# Rows


def _rows_json(frame: DataFrame) -> Answer:
    """The first rows, each value as text."""
    fields = frame.schema.fields
    rows = frame.limit(MOST_ROWS + 1)
    unsupported = [f for f in fields if not isinstance(f.dataType, _AS_ARROW)]
    if unsupported:  # of types that Arrow lacks, such as VARIANT
        texts = [
            quoted(f.name).cast("string").alias(f.name) if f in unsupported else quoted(f.name)
            for f in fields
        ]
        rows = rows.select(*texts)
    table = rows.toArrow()
    columns = [[cell_text(value) for value in column.to_pylist()] for column in table.columns]
    return {
        "kind": "rows",
        "columns": [
            {
                "name": field.name,
                "type": field.dataType.simpleString(),
                "numeric": isinstance(field.dataType, T.NumericType),
            }
            for field in fields
        ],
        "rows": [list(row) for row in zip(*columns, strict=True)][:MOST_ROWS],
        "more": table.num_rows > MOST_ROWS,
    }


_AS_ARROW = (
    T.NumericType,
    T.StringType,
    T.BinaryType,
    T.BooleanType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.ArrayType,
    T.MapType,
    T.StructType,
    T.NullType,
)


def cell_text(value: object) -> str | None:
    """A value as text for people; long ones are cut."""
    match value:
        case None:
            return None
        case bool():
            text = str(value).lower()
        case datetime() | date() | time_of_day():
            text = str(value)
        case bytes():
            text = f"X'{value.hex().upper()}'"
        case dict() | list():
            text = json.dumps(value, default=cell_text, ensure_ascii=False)
        case _:
            text = str(value)
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + " …"
