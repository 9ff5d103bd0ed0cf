"""Lakes for the web page, and clients of its server."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
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


def hostile(catalog: Catalog, *name: str) -> IcebergTable:
    """A table all of whose texts are markup: names, comments, values, properties, summaries."""
    catalog.create_namespace_if_not_exists(name[0])
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, SCRIPT, StringType(), doc=SCRIPT),
        NestedField(3, f"part {SCRIPT}", StringType()),
    )
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), f"part {SCRIPT}"))
    properties = {SCRIPT: SCRIPT, "comment": SCRIPT}
    table = catalog.create_table(name, schema, partition_spec=spec, properties=properties)
    summary = ("operation", "mode", "predicate", "isolation", "rows-updated", "statement-id")
    rows = {"id": [1, 2], SCRIPT: [SCRIPT, "b"], f"part {SCRIPT}": [SCRIPT, "b"]}
    told = {f"icefloe.{key}": SCRIPT for key in summary}
    table.append(pa.table(rows, schema.as_arrow()), {**told, SCRIPT: SCRIPT})
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot.snapshot_id, SCRIPT).commit()
    with table.update_schema() as change:
        change.add_column(f"new {SCRIPT}", StringType(), doc=SCRIPT)
    return table
