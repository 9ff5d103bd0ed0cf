"""Statements, options and tables that are refused; nothing changes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.orc as orc
import pytest
from pyiceberg.manifest import FileFormat

from icefloe import errors
from icefloe.storage.files import locate
from support.foreign_files import manifest_entry, publish
from support.tables import rows, stored_files

SCHEMA = "id BIGINT NOT NULL, region STRING, n INT, d DECIMAL(10, 2)"
ROWS = [{"id": i, "region": "us" if i % 2 else "eu", "n": i, "d": None} for i in range(1, 5)]
BAD = {
    "unknown column in where": (
        lambda t: t.delete().where("nmae = 1"),
        errors.ColumnNotFoundError,
        "'nmae' is not in the table",
    ),
    "unknown column in set": (
        lambda t: t.update().set("regoin", "1"),
        errors.ColumnNotFoundError,
        "Did you mean 'region'",
    ),
    "unknown column in an expression": (
        lambda t: t.update().set("n", "m + 1"),
        errors.ColumnNotFoundError,
        "'m' is not in the table",
    ),
    "wrong type": (
        lambda t: t.update().set("n", "region"),
        errors.TypeMismatchError,
        "'n' expects int but got string",
    ),
    "NULL into required": (
        lambda t: t.update().set("id", "NULL"),
        errors.NullabilityError,
        "'id' is required",
    ),
    "NULL into required at run time": (
        lambda t: t.update().set("id", "nullif(id, 2)"),
        errors.NullabilityError,
        "'id' is required",
    ),
    "overflow of a narrower type": (
        lambda t: t.update().set("n", "id + 3000000000"),
        errors.TypeMismatchError,
        "out of range",
    ),
    "overflow in arithmetic": (
        lambda t: t.update().set("n", "n + 2147483647"),
        errors.StatementError,
        "overflow",
    ),
    "overflow of a decimal": (
        lambda t: t.update().set("d", "cast(12345678901 as decimal(20, 2))"),
        errors.TypeMismatchError,
        "out of range",
    ),
    "not deterministic": (
        lambda t: t.delete().where("rand() < 0.5"),
        errors.StatementError,
        "not deterministic",
    ),
    "not boolean": (
        lambda t: t.delete().where("id + 1"),
        errors.TypeMismatchError,
        "expects BOOLEAN but got BIGINT",
    ),
    "not SQL": (
        lambda t: t.delete().where("id = = 1"),
        errors.ParseError,
        "Syntax error at or near '='",
    ),
    "empty condition": (lambda t: t.delete().where("  "), errors.StatementError, "empty"),
    "a number for a condition": (
        lambda t: t.delete().where(5),
        errors.StatementError,
        "SQL text or a Column",
    ),
    "no set": (lambda t: t.update().where("id = 1"), errors.StatementError, "sets no column"),
    "set twice": (
        lambda t: t.update().set("n", "1").set("N", "2"),
        errors.StatementError,
        "more than once",
    ),
    "aggregate in where": (
        lambda t: t.delete().where("max(id) = 1"),
        errors.StatementError,
        "aggregate",
    ),
    "unknown table in a subquery": (
        lambda t: t.delete().where("id IN (SELECT id FROM nowhere.at_all)"),
        errors.StatementError,
        "nowhere",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_statements_are_refused_and_change_nothing(table_of, mode, case):
    build, kind, message = BAD[case]
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=("region",))
    before, stored, snapshot = rows(table), stored_files(table), table.snapshot_id

    with pytest.raises(kind, match=message):
        build(table).execute()

    assert rows(table) == before
    assert stored_files(table) == stored
    assert table.snapshot_id == snapshot


def test_bad_options_are_refused(table_of):
    table = table_of(SCHEMA, ROWS)
    with pytest.raises(errors.StatementError, match=r"Unknown option 'mod'.*mode"):
        table.delete().with_options(mod="auto")
    with pytest.raises(errors.StatementError, match="Unknown write mode 'fast'"):
        table.delete().with_options(mode="fast")
    with pytest.raises(errors.StatementError, match="Unknown isolation level 'none'"):
        table.delete().with_options(isolation="none")
    with pytest.raises(errors.StatementError, match="'retries' must be an integer >= 0"):
        table.delete().with_options(retries=-1)
    with pytest.raises(errors.StatementError, match=r"where\(\) was called twice"):
        table.delete().where("id = 1").where("id = 2")


def test_a_table_that_does_not_exist(lake):
    lake.create_table("orders", SCHEMA)
    with pytest.raises(errors.TableNotFoundError, match=r"default\.ordres does not exist.*orders"):
        lake.table("ordres")
    with pytest.raises(errors.TableNotFoundError, match=r"ns\.x does not exist"):
        lake.table("ns.x")


def test_an_orc_data_file_is_refused(lake, table_of, mode):
    table = table_of(SCHEMA, ROWS, mode=mode)
    location = f"{table.location}/data/foreign.orc"
    place = locate(table.iceberg.io, location)
    orc.write_table(pa.table({"id": [1]}), place.path)
    publish(lake, table, data=[manifest_entry(location, spec_id=0, file_format=FileFormat.ORC)])

    for act in (
        lambda: table.scan(),
        lambda: table.delete().where("id = 1").execute(),
        lambda: table.update().set("n", "1").execute(),
    ):
        with pytest.raises(errors.UnsupportedTableError, match=r"foreign\.orc is .*Parquet"):
            act()
