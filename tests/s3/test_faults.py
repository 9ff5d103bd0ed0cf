"""What comes of requests that fail: each cell of the tables in docs/object_stores.md.

Every rule is asserted to have fired, at which client, and on which requests, from the proxy's log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from icefloe import Lake, Table
from icefloe.errors import CommitStateUnknownError, StorageError
from icefloe.storage.files import list_files
from support.fault_tables import (
    ERROR,
    LEFT,
    OK,
    REST_COLUMNS,
    REST_ROWS,
    S3_COLUMNS,
    S3_ROWS,
    TABLES,
    UNKNOWN,
    Column,
    Row,
    line,
    table,
    table_of_page,
    write_table,
    writes_page,
)
from support.http_proxy import Proxy, Request, Rule, rest_kind, s3_kind
from support.unreferenced_files import leftovers, uploads_of

pytestmark = pytest.mark.s3

FEW_ATTEMPTS = {"icefloe.io.max-attempts": "3"}
NOTHING_KEPT = {"io.manifest.cache-enabled": "false"}  # files are read from the store each time
COW = {f"write.{kind}.mode": "copy-on-write" for kind in ("delete", "update", "merge")}
ARROW_SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("text", pa.string())])
RETRIES = {"commit.retry.num-retries": "2", "commit.retry.min-wait-ms": "10"}

# What the message of an error says of each fault, in the words of PyArrow, boto3, Spark or HTTP.
REASONS = {
    "503": r"503|SlowDown|SLOW_DOWN|Service Unavailable",
    "500": r"500|Internal|INTERNAL_FAILURE",
    "429": r"429",
    "403": r"403|Forbidden|AccessDenied|ACCESS_DENIED",
    "reset": r"reset|[Cc]onnection|NETWORK_CONNECTION|closed",
    "truncated": r"truncated|[Cc]onnection|NETWORK_CONNECTION|IncompleteRead|Premature|closed|XML",
}
found: dict[str, dict[str, Mapping[str, str]]] = {name: {} for name in TABLES}


@pytest.fixture(scope="module", autouse=True)
def page() -> Iterator[None]:
    """Write the tables that this run has filled."""
    yield
    for name, (rows, _columns) in TABLES.items():
        if writes_page() and found[name].keys() == {row.title for row in rows}:
            write_table(name, found[name])


@dataclass
class Tried:
    """A table, the rows that it must have, and the statements that are tried on it."""

    lake: Lake
    name: str
    rows: dict[int, int] = field(default_factory=dict)  # id: n
    made: int = 0  # tables beside it
    left: bool = False

    @property
    def table(self) -> Table:
        return self.lake.table(self.name)

    def new_ids(self, count: int) -> range:
        first = max(self.rows, default=-1) + 1
        return range(first, first + count)

    def check(self) -> None:
        """The table has exactly these rows."""
        read = self.table.to_arrow(["id", "n"]).to_pylist()
        assert sorted((row["id"], row["n"]) for row in read) == sorted(self.rows.items())


# -------------------------------------------------------------------------------------------------
# The statements, each of which returns the rows that there must be after it


def append(t: Tried) -> dict[int, int]:
    ids = t.new_ids(2)
    t.table.append([{"id": number, "n": 0, "text": "x"} for number in ids])
    return t.rows | dict.fromkeys(ids, 0)


def append_by_tasks(t: Tried, count: int = 2, text: str = "'x'") -> dict[int, int]:
    ids = t.new_ids(count)
    frame = t.lake.spark.range(ids.start, ids.stop, 1, 1)
    t.table.append(frame.selectExpr("id", "0L AS n", f"{text} AS text"))
    return t.rows | dict.fromkeys(ids, 0)


def append_large(t: Tried) -> dict[int, int]:
    digits = ", ".join(f"sha2(concat(id, ' {i}'), 512)" for i in range(64))
    return append_by_tasks(t, 6_000, f"concat({digits})")


def read(t: Tried) -> dict[int, int]:
    t.check()
    return t.rows


def update(t: Tried) -> dict[int, int]:
    last = max(t.rows)  # one of the two rows of the newest file
    t.table.update().set("n", "n + 1").where(f"id = {last}").execute()
    return t.rows | {last: t.rows[last] + 1}


def expire(t: Tried) -> dict[int, int]:
    result = t.table.expire_snapshots(older_than=datetime.now(UTC), retain_last=1)
    t.left = bool(result.files_failed)
    return t.rows


STATEMENTS: dict[str, Callable[[Tried], dict[int, int]]] = {
    "to_arrow": read,
    "append": append,
    "append of a DataFrame": append_by_tasks,
    "append of 20 MB": append_large,
    "UPDATE, copy-on-write, by tasks": update,
    "UPDATE, merge-on-read": update,
    "expire_snapshots": expire,
}


def outcome_of(run: Callable[[], object]) -> tuple[str, str]:
    """What came of a statement, and the error's message."""
    try:
        run()
    except CommitStateUnknownError as error:
        return UNKNOWN, str(error)
    except StorageError as error:
        return ERROR, str(error)
    return OK, ""


def check_reason(column: Column, message: str) -> None:
    """An error says what the store or the catalog answered."""
    pattern = REASONS.get(column.fault.name)
    assert pattern is None or re.search(pattern, message), message


def record(name: str, row: Row, outcomes: dict[str, str], columns: tuple[Column, ...]) -> None:
    """Compare a line with that of the page, or keep it to be written there."""
    found[name][row.title] = outcomes
    if not writes_page():
        assert line(row, columns, outcomes) in table_of_page(name).splitlines()


def clients(fired: list[Request], kind: Callable[[Request], str]) -> set[str]:
    return {f"{request.client}: {kind(request)}" for request in fired}


def tried_columns(row: Row, columns: tuple[Column, ...]) -> list[Column]:
    return [column for column in columns if column.title not in row.without]


# -------------------------------------------------------------------------------------------------
# S3


@pytest.mark.changed_by("spark")
@pytest.mark.every_variant
@pytest.mark.parametrize("row", S3_ROWS, ids=lambda row: row.title)
def test_requests_to_s3(row: Row, open_lake, new_name, s3_proxy: Proxy):
    lake = open_lake("sqlite", **FEW_ATTEMPTS, **NOTHING_KEPT)
    in_place = "copy-on-write" in row.statement
    t = Tried(lake, new_name)
    lake.create_table(new_name, ARROW_SCHEMA, properties=COW if in_place else {})
    t.rows = append(t)
    if "delete file" in row.kind:
        t.rows = update(t)
    outcomes = {}
    for column in tried_columns(row, S3_COLUMNS):
        if row.statement.startswith(("UPDATE", "expire")):
            t.rows = append(t)
        outcomes[column.title] = of_s3(t, row, column, s3_proxy)
    assert outcomes == {c.title: row.expected(c) for c in tried_columns(row, S3_COLUMNS)}
    record("S3", row, outcomes, S3_COLUMNS)


def of_s3(t: Tried, row: Row, column: Column, proxy: Proxy) -> str:
    """One cell: the outcome, after what it must leave has been checked."""
    before, stored, t.left = t.table.snapshot_id, files_of(t), False
    if row.kind == "GET metadata":  # those that other engines wrote alone are not known yet
        other = load_catalog(t.lake.catalog.name, **t.lake.catalog.properties).load_table(t.name)
        other.transaction().set_properties(read="again").commit_transaction()
    after: list[dict[int, int]] = []
    with proxy.failing(
        column.fault, row.method, row.url,
        client=row.client, times=column.times, leave_out=row.leave_out,
    ) as rule:  # fmt: skip
        outcome, message = outcome_of(lambda: after.append(STATEMENTS[row.statement](t)))
    assert clients(rule.fired, s3_kind) == {f"{row.client}: {row.kind}"}
    assert column.times is None or len(rule.fired) == column.times
    if outcome == ERROR:
        check_reason(column, message)
        assert any(key_of(request) in message for request in rule.fired), message
        assert t.table.snapshot_id == before
        assert files_of(t) == stored
        assert uploads_of(t.table) == []
    else:
        [t.rows] = after
    t.check()
    if t.left:
        outcome = LEFT
        soon = datetime.now(UTC) + timedelta(minutes=1)
        removed = t.table.remove_orphans(older_than=soon, allow_recent=True, dry_run=False)
        assert removed.files
    assert leftovers(t.table) == set()
    return outcome


def key_of(request: Request) -> str:
    """What a message has to name: the key of an object, or the prefix of a listing."""
    listed = re.search(r"[?&]prefix=([^&]*\.parquet)", request.url)
    return listed[1].replace("%2F", "/") if listed else request.path.removeprefix("/lake/")


def files_of(t: Tried) -> set[str]:
    """Every object of the table but metadata files, which the catalog writes before it is asked."""
    iceberg = t.table.iceberg
    stored = {file.location for file in list_files(iceberg.io, iceberg.location())}
    return {location for location in stored if not location.endswith(".metadata.json")}


# -------------------------------------------------------------------------------------------------
# REST


@pytest.mark.every_variant
@pytest.mark.parametrize("row", REST_ROWS, ids=lambda row: row.title)
def test_requests_to_the_catalog(row: Row, open_lake, new_name, rest_proxy: Proxy):
    lake = open_lake("rest", **FEW_ATTEMPTS)
    t = Tried(lake, new_name)
    lake.create_table(new_name, ARROW_SCHEMA, properties=RETRIES)
    t.rows = append(t)
    of_table = row.statement in STATEMENTS
    cell = of_commit if of_table else of_catalog
    columns = tried_columns(row, REST_COLUMNS)
    outcomes = {column.title: cell(t, row, column, rest_proxy) for column in columns}
    assert outcomes == {c.title: row.expected(c) for c in columns}
    record("REST", row, outcomes, REST_COLUMNS)


def check_fired(rule: Rule, row: Row, column: Column, path: str) -> None:
    assert clients(rule.fired, rest_kind) == {f"{row.client}: {row.kind}"}
    assert all(request.path.endswith(path) for request in rule.fired)
    assert column.times is None or len(rule.fired) == column.times


def of_commit(t: Tried, row: Row, column: Column, proxy: Proxy) -> str:
    """A statement of one table."""
    before, stored = t.table.snapshot_id, files_of(t)
    after: list[dict[int, int]] = []
    with proxy.failing(column.fault, row.method, row.url, times=column.times) as rule:
        outcome, message = outcome_of(lambda: after.append(STATEMENTS[row.statement](t)))
    check_fired(rule, row, column, f"/{t.name.rpartition('.')[2]}")
    t.rows = after[0] if outcome == OK else t.rows
    t.check()
    if outcome == OK:
        assert leftovers(t.table) == set()
        return outcome
    check_reason(column, message)
    assert t.name in message
    assert t.table.snapshot_id == before
    if outcome == ERROR:
        assert files_of(t) == stored
    else:  # the commit may have landed, so its files are there, and no reader of the table sees them
        left = files_of(t) - stored
        assert {location for location in left if location.endswith(".parquet")}
        soon = datetime.now(UTC) + timedelta(minutes=1)
        removed = t.table.remove_orphans(older_than=soon, allow_recent=True, dry_run=False)
        assert left <= set(removed.files)
        assert files_of(t) == stored
        t.check()
    return outcome


def of_catalog(t: Tried, row: Row, column: Column, proxy: Proxy) -> str:
    """A change of the catalog's tables."""
    t.made += 1
    old, new = (f"{t.name}_{end}{t.made}" for end in ("old", "new"))
    statement = {
        "create_table": lambda: t.lake.create_table(new, ARROW_SCHEMA),
        "rename_table": lambda: t.lake.rename_table(old, new),
        "drop_table": lambda: t.lake.drop_table(old),
    }[row.statement]
    if row.statement != "create_table":
        t.lake.create_table(old, ARROW_SCHEMA)
    with proxy.failing(column.fault, row.method, row.url, times=column.times) as rule:
        outcome, message = outcome_of(statement)
    check_fired(rule, row, column, "")
    made = row.statement == "drop_table" or t.lake.catalog.table_exists(new)
    kept = row.statement == "create_table" or t.lake.catalog.table_exists(old)
    is_applied = made and (row.statement == "create_table" or not kept)
    assert is_applied == (outcome == OK or column.fault.reaches_server)
    if outcome == ERROR:
        assert not is_applied
        assert "Nothing was changed" in message
    if outcome != OK:
        check_reason(column, message)
        assert t.name in message
    return outcome


def test_the_page_has_these_lines_alone():
    if writes_page():
        pytest.skip("the page is written at the end of the run")
    for name, (rows, columns) in TABLES.items():
        lines = table_of_page(name).splitlines()
        nothing = table(name, {row.title: {} for row in rows}).splitlines()
        assert lines[:2] == nothing[:2]
        shown = [text.split(" | ")[:2] for text in lines[2:]]
        assert shown == [line(row, columns, {}).split(" | ")[:2] for row in rows]
