"""Servers of these tests: an S3 server, Iceberg's REST catalog over it, and a proxy before each.

All listen on 127.0.0.1 and end with the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from support.http_proxy import Proxy, running_proxy
from support.rest_server import RestServer, running_rest_server
from support.s3_server import S3Server, running_s3

BUCKET = "lake"
_notes: list[str] = []


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
