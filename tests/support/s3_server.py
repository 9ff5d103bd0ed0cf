"""An S3 server on loopback: versitygw, built with Go at its first use, or the mock moto.

ICEFLOE_TEST_S3 chooses one: `versitygw`, `minio` or `moto`. Otherwise moto serves where Go is missing or
the build fails, and the run says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pyarrow.fs import FileSelector, FileType, S3FileSystem

from support.program_cache import (
    built_with_go,
    free_port,
    installed_with_pip,
    start_server,
    stop_server,
)

VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
MINIO = "github.com/minio/minio@latest"  # its release tags are no Go versions
MOTO = "moto[server]==5.2.5"
ACCESS_KEY, SECRET_KEY, REGION = "icefloe-tests", "secret-of-the-tests", "us-east-1"


@dataclass(frozen=True)
class S3Server:
    """A running server, or the address of a proxy before it."""

    kind: str
    port: int
    note: str = ""  # why it is the mock
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_mock(self) -> bool:
        """Whether signatures and checksums are not verified."""
        return self.kind == "moto"

    def through(self, port: int) -> S3Server:
        """The same server behind a proxy at that port."""
        return replace(self, port=port)

    @property
    def place(self) -> dict[str, str]:
        """Properties of PyIceberg's catalogs that say where the store is."""
        return {"s3.endpoint": self.endpoint, "s3.region": REGION}

    @property
    def properties(self) -> dict[str, str]:
        """Properties of PyIceberg's catalogs, with the credentials."""
        keys = {"s3.access-key-id": self.access_key, "s3.secret-access-key": self.secret_key}
        return {**self.place, **keys}

    def filesystem(self) -> S3FileSystem:
        """The server as a file system of PyArrow."""
        return S3FileSystem(
            access_key=self.access_key, secret_key=self.secret_key, region=REGION,
            endpoint_override=self.endpoint, scheme="http", allow_bucket_creation=True,
        )  # fmt: skip

    def make_bucket(self, name: str) -> str:
        """Create a bucket."""
        self.filesystem().create_dir(name)
        return name

    def keys(self, folder: str) -> set[str]:
        """The keys of all objects below a folder, which begins with its bucket."""
        selector = FileSelector(folder, recursive=True, allow_not_found=True)
        found = self.filesystem().get_file_info(selector)
        return {info.path for info in found if info.type == FileType.File}


@contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    """A server with nothing in it, which keeps its data in `folder`."""
    kind, start, note = _chosen()
    data, log, port = folder / "data", folder / f"{kind}.log", free_port()
    data.mkdir(parents=True)
    server = start(data, port, log)
    try:
        yield S3Server(kind, port, note)
    finally:
        stop_server(server)


Start = Callable[[Path, int, Path], "subprocess.Popen[bytes]"]


def _chosen() -> tuple[str, Start, str]:
    """The server that the environment names, or the best one that can be had."""
    kind = os.environ.get("ICEFLOE_TEST_S3", "")
    if kind:
        return kind, {"versitygw": _versitygw, "minio": _minio, "moto": _moto}[kind](), ""
    try:
        return "versitygw", _versitygw(), ""
    except (OSError, subprocess.SubprocessError) as failed:
        reason = getattr(failed, "stderr", None) or failed
        note = f"versitygw cannot be built with Go, so the mock moto serves S3: {reason!r}"
        return "moto", _moto(), note


def _versitygw() -> Start:
    program = built_with_go("versitygw-1.8.0", VERSITYGW)

    def start(data: Path, port: int, log: Path) -> subprocess.Popen[bytes]:
        attributes = data.parent / "attributes"
        attributes.mkdir()
        command = [str(program), "--port", f"127.0.0.1:{port}", "--quiet"]
        command += ["posix", "--sidecar", str(attributes), str(data)]
        keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        return start_server(command, port, log, keys)

    return start


def _minio() -> Start:
    program = built_with_go("minio", MINIO)

    def start(data: Path, port: int, log: Path) -> subprocess.Popen[bytes]:
        command = [str(program), "server", "--address", f"127.0.0.1:{port}"]
        # Without an address of its own the console listens on all interfaces.
        command += ["--console-address", f"127.0.0.1:{free_port()}", str(data)]
        keys = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY}
        return start_server(command, port, log, {**keys, "MINIO_BROWSER": "off"})

    return start


def _moto() -> Start:
    environment = installed_with_pip("moto-5.2", sys.executable, MOTO)

    def start(data: Path, port: int, log: Path) -> subprocess.Popen[bytes]:
        command = [str(environment / "bin" / "python"), "-m", "moto.server"]
        return start_server([*command, "--host", "127.0.0.1", "--port", str(port)], port, log, {})

    return start
