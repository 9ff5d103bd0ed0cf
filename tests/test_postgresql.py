"""A lake whose catalog is in PostgreSQL: a real server, started here on loopback."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

import icefloe
from icefloe.errors import ConflictError, TableExistsError, TableNotFoundError
from support.tables import rows, summary
from support.unreferenced_files import leftovers

SCHEMA = "id BIGINT, region STRING, n INT"
ROWS = [{"id": 1, "region": "us", "n": 0}, {"id": 2, "region": "eu", "n": 0}]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URI of a fresh server, which takes connections of this machine without a password."""
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
        settings = f"-c listen_addresses=127.0.0.1 -p {port} -k {folder} -F"
        log = str(folder / "log")
        run("pg_ctl", "start", "--wait", "--pgdata", data, "--log", log, "--options", settings)
        try:
            yield f"postgresql+psycopg://icefloe@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "stop", "--pgdata", data, "--mode", "immediate")


@pytest.fixture
def open_lake(server, spark, tmp_path):
    """Opens connections to one lake, closed afterwards."""
    opened = []

    def make():
        opened.append(icefloe.connect(uri=server, warehouse=tmp_path / "files", spark=spark))
        return opened[-1]

    yield make
    for name in opened[0].tables():
        opened[0].drop_table(name)
    for lake in opened:
        lake.catalog.close()


def test_statements_on_a_postgresql_catalog(open_lake, tmp_path, mode):
    lake = open_lake()
    modes = {f"write.{kind}.mode": mode for kind in ("delete", "update")}
    table = lake.create_table("shop.orders", SCHEMA, partition_by="region", properties=modes)

    table.append(ROWS)
    assert table.update().set("n", "n + 1").where("id = 1").execute().rows_updated == 1
    assert table.delete().where("id = 2").execute().rows_deleted == 1

    assert rows(open_lake().table("shop.orders")) == [(1, "us", 1)]
    assert lake.tables() == ["shop.orders"]
    assert table.location.startswith(f"file://{tmp_path}/files/")
    assert summary(table)["engine-name"] == "icefloe"
    with pytest.raises(TableExistsError):
        open_lake().create_table("shop.orders", SCHEMA)


@pytest.mark.requirement("M27")
def test_racing_connections_lose_no_increment(open_lake):
    """Both connections change the same rows; the loser runs its statement again."""
    lakes = [open_lake(), open_lake()]
    table = lakes[0].create_table("counts", SCHEMA)
    table.append(ROWS)

    def increment(lake: icefloe.Lake) -> list[Any]:
        statement = lake.table("counts").update().set("n", "n + 1").with_options(retries=20)
        return [statement.execute().rows_updated for _ in range(3)]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(increment, lakes)) == [[2, 2, 2], [2, 2, 2]]
    assert rows(table, "n") == [(6,), (6,)]
    assert leftovers(table) == set()


@pytest.mark.requirement("U13")
def test_conflict_between_connections_is_found(open_lake, monkeypatch):
    ours, theirs = open_lake(), open_lake()
    table = ours.create_table("t", SCHEMA)
    table.append(ROWS)
    commit_table = ours.catalog.commit_table

    def commit_late(*arguments):
        monkeypatch.undo()
        theirs.table("t").update().set("n", "7").execute()
        return commit_table(*arguments)

    monkeypatch.setattr(ours.catalog, "commit_table", commit_late)
    with pytest.raises(ConflictError):
        table.update().set("n", "5").execute()
    assert rows(table, "n") == [(7,), (7,)]


def test_table_dropped_by_another_connection_is_reported(open_lake):
    ours, theirs = open_lake(), open_lake()
    table = ours.create_table("t", SCHEMA)
    theirs.drop_table("t")
    with pytest.raises(TableNotFoundError, match=r"default\.t"):
        table.count()


def test_catalog_object_on_postgresql_is_taken_as_it_is(server, spark, tmp_path):
    catalog = load_catalog("mine", type="sql", uri=server, warehouse=f"file://{tmp_path}/mine")
    with icefloe.connect(catalog=catalog, spark=spark) as lake:
        assert lake.catalog is catalog
        lake.create_table("t", SCHEMA).append(ROWS)
        assert lake.table("t").count() == 2
        lake.drop_table("t", purge=True)


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
