"""PostgreSQL as the catalog of sixteen writers: it is restarted, and connections are lost at COMMIT.

What a statement reported is what is in the table: done once, refused not at all.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

import icefloe
from icefloe import Lake
from icefloe.errors import CommitStateUnknownError, StorageError
from support.postgresql import PostgreSQL, running_postgresql
from support.unreferenced_files import leftovers

pytestmark = [pytest.mark.slow, pytest.mark.spark]

WRITERS, ROWS_EACH = 16, 3
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
COUNTER = -1  # the id of a row that every writer changes
MANY_RETRIES = {"commit.retry.num-retries": "200", "commit.retry.total-timeout-ms": "600000"}


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    with running_postgresql() as running:
        yield running


@dataclass
class Ledger:
    """What statements reported, by the row that they were to add."""

    done: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    refusals: list[StorageError] = field(default_factory=list)
    increments: int = 0
    unknown_increments: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def append(self, lake: Lake, number: int, key: str | None) -> None:
        """Append a row; again after a refusal, and with a key after an unknown outcome."""
        row = pa.table({"id": [number], "n": [0]}, schema=SCHEMA)
        while True:
            try:
                lake.table("t").append(row, idempotency_key=key)
            except CommitStateUnknownError:
                if key is not None:
                    continue
                with self._lock:
                    self.unknown.append(number)
                return
            except StorageError as refused:
                with self._lock:
                    self.refusals.append(refused)
                time.sleep(0.1)  # the server may be down
                continue
            with self._lock:
                self.done.append(number)
            return

    def increment(self, lake: Lake) -> None:
        """Change the row that all writers change; again after a refusal."""
        while True:
            try:
                update = lake.table("t").update().set("n", "n + 1").where(f"id = {COUNTER}")
                assert update.with_options(retries=100).execute().rows_updated == 1
            except CommitStateUnknownError:
                with self._lock:
                    self.unknown_increments += 1
                return
            except StorageError as refused:
                with self._lock:
                    self.refusals.append(refused)
                time.sleep(0.1)
                continue
            with self._lock:
                self.increments += 1
            return


def work_together(
    lakes: list[Lake], ledger: Ledger, at_work: Callable[[], object] = lambda: None
) -> None:
    """Let every writer append its rows, every other one with keys, and change the shared row."""

    def write(writer: int) -> None:
        lake = lakes[writer]
        for number in range(ROWS_EACH):
            row = writer * ROWS_EACH + number
            ledger.append(lake, row, f"key {row}" if writer % 2 else None)
            if number % 3 == 0:
                ledger.increment(lake)

    with ThreadPoolExecutor(len(lakes)) as pool:
        writers = [pool.submit(write, writer) for writer in range(len(lakes))]
        at_work()
        for each in writers:
            each.result()


@contextmanager
def writers_of(uri: str, folder: Path, spark: SparkSession) -> Iterator[list[Lake]]:
    """Sixteen connections to a lake with one table, which has the shared row."""
    with ExitStack() as stack:
        lakes = [
            stack.enter_context(icefloe.connect(uri=uri, warehouse=folder, spark=spark))
            for _ in range(WRITERS)
        ]
        lakes[0].create_table("t", SCHEMA, properties=MANY_RETRIES)
        lakes[0].table("t").append(pa.table({"id": [COUNTER], "n": [0]}, schema=SCHEMA))
        yield lakes


def check(lake: Lake, ledger: Ledger) -> None:
    """The table has what statements reported, as another engine reads it too."""
    everything = range(WRITERS * ROWS_EACH)
    assert sorted([*ledger.done, *ledger.unknown]) == list(everything)
    lake.catalog.engine.dispose()  # its connections may be of a server that was restarted
    table = lake.table("t")
    found = [tuple(row) for row in table.scan().collect()]
    read = table.iceberg.scan().to_arrow().to_pylist()
    assert sorted(found) == sorted((row["id"], row["n"]) for row in read)
    ids = [number for number, _ in found if number != COUNTER]
    assert len(ids) == len(set(ids))
    assert set(ledger.done) <= set(ids) <= {*ledger.done, *ledger.unknown}
    counter = dict(found)[COUNTER]
    assert 0 <= counter - ledger.increments <= ledger.unknown_increments
    assert len(table.iceberg.metadata.snapshots) == len(ids) + counter + 1


@pytest.mark.requirement("M27", "D6")
def test_sixteen_writers_lose_nothing(server, spark, tmp_path):
    ledger = Ledger()
    with writers_of(server.uri, tmp_path, spark) as lakes:
        work_together(lakes, ledger)
        check(lakes[0], ledger)
        assert (ledger.refusals, ledger.unknown, ledger.unknown_increments) == ([], [], 0)
        assert leftovers(lakes[0].table("t")) == set()


@pytest.mark.requirement("X10", "M27")
def test_the_server_is_restarted_while_sixteen_writers_work(server, spark, tmp_path):
    ledger = Ledger()

    def restart_twice() -> None:
        for part in (1, 2):
            while len(ledger.done) < part * WRITERS * ROWS_EACH // 4:
                time.sleep(0.01)
            server.restart()

    with writers_of(server.uri, tmp_path, spark) as lakes:
        work_together(lakes, ledger, restart_twice)
        check(lakes[0], ledger)
    assert ledger.refusals


# -------------------------------------------------------------------------------------------------
# Connections that are lost at COMMIT


@dataclass
class CommitCutter:
    """A proxy before the server that ends connections at COMMIT: before or after it is done."""

    port: int
    listener: socket.socket
    commits: int = 0
    cut_before: int = 0
    cut_after: int = 0
    active: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with (
            client,
            socket.create_connection(("127.0.0.1", self.port)) as server,
            suppress(OSError),
        ):
            while True:
                ready, _, _ = select.select([client, server], [], [])
                if server in ready:
                    data = server.recv(65536)
                    client.sendall(data)
                if client in ready:
                    data = client.recv(65536)
                    if b"COMMIT\x00" in data and (fate := self._fate()):
                        if fate == "after":
                            server.sendall(data)
                            server.recv(65536)
                        return
                    server.sendall(data)
                if not data:
                    return

    def _fate(self) -> str:
        """What happens to this COMMIT: every seventh is lost, every other one of these done."""
        with self._lock:
            self.commits += self.active
            if not self.active or self.commits % 7:
                return ""
            if self.commits % 2:
                self.cut_before += 1
                return "before"
            self.cut_after += 1
            return "after"


@contextmanager
def commit_cutter(port: int) -> Iterator[CommitCutter]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        cutter = CommitCutter(port, listener)
        thread = threading.Thread(target=cutter.serve, daemon=True)
        thread.start()
        yield cutter
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.requirement("X10", "M27")
def test_connections_of_sixteen_writers_are_lost_at_commit(server, spark, tmp_path):
    ledger = Ledger()
    with commit_cutter(server.port) as cutter:
        uri = sa.make_url(server.uri).set(port=cutter.listener.getsockname()[1])
        with writers_of(uri.render_as_string(hide_password=False), tmp_path, spark) as lakes:
            cutter.active = True
            work_together(lakes, ledger)
            cutter.active = False
            check(lakes[0], ledger)
    assert cutter.cut_before > 0
    assert cutter.cut_after > 0
