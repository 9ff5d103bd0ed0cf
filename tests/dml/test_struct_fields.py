"""Fields of structs: assigned where the struct is NULL, required in a struct that may be NULL."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icefloe.errors import NullabilityError
from support.tables import data_files, rows, snapshots
from support.unreferenced_files import leftovers

NESTED = "id BIGINT, region STRING, s STRUCT<n1: INT, n2: STRUCT<a: STRING, b: INT>>"
BEFORE = [
    {"id": 1, "region": "us", "s": None},
    {"id": 2, "region": "eu", "s": {"n1": 5, "n2": None}},
    {"id": 3, "region": None, "s": {"n1": None, "n2": {"a": "x", "b": 1}}},
]
ASSIGNED = {
    "s.n1": ("-1", [(1, (-1, None)), (2, (-1, None)), (3, (-1, ("x", 1)))]),
    "s.n2.b": ("7", [(1, (None, (None, 7))), (2, (5, (None, 7))), (3, (None, ("x", 7)))]),
}


def plain(value):
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def structs(table):
    return [(number, plain(s)) for number, s in rows(table, "id", "s")]


@pytest.mark.parametrize("field", ASSIGNED)
@pytest.mark.parametrize("how", ["update", "merge", "SQL"])
def test_a_field_of_a_null_struct(table_of, lake, mode, partition_by, field, how):
    """The struct is there afterwards, its other fields NULL; at every depth."""
    table = table_of(NESTED, BEFORE, [{**BEFORE[0], "id": 9}], mode=mode, partition_by=partition_by)
    table.delete().where("id = 9").with_options(mode="merge-on-read").execute()
    value, expected = ASSIGNED[field]
    match how:
        case "update":
            result = table.update().set(field, value).execute()
        case "merge":
            source = [{"k": number} for number in (1, 2, 3)]
            merge = table.merge(source, on="target.id = source.k")
            result = merge.when_matched().update({field: value}).execute()
        case "SQL":
            result = lake.sql(f"UPDATE {table.name} SET {field} = {value} WHERE id < 5")
    assert result.rows_updated == 3
    assert structs(table) == expected


def test_two_fields_and_a_null(table_of, mode):
    """SET s.n1 = NULL gives a struct of NULLs too."""
    table = table_of(NESTED, BEFORE, mode=mode)
    table.update().set("s.n1", "NULL").where("id = 1").execute()
    table.update().set("s.n1", "id").set("s.n2.a", "'q'").where("id = 2").execute()
    assert structs(table)[:2] == [(1, (None, None)), (2, (2, ("q", None)))]


REQUIRED = (
    "id BIGINT, s STRUCT<a: INT NOT NULL, b: STRING>, "
    "l ARRAY<STRUCT<x: STRUCT<y: INT NOT NULL> NOT NULL>>"
)


@pytest.mark.parametrize("how", ["update", "merge"])
def test_a_required_field_of_a_null_struct(table_of, mode, how):
    """Assigning another field of it would leave the required one NULL."""
    table = table_of(REQUIRED, [{"id": 1, "s": None, "l": None}], mode=mode)
    before = snapshots(table)
    with pytest.raises(NullabilityError, match=r"s\.a"):
        if how == "update":
            table.update().set("s.b", "'z'").execute()
        else:
            merge = table.merge([{"k": 1}], on="target.id = source.k")
            merge.when_matched().update({"s.b": "'z'"}).execute()
    assert snapshots(table) == before
    assert leftovers(table) == set()
    table.update().set("s.a", "3").execute()
    assert rows(table, "s.a", "s.b") == [(3, None)]


def test_a_null_struct_that_has_a_required_field(table_of, lake, mode):
    """Written by every statement, and read back by others."""
    full = {"id": 2, "s": {"a": 1, "b": None}, "l": [None, {"x": {"y": 1}}]}
    table = table_of(REQUIRED, [{"id": 1, "s": None, "l": None}, full], mode=mode)
    lake.sql(f"INSERT INTO {table.name} VALUES (3, NULL, array(NULL))")
    table.append([{**full, "id": 5}])
    table.update().set("s", "NULL").where("id = 5").execute()
    merge = table.merge([{"id": 2}, {"id": 7}], on=["id"]).when_matched().update({"s": "NULL"})
    merge.when_not_matched().insert({"id": "id"}).execute()
    table.update().set("s.a", "-1").where("id = 1").execute()

    expected = [(1, (-1, None)), (2, None), (3, None), (5, None), (7, None)]
    assert structs(table) == expected
    table.compact()
    assert structs(table) == expected
    read = table.iceberg.scan(selected_fields=("id", "s")).to_arrow().sort_by("id")
    assert [s and s["a"] for s in read["s"].to_pylist()] == [-1, None, None, None, None]
    for file in data_files(table):
        path = file.path.removeprefix("file://")
        by_duckdb = duckdb.sql(f"SELECT id, s.a FROM '{path}' ORDER BY id").fetchall()
        assert by_duckdb == [(1, -1), (2, None), (3, None), (5, None), (7, None)]
        assert pq.read_table(path)["l"].null_count == 2


def test_a_null_in_a_required_field_is_refused(table_of, mode):
    table = table_of(REQUIRED, mode=mode)
    kind = pa.struct([("a", pa.int32()), ("b", pa.string())])
    element = pa.struct([("x", pa.struct([("y", pa.int32())]))])
    bad = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "s": pa.array([None, {"a": None, "b": "x"}], kind),
            "l": pa.array([None, None], pa.list_(element)),
        }
    )
    with pytest.raises(NullabilityError, match=r"s\.a"):
        table.append(bad)
    assert snapshots(table) == []
    assert leftovers(table) == set()
