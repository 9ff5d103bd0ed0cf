"""A PostgreSQL server of its own for tests, on loopback."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class PostgreSQL:
    """A running server, which takes connections of this machine without a password."""

    port: int
    folder: Path
    options: str
    run: Callable[..., None]  # one of PostgreSQL's programs

    @property
    def uri(self) -> str:
        return f"postgresql+psycopg://icefloe@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        data, log = str(self.folder / "data"), str(self.folder / "log")
        command = ("--wait", "--pgdata", data, "--log", log, "--options", self.options)
        self.run("pg_ctl", "start", *command)

    def stop(self) -> None:
        """Stop it as a crash does: connections end, and what was not committed is lost."""
        self.run("pg_ctl", "stop", "--pgdata", str(self.folder / "data"), "--mode", "immediate")

    def restart(self) -> None:
        """Stop it and start it again, at the same port with the same data."""
        self.stop()
        self.start()


@contextmanager
def running_server(durable: bool = False) -> Iterator[str]:
    """The URI of a fresh server.

    Args:
        durable: Whether a COMMIT waits for the disk, as servers do unless they are for tests.
    """
    with running_postgresql(durable) as server:
        yield server.uri


@contextmanager
def running_postgresql(durable: bool = False) -> Iterator[PostgreSQL]:
    """A fresh server, which tests may restart."""
    programs = _programs()
    with tempfile.TemporaryDirectory(prefix="icefloe-pg-") as made:
        folder = Path(made)
        user = _user_for(folder)

        def run(program: str, *arguments: str) -> None:
            command = [str(programs / program), *arguments]
            subprocess.run(
                command, check=True, cwd=folder, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, timeout=120, **user,
            )  # fmt: skip

        data, port = str(folder / "data"), _free_port()
        run("initdb", "--pgdata", data, "--username", "icefloe", "--auth", "trust", "--no-sync")
        options = f"-c listen_addresses=127.0.0.1 -p {port} -k {folder}{'' if durable else ' -F'}"
        server = PostgreSQL(port, folder, options, run)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _programs() -> Path:
    """The folder of PostgreSQL's server programs, which Debian keeps off the PATH."""
    beside = [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
    for folder in [*reversed(installed), *beside]:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    pytest.fail("PostgreSQL's server programs (initdb, pg_ctl) are missing: run make setup")


def _user_for(folder: Path) -> dict[str, Any]:
    """PostgreSQL refuses to run as root: hand the folder to another user, and run as that one."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    name = next(name for name in ("postgres", "nobody") if name in names)
    found = pwd.getpwnam(name)
    os.chown(folder, found.pw_uid, found.pw_gid)
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
