"""A REST catalog on loopback, over a SQL catalog: the routes that PyIceberg's client uses.

Tests can let a commit answer late, fail after it landed, or never land, and act while a table is
loaded.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from icefloe.storage.locations import local_uri

Reply = tuple[int, Any]
Land = Callable[[], Reply]
Fault = Callable[[Land], Reply]  # what happens to a commit

_STATUS: dict[type[Exception], int] = {
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
    TableAlreadyExistsError: 409,
    NamespaceAlreadyExistsError: 409,
    CommitFailedException: 409,
}


def failure(status: int, message: str = "no") -> Reply:
    return status, {"error": {"message": message, "type": "Test", "code": status}}


@dataclass
class RestCatalogServer:
    """The state of a server; `uri` is what clients connect to."""

    catalog: SqlCatalog
    uri: str = ""
    faults: list[Fault] = field(default_factory=list)  # of the next commits, one each
    before_load: list[Callable[[], object]] = field(default_factory=list)  # one per table load
    log: list[str] = field(default_factory=list)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def properties(self) -> dict[str, str]:
        """What `connect` and `load_catalog` need."""
        return {"type": "rest", "uri": self.uri}

    def reply(self, method: str, path: str, body: bytes) -> Reply:
        self.log.append(f"{method} {path}")
        parts = [unquote(part) for part in path.strip("/").split("/")][1:]
        try:
            return self._route(method, parts, body)
        except tuple(_STATUS) as error:
            return failure(_STATUS[type(error)], str(error))

    def _route(self, method: str, parts: list[str], body: bytes) -> Reply:
        match method, parts:
            case "GET", ["config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case "GET", ["namespaces"]:
                return 200, {"namespaces": self.catalog.list_namespaces()}
            case "POST", ["namespaces"]:
                self.catalog.create_namespace(tuple(json.loads(body)["namespace"]))
                return 200, json.loads(body)
            case "GET", ["namespaces", name]:
                self.catalog.load_namespace_properties(name)
                return 200, {"namespace": [name], "properties": {}}
            case "HEAD", ["namespaces", name]:
                return 204 if self.catalog.namespace_exists(name) else 404, None
            case "GET", ["namespaces", name, "tables"]:
                names = [
                    {"namespace": [name], "name": t} for _, t in self.catalog.list_tables(name)
                ]
                return 200, {"identifiers": names}
            case "POST", ["namespaces", name, "tables"]:
                request = {"location": None, "partition-spec": None, **json.loads(body)}
                return self._create(name, CreateTableRequest.model_validate(request))
            case "POST", ["tables", "rename"]:
                ends = json.loads(body)
                old, new = ((*e["namespace"], e["name"]) for e in ends.values())
                self.catalog.rename_table(old, new)
                return 204, None
            case _, ["namespaces", name, "tables", table]:
                return self._table(method, (name, table), body)
        raise AssertionError(f"no such route: {method} {parts}")

    def _table(self, method: str, name: tuple[str, str], body: bytes) -> Reply:
        match method:
            case "GET":
                if self.before_load:
                    self.before_load.pop(0)()
                return 200, _shown(self.catalog.load_table(name))
            case "DELETE":
                self.catalog.drop_table(name)
                return 204, None
        fault = self.faults.pop(0) if self.faults else None
        return fault(lambda: self.land(name, body)) if fault else self.land(name, body)

    def land(self, name: tuple[str, str], body: bytes) -> Reply:
        """Commit as the request asks."""
        request = CommitTableRequest.model_validate_json(body)
        with self._turn:
            try:
                table = self.catalog.load_table(name)
                self.catalog.commit_table(table, request.requirements, request.updates)
            except tuple(_STATUS) as error:
                return failure(_STATUS[type(error)], str(error))
            return 200, _shown(self.catalog.load_table(name))

    def _create(self, namespace: str, request: CreateTableRequest) -> Reply:
        table = self.catalog.create_table(
            (namespace, request.name),
            request.table_schema,
            location=request.location,
            partition_spec=request.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            sort_order=request.write_order or UNSORTED_SORT_ORDER,
            properties=request.properties,
        )
        return 200, _shown(table)


def _shown(table: IcebergTable) -> Any:
    metadata = json.loads(table.metadata.model_dump_json())
    return {"metadata-location": table.metadata_location, "metadata": metadata}


@contextmanager
def running_catalog(folder: Path) -> Iterator[RestCatalogServer]:
    """A server whose catalog and tables are in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    database = f"sqlite:///{folder / 'rest.db'}?timeout=30"
    server = RestCatalogServer(SqlCatalog("rest", uri=database, warehouse=local_uri(folder)))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65536  # an answer is sent as one packet

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = server.reply(self.command, urlsplit(self.path).path, body)
            payload = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(payload)

        do_GET = do_POST = do_DELETE = do_HEAD = handle_any

        def log_message(self, *_arguments: Any) -> None:
            """Write nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.uri = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
        server.catalog.close()
