"""`icefloe doctor`: each check says what it found, or what is wrong and the way out."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyiceberg.catalog
import pytest
import sqlalchemy as sa
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config
from typer.testing import CliRunner, Result

import icefloe
from icefloe.cli import doctor, lake_checks
from icefloe.cli.app import app
from icefloe.cli.doctor import Status, run_check
from icefloe.errors import SetupError, StorageError
from icefloe.inline import database as databases
from icefloe.spark import environment
from icefloe.storage.files import probe_folder
from support.cli import run
from support.pyiceberg_tables import make, open_lake, stored
from support.rest_catalog import running_catalog


def checks(result: Result) -> dict[str, tuple[str, str]]:
    """Status and message by check, of `--format json`."""
    lines = map(json.loads, result.stdout.splitlines())
    return {line["check"]: (line["status"], line["message"]) for line in lines}


@pytest.fixture
def folder(tmp_path) -> Path:
    """A lake with one table."""
    with open_lake(tmp_path / "lake") as lake:
        make(lake, "orders", 1)
    return tmp_path / "lake"


def test_a_lake_without_faults(folder):
    before = stored(folder)
    done = run(folder, "doctor", "--no-spark")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = dict(re.findall(r"^(?:ok|warning|skipped) +(\w+) +(.*)$", done.stdout, re.MULTILINE))
    assert len(lines) == len(done.stdout.splitlines())
    assert lines["pyspark"].startswith("4.")
    assert re.match(r"SQL \(sqlite:///.*catalog.db.*\), 1 table, listed in ", lines["catalog"])
    assert lines["rights"] == "this user may write to the catalog's database"
    assert lines["store"] == f"a file was written, read, listed and deleted in file://{folder}"
    assert lines["inline"].endswith("catalog.db?timeout=60: no table has inline rows yet")
    assert stored(folder) == before
    assert sorted(path.name for path in folder.iterdir()) == ["catalog.db", "default"]


def test_formats_for_programs(folder):
    named = [
        *("icefloe", "python", "java", "pyspark", "pyiceberg", "pyarrow", "memory", "extras"),
        *("catalog", "rights", "store", "inline", "spark"),
    ]
    done = run(folder, "doctor", "--no-spark", "--format", "json")
    assert list(checks(done)) == named
    assert checks(done)["spark"] == ("skipped", "not started, as --no-spark says")
    done = run(folder, "doctor", "--no-spark", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout, newline="")))
    assert [row["check"] for row in rows] == named


def test_spark_runs_a_job(spark, folder):
    """In the session of this process, which goes on."""
    status, message = checks(run(folder, "doctor", "--format", "json"))["spark"]
    assert status == "ok"
    assert re.fullmatch(rf"{spark.version} ready in .* s; a job with Python workers: .* s", message)
    assert spark.range(1).count() == 1


def program(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "icefloe", "doctor", *arguments, "--format", "json"],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state"), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_without_java_the_report_goes_on(tmp_path):
    done = program(tmp_path, PATH=str(tmp_path), JAVA_HOME="")
    found = checks(done)
    assert (done.returncode, done.stderr) == (1, "")
    assert found["java"][0] == "failed"
    assert found["java"][1].startswith("No Java was found. Spark needs Java 17 or newer: install")
    assert found["spark"] == ("skipped", "not started: first see java")
    assert found["store"][0] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_with_a_broken_library_the_report_goes_on(tmp_path):
    (tmp_path / "pyspark.py").write_text("raise ImportError('libfoo is missing')")
    done = program(tmp_path, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    assert checks(done)["import"] == (
        "failed",
        "icefloe cannot be imported: ImportError: libfoo is missing. Reinstall it.",
    )


def test_libraries_that_are_missing_or_too_new(folder, monkeypatch):
    installed = environment.version
    monkeypatch.setattr(
        environment, "version", lambda name: "9.9" if name == "pyarrow" else installed(name)
    )
    done = run(folder, "doctor", "--format", "json")
    found = checks(done)
    assert done.exit_code == 1
    assert found["pyarrow"][0] == "failed"
    assert "pip install 'pyarrow>=21,<27'" in found["pyarrow"][1]
    assert found["catalog"] == ("skipped", "not looked at: first see pyarrow")

    def missing(name: str) -> str:
        raise environment.PackageNotFoundError(name)

    monkeypatch.setattr(environment, "version", missing)
    with pytest.raises(
        SetupError, match=r"pyspark is not installed\. Install it with: pip install"
    ):
        environment.check_version("pyspark")


def test_python_and_memory_have_ranges(monkeypatch):
    monkeypatch.setattr(doctor.sys, "version_info", (3, 99, 1))
    status, message = doctor._python()
    assert (status, "is not tested. Use one of 3.11, 3.12, 3.13." in message) == ("warning", True)
    monkeypatch.setattr(doctor, "memory_bytes", lambda: 2**30)
    assert doctor._memory()[0] is Status.WARNING
    monkeypatch.setattr(doctor, "memory_bytes", lambda: 0)
    assert doctor._memory()[1].startswith("unknown; ")


def test_spark_elsewhere_needs_no_java(monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "sc://spark.example")
    assert run_check("java", doctor._java).status is Status.SKIPPED


def test_a_folder_without_a_lake(tmp_path, monkeypatch):
    """Nothing is created."""
    done = run(tmp_path / "new" / "lake", "doctor", "--no-spark", "--format", "json")
    found = checks(done)
    assert done.exit_code == 0
    assert found["catalog"][0] == "skipped"
    assert "connect() creates one" in found["catalog"][1]
    assert found["store"] == ("ok", f"a file was written, read, listed and deleted in {tmp_path}")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.chdir(tmp_path)
    found = checks(CliRunner().invoke(app, ["doctor", "--no-spark", "--format", "json"]))
    assert "there is no lake in 'lake' yet; --warehouse or --catalog name" in found["catalog"][1]


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("new_file", "Cannot write to file://{}: Cannot write file://"),
        ("open_input", "Cannot read in file://{}: no"),
        ("list_files", "Cannot list file://{}: no"),
    ],
)
def test_each_step_of_a_store_that_fails_is_named(tmp_path, monkeypatch, broken, told):
    def fail(*_args: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(f"icefloe.storage.files.{broken}", fail)
    io = open_lake(tmp_path / "lake")
    (tmp_path / "store").mkdir()
    with pytest.raises(StorageError, match=re.escape(told.format(tmp_path / "store"))):
        probe_folder(lake_checks.load_file_io({}), f"file://{tmp_path}/store")
    assert list((tmp_path / "store").iterdir()) == []
    io.stop()


def test_a_store_that_cannot_delete(tmp_path, monkeypatch):
    """Deleting is tried in both ways: the file, and then its folder."""
    io = lake_checks.load_file_io({})

    def fail(_location: str) -> None:
        raise PermissionError("no DeleteObject")

    monkeypatch.setattr(io, "delete", fail)
    with pytest.raises(
        StorageError,
        match=r"Cannot delete in file://.*: no DeleteObject\. file://.*/probe may be left",
    ):
        probe_folder(io, f"file://{tmp_path}")


def test_a_store_that_fails_makes_the_status_1(folder, monkeypatch):
    def fail(*_args: object) -> None:
        raise StorageError("Cannot write to it")

    monkeypatch.setattr(lake_checks, "probe_folder", fail)
    done = run(folder, "doctor", "--no-spark")
    assert done.exit_code == 1
    assert "failed  store     Cannot write to it" in done.stdout


def test_a_catalog_that_this_user_cannot_write(folder, monkeypatch):
    """Root may write everywhere."""
    refusing = SimpleNamespace(access=lambda _path, _mode: False, W_OK=os.W_OK)
    monkeypatch.setattr(lake_checks, "os", refusing)
    found = checks(run(folder, "doctor", "--no-spark", "--format", "json"))
    assert found["rights"][0] == "failed"
    assert f"This user cannot write to the folder {folder}" in found["rights"][1]


def test_a_catalog_that_another_writer_locks(folder, monkeypatch):
    monkeypatch.setattr(databases, "BUSY_SECONDS", 0)
    with contextlib.closing(sqlite3.connect(folder / "catalog.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        found = checks(run(folder, "doctor", "--no-spark", "--format", "json"))
    assert found["rights"] == ("warning", "unknown: the catalog's database is locked by a writer")
    (folder / "catalog.db").write_text("no database " * 100)
    found = checks(run(folder, "doctor", "--no-spark", "--format", "json"))
    assert found["catalog"][0] == "failed"
    assert "file is not a database" in found["catalog"][1]


@pytest.fixture
def configure(monkeypatch) -> Callable[..., None]:
    """Configures the catalog `prod` in the environment."""

    def set_properties(**properties: str) -> None:
        for name, value in properties.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{name.upper()}", value)
        monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())

    return set_properties


def test_a_catalog_that_cannot_be_reached(configure):
    configure(type="rest", uri="http://127.0.0.1:1")
    done = CliRunner().invoke(
        app, ["--catalog", "prod", "doctor", "--no-spark", "--format", "json"]
    )
    found = checks(done)
    assert done.exit_code == 1
    assert found["catalog"][0] == "failed"
    assert "127.0.0.1" in found["catalog"][1]
    assert found["store"] == ("skipped", "not looked at: first see catalog")


def test_a_rest_catalog(tmp_path, monkeypatch, configure):
    """The warehouse is only a name: the probe is in a table's folder. No database is created."""
    command = ["--catalog", "prod", "doctor", "--no-spark", "--format", "json"]
    with running_catalog(tmp_path / "server") as server:
        table = make(icefloe.Lake(server.catalog), "orders", 1)
        configure(type="rest", uri=server.uri, inline_uri=f"sqlite:///{tmp_path}/inline.db")
        found = checks(CliRunner().invoke(app, command))
        assert found["catalog"][1].startswith(f"Rest ({server.uri}), 1 table, listed in")
        assert found["rights"][0] == "skipped"
        probed = f"a file was written, read, listed and deleted in {table.location}"
        assert found["store"] == ("ok", probed)
        assert found["inline"][0] == "skipped"
        assert "inline.db does not exist yet" in found["inline"][1]
        assert not (tmp_path / "inline.db").exists()
        monkeypatch.delenv("PYICEBERG_CATALOG__PROD__INLINE_URI")
        found = checks(CliRunner().invoke(app, command))
        assert "needs a database for the inline rows" in found["inline"][1]


def test_rights_in_postgresql(postgresql_server, tmp_path):
    properties = {"type": "sql", "uri": postgresql_server, "warehouse": f"file://{tmp_path}"}
    with icefloe.Lake(load_catalog("prod", **properties)) as lake:
        kinds = [lake_checks._may_commit(lake.catalog)]
        engine = sa.create_engine(postgresql_server)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE ROLE reader LOGIN")
            connection.exec_driver_sql("GRANT SELECT, INSERT ON iceberg_tables TO reader")
        reader = postgresql_server.replace("icefloe@", "reader@")
        readers = load_catalog("prod", **{**properties, "uri": reader})
        with pytest.raises(StorageError, match="cannot UPDATE, DELETE in iceberg_tables"):
            lake_checks._may_commit(readers)
        readers.close()
        with engine.begin() as connection:
            connection.exec_driver_sql("REVOKE ALL ON iceberg_tables FROM reader")
            connection.exec_driver_sql("DROP ROLE reader")
        engine.dispose()
    assert kinds == [(Status.OK, "this user may write to the catalog's tables")]


def test_secrets_are_masked(configure):
    configure(type="sql", uri="postgresql+psycopg://me:Zm4rk-pass@127.0.0.1:1/lake")
    done = CliRunner().invoke(app, ["--catalog", "prod", "doctor", "--no-spark"])
    assert done.exit_code == 1
    assert "Zm4rk-pass" not in done.stdout + done.stderr
