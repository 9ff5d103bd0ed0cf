"""A proxy before an HTTP server on loopback: it logs every request, and lets some of them fail.

It passes the Host header on unchanged, so signatures of S3 requests hold.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_HOP_BY_HOP = {"connection", "keep-alive", "expect", "transfer-encoding"}


@dataclass(frozen=True)
class Request:
    """A request as the proxy saw it."""

    method: str
    url: str  # path and query
    client: str  # "Spark", "PyArrow", "boto3", "PyIceberg", …
    access_key: str = ""
    part: str = ""  # what the Range header asks for
    token: str = ""  # of temporary credentials

    @property
    def path(self) -> str:
        """The decoded path."""
        return unquote(urlsplit(self.url).path)

    @property
    def parameters(self) -> set[str]:
        """The names of the query's parameters."""
        return set(parse_qs(urlsplit(self.url).query, keep_blank_values=True))


# -------------------------------------------------------------------------------------------------
# What happens to a request


@dataclass(frozen=True)
class Fault:
    """What becomes of a request: whether the server gets it, and what the client gets."""

    name: str
    reaches_server: bool = False
    status: int = 0  # the answer; 0 is that of the server
    code: str = ""
    reset: bool = False
    truncate: bool = False
    wait_s: float = 0.0

    def answer(self, of_s3: bool) -> tuple[bytes, str]:
        """The body of an answer with an error, and its type."""
        if of_s3:
            text = f"<Error><Code>{self.code}</Code><Message>{self.name}</Message></Error>"
            return f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode(), "application/xml"
        error = {"message": self.name, "type": self.code, "code": self.status}
        return json.dumps({"error": error}).encode(), "application/json"


UNAVAILABLE = Fault("503", status=503, code="SlowDown")
BUSY = Fault("429", status=429, code="TooManyRequestsException")
SERVER_ERROR = Fault("500", status=500, code="InternalError")
FORBIDDEN = Fault("403", status=403, code="AccessDenied")
EXPIRED = Fault("expired credentials", status=400, code="ExpiredToken")
RESET = Fault("reset", reset=True)
NONE = Fault("none", reaches_server=True)
TRUNCATED = Fault("truncated", reaches_server=True, truncate=True)
REPLY_LOST = Fault("applied, reply lost", reaches_server=True, reset=True)
APPLIED_THEN_ERROR = Fault("applied, then 500", True, status=500, code="InternalError")


def slow(seconds: float) -> Fault:
    """The server gets the request that much later."""
    return Fault("slow", reaches_server=True, wait_s=seconds)


@dataclass
class Rule:
    """A fault for requests of a method, whose decoded path and query match an expression."""

    fault: Fault
    method: str
    url: str
    times: int | None = 1  # None is for ever
    skipped: int = 0  # requests that pass before
    client: str = ""  # of this client alone
    leave_out: str = "list-type"  # requests whose URL has this pass, as those that list keys
    access_key: str = ""  # with this key alone
    token: str = ""  # with temporary credentials of this token alone
    act: Callable[[], object] = lambda: None  # called at each such request, before it is passed on
    fired: list[Request] = field(default_factory=list)

    def takes(self, request: Request) -> bool:
        """Whether the rule decides this request, which it then counts."""
        url = unquote(request.url)
        if (
            self.times == 0
            or request.method not in self.method.split("|")
            or not re.search(self.url, url)
            or (self.leave_out and self.leave_out in url)
            or (self.client and self.client != request.client)
            or (self.access_key and self.access_key != request.access_key)
            or (self.token and self.token != request.token)
        ):
            return False
        if self.skipped:
            self.skipped -= 1
            return False
        if self.times is not None:
            self.times -= 1
        self.fired.append(request)
        return True


# -------------------------------------------------------------------------------------------------
# The proxy


@dataclass
class Proxy:
    """A running proxy; rules may be added at any time, and the first one that takes a request counts."""

    port: int = 0
    of_s3: bool = True
    rules: list[Rule] = field(default_factory=list)
    log: list[Request] = field(default_factory=list)
    # What the server gets in place of a request's headers, and clients in place of its answers.
    change_headers: Callable[[Request, dict[str, str]], dict[str, str]] | None = None
    change_answer: Callable[[Request, bytes], bytes] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def failing(self, fault: Fault, method: str, url: str, **more: Any) -> Iterator[Rule]:
        """Have a rule while the block runs."""
        rule = Rule(fault, method, url, **more)
        with self._lock:
            self.rules.append(rule)
        try:
            yield rule
        finally:
            with self._lock:
                self.rules.remove(rule)

    @contextmanager
    def counting(self, kind: Callable[[Request], str]) -> Iterator[Counter[str]]:
        """Count the requests of the block by kind; complete when the block ends."""
        counts: Counter[str] = Counter()
        before = len(self.log)
        yield counts
        with self._lock:
            counts.update(kind(request) for request in self.log[before:])

    def decide(self, request: Request) -> Fault | None:
        """Log a request; the fault that it meets."""
        with self._lock:
            self.log.append(request)
            rule = next((rule for rule in self.rules if rule.takes(request)), None)
        if rule is None:
            return None
        rule.act()
        return rule.fault


@contextmanager
def running_proxy(port: int, of_s3: bool = True) -> Iterator[Proxy]:
    """A proxy before the server at that port of 127.0.0.1."""
    proxy = Proxy(of_s3=of_s3)

    class Handler(_Handler):
        upstream_port = port
        state = proxy

    server = _Server(("127.0.0.1", 0), Handler)
    proxy.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, *_arguments: Any) -> None:
        """Clients may go away at any time."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    upstream_port: int
    state: Proxy

    def handle_expect_100(self) -> bool:
        """Ask for the body at once: clients wait a second for it."""
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def handle_any(self) -> None:
        request = self._request()
        body = self._body()
        fault = self.state.decide(request)
        if fault is not None and fault.wait_s:
            time.sleep(fault.wait_s)
        if fault is not None and not fault.reaches_server:
            self._fail(fault)
            return
        try:
            answer, content = self._forward(request, body)
        except (OSError, HTTPException):
            self._reset()
            return
        if fault is not None and (fault.reset or fault.status):
            self._fail(fault)
        else:
            self._reply(answer, content, truncate=fault is not None and fault.truncate)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    def _request(self) -> Request:
        authorization = self.headers.get("Authorization") or ""
        key = re.search(r"Credential=([^/]+)/", authorization)
        return Request(
            self.command, self.path, _client(self.headers.get("User-Agent") or ""),
            key[1] if key else "", self.headers.get("Range") or "",
            self.headers.get("X-Amz-Security-Token") or "",
        )  # fmt: skip

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _forward(self, request: Request, body: bytes) -> tuple[HTTPResponse, bytes]:
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in _HOP_BY_HOP | {"content-length"}
        }
        if self.state.change_headers is not None:
            headers = self.state.change_headers(request, headers)
        connection = HTTPConnection("127.0.0.1", self.upstream_port, timeout=300)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in headers.items():
                connection.putheader(name, value)
            if body or self.command in ("PUT", "POST"):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            content = answer.read()
            if self.state.change_answer is not None:
                content = self.state.change_answer(request, content)
            return answer, content
        finally:
            connection.close()

    def _reply(self, answer: HTTPResponse, content: bytes, truncate: bool) -> None:
        self.send_response_only(answer.status, answer.reason)
        length = str(len(content))
        for name, value in answer.getheaders():
            if name.lower() == "content-length":
                length = value if self.command == "HEAD" else length
            elif name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        if answer.status != 204:
            self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if truncate else content)
        self.wfile.flush()
        if truncate:
            self._reset()

    def _fail(self, fault: Fault) -> None:
        if fault.reset:
            self._reset()
            return
        content, kind = fault.answer(self.state.of_s3)
        self.send_response_only(fault.status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _reset(self) -> None:
        """End the connection as a server does that died."""
        self.close_connection = True
        with suppress(OSError):
            option = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
            self.connection.close()

    def log_message(self, *_arguments: Any) -> None:
        """Write nothing."""


def _client(agent: str) -> str:
    known = {"Hadoop": "Spark", "aws-sdk-java": "Java", "aws-sdk-cpp": "PyArrow", "Boto3": "boto3"}
    return next((name for text, name in known.items() if text in agent), agent.partition("/")[0])


# -------------------------------------------------------------------------------------------------
# Kinds of requests


def s3_kind(request: Request) -> str:
    """What a request of S3 does, and to what."""
    return f"{s3_operation(request)} {_content(request.path)}".strip()


def s3_operation(request: Request) -> str:
    """What a request of S3 does."""
    parameters, method = request.parameters, request.method
    by_parameters = {
        ("POST", "uploads"): "create upload",
        ("PUT", "partNumber"): "upload part",
        ("POST", "uploadId"): "complete upload",
        ("DELETE", "uploadId"): "abort upload",
        ("GET", "uploads"): "list uploads",
        ("GET", "uploadId"): "list parts",
        ("GET", "list-type"): "LIST",
        ("POST", "delete"): "DELETE many",
    }
    for (of_method, parameter), name in by_parameters.items():
        if method == of_method and parameter in parameters:
            return name
    return method


def _content(path: str) -> str:
    """What kind of file a key names; nothing for a folder or a bucket."""
    name = path.rpartition("/")[2]
    kinds = {
        r"\.metadata\.json$": "metadata",
        r"^snap-.*\.avro$": "manifest list",
        r"\.avro$": "manifest",
        r"-deletes\.parquet$": "delete file",
        r"\.parquet$": "data file",
    }
    if "/_icefloe/index/" in path:
        return "sidecar"
    found = next((kind for pattern, kind in kinds.items() if re.search(pattern, name)), "")
    return found or ("other file" if "." in name else "")


def rest_kind(request: Request) -> str:
    """What a request of a REST catalog does."""
    path = request.path.removeprefix("/v1/")
    if re.fullmatch(r"namespaces/[^/]+/tables/[^/]+", path):
        names = {"GET": "load table", "POST": "commit", "DELETE": "drop table", "HEAD": "look"}
        return names[request.method]
    return f"{request.method} {re.sub(r'namespaces/[^/]+', 'namespaces/…', path)}"
