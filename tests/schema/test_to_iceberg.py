from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest
from pyiceberg import types as ice
from pyiceberg.schema import Schema
from pyspark.sql import SparkSession
from pyspark.sql import types as sp

from icefloe.errors import IcefloeError, ParseError, StatementError, UnsupportedTableError
from icefloe.schema.to_iceberg import to_iceberg_schema

# Top-level ids first, then those of each column's parts: as PyIceberg gives them to a new table.
EXPECTED = Schema(
    ice.NestedField(1, "id", ice.LongType(), required=True, doc="key"),
    ice.NestedField(2, "name", ice.StringType()),
    ice.NestedField(3, "tags", ice.ListType(6, ice.StringType(), element_required=False)),
    ice.NestedField(
        4,
        "p",
        ice.StructType(
            ice.NestedField(7, "a", ice.IntegerType(), required=True, doc="east"),
            ice.NestedField(8, "b", ice.StringType()),
        ),
    ),
    ice.NestedField(
        5, "m", ice.MapType(9, ice.StringType(), 10, ice.DoubleType(), value_required=False)
    ),
)
DDL = (
    "id BIGINT NOT NULL COMMENT 'key', name STRING, tags ARRAY<STRING>, "
    "p STRUCT<a: INT NOT NULL COMMENT 'east', b: STRING>, m MAP<STRING, DOUBLE>"
)
ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"doc": "key"}),
        pa.field("name", pa.large_string()),
        pa.field("tags", pa.large_list(pa.string_view())),
        pa.field(
            "p",
            pa.struct(
                [
                    pa.field("a", pa.int32(), nullable=False, metadata={"doc": "east"}),
                    pa.field("b", pa.dictionary(pa.int8(), pa.string())),
                ]
            ),
        ),
        pa.field("m", pa.map_(pa.string(), pa.float64())),
    ]
)
EVERY_DDL_TYPE = (
    "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h DECIMAL(9, 2), "
    "i STRING, j CHAR(3), k VARCHAR(4), l BINARY, m DATE, n TIMESTAMP, o TIMESTAMP_NTZ"
)
EVERY_ICEBERG_TYPE = (
    "boolean int int int long float double decimal(9, 2) string string string binary date "
    "timestamptz timestamp"
)


def types_of(schema: Schema) -> str:
    return " ".join(str(field.field_type) for field in schema.fields)


def test_a_ddl_string_keeps_comments_and_nullability(spark: SparkSession) -> None:
    assert to_iceberg_schema(DDL) == EXPECTED


def test_spark_schemas_and_frames_give_the_same_schema(spark: SparkSession) -> None:
    struct = sp.DataType.fromDDL(DDL)
    assert isinstance(struct, sp.StructType)

    assert to_iceberg_schema(struct) == EXPECTED
    assert to_iceberg_schema(spark.createDataFrame([], struct)) == EXPECTED


def test_arrow_schemas_tables_and_batches_give_the_same_schema() -> None:
    batch = pa.RecordBatch.from_pylist([], schema=ARROW)

    assert to_iceberg_schema(ARROW) == EXPECTED
    assert to_iceberg_schema(batch) == EXPECTED
    assert to_iceberg_schema(pa.Table.from_batches([batch])) == EXPECTED
    assert to_iceberg_schema(pa.RecordBatchReader.from_batches(ARROW, [batch])) == EXPECTED


def test_a_pyiceberg_schema_gets_fresh_ids_and_keeps_its_identifier() -> None:
    schema = Schema(
        ice.NestedField(7, "id", ice.LongType(), required=True, doc="key"),
        ice.NestedField(3, "f", ice.FixedType(4)),
        identifier_field_ids=[7],
    )

    found = to_iceberg_schema(schema)

    assert found == Schema(
        ice.NestedField(1, "id", ice.LongType(), required=True, doc="key"),
        ice.NestedField(2, "f", ice.FixedType(4)),
        identifier_field_ids=[1],
    )


def test_a_pandas_frame_gives_its_columns_without_the_index() -> None:
    frame = pd.DataFrame(
        {"id": [1], "name": ["a"], "at": pd.to_datetime(["2024-01-01"])}, index=["row"]
    )

    found = to_iceberg_schema(frame)

    assert [field.name for field in found.fields] == ["id", "name", "at"]
    assert types_of(found) == "long string timestamp"


def test_every_type_of_spark_has_its_iceberg_type(spark: SparkSession) -> None:
    assert types_of(to_iceberg_schema(EVERY_DDL_TYPE)) == EVERY_ICEBERG_TYPE


def test_every_type_of_arrow_has_its_iceberg_type() -> None:
    arrow_types = [
        (pa.bool_(), "boolean"),
        (pa.int8(), "int"),
        (pa.uint16(), "int"),
        (pa.uint32(), "long"),
        (pa.float16(), "float"),
        (pa.decimal128(38, 10), "decimal(38, 10)"),
        (pa.decimal64(9, 2), "decimal(9, 2)"),
        (pa.binary(4), "binary"),
        (pa.large_binary(), "binary"),
        (pa.date32(), "date"),
        (pa.date64(), "date"),
        (pa.timestamp("ns"), "timestamp"),
        (pa.timestamp("s"), "timestamp"),
        (pa.timestamp("ns", "UTC"), "timestamptz"),
        (pa.timestamp("us", "Europe/Paris"), "timestamptz"),
        (pa.list_(pa.int32(), 3), "list<int>"),
    ]
    schema = pa.schema([(f"c{i}", kind) for i, (kind, _) in enumerate(arrow_types)])

    found = to_iceberg_schema(schema)

    assert types_of(found) == " ".join(name for _, name in arrow_types)


def point(*names: str) -> sp.StructType:
    return sp.StructType([sp.StructField(name, sp.LongType()) for name in names])


@pytest.mark.parametrize(
    ("schema", "error", "message"),
    [
        (pa.schema([("n", pa.null())]), UnsupportedTableError, "'n' has type null"),
        (pa.schema([("u", pa.uint64())]), UnsupportedTableError, "'u' has type uint64"),
        (pa.schema([("t", pa.time64("us"))]), UnsupportedTableError, "'t' has type time64[us]"),
        (
            pa.schema([("d", pa.decimal256(50, 2))]),
            UnsupportedTableError,
            "'d' has type decimal256",
        ),
        (
            pa.schema([("p", pa.struct([("u", pa.uuid())]))]),
            UnsupportedTableError,
            "'p.u' has type extension<arrow.uuid>",
        ),
        (
            Schema(ice.NestedField(1, "u", ice.UUIDType())),
            UnsupportedTableError,
            "'u' has type uuid",
        ),
        (pa.schema([]), StatementError, "The schema has no columns"),
        (point("a", "a"), StatementError, "Columns 'a' and 'a' have the same name"),
        (
            sp.StructType([sp.StructField("p", sp.ArrayType(point("x", "X")))]),
            StatementError,
            "Columns 'p.element.x' and 'p.element.X' have the same name",
        ),
        (point(""), StatementError, "A column of the schema has no name"),
        (
            Schema(ice.NestedField(1, "a", ice.IntegerType(), initial_default=1)),
            StatementError,
            "'a' has a default value",
        ),
        (pd.DataFrame({"a": [1, "x"]}), StatementError, "schema from the pandas frame"),
        (17, StatementError, "Cannot take a schema from int. Give a DDL string"),
    ],
)
def test_schemas_that_no_table_can_have_are_refused_by_name(
    schema: object, error: type[IcefloeError], message: str
) -> None:
    with pytest.raises(error) as caught:
        to_iceberg_schema(schema)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("ddl", "error", "message"),
    [
        (
            "iv INTERVAL DAY TO SECOND",
            UnsupportedTableError,
            "'iv' has type interval day to second",
        ),
        ("a ARRAY<VARIANT>", UnsupportedTableError, "'a.element' has type variant"),
        ("m MAP<STRING, STRUCT<t: TIME>>", UnsupportedTableError, "'m.value.t' has type time(6)"),
        ("n VOID", UnsupportedTableError, "'n' has type void"),
        ("s STRING COLLATE UTF8_LCASE", UnsupportedTableError, "'s' has type string collate UTF8"),
        ("id BIGINT,, name STRING", ParseError, "Cannot read the schema 'id BIGINT,, name STRING'"),
        ("id INTI", ParseError, 'Unsupported data type "INTI"'),
        ("id INT DEFAULT 3", ParseError, "Syntax error at or near 'DEFAULT'"),
        ("array<int>", ParseError, "it is one type, not a list of columns"),
        ("", StatementError, "The schema has no columns"),
        ("p STRUCT<>", StatementError, "Struct 'p' has no fields"),
        ("id BIGINT, ID STRING", StatementError, "Columns 'id' and 'ID' have the same name"),
        ("_icefloe_pos BIGINT", StatementError, "'_icefloe_pos' starts with '_icefloe_'"),
        ("_ICEFLOE_pos BIGINT", StatementError, "'_ICEFLOE_pos' starts with '_icefloe_'"),
        ("`a.b` INT, a STRUCT<b: INT>", StatementError, "multiple fields for name a.b"),
    ],
)
def test_ddl_that_no_table_can_have_is_refused_by_name(
    spark: SparkSession, ddl: str, error: type[IcefloeError], message: str
) -> None:
    with pytest.raises(error) as caught:
        to_iceberg_schema(ddl)

    assert message in str(caught.value)
