"""Nested values are assigned by field name; an overflow or a missing value is an error."""

from __future__ import annotations

import pyarrow as pa
import pytest

from icefloe import errors
from support.tables import rows

NESTED = "id INT, s STRUCT<a: INT, b: INT>, l ARRAY<STRUCT<a: INT, b: INT>>, m MAP<STRING, INT>"


def one(table):
    (row,) = table.scan().collect()
    return row.asDict(recursive=True)


def test_struct_fields_are_assigned_by_name(table_of, mode):
    table = table_of(NESTED, mode=mode)
    swapped = pa.struct([("b", pa.int64()), ("A", pa.int32())])
    table.append(
        pa.table(
            {
                "id": pa.array([1], pa.int64()),
                "s": pa.array([{"b": 1, "A": 2}], swapped),
                "l": pa.array([[{"b": 3, "A": 4}, None]], pa.list_(swapped)),
                "m": pa.array([[("k", 5)]], pa.map_(pa.string(), pa.int64())),
            }
        )
    )
    assert one(table) == {
        "id": 1,
        "s": {"a": 2, "b": 1},
        "l": [{"a": 4, "b": 3}, None],
        "m": {"k": 5},
    }

    table.update().set("s", "named_struct('b', 10, 'a', 20)").set("l", "NULL").execute()
    assert one(table)["s"] == {"a": 20, "b": 10}


@pytest.mark.parametrize(
    ("column", "value", "path"),
    [
        ("s", "named_struct('a', 3000000000, 'b', 1)", r"s\.a"),
        ("l", "array(named_struct('a', 1, 'b', 3000000000))", r"l\.element\.b"),
        ("m", "map('k', 3000000000)", r"m\.value"),
    ],
)
def test_overflow_inside_nested_values_is_an_error(table_of, mode, column, value, path):
    table = table_of(NESTED, [{"id": 1, "s": None, "l": None, "m": None}], mode=mode)
    with pytest.raises(errors.TypeMismatchError, match=f"'{path}' expects int .*out of range"):
        table.update().set(column, value).execute()
    assert one(table) == {"id": 1, "s": None, "l": None, "m": None}


def test_null_in_a_required_nested_value_is_refused(table_of):
    from pyiceberg.schema import Schema  # noqa: PLC0415
    from pyiceberg.types import IntegerType, ListType, MapType, NestedField, StringType  # noqa: PLC0415

    schema = Schema(
        NestedField(1, "l", ListType(3, IntegerType(), element_required=True)),
        NestedField(2, "m", MapType(4, StringType(), 5, IntegerType(), value_required=True)),
    )
    table = table_of(schema, [{"l": [1, 2], "m": [("a", 1)]}, {"l": None, "m": None}])
    spark = table._lake.spark
    for bad, path in (
        ("array(1, NULL) AS l, map('a', 1) AS m", r"l\.element"),
        ("array(1) AS l, map('a', cast(NULL AS int)) AS m", r"m\.value"),
    ):
        with pytest.raises(errors.NullabilityError, match=path):
            table.append(spark.sql(f"SELECT {bad}"))
    assert len(rows(table)) == 2
