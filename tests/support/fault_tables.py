"""The tables of faults in docs/object_stores.md: which requests, which faults, and the expected outcomes.

tests/s3/test_faults.py runs each cell. It compares what came of it with the page, or writes the page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.http_proxy import (
    APPLIED_THEN_ERROR,
    BUSY,
    FORBIDDEN,
    REPLY_LOST,
    RESET,
    SERVER_ERROR,
    TRUNCATED,
    UNAVAILABLE,
    Fault,
    slow,
)

PAGE = Path(__file__).parents[2] / "docs" / "object_stores.md"
BEGIN = "<!-- `make docs-faults` writes the lines from here: {} -->"
END = "<!-- to here -->"
WRITE = "ICEFLOE_WRITE_FAULTS"  # an environment variable: write the tables, compare nothing

OK, ERROR, UNKNOWN, LEFT = "ok", "error", "unknown", "left"
NOT_TRIED = "–"


@dataclass(frozen=True)
class Column:
    """A fault, and how many requests in succession meet it."""

    title: str
    fault: Fault
    times: int | None
    expected: str


@dataclass(frozen=True)
class Row:
    """Requests of one kind: who makes them, in which statement, and how the proxy finds them."""

    statement: str
    client: str
    kind: str  # as `s3_kind` or `rest_kind` has it
    method: str
    url: str
    leave_out: str = "list-type"
    other: Mapping[str, str] = field(default_factory=dict)  # outcomes, by the title of the column
    without: tuple[str, ...] = ()  # titles of columns

    @property
    def title(self) -> str:
        return f"{self.statement}: {self.client} {self.kind}"

    def expected(self, column: Column) -> str:
        return self.other.get(column.title, column.expected)


ONCE = 1
ALWAYS = None
S3_COLUMNS = (
    Column("503 once", UNAVAILABLE, ONCE, OK),
    Column("503 always", UNAVAILABLE, ALWAYS, ERROR),
    Column("500 once", SERVER_ERROR, ONCE, OK),
    Column("500 always", SERVER_ERROR, ALWAYS, ERROR),
    Column("reset once", RESET, ONCE, OK),
    Column("reset always", RESET, ALWAYS, ERROR),
    Column("403", FORBIDDEN, ALWAYS, ERROR),
    Column("late", slow(1), ONCE, OK),
    Column("cut off once", TRUNCATED, ONCE, OK),
    Column("cut off always", TRUNCATED, ALWAYS, ERROR),
    Column("reply lost", REPLY_LOST, ONCE, OK),
)
_OF_WRITES, _OF_READS = ("cut off once", "cut off always"), ("reply lost",)
_DATA, _DELETES = r"^/lake/.*/data/(?!.*-deletes).*\.parquet$", r"-deletes\.parquet$"
_UPLOAD = r"^/lake/.*/data/.*\.parquet\?"


def _read(statement: str, client: str, kind: str, url: str, method: str = "GET") -> Row:
    return Row(statement, client, kind, method, url, without=_OF_READS)


def _write(statement: str, kind: str, url: str, method: str = "PUT") -> Row:
    return Row(statement, "PyArrow", kind, method, url, without=_OF_WRITES)


S3_ROWS = (
    _read("UPDATE, merge-on-read", "Spark", "GET data file", _DATA),
    Row(
        "UPDATE, merge-on-read", "Spark", "HEAD data file", "HEAD", _DATA,
        without=(*_OF_WRITES, *_OF_READS),
    ),
    Row(
        "UPDATE, merge-on-read", "Spark", "LIST", "GET", r"list-type.*\.parquet", "",
        without=_OF_READS,
    ),
    _read("to_arrow", "boto3", "GET data file", _DATA),
    _read("to_arrow", "boto3", "GET delete file", _DELETES),
    _read("to_arrow", "boto3", "GET metadata", r"\.metadata\.json$"),
    _read("to_arrow", "boto3", "GET manifest list", r"/snap-[^/]*\.avro$"),
    _read("to_arrow", "boto3", "GET manifest", r"-m\d+\.avro$"),
    _write("append", "PUT data file", _DATA),
    _write("append of a DataFrame", "PUT data file", _DATA),
    _write("append of 20 MB", "create upload data file", _UPLOAD + "uploads", "POST"),
    _write("append of 20 MB", "upload part data file", _UPLOAD + ".*partNumber=2"),
    _write("append of 20 MB", "complete upload data file", _UPLOAD + "uploadId", "POST"),
    _read("UPDATE, copy-on-write, by tasks", "PyArrow", "GET data file", _DATA),
    _write("UPDATE, copy-on-write, by tasks", "PUT data file", _DATA),
    _write("UPDATE, merge-on-read", "PUT delete file", _DELETES),
    _write("append", "PUT manifest", r"-m\d+\.avro$"),
    _write("append", "PUT manifest list", r"/snap-[^/]*\.avro$"),
    _write("append", "PUT metadata", r"\.metadata\.json$"),
    Row(
        "expire_snapshots", "boto3", "DELETE many", "POST", r"\?delete$",
        other=dict.fromkeys(("503 always", "500 always", "reset always", "403"), LEFT),
        without=_OF_WRITES,
    ),
)  # fmt: skip

REST_COLUMNS = (
    Column("429 once", BUSY, ONCE, OK),
    Column("429 always", BUSY, ALWAYS, ERROR),
    Column("503 once", UNAVAILABLE, ONCE, OK),
    Column("503 always", UNAVAILABLE, ALWAYS, UNKNOWN),
    Column("500 once", SERVER_ERROR, ONCE, UNKNOWN),
    Column("reset once", RESET, ONCE, UNKNOWN),
    Column("reset always", RESET, ALWAYS, UNKNOWN),
    Column("403", FORBIDDEN, ALWAYS, ERROR),
    Column("late", slow(1), ONCE, OK),
    Column("reply lost", REPLY_LOST, ONCE, OK),
    Column("applied, then 500", APPLIED_THEN_ERROR, ONCE, OK),
)
_TABLE = r"/namespaces/[^/]+/tables/[^/?]+(\?|$)"
# They are not repeated, and may be made late too.
_CATALOG = {"429 once": ERROR, "503 once": UNKNOWN}
_CREATION = _CATALOG | {"reply lost": UNKNOWN, "applied, then 500": UNKNOWN}  # by whom is not known
REST_ROWS = (
    Row(
        "to_arrow", "PyIceberg", "load table", "GET", _TABLE,
        other={"503 always": ERROR, "500 once": ERROR, "reset once": OK, "reset always": ERROR},
        without=("reply lost", "applied, then 500"),
    ),
    Row("append", "PyIceberg", "commit", "POST", _TABLE),
    Row("create_table", "PyIceberg", "POST namespaces/…/tables", "POST", r"/tables$", other=_CREATION),
    Row("rename_table", "PyIceberg", "POST tables/rename", "POST", r"/tables/rename$", other=_CATALOG),
    Row("drop_table", "PyIceberg", "drop table", "DELETE", _TABLE, other=_CATALOG),
)  # fmt: skip

TABLES: dict[str, tuple[Sequence[Row], Sequence[Column]]] = {
    "S3": (S3_ROWS, S3_COLUMNS),
    "REST": (REST_ROWS, REST_COLUMNS),
}


# -------------------------------------------------------------------------------------------------
# The page


def line(row: Row, columns: Iterable[Column], outcomes: Mapping[str, str]) -> str:
    """A line of a table in Markdown."""
    cells = (outcomes.get(column.title, NOT_TRIED) for column in columns)
    return f"| {row.statement} | {row.client}: {row.kind} | {' | '.join(cells)} |"


def table(name: str, outcomes: Mapping[str, Mapping[str, str]]) -> str:
    """A whole table in Markdown."""
    rows, columns = TABLES[name]
    titles = ["statement", "requests", *(column.title for column in columns)]
    head = [f"| {' | '.join(titles)} |", "|---|---|" + ":-:|" * len(columns)]
    return "\n".join([*head, *(line(row, columns, outcomes[row.title]) for row in rows)])


def table_of_page(name: str) -> str:
    """The table as the page has it."""
    begin = BEGIN.format(name)
    return PAGE.read_text().partition(begin)[2].partition(END)[0].strip()


def write_table(name: str, outcomes: Mapping[str, Mapping[str, str]]) -> None:
    """Put a table into the page, in place of the one that it has."""
    begin = BEGIN.format(name)
    text = PAGE.read_text()
    pattern = re.compile(rf"{re.escape(begin)}\n.*?{re.escape(END)}", re.DOTALL)
    made = f"{begin}\n\n{table(name, outcomes)}\n\n{END}"
    changed, number = pattern.subn(lambda _match: made, text)
    assert number == 1, name
    PAGE.write_text(changed)


def writes_page() -> bool:
    """Whether this run writes the tables."""
    return os.environ.get(WRITE, "") not in ("", "0")
