"""Servers of these tests: an S3 server, Iceberg's REST catalog over it, and a proxy before each.

All listen on 127.0.0.1 and end with the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

import icefloe
from icefloe import Lake
from icefloe.spark.connectors import remember_download, session_settings
from icefloe.storage.spark_files import connectors_of
from support.http_proxy import Proxy, running_proxy
from support.rest_server import RestServer, running_rest_server
from support.s3_server import S3Server, running_s3

BUCKET = "lake"
_notes: list[str] = []
_numbers = count()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which server it was, and why it was the mock."""
    for note in _notes:
        terminalreporter.write_line(note)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server itself, with an empty bucket."""
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        server.make_bucket(BUCKET)
        _notes.extend(filter(None, (f"The S3 server was {server.kind}.", server.note)))
        yield server


@pytest.fixture(scope="session")
def s3_proxy(s3_server: S3Server) -> Iterator[Proxy]:
    """A proxy before the S3 server."""
    with running_proxy(s3_server.port) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def store(s3_server: S3Server, s3_proxy: Proxy) -> S3Server:
    """The S3 server behind its proxy: what lakes are given."""
    return s3_server.through(s3_proxy.port)


@pytest.fixture(scope="session")
def rest_server(
    s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RestServer]:
    """Iceberg's REST catalog, which writes its metadata to the S3 server itself."""
    folder = tmp_path_factory.mktemp("rest")
    with running_rest_server(folder, s3_server, f"s3://{BUCKET}/rest") as server:
        yield server


@pytest.fixture(scope="session")
def rest_proxy(rest_server: RestServer) -> Iterator[Proxy]:
    """A proxy before the REST catalog that gives no credentials."""
    with running_proxy(_port(rest_server.uri), of_s3=False) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def vending_proxy(rest_server: RestServer) -> Iterator[Proxy]:
    """A proxy before the REST catalog that gives credentials with each table."""
    with running_proxy(_port(rest_server.vending_uri), of_s3=False) as proxy:
        yield proxy


def _port(uri: str) -> int:
    found = urlsplit(uri).port
    assert found is not None
    return found


# -------------------------------------------------------------------------------------------------
# Lakes


@pytest.fixture(scope="session")
def spark(store: S3Server) -> Iterator[SparkSession]:
    """A session as icefloe starts it for a lake in S3, which knows neither the store nor its keys."""
    settings = {
        **session_settings(connectors_of(store.properties)),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "2g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "OFF",
    }
    builder = SparkSession.builder.master("local[2]").appName("icefloe on S3")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    remember_download(session, settings)
    assert not session.sparkContext.getConf().contains("spark.hadoop.fs.s3a.access.key")
    yield session
    session.stop()


OpenLake = Callable[..., Lake]


@pytest.fixture
def properties_of(
    request: pytest.FixtureRequest, store: S3Server, tmp_path: Path
) -> Callable[[str], dict[str, str]]:
    """What `connect` needs for a kind of lake."""
    return lambda kind: where(request, kind, store, tmp_path)


@pytest.fixture
def open_lake(
    properties_of: Callable[[str], dict[str, str]], spark: SparkSession
) -> Iterator[OpenLake]:
    """Opens lakes over one catalog in S3: "sqlite", "rest", or "vending", which gives the keys."""
    with ExitStack() as stack:

        def make(kind: str = "sqlite", **more: Any) -> Lake:
            properties = {**properties_of(kind), **more}
            return stack.enter_context(icefloe.connect(spark=spark, **properties))

        yield make


def where(
    request: pytest.FixtureRequest, kind: str, store: S3Server, folder: Path
) -> dict[str, str]:
    """What `connect` needs for a catalog of that kind, by configuration alone."""
    if kind == "sqlite":
        catalog = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"s3://{BUCKET}/sqlite"}
        return {**catalog, **store.properties}
    proxy = request.getfixturevalue("rest_proxy" if kind == "rest" else "vending_proxy")
    inline = f"sqlite:///{folder}/inline.db"
    keys = store.properties if kind == "rest" else store.place
    return {"type": "rest", "uri": proxy.uri, "inline_uri": inline, **keys}


@pytest.fixture
def new_name() -> str:
    """The name of a table that no other test uses."""
    return f"shop.t{next(_numbers)}"
