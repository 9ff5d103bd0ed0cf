"""The server of the page: on loopback alone, behind a token, and with nothing that writes."""

from __future__ import annotations

import json
import logging
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from pyspark.sql import SparkSession
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from icefloe.errors import IcefloeError, SetupError, StatementError, TableNotFoundError
from icefloe.lake import Lake
from icefloe.redaction import redacted
from icefloe.ui.sql_box import SqlBox
from icefloe.ui.views import LakeViews

log = logging.getLogger("icefloe")

LOOPBACK = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost", "[::1]")
_STATIC = Path(__file__).parent / "static"
_MOST_BYTES = 200_000  # of a statement
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Gate:
    """Lets through requests to this host, from this page, and those for facts with the token.

    The page itself holds no facts, so it is sent to anyone on this machine: without the token in
    its address with status 401, and it asks for the token. It sends it in a header, not in a
    cookie, which browsers would send to every server on this host.
    """

    app: ASGIApp
    token: str
    port: int | None = None  # that the Host header must name; None: any

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # there are no web sockets
        refusal = self._refusal(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await (refusal or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._is_own(headers.get("host", "")):
            return _error(403, "This host is not served: open the page as http://127.0.0.1.")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{headers['host']}":
            return _error(403, "Requests of other pages are refused.")
        if scope["path"] == "/" or scope["path"].startswith("/static/"):
            return None
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _error(403, "Requests of other pages are refused.")
        if not self.accepts(headers.get("authorization", "").removeprefix("Bearer ")):
            return _error(401, "The token is missing or wrong: use the address `icefloe ui` shows.")
        return None

    def _is_own(self, host: str) -> bool:
        name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not name:
            name, port = host, ""
        return name.lower() in _NAMES and (self.port is None or port == str(self.port))

    def accepts(self, token: str) -> bool:
        """Whether this is the token."""
        return secrets.compare_digest(token.encode(), self.token.encode())


def make_app(views: LakeViews, box: SqlBox, token: str, port: int | None = None) -> Gate:
    """The application; `port` is the one that requests must name."""
    routes: list[BaseRoute] = [
        Route("/", _page(token)),
        Route("/api/lake", _facts(lambda _request: views.lake())),
        Route("/api/tables", _facts(lambda _request: views.tables())),
        Route("/api/table", _of_table(views.summary)),
        Route("/api/timeline", _of_table(views.timeline)),
        Route("/api/files", _facts(lambda r: views.files(_query(r, "table"), _partition(r)))),
        Route("/api/columns", _of_table(views.columns)),
        Route("/api/overlap", _facts(lambda r: views.overlap(*_queries(r, "table", "column")))),
        Route("/api/opened", _facts(lambda r: views.opened(*_queries(r, "table", "where")))),
        Route("/api/upkeep", _of_table(views.upkeep)),
        Route("/api/expired", _of_table(views.expired)),
        Route("/api/sql", _run(box), methods=["POST"]),
        Route("/api/sql/cancel", _cancel(box), methods=["POST"]),
        Mount("/static", StaticFiles(directory=_STATIC)),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(GZipMiddleware, minimum_size=2000)])
    return Gate(app, token, port)


def _page(token: str) -> Callable[[Request], Response]:
    def page(request: Request) -> Response:
        given = request.query_params.get("token", "")
        known = secrets.compare_digest(given.encode(), token.encode())
        html = (_STATIC / "index.html").read_text(encoding="utf-8")
        return HTMLResponse(html, status_code=200 if known else 401)

    return page


def _facts(read: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """A route that answers with facts; Starlette runs it in a thread."""

    def answer(request: Request) -> Response:
        return _answer(lambda: read(request))

    return answer


def _of_table(read: Callable[[str], Any]) -> Callable[[Request], Response]:
    return _facts(lambda request: read(_query(request, "table")))


def _answer(read: Callable[[], Any]) -> Response:
    try:
        return JSONResponse(read())
    except TableNotFoundError as error:
        return _error(404, str(error), error)
    except IcefloeError as error:
        return _error(400, str(error), error)
    except Exception as error:
        log.exception("The page failed")
        return _error(500, f"{type(error).__name__}: {redacted(str(error))}"[:2000], error)


def _error(status: int, message: str, error: Exception | None = None) -> Response:
    kind = "Refused" if error is None else type(error).__name__
    return JSONResponse({"error": message, "kind": kind}, status_code=status)


def _query(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if value is None:
        raise StatementError(f"The request lacks the parameter {name!r}.")
    return value


def _queries(request: Request, first: str, second: str) -> tuple[str, str]:
    return _query(request, first), _query(request, second)


def _partition(request: Request) -> str | None:
    return request.query_params.get("partition")


def _run(box: SqlBox) -> Callable[[Request], Any]:
    async def run(request: Request) -> Response:
        try:
            text = await _statement(request)
        except StatementError as error:
            return _error(400, str(error), error)
        return await run_in_threadpool(_answer, lambda: box.run(text))

    return run


async def _statement(request: Request) -> str:
    """The statement in the body of a request, which is JSON of limited size."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise StatementError(f"The statement is longer than {_MOST_BYTES:,} bytes.")
    try:
        text = json.loads(body)["text"]
    except (ValueError, KeyError, TypeError):
        text = None
    if not isinstance(text, str):
        raise StatementError('The request is not JSON such as {"text": "SELECT 1"}.')
    return text


def _cancel(box: SqlBox) -> Callable[[Request], Any]:
    async def cancel(_request: Request) -> Response:
        await run_in_threadpool(box.cancel)
        return JSONResponse({})

    return cancel


# -------------------------------------------------------------------------------------------------
# Serving


def serve(
    lake: Lake,
    place: str,
    port: int,
    opened: Callable[[str], None],
    start_spark: Callable[[], SparkSession] | None = None,
    command: Sequence[str] = ("icefloe",),
) -> None:
    """Serve the page of a lake until Ctrl-C.

    Args:
        lake: The lake, which the caller stops.
        place: How the page names the lake.
        port: The port on loopback; 0 for any that is free.
        opened: Called with the address, which has the token, when the page can be opened.
        start_spark: Starts the session for the SQL box; by default the lake does.
        command: The words that open the lake on the command line, before `compact`, say.
    """
    listening = _listen(port)
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    box = SqlBox(lake, start_spark)
    config = uvicorn.Config(
        make_app(LakeViews(lake, place, command), box, token, port),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    try:
        opened(f"http://{LOOPBACK}:{port}/?token={token}")
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        log.debug("stopped by Ctrl-C")
    finally:
        listening.close()
        box.stop()


def _listen(port: int) -> socket.socket:
    """A socket on loopback; requests that arrive before the server wait in it."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        raise SetupError(
            f"Port {port} cannot be used: {error}. Choose another with --port."
        ) from error
    return listening
