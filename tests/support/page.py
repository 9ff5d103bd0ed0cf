"""Lakes for the web page, and clients of its server."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable
from starlette.testclient import TestClient

from icefloe.lake import Lake
from icefloe.ui.server import make_app
from icefloe.ui.sql_box import SqlBox
from icefloe.ui.views import LakeViews

TOKEN = "a-token-of-these-tests"
PORT = 8765
HOST = f"127.0.0.1:{PORT}"
SCRIPT = "<img src=x onerror=pwned=1>"


def refuse_spark() -> Any:
    raise AssertionError("Spark was started")


def client_of(lake: Lake, box: SqlBox | None = None) -> TestClient:
    """A client with the token; without a `box`, statements must not start Spark."""
    app = make_app(LakeViews(lake, "lake"), box or SqlBox(lake, refuse_spark), TOKEN, PORT)
    headers = {"authorization": f"Bearer {TOKEN}"}
    return TestClient(app, base_url=f"http://{HOST}", headers=headers)


def orders(catalog: Catalog, *name: str) -> IcebergTable:
    """A partitioned table of two snapshots, written by PyIceberg."""
    space, *_ = name = name or ("shop", "orders")
    catalog.create_namespace_if_not_exists(space)
    rows = pa.table({"id": [1, 2, 3], "region": ["us", "us", "eu"]})
    table = catalog.create_table(name, rows.schema)
    with table.update_spec() as spec:
        spec.add_identity("region")
    table.append(rows)
    table.append(pa.table({"id": [9], "region": ["us"]}))
    return table
