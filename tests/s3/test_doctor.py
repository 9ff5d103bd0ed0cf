"""`icefloe doctor` on a lake in S3: what each missing right looks like; no object is left."""

from __future__ import annotations

import json

import pyiceberg.catalog
import pytest
from pyiceberg.utils.config import Config
from typer.testing import CliRunner

from icefloe.cli.app import app
from support.http_proxy import FORBIDDEN

pytestmark = pytest.mark.s3

FOLDER = "lake/doctor"


@pytest.fixture
def doctor(store, tmp_path, monkeypatch):
    """Runs the command on a SQLite catalog whose tables are in S3; the store's check."""
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{FOLDER}",
        **store.properties,
    }

    def run(**changed: str) -> tuple[int, str, str]:
        for name, value in {**properties, **changed}.items():
            key = name.upper().replace(".", "__").replace("-", "_")
            monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{key}", value)
        monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
        command = ["--catalog", "prod", "doctor", "--no-spark", "--format", "json"]
        done = CliRunner().invoke(app, command)
        assert store.secret_key not in done.output
        checks = {one["check"]: one for one in map(json.loads, done.stdout.splitlines())}
        return done.exit_code, checks["store"]["status"], checks["store"]["message"]

    return run


def test_a_store_that_can_be_used(doctor, store):
    told = f"a file was written, read, listed and deleted in s3://{FOLDER}"
    assert doctor() == (0, "ok", told)
    assert store.keys(FOLDER) == set()


@pytest.mark.parametrize(
    ("method", "url", "times", "told"),
    [
        ("PUT", "probe", None, "Cannot write to"),
        ("GET", "/probe", None, "Cannot read in"),
        ("GET", "list-type", None, "Cannot list"),
        ("DELETE", "probe", 1, "Cannot delete in"),  # by the second way the probe is deleted
    ],
)
def test_a_right_that_is_missing_is_named(doctor, store, s3_proxy, method, url, times, told):
    with s3_proxy.failing(FORBIDDEN, method, url, times=times, leave_out=""):
        status, outcome, message = doctor()
    assert (status, outcome) == (1, "failed")
    assert message.startswith(f"{told} s3://{FOLDER}: ")
    assert store.keys(FOLDER) == set()


def test_a_wrong_key(doctor, store):
    if store.is_mock:
        pytest.skip("the mock verifies no signatures")
    status, outcome, message = doctor(**{"s3.secret-access-key": "wrong"})
    assert (status, outcome) == (1, "failed")
    assert message.startswith(f"Cannot write to s3://{FOLDER}: ")
    assert store.keys(FOLDER) == set()
