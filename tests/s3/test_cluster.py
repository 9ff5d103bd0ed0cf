"""A standalone cluster whose workers know neither the store nor its keys; killed workers and drivers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest

from icefloe import Lake, Table
from icefloe.lake import open_catalog
from support.http_proxy import NONE, Proxy, Rule
from support.standalone_cluster import Cluster, python_of_workers, standalone_cluster
from support.unreferenced_files import leftovers, uploads_of

pytestmark = [pytest.mark.s3, pytest.mark.spark]

PROGRAM = Path(__file__).with_name("driver_process.py")
LARGE_ROWS = 12_000  # of driver_process.py
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
PARTS = r"/data/.*\.parquet\?.*partNumber="
WAIT_S = 240
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of drivers: workers have a Python without boto3 and without icefloe, and no keys."""
    python = python_of_workers(tmp_path_factory.mktemp("workers"))
    environment = {name: value for name, value in os.environ.items() if name not in KEYS}
    return {**environment, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    with standalone_cluster(tmp_path) as running:
        yield running


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(cluster: Cluster, environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts a driver of the cluster."""
    started: list[subprocess.Popen[str]] = []

    def run(properties: dict[str, Any], table: str, do: str, **more: Any) -> subprocess.Popen[str]:
        orders = {"properties": properties, "table": table, "do": do, "master": cluster.url, **more}
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(orders)],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def table(properties_of, new_name: str) -> Iterator[Table]:
    """A table of one row, as a lake without Spark sees it."""
    properties = properties_of("rest")
    properties.pop("inline_uri")
    with Lake(open_catalog(None, None, properties)) as lake:
        made = lake.create_table(new_name, SCHEMA)
        made.iceberg.append(pa.table({"id": [-1], "text": ["x"]}, SCHEMA))
        yield made


def ids(table: Table) -> list[int]:
    return sorted(table.iceberg.scan().to_arrow()["id"].to_pylist())


def begun_uploads(rule: Rule) -> set[str]:
    """The uploads that have a part."""
    return {parse_qs(urlsplit(request.url).query)["uploadId"][0] for request in rule.fired}


class Once:
    """Does something when parts of two files were sent: each of the two tasks is writing one."""

    def __init__(self, do: Callable[[], object]) -> None:
        self.do, self.done, self.lock = do, False, Lock()
        self.rule: Rule | None = None

    def __call__(self) -> None:
        with self.lock:
            if not self.done and self.rule is not None and len(begun_uploads(self.rule)) == 2:
                self.done = True
                self.do()


def remove(table: Table, *, dry_run: bool) -> Any:
    soon = datetime.now(UTC) + timedelta(minutes=1)
    return table.remove_orphans(older_than=soon, allow_recent=True, dry_run=dry_run)


def check_leftovers(table: Table) -> None:
    """`remove_orphans` lists what was left, uploads included, and then removes it."""
    rows, left = ids(table), leftovers(table)
    pending = uploads_of(table)
    assert pending
    listed = remove(table, dry_run=True)
    assert set(listed.uploads) == {upload.location for upload in pending}
    assert left <= set(listed.files)
    removed = remove(table, dry_run=False)
    assert (removed.uploads_aborted, removed.files_failed) == (len(pending), ())
    assert leftovers(table) == set()
    assert uploads_of(table) == []
    assert ids(table) == rows


@pytest.mark.parametrize("kind", ["sqlite", "vending"])
def test_workers_get_credentials_from_the_statement(
    kind, start, properties_of, new_name, store, s3_proxy, tmp_path
):
    """Every statement; neither Spark's event log nor what the driver prints has a secret."""
    events = tmp_path / "events"
    events.mkdir()
    before = len(s3_proxy.log)
    driver = start(properties_of(kind), new_name, "merge-on-read", events=str(events))
    said, errors = driver.communicate(timeout=WAIT_S)
    assert driver.returncode == 0, errors
    rows = json.loads(said.splitlines()[-1])
    properties = {k: v for k, v in properties_of(kind).items() if k != "inline_uri"}
    with Lake(open_catalog(None, None, properties)) as lake:
        read = lake.catalog.load_table(new_name).scan().to_arrow().to_pylist()
    assert sorted([*row.values()] for row in read) == rows
    assert {"Spark", "PyArrow", "boto3"} <= {request.client for request in s3_proxy.log[before:]}
    logged = [path.read_bytes() for path in events.rglob("*") if path.is_file()]
    assert any(b"SparkListenerSQLExecutionStart" in text for text in logged)
    for text in (*logged, said.encode(), errors.encode()):
        assert store.secret_key.encode() not in text


def test_a_killed_worker_loses_nothing(cluster, start, table, properties_of, s3_proxy: Proxy):
    """Its task runs again on the other worker; parts of its file are left."""
    act = Once(lambda: cluster.kill_worker(0))
    with s3_proxy.failing(NONE, "PUT", PARTS, times=None, act=act) as rule:
        act.rule = rule
        driver = start(properties_of("rest"), table.name, "append")
        said, errors = driver.communicate(timeout=WAIT_S)
    assert act.done
    assert driver.returncode == 0, errors
    assert said.splitlines() == ["ready", f"appended {LARGE_ROWS}"]
    assert len(begun_uploads(rule)) == 3
    assert ids(table) == [-1, *range(LARGE_ROWS)]
    check_leftovers(table)


def test_a_killed_driver_publishes_nothing(start, table, properties_of, s3_proxy: Proxy):
    drivers: list[subprocess.Popen[str]] = []
    before = table.iceberg.metadata.current_snapshot_id
    act = Once(lambda: os.killpg(drivers[0].pid, signal.SIGKILL))
    with s3_proxy.failing(NONE, "PUT", PARTS, times=None, act=act) as rule:
        act.rule = rule
        drivers.append(start(properties_of("rest"), table.name, "append"))
        said, _ = drivers[0].communicate(timeout=WAIT_S)
        wait_for_executors(s3_proxy)
    assert act.done
    assert (drivers[0].returncode, said.splitlines()) == (-signal.SIGKILL, ["ready"])
    assert table.iceberg.metadata.current_snapshot_id == before
    assert ids(table) == [-1]
    check_leftovers(table)


def wait_for_executors(proxy: Proxy) -> None:
    """Wait until nobody has sent a request for two seconds."""
    while True:
        before = len(proxy.log)
        time.sleep(2)
        if len(proxy.log) == before:
            return
