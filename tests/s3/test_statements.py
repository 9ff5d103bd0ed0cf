"""Every statement on tables in S3, with both catalogs and in both modes, against a model."""

from __future__ import annotations

import duckdb
import duckdb_extensions
import pytest

from support.s3_server import REGION, S3Server
from support.store_statements import STATEMENTS, Checked
from support.unreferenced_files import leftovers

pytestmark = pytest.mark.s3

COW, MOR = "copy-on-write", "merge-on-read"
by_spark = pytest.mark.changed_by("spark")


def rows_by_duckdb(location: str, store: S3Server) -> list[tuple]:
    """The rows as DuckDB reads them from the store."""
    for extension in ("avro", "iceberg", "httpfs"):
        duckdb_extensions.import_extension(extension)
    with duckdb.connect() as connection:
        connection.execute("SET autoinstall_known_extensions = false")
        connection.execute("LOAD avro; LOAD httpfs; LOAD iceberg; SET TimeZone = 'UTC'")
        connection.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{store.access_key}', SECRET '{store.secret_key}', "
            f"REGION '{REGION}', ENDPOINT '127.0.0.1:{store.port}', URL_STYLE 'path', "
            "USE_SSL false)"
        )
        found = connection.execute("SELECT * FROM iceberg_scan(?)", [location])
        return sorted(found.fetchall())


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("sqlite", COW),
        pytest.param("sqlite", MOR, marks=by_spark, id="sqlite-merge-on-read-by-spark"),
        ("rest", COW),
        ("rest", MOR),
        pytest.param("vending", MOR, marks=by_spark, id="vending-merge-on-read-by-spark"),
    ],
)
def test_every_statement(open_lake, kind, mode, new_name, store, s3_server):
    lake = open_lake(kind)
    checked = Checked(lake, new_name, mode)
    for name, statement in STATEMENTS.items():
        statement(checked)
        if name != "create table":
            checked.check()

    iceberg = checked.table.iceberg
    by_pyiceberg = iceberg.scan().to_arrow().to_pylist()
    assert sorted(tuple(row.values()) for row in by_pyiceberg) == checked.tuples
    assert rows_by_duckdb(iceberg.metadata_location, s3_server) == checked.tuples
    for index in ("by_id", "words"):
        checked.table.drop_index(index)
    assert leftovers(checked.table) == set()
    lake.drop_table(new_name, purge=True)
    assert s3_server.keys(iceberg.location().removeprefix("s3://")) == set()
