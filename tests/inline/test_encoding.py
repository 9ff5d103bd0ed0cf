"""Rows to database values and back: exact for every type, in Spark's order."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    GeometryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimeType,
    UnknownType,
)

from icefloe.errors import SchemaMismatchError, StorageError, UnsupportedTableError
from icefloe.inline.decode import RowNames, decode_rows
from icefloe.inline.encode import encode_literal, encode_rows
from icefloe.inline.layout import InlineColumn, inline_columns, kind_of
from support.inline_schemas import leaves, longs, plain_rows, rows_of, tables

many = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


def of(kind: IcebergType, field_id: int = 1, name: str = "x") -> Schema:
    return Schema(NestedField(field_id, name, kind))


def stored(rows: pa.Table, schema: Schema) -> dict[str, list[Any]]:
    names = [column.name for column in inline_columns(schema)]
    return dict(zip(names, encode_rows(rows, schema), strict=True))


@many
@given(tables())
def test_round_trip_of_random_schemas(drawn):
    schema, rows = drawn
    decoded = decode_rows(stored(rows, schema), schema, len(rows))
    assert decoded.schema == rows.schema
    assert plain_rows(decoded) == plain_rows(rows)


@many
@given(tables(), st.integers(0, 6), st.integers(0, 6))
def test_round_trip_of_slices_and_chunks(drawn, start, size):
    schema, rows = drawn
    part = rows.slice(start, size)
    chunked = pa.concat_tables([part, rows.slice(0, start), part])
    for each in (part, chunked):
        with patch("icefloe.inline.decode._PARSED", 2):
            decoded = decode_rows(stored(each, schema), schema, len(each))
        assert plain_rows(decoded) == plain_rows(pa.concat_tables([each]).combine_chunks())


def test_values_have_two_types():
    schema = Schema(
        NestedField(1, "b", BooleanType()),
        NestedField(7, "s", StringType()),
        NestedField(3, "n", StructType(NestedField(4, "x", BinaryType()))),
    )
    rows = rows_of(schema, [True, None], ["é", None], [{"x": b"\0"}, {"x": None}])
    assert stored(rows, schema) == {
        "c1_i": [1, None],
        "c7_s": ["é".encode(), None],
        "c3_n": [b'{"4":"AA=="}', b'{"4":null}'],
    }


@many
@given(longs(), longs())
def test_order_of_integers(one, two):
    assert (encode_literal("i", one) < encode_literal("i", two)) is (one < two)


@many
@given(st.floats(), st.floats())
def test_order_of_doubles_is_sparks(one, two):
    """NaN is the largest value and equal to itself; the two zeros are neighbours."""

    def key(value: float) -> tuple[bool, float]:
        return (True, 0.0) if value != value else (False, value)

    first, second = encode_literal("f", one), encode_literal("f", two)
    if one == two == 0:
        assert abs(first - second) <= 1
    else:
        assert (first < second) is (key(one) < key(two))
        assert (first == second) is (key(one) == key(two))


@many
@given(leaves(DecimalType(38, 10)), leaves(DecimalType(38, 10)))
def test_order_of_decimals(one, two):
    assert (encode_literal("d", one) < encode_literal("d", two)) is (one < two)


@many
@given(st.sampled_from(["i", "f", "d", "s", "b"]), st.data())
def test_literals_are_encoded_as_values_are(kind, data):
    types = {
        "i": LongType(),
        "f": DoubleType(),
        "d": DecimalType(38, 10),
        "s": StringType(),
        "b": BinaryType(),
    }
    schema = of(types[kind])
    value = data.draw(leaves(types[kind]))
    assert encode_rows(rows_of(schema, [value]), schema) == [[encode_literal(kind, value)]]


def test_not_a_number_is_one_value():
    schema = of(DoubleType())
    payloads = pa.array([0x7FF8000000000001, -1, 0x7FF0000000000001], pa.int64()).view(pa.float64())
    rows = pa.table({"x": payloads})
    assert len(set(encode_rows(rows, schema)[0])) == 1


@pytest.mark.parametrize(
    ("before", "after", "value", "expected"),
    [
        (IntegerType(), LongType(), -7, -7),
        (FloatType(), DoubleType(), 0.1, 0.10000000149011612),
        (DecimalType(5, 2), DecimalType(38, 2), Decimal("-1.25"), Decimal("-1.25")),
        (DateType(), TimestampType(), 1, 86_400_000_000),
        (StringType(), BinaryType(), "é", "é".encode()),
    ],
    ids=str,
)
def test_values_stored_before_a_promotion(before, after, value, expected):
    columns = stored(rows_of(of(before), [value, None]), of(before))
    decoded = decode_rows(columns, of(after), 2)
    assert plain_rows(decoded) == plain_rows(rows_of(of(after), [expected, None]))


def test_columns_of_both_kinds_are_joined():
    decoded = decode_rows({"c1_a": [1, None], "c1_t": [None, 5]}, of(TimestampType()), 2)
    assert plain_rows(decoded) == [[86_400_000_000, 5]]


def test_missing_columns_and_nested_fields_read_null():
    before = of(StructType(NestedField(2, "a", LongType()), NestedField(3, "b", LongType())))
    after = Schema(
        NestedField(
            1, "y", StructType(NestedField(3, "B", LongType()), NestedField(4, "c", StringType()))
        ),
        NestedField(5, "new", StringType()),
        NestedField(6, "unknown", UnknownType()),
    )
    columns = stored(rows_of(before, [{"a": 1, "b": 2}, None]), before)
    assert decode_rows(columns, after, 2).to_pylist() == [
        {"y": {"B": 2, "c": None}, "new": None, "unknown": None},
        {"y": None, "new": None, "unknown": None},
    ]


def test_small_and_large_arrow_types():
    schema = Schema(
        NestedField(1, "s", StringType()),
        NestedField(2, "l", ListType(3, StringType(), element_required=False)),
    )
    small = pa.table(
        {
            "s": pa.array(["a", None], pa.string()),
            "l": pa.array([["x"], None], pa.list_(pa.string())),
        }
    )
    large = rows_of(schema, ["a", None], [["x"], None])
    assert encode_rows(small, schema) == encode_rows(large, schema)


def test_other_columns_or_types_are_refused():
    with pytest.raises(SchemaMismatchError, match=r"\['y'\].*\['x'\]"):
        encode_rows(pa.table({"y": [1]}), of(LongType()))
    with pytest.raises(SchemaMismatchError, match="'x' has the type string, expected int64"):
        encode_rows(pa.table({"x": ["a"]}), of(LongType()))


@pytest.mark.parametrize(
    ("kind", "damaged"),
    [
        (BooleanType(), 2),
        (BooleanType(), 2**63 - 1),
        (IntegerType(), 2**31),
        (LongType(), b"1"),
        (DecimalType(5, 2), b"short"),
        (DecimalType(5, 2), b"\xff" * 16),
        (StringType(), b"\xff"),
        (StructType(NestedField(2, "a", LongType())), b"{"),
        (StructType(NestedField(2, "a", LongType())), b"[1]"),
        (StructType(NestedField(2, "a", StringType())), b'{"2":"?"}'),
        (ListType(2, LongType()), b'["x"]'),
        (ListType(2, LongType()), b"5"),
    ],
    ids=str,
)
def test_damaged_values_are_reported(kind, damaged):
    column = InlineColumn(1, kind_of(kind)).name
    names = RowNames("shop.orders", [7, 9])
    with pytest.raises(StorageError, match=r"column 'x' in row 9 of shop\.orders"):
        decode_rows({column: [None, damaged]}, of(kind), 2, names)
    with pytest.raises(StorageError, match="row 1 of those read"):
        decode_rows({column: [None, damaged]}, of(kind), 2)


@pytest.mark.parametrize("nested", [False, True])
def test_unsupported_types_are_refused_by_column(nested):
    schema = of(GeometryType())
    if nested:
        schema = of(ListType(2, StructType(NestedField(3, "g", GeometryType()))))
    path = r"x\.element\.g" if nested else "x"
    with pytest.raises(UnsupportedTableError, match=f"Column '{path}' has the type geometry"):
        inline_columns(schema)


def test_tables_with_too_many_columns_or_none_are_refused():
    schema = Schema(*(NestedField(n, f"f{n}", LongType()) for n in range(1, 1502)))
    with pytest.raises(UnsupportedTableError, match="1501 columns"):
        inline_columns(schema)
    with pytest.raises(UnsupportedTableError, match="0 columns"):
        inline_columns(of(UnknownType()))


def test_columns_are_named_by_id_and_kind():
    schema = Schema(
        NestedField(12, "row_id; DROP TABLE x", TimeType()), NestedField(3, "seq", LongType())
    )
    assert [column.name for column in inline_columns(schema)] == ["c12_t", "c3_i"]
    assert InlineColumn.of_name("c12_t") == inline_columns(schema)[0]


def test_documents_are_json():
    schema = of(ListType(2, DoubleType(), element_required=False))
    [[document]] = encode_rows(rows_of(schema, [[1.0, None, float("nan")]]), schema)
    assert json.loads(document) == [
        encode_literal("f", 1.0),
        None,
        encode_literal("f", float("nan")),
    ]
