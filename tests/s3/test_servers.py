"""What the tests stand on: the servers are real, nothing else can reach them, and faults happen."""

from __future__ import annotations

import psutil
import pyarrow as pa
import pytest
import requests
from pyarrow.fs import S3FileSystem
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitStateUnknownException

from support.http_proxy import (
    FORBIDDEN,
    REPLY_LOST,
    RESET,
    SERVER_ERROR,
    TRUNCATED,
    UNAVAILABLE,
    Request,
    rest_kind,
    s3_kind,
    slow,
)

pytestmark = pytest.mark.s3

KEY = "lake/servers/a b/c%2Fd.bin"
COLUMNS = pa.schema([("id", pa.int64())])


@pytest.fixture
def files(store):
    return store.filesystem()


@pytest.fixture
def object_of_a_megabyte(files):
    with files.open_output_stream(KEY) as sink:
        sink.write(b"x" * 1_000_000)
    return KEY


def read(files, key):
    with files.open_input_file(key) as source:
        return source.read()


def test_nothing_listens_outside_loopback(rest_server, s3_proxy, rest_proxy, vending_proxy):
    ours = psutil.Process()
    listening = [
        connection.laddr.ip
        for process in (ours, *ours.children(recursive=True))
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 6
    assert set(listening) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def test_wrong_keys_are_refused(store):
    if store.is_mock:
        pytest.skip("the mock verifies no signatures")
    wrong = S3FileSystem(
        access_key=store.access_key, secret_key="another", endpoint_override=store.endpoint,
        region="us-east-1", scheme="http",
    )  # fmt: skip
    with pytest.raises(OSError, match=r"SignatureDoesNotMatch|ACCESS_DENIED"):
        wrong.get_file_info(KEY.partition("/")[0] + "/x")
        read(wrong, KEY)


def test_requests_pass_with_their_signatures_and_are_logged(files, object_of_a_megabyte, s3_proxy):
    with s3_proxy.counting(s3_kind) as counts:
        assert read(files, object_of_a_megabyte) == b"x" * 1_000_000
    assert counts == {"HEAD other file": 1, "GET other file": 1}
    last = s3_proxy.log[-1]
    assert (last.method, last.path, last.client) == ("GET", f"/{KEY}", "PyArrow")
    assert last.access_key
    assert last.part == "bytes=0-999999"


@pytest.mark.parametrize("fault", [UNAVAILABLE, SERVER_ERROR, RESET, slow(0.3)])
def test_a_passing_fault_is_retried_by_the_client(files, object_of_a_megabyte, s3_proxy, fault):
    with s3_proxy.failing(fault, "GET", r"/servers/a b/.*\.bin", leave_out="list-type") as rule:
        assert len(read(files, object_of_a_megabyte)) == 1_000_000
    [fired] = rule.fired
    assert fired.path == f"/{KEY}"


@pytest.mark.parametrize(
    ("fault", "message"),
    [(FORBIDDEN, "ACCESS_DENIED"), (TRUNCATED, "(?i)curl|network|read|bytes")],
)
def test_a_lasting_fault_reaches_the_client(files, object_of_a_megabyte, s3_proxy, fault, message):
    with (
        s3_proxy.failing(fault, "GET", r"\.bin$", times=None) as rule,
        pytest.raises(OSError, match=message),
    ):
        read(files, object_of_a_megabyte)
    assert {fired.path for fired in rule.fired} == {f"/{KEY}"}
    assert len(read(files, object_of_a_megabyte)) == 1_000_000


def test_rules_skip_requests_and_name_clients(files, object_of_a_megabyte, s3_proxy):
    with (
        s3_proxy.failing(FORBIDDEN, "GET", "bin", client="Spark") as other,
        s3_proxy.failing(FORBIDDEN, "GET", "bin", skipped=1) as second,
    ):
        read(files, object_of_a_megabyte)
        with pytest.raises(OSError, match="ACCESS_DENIED"):
            read(files, object_of_a_megabyte)
        read(files, object_of_a_megabyte)
    assert (len(other.fired), len(second.fired)) == (0, 1)


def test_a_commit_lands_though_its_reply_is_lost(vending_proxy, store):
    catalog = load_catalog("rest", type="rest", uri=vending_proxy.uri, **store.place)
    catalog.create_namespace_if_not_exists("servers")
    table = catalog.create_table("servers.t", COLUMNS)
    assert table.io.properties["s3.secret-access-key"] == store.secret_key  # by the server
    with vending_proxy.counting(rest_kind) as counts:
        table.append(pa.table({"id": [1]}))
    assert counts == {"commit": 1}
    with (
        vending_proxy.failing(REPLY_LOST, "POST", r"/tables/t$") as rule,
        pytest.raises((CommitStateUnknownException, requests.ConnectionError)),
    ):
        table.append(pa.table({"id": [2]}))
    assert [rest_kind(fired) for fired in rule.fired] == ["commit"]
    assert sorted(catalog.load_table("servers.t").scan().to_arrow()["id"].to_pylist()) == [1, 2]
    catalog.drop_table("servers.t")


def test_the_other_door_gives_no_credentials(rest_proxy, store):
    catalog = load_catalog("rest", type="rest", uri=rest_proxy.uri, **store.place)
    catalog.create_namespace_if_not_exists("servers")
    table = catalog.create_table("servers.u", COLUMNS)
    assert "s3.secret-access-key" not in table.io.properties
    catalog.drop_table("servers.u")


@pytest.mark.parametrize(
    ("method", "url", "kind"),
    [
        ("GET", "/lake?list-type=2&prefix=a.parquet", "LIST"),
        ("PUT", "/lake/a/data/x%20y.parquet?partNumber=1&uploadId=u", "upload part data file"),
        ("POST", "/lake/a/data/x.parquet?uploads", "create upload data file"),
        ("POST", "/lake/a/data/x.parquet?uploadId=u", "complete upload data file"),
        ("DELETE", "/lake/a/data/x-deletes.parquet?uploadId=u", "abort upload delete file"),
        ("DELETE", "/lake/a/metadata/snap-1.avro", "DELETE manifest list"),
        ("POST", "/lake?delete", "DELETE many"),
        ("GET", "/lake/a/metadata/1.metadata.json", "GET metadata"),
        ("HEAD", "/lake", "HEAD"),
    ],
)
def test_kinds_of_requests(method, url, kind):
    assert s3_kind(Request(method, url, "x")) == kind
