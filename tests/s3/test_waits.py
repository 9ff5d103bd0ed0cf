"""Stores and catalogs that are down or do not answer end a statement in less than two minutes, all by default.

The lakes get their tables from Iceberg's REST catalog; only the place of the files, or the catalog, is down.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from icefloe import Lake, Table
from icefloe.errors import CommitStateUnknownError, StorageError
from icefloe.lake import open_catalog
from support.http_proxy import NONE, Fault, slow
from support.unreferenced_files import leftovers

pytestmark = [pytest.mark.s3, pytest.mark.spark]

LIMIT_S = 120
SCHEMA = "id BIGINT, n BIGINT, text STRING"
DIGITS = ", ".join(f"sha2(concat(id, ' {i}'), 512)" for i in range(64))
SILENCE = Fault("silence", reset=True, wait_s=150)  # the server does not get the request
ANY = "GET|HEAD|PUT|POST|DELETE"


@contextmanager
def mute_server() -> Iterator[str]:
    """An endpoint that takes connections and never answers."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:

        def take() -> None:
            with suppress(OSError):
                while True:
                    taken.append(listening.accept()[0])

        threading.Thread(target=take, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    for each in taken:
        each.close()


@contextmanager
def no_server() -> Iterator[str]:
    """An endpoint that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


# One with tasks that write, and one with tasks that read: no more run at once.
STATEMENTS: dict[str, Callable[[Table], object]] = {
    "to_arrow": lambda t: t.to_arrow(),
    "append": lambda t: t.append([{"id": 2, "n": 0, "text": "x"}]),
    "append of 20 MB": lambda t: t.append(
        t._lake.spark.range(2, 6_002, 1, 1).selectExpr("id", "id n", f"concat({DIGITS}) text")
    ),
    "UPDATE": lambda t: t.update().set("n", "n + 1").where("id = 1").execute(),
    "DELETE": lambda t: t.delete().where("id = 1").execute(),
}


def timed(run: Callable[[], object]) -> tuple[float, Exception | None]:
    """How long a statement took, and its error."""
    started = time.monotonic()
    try:
        run()
    except Exception as error:  # noqa: BLE001 - which is looked at
        return time.monotonic() - started, error
    return time.monotonic() - started, None


Tried = dict[str, Callable[[], object]]


def run_at_once(statements: Tried) -> dict[str, tuple[float, Exception | None]]:
    """How long each took, and its error; they only wait."""
    with ThreadPoolExecutor(len(statements)) as pool:
        running = {name: pool.submit(timed, run) for name, run in statements.items()}
        done = {name: future.result() for name, future in running.items()}
    for name, (seconds, error) in done.items():
        print(f"{name}: {seconds:.1f} s, {error!r}")
    return done


def test_a_store_or_a_catalog_that_refuses_connections(open_lake, new_name):
    healthy = new_table(open_lake, new_name)
    before = healthy.snapshot_id
    with no_server() as endpoint:
        table = open_lake("rest", **{"s3.endpoint": endpoint}).table(new_name)
        done = run_at_once(of_store(table))
        _, error = timed(lambda: open_catalog(None, None, {"type": "rest", "uri": endpoint}))
    assert isinstance(error, StorageError)
    assert endpoint in str(error)
    check(done, healthy, before, limit_s=60)


def test_a_store_or_a_catalog_that_does_not_answer(open_lake, new_name, rest_proxy, s3_proxy):
    """The store from the first request of a statement on; the catalog so too, and from a commit on."""
    healthy = new_table(open_lake, new_name)
    before = healthy.snapshot_id
    other = new_table(open_lake, f"{new_name}_committed")
    sent = threading.Event()
    folder = healthy.location.removeprefix("s3://lake/")
    with (
        mute_server() as endpoint,
        s3_proxy.failing(SILENCE, ANY, rf"{folder}(/|$)", times=None, leave_out="") as rule,
        rest_proxy.failing(slow(150), "POST", "_committed$", act=sent.set) as commit,
        rest_proxy.failing(
            NONE, "GET", "_committed$", times=None, act=lambda: sent.is_set() and time.sleep(150)
        ),
    ):
        catalog = {"type": "rest", "uri": endpoint}
        done = run_at_once(
            {
                **of_store(healthy),
                "catalog": lambda: open_catalog(None, None, catalog),
                "commit": lambda: other.append([{"id": 2, "n": 0, "text": "x"}]),
            }
        )
    assert {"Spark", "PyArrow"} <= {request.client for request in rule.fired}
    assert "PUT" in {request.method for request in rule.fired}
    seconds, error = done.pop("catalog")
    assert isinstance(error, StorageError)
    assert endpoint in str(error)
    assert seconds < LIMIT_S
    seconds, error = done.pop("commit")
    assert isinstance(error, CommitStateUnknownError), error
    assert len(commit.fired) == 1
    assert seconds < LIMIT_S
    check(done, healthy, before, limit_s=LIMIT_S)


def new_table(open_lake: Callable[..., Lake], name: str) -> Table:
    table = open_lake("rest").create_table(name, SCHEMA)
    for number in (1, 5):
        table.append([{"id": number, "n": 0, "text": "x"}])
    assert len(table.to_arrow()) == 2  # what is held in memory is not read again
    return table


def of_store(table: Table) -> Tried:
    return {name: partial(statement, table) for name, statement in STATEMENTS.items()}


def check(
    done: dict[str, tuple[float, Exception | None]], table: Table, before: int, limit_s: float
) -> None:
    """Each ended with the path, in time, and the table is as before."""
    for name, (seconds, error) in done.items():
        assert isinstance(error, StorageError), (name, error)
        assert "s3://lake/" in str(error) or "'lake'" in str(error), (name, error)
        assert seconds < limit_s, (name, seconds)
    assert table.snapshot_id == before
    assert sorted(row.id for row in table.scan().collect()) == [1, 5]
    assert leftovers(table) == set()
