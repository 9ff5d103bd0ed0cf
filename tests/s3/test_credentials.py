"""Credentials that a REST catalog vends with each table, and that end.

The server vends keys that do not end. The proxy before it adds a token to each answer, with the time when it ends.
The proxy before S3 refuses those that have ended, and signs the requests of the others without them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest

from icefloe import Lake, Table
from icefloe.errors import StorageError
from icefloe.redaction import redacted
from support.http_proxy import EXPIRED, Proxy, Request, Rule
from support.s3_server import S3Server
from support.s3_signatures import signed_by
from support.unreferenced_files import leftovers, uploads_of

pytestmark = [pytest.mark.s3, pytest.mark.spark]

LIFE_S = 15.0  # of credentials that end within a test
ANY = "GET|HEAD|PUT|POST|DELETE"
ENDED = r"(?s)ended before the work did.*renewed before each job"


@dataclass
class Vending:
    """Adds the tokens, and knows which have ended."""

    life_s: float = 3600.0
    ends: dict[str, float] = field(default_factory=dict)

    def __call__(self, _request: Request, content: bytes) -> bytes:
        try:
            answer = json.loads(content)
        except ValueError:
            return content
        config = answer.get("config", {}) if isinstance(answer, dict) else {}
        if "s3.access-key-id" not in config or "metadata" not in answer:
            return content
        token = f"vended-token-{id(self):x}-{len(self.ends)}"
        self.ends[token] = time.time() + self.life_s
        config["s3.session-token"] = token
        config["s3.session-token-expires-at-ms"] = str(int(self.ends[token] * 1000))
        return json.dumps(answer).encode()

    def knows(self, *tokens: str) -> bool:
        return set(tokens) <= self.ends.keys()


@dataclass
class Ended(Rule):
    """Refuses requests whose credentials have ended."""

    vending: Vending = field(default_factory=Vending)

    def takes(self, request: Request) -> bool:
        if time.time() < self.vending.ends.get(request.token, 0.0):
            return False
        self.fired.append(request)
        return True


@pytest.fixture
def vending(vending_proxy: Proxy, s3_proxy: Proxy, s3_server: S3Server) -> Iterator[Vending]:
    vending_proxy.change_answer = vending = Vending()
    s3_proxy.change_headers = partial(signed_by, s3_server)
    yield vending
    vending_proxy.change_answer = s3_proxy.change_headers = None


@pytest.fixture
def ended(vending: Vending, s3_proxy: Proxy) -> Iterator[Ended]:
    rule = Ended(EXPIRED, "", "", vending=vending)
    s3_proxy.rules.append(rule)
    yield rule
    s3_proxy.rules.remove(rule)


@pytest.fixture
def lake(open_lake, vending: Vending) -> Lake:
    return open_lake("vending")


@pytest.fixture
def table(lake: Lake, new_name: str) -> Table:
    made = lake.create_table(new_name, "id BIGINT, n BIGINT")
    made.append(lake.spark.range(20).selectExpr("id", "0L AS n"))
    return made


def rows(table: Table) -> list[int]:
    return sorted(row.id for row in table.scan(["id"]).collect())


def by_client(requests: list[Request]) -> dict[str, set[str]]:
    """The tokens that each client has sent."""
    sent: dict[str, set[str]] = {}
    for request in requests:
        sent.setdefault(request.client, set()).add(request.token)
    return sent


@pytest.mark.changed_by("spark")
def test_the_driver_tasks_and_spark_use_them(table, vending, s3_proxy):
    before = len(s3_proxy.log)
    table.append(table._lake.spark.range(20, 22).selectExpr("id", "0L AS n"))
    table.update().set("n", "1").where("id = 3").execute()
    assert rows(table) == list(range(22))
    sent = by_client(s3_proxy.log[before:])
    assert sent.keys() == {"Spark", "PyArrow", "boto3"}
    assert vending.knows(*set.union(*sent.values()))
    settings = dict(table._lake.spark.sparkContext.getConf().getAll())
    assert not any("token" in value for value in settings.values())
    assert all(redacted(token) != token for token in set.union(*sent.values()))


@pytest.mark.changed_by("spark")
def test_they_are_renewed_within_a_statement(lake, new_name, vending, ended, s3_proxy):
    """Those that it began with have ended when it publishes."""
    vending.life_s = LIFE_S
    table = lake.create_table(new_name, "id BIGINT, n BIGINT")
    table.append(lake.spark.range(20).selectExpr("id", "0L AS n"))
    published: list[int] = []

    def wait() -> None:
        time.sleep(LIFE_S)
        published.append(len(s3_proxy.log))

    lake.before_publish = wait
    table.update().set("n", "1").where("id = 3").execute()
    lake.before_publish = lambda: None
    later = by_client(s3_proxy.log[published[0] :])
    assert later.keys() == {"PyArrow", "boto3"}
    assert vending.knows(*set.union(*later.values()))
    assert [row.n for row in table.scan(where="id = 3").collect()] == [1]
    assert ended.fired == []


def test_a_job_that_outlives_them_is_an_error_of_storage(lake, new_name, vending, ended):
    """Nothing is published; what it wrote is removed with new credentials."""
    vending.life_s = LIFE_S
    table = lake.create_table(new_name, "id BIGINT, n BIGINT")
    table.append([{"id": 0, "n": 0}])

    def slowly(batches):
        time.sleep(LIFE_S + 1)
        yield from batches

    more = lake.spark.range(1, 20, 1, 1).selectExpr("id", "0L AS n")
    with pytest.raises(StorageError, match=ENDED) as raised:
        table.append(more.mapInArrow(slowly, "id BIGINT, n BIGINT"))
    assert not any(token in str(raised.value) for token in vending.ends)
    assert "PyArrow" in {request.client for request in ended.fired}
    assert rows(table) == [0]
    assert leftovers(table) == set()
    table.append(more)
    assert rows(table) == list(range(20))


@pytest.mark.changed_by("spark")
def test_a_read_that_outlives_them_is_an_error_of_storage(table, vending, s3_proxy):
    frame = table.scan(["id"])
    with s3_proxy.failing(EXPIRED, ANY, "", times=None, client="Spark", leave_out="") as rule:
        with pytest.raises(StorageError, match=ENDED) as raised:
            table.update().set("n", "1").where("id = 3").execute()
        assert vending.knows(*(request.token for request in rule.fired))
    assert rule.fired
    assert f"{table.location}/data/" in str(raised.value)
    assert not any(token in str(raised.value) for token in vending.ends)
    assert sorted(row.id for row in frame.collect()) == rows(table) == list(range(20))
    assert leftovers(table) == set()


def test_a_task_that_outlives_them_is_an_error_of_storage(table, vending, s3_proxy):
    """Nothing is published; what it wrote is removed with new credentials."""
    before = table.snapshot_id
    more = table._lake.spark.range(20, 40).selectExpr("id", "0L AS n")
    with (
        s3_proxy.failing(EXPIRED, "PUT|POST", r"/data/.*\.parquet", times=None) as rule,
        pytest.raises(StorageError, match=ENDED),
    ):
        table.append(more)
    assert {request.client for request in rule.fired} == {"PyArrow"}
    assert vending.knows(*(request.token for request in rule.fired))
    assert table.snapshot_id == before
    assert rows(table) == list(range(20))
    assert leftovers(table) == set()
    assert uploads_of(table) == []
    table.append(more)
    assert rows(table) == list(range(40))
