"""Iceberg's own REST catalog server on loopback, with its tables in S3.

Its stock main program listens on all interfaces. Here its parts are put together from Python, through the
gateway that PySpark has too: nothing is compiled.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway

from support.program_cache import maven_jars
from support.s3_server import REGION, S3Server

VERSION = "1.11.0"
_JARS = Path(__file__).with_name("rest_server_jars.txt")
_FROM_SPARK = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "py4j-*.jar")


@dataclass(frozen=True)
class RestServer:
    """A running server with two doors to one catalog."""

    uri: str
    vending_uri: str  # gives the store's credentials with each table

    @property
    def properties(self) -> dict[str, str]:
        """What `connect` needs besides the place and the credentials of the store."""
        return {"type": "rest", "uri": self.uri}

    @property
    def vending_properties(self) -> dict[str, str]:
        """What `connect` needs besides the place of the store."""
        return {"type": "rest", "uri": self.vending_uri}


@contextmanager
def running_rest_server(folder: Path, store: S3Server, warehouse: str) -> Iterator[RestServer]:
    """A server whose catalog is a SQLite database in `folder`, and its tables in `warehouse`."""
    folder.mkdir(parents=True, exist_ok=True)
    configuration = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{folder / 'rest.db'}",
        "jdbc.schema-version": "V1",
        "warehouse": warehouse,
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": store.endpoint,
        "s3.path-style-access": "true",
        "s3.access-key-id": store.access_key,
        "s3.secret-access-key": store.secret_key,
    }
    with _java(folder / "rest.log") as gateway:
        java = gateway.jvm
        backend = java.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
            "backend", _map(java, configuration), java.org.apache.hadoop.conf.Configuration()
        )
        yield RestServer(
            _serve(gateway, backend, configuration),
            _serve(gateway, backend, {**configuration, "include-credentials": "true"}),
        )


def _serve(gateway: JavaGateway, backend: Any, configuration: Mapping[str, str]) -> str:
    """Serve a catalog at a free port of 127.0.0.1."""
    java, rest = gateway.jvm, "org.apache.iceberg.rest"
    context = _new(
        gateway, f"{rest}.RESTCatalogServer$CatalogContext", backend, _map(java, configuration)
    )
    adapter = _new(gateway, f"{rest}.RESTServerCatalogAdapter", context)
    servlets = java.org.eclipse.jetty.ee10.servlet
    handler = servlets.ServletContextHandler()
    servlet = java.org.apache.iceberg.rest.RESTCatalogServlet(adapter)
    handler.addServlet(servlets.ServletHolder(servlet), "/*")
    server = java.org.eclipse.jetty.server.Server(java.java.net.InetSocketAddress("127.0.0.1", 0))
    server.setHandler(handler)
    server.start()
    return f"http://127.0.0.1:{server.getURI().getPort()}"


@contextmanager
def _java(log: Path) -> Iterator[JavaGateway]:
    """A JVM with the server's classes, which ends with the block or with this process."""
    listed = dict(reversed(line.split()) for line in _JARS.read_text().splitlines())
    jars = maven_jars(f"rest-server-{VERSION}", listed)
    spark = Path(pyspark.__file__).parent / "jars"
    jars += [jar for pattern in _FROM_SPARK for jar in spark.glob(pattern)]
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Daws.region={REGION}"]
    options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    program = ["py4j.GatewayServer", "--die-on-broken-pipe", "0"]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            ["java", *options, "-cp", os.pathsep.join(map(str, jars)), *program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.strip().isdigit():
            raise RuntimeError(f"The REST server did not start: {log.read_text()[-2000:]}")
        parameters = GatewayParameters(
            port=int(line), auto_convert=True, enable_memory_management=False
        )
        gateway = JavaGateway(gateway_parameters=parameters)
        yield gateway
        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # the connection ends with the JVM
        gateway.shutdown()
    finally:
        process.stdin.close()
        process.kill()
        process.wait()
        process.stdout.close()


def _map(java: Any, entries: Mapping[str, str]) -> Any:
    made = java.java.util.HashMap()
    for key, value in entries.items():
        made.put(key, value)
    return made


def _new(gateway: JavaGateway, name: str, *arguments: Any) -> Any:
    """A new object of a class that is not public."""
    java = gateway.jvm
    constructor = java.java.lang.Class.forName(name).getDeclaredConstructors()[0]
    constructor.setAccessible(True)
    given = gateway.new_array(java.java.lang.Object, len(arguments))
    for number, argument in enumerate(arguments):
        given[number] = argument
    return constructor.newInstance(given)
