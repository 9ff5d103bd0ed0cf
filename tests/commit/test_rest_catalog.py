"""Requests to a REST catalog end, and their errors say whether a commit may have landed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    CommitStateUnknownException,
    ForbiddenError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from requests.exceptions import ReadTimeout

import icefloe
from icefloe import Table
from icefloe.commit.catalog import (
    CatalogBusyError,
    CatalogUnavailableError,
    commit_with_retries,
    reading_catalog,
    settle,
)
from icefloe.errors import CommitStateUnknownError, StatementError, StorageError
from icefloe.lake import open_catalog
from icefloe.metadata.rest_catalog import is_refused_for_now, is_rest
from icefloe.settings import RetryPolicy
from support.rest_catalog import failure, running_catalog
from support.unreferenced_files import leftovers

FAST = {"icefloe.rest.request-timeout": "0.2", "icefloe.io.max-attempts": "2"}


@pytest.fixture
def server(tmp_path):
    with running_catalog(tmp_path / "rest") as running:
        yield running


@contextmanager
def mute_server() -> Iterator[tuple[str, list[socket.socket]]]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken: list[socket.socket] = []

        def take() -> None:
            with suppress(OSError):
                while True:
                    taken.append(listening.accept()[0])

        threading.Thread(target=take, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", taken
    for each in taken:
        each.close()


def nowhere() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"http://127.0.0.1:{listening.getsockname()[1]}"


def settled(error: Exception, landed: bool | None) -> None:
    """What a commit that ended in this error comes to; `landed` as far as the catalog says."""
    uuid = uuid4()

    def load_table(_name: str) -> SimpleNamespace:
        if landed is None:
            raise ConnectionError
        return SimpleNamespace(metadata=SimpleNamespace(table_uuid=uuid))

    catalog = SimpleNamespace(load_table=load_table)
    doubt = CommitStateUnknownError("unknown")
    settle(catalog, "a.t", uuid, lambda _metadata: bool(landed), doubt, error)


class TestWaits:
    def test_a_catalog_that_does_not_answer_is_given_up(self):
        with mute_server() as (uri, taken):
            with pytest.raises(StorageError, match=rf"failed to answer at {uri}: .*timed out"):
                open_catalog(None, None, {"type": "rest", "uri": uri, **FAST})
            assert len(taken) == 2

    def test_a_catalog_that_is_down_is_named(self):
        uri = nowhere()
        with pytest.raises(StorageError, match=f"failed to answer at {uri}"):
            open_catalog(None, None, {"uri": uri, **FAST})

    def test_a_load_is_repeated_and_a_commit_is_not(self, server):
        catalog = open_catalog(None, None, {**server.properties, **FAST})
        catalog.create_namespace("a")
        replies = [503, 503]
        real = server.reply

        def reply(method, path, body):
            if replies:
                server.log.append(f"{method} {path}")
                return replies.pop(), {"error": {"message": "no", "type": "T", "code": 503}}
            return real(method, path, body)

        server.reply = reply
        server.log.clear()
        with pytest.raises(ServiceUnavailableError):
            catalog.create_namespace("b")
        assert server.log == ["POST /v1/namespaces"]
        assert catalog.list_namespaces() == [("a",)]
        assert server.log[1:] == ["GET /v1/namespaces"] * 2

    def test_a_wrong_limit_is_refused(self, server):
        wrong = {**server.properties, "icefloe.rest.request-timeout": "soon"}
        with pytest.raises(StatementError, match=r"'soon' for 'icefloe.rest.request-timeout'"):
            open_catalog(None, None, wrong)

    @pytest.mark.parametrize(
        ("properties", "expected"),
        [
            ({"uri": "https://h"}, True),
            ({"type": "REST", "uri": "https://h"}, True),
            ({"type": "hive", "uri": "thrift://h"}, False),
            ({"uri": "postgresql+psycopg://h"}, False),
            ({"uri": "https://h", "py-catalog-impl": "a.B"}, False),
        ],
    )
    def test_which_catalogs_are_meant(self, properties, expected):
        assert is_rest(properties) is expected


class TestOutcomes:
    @pytest.mark.parametrize("landed", [False, None])
    def test_429_was_refused_and_may_be_repeated(self, landed):
        with pytest.raises(CatalogBusyError):
            settled(TooManyRequestsError("busy"), landed)

    @pytest.mark.parametrize("landed", [False, None])
    def test_503_may_land_later_and_may_be_repeated(self, landed):
        with pytest.raises(CatalogUnavailableError):
            settled(ServiceUnavailableError("busy"), landed)

    @pytest.mark.parametrize("landed", [False, None])
    def test_no_connection_was_refused_and_may_be_repeated(self, landed, server):
        catalog = open_catalog(None, None, {**server.properties, **FAST})
        catalog.uri = nowhere()
        with pytest.raises(OSError, match="Max retries exceeded") as refused:
            catalog.create_namespace("a")
        assert is_refused_for_now(refused.value)
        with pytest.raises(CatalogBusyError):
            settled(refused.value, landed)

    @pytest.mark.parametrize("landed", [False, None])
    def test_403_was_refused_for_good(self, landed):
        with pytest.raises(StorageError, match=r"refused a commit of a\.t: not you"):
            settled(ForbiddenError("not you"), landed)

    @pytest.mark.parametrize(
        "error",
        [CommitStateUnknownException("502"), ServerError("507"), ReadTimeout("slow"), OSError("?")],
    )
    @pytest.mark.parametrize("landed", [False, None])
    def test_other_errors_leave_it_unknown(self, error, landed):
        assert not is_refused_for_now(error)
        with pytest.raises(CommitStateUnknownError):
            settled(error, landed)

    @pytest.mark.parametrize("error", [ServiceUnavailableError("busy"), ReadTimeout("slow")])
    def test_a_commit_that_is_there_has_landed(self, error):
        settled(error, True)

    def test_a_catalog_that_stays_busy_is_an_error_of_storage(self):
        attempts = []

        def attempt(number: int) -> None:
            attempts.append(number)
            raise CatalogBusyError("busy")

        policy = RetryPolicy(retries=2, min_wait_s=0.0)
        state = SimpleNamespace(settings=SimpleNamespace(retry=policy), name="a.t")
        with pytest.raises(StorageError, match=r"a\.t in 3 attempts: busy\. Nothing was published"):
            commit_with_retries(state, attempt)
        assert attempts == [1, 2, 3]

    def test_what_may_land_later_is_no_failure_of_a_later_attempt(self):
        doubt = CommitStateUnknownError("unknown")

        def attempt(number: int) -> None:
            raise CatalogUnavailableError(doubt) if number == 1 else CatalogBusyError("busy")

        policy = RetryPolicy(retries=2, min_wait_s=0.0)
        state = SimpleNamespace(settings=SimpleNamespace(retry=policy), name="a.t")
        with pytest.raises(CommitStateUnknownError) as raised:
            commit_with_retries(state, attempt)
        assert raised.value is doubt

    def test_errors_of_the_server_are_of_storage(self):
        with pytest.raises(StorageError, match="failed to read a: down"), reading_catalog("read a"):
            raise ServerError("down")


UNAVAILABLE = failure(503)


class TestUnavailable:
    """A proxy answers 503 though the catalog may get the commit from it, now or later."""

    @pytest.fixture
    def table(self, server, spark):
        with icefloe.connect(spark=spark, **server.properties) as lake:
            schema = pa.schema([("id", pa.int64())])
            properties = {"commit.retry.num-retries": "1", "commit.retry.min-wait-ms": "1"}
            yield lake.create_table("a.t", schema, properties=properties)

    def test_a_commit_is_repeated(self, server, table):
        server.faults += [lambda _land: UNAVAILABLE]
        assert table.append([{"id": 1}]).attempts == 2
        assert ids_of(table) == [1]
        assert leftovers(table) == set()

    def test_it_is_there_when_the_next_attempt_begins(self, server, table):
        def pass_on_later(land):
            server.before_load += [lambda: None, land]  # after it was looked for
            return UNAVAILABLE

        server.faults += [pass_on_later]
        result = table.append([{"id": 1}], idempotency_key="k")
        assert (result.rows_inserted, result.snapshot_id) == (1, table.snapshot_id)
        assert ids_of(table) == [1]
        assert leftovers(table) == set()

    def test_it_lands_before_the_next_attempt_is_made(self, server, table):
        first = []
        server.faults += [lambda land: first.append(land) or UNAVAILABLE]
        server.faults += [lambda land: (first[0](), land())[1]]
        assert table.append([{"id": 1}]).snapshot_id == table.snapshot_id
        assert ids_of(table) == [1]
        assert leftovers(table) == set()

    def test_it_lands_after_the_last_attempt_failed(self, server, table):
        """Its files are still there."""
        kept = []
        server.faults += [lambda land: kept.append(land) or UNAVAILABLE] * 2
        with pytest.raises(CommitStateUnknownError, match="No file was deleted"):
            table.append([{"id": 1}])
        assert ids_of(table) == []
        assert kept[0]()[0] == 200
        assert ids_of(table) == [1]
        assert kept[1]()[0] == 409
        assert ids_of(table) == [1]

    def test_another_writer_wins_after_it(self, server, table):
        def lose(_land):
            other = load_catalog("other", **server.properties).load_table("a.t")
            other.append(pa.table({"id": pa.array([2], pa.int64())}))
            return failure(409)

        server.faults += [lambda _land: UNAVAILABLE, lose]
        with pytest.raises(CommitStateUnknownError):
            table.append([{"id": 1}])
        assert ids_of(table) == [2]

    def test_manifests_that_may_be_published_later_are_kept(self, server, table):
        for number in range(3):
            table.append([{"id": number}])
        kept = []
        server.faults += [lambda land: kept.append(land) or UNAVAILABLE] * 2
        with pytest.raises(CommitStateUnknownError):
            table.rewrite_manifests()
        assert kept[0]()[0] == 200
        assert ids_of(table) == [0, 1, 2]


def ids_of(table: Table) -> list[int]:
    return sorted(table.iceberg.scan().to_arrow()["id"].to_pylist())
