from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg import types as ice
from pyiceberg.schema import Schema
from pyspark.sql import SparkSession
from pyspark.sql import types as sp

from icefloe.errors import UnsupportedTableError
from icefloe.schema.to_spark import can_store, needs_check, spark_schema, spark_type

ATOMIC = [
    sp.BooleanType(),
    sp.ByteType(),
    sp.ShortType(),
    sp.IntegerType(),
    sp.LongType(),
    sp.FloatType(),
    sp.DoubleType(),
    sp.DecimalType(10, 0),
    sp.DecimalType(12, 2),
    sp.StringType(),
    sp.BinaryType(),
    sp.DateType(),
    sp.TimestampType(),
    sp.TimestampNTZType(),
]
NO_TARGETS = [sp.DayTimeIntervalType(), sp.YearMonthIntervalType(), sp.VariantType(), sp.NullType()]
INTEGRAL = (sp.ByteType, sp.ShortType, sp.IntegerType, sp.LongType)


def test_every_level_has_its_id_comment_and_nullability() -> None:
    point = ice.StructType(ice.NestedField(3, "x", ice.IntegerType(), required=True, doc="east"))
    schema = Schema(
        ice.NestedField(1, "id", ice.LongType(), required=True, doc="key"),
        ice.NestedField(2, "points", ice.ListType(4, point, element_required=True)),
        ice.NestedField(
            5, "m", ice.MapType(6, ice.StringType(), 7, ice.DecimalType(9, 2), value_required=False)
        ),
    )

    found = spark_schema(schema, with_ids=True)

    inner = sp.StructType(
        [sp.StructField("x", sp.IntegerType(), False, {"parquet.field.id": 3, "comment": "east"})]
    )
    money = sp.MapType(sp.StringType(), sp.DecimalType(9, 2), True)
    assert found == sp.StructType(
        [
            sp.StructField("id", sp.LongType(), False, {"parquet.field.id": 1, "comment": "key"}),
            sp.StructField("points", sp.ArrayType(inner, False), True, {"parquet.field.id": 2}),
            sp.StructField("m", money, True, {"parquet.field.id": 5}),
        ]
    )
    assert [field.metadata for field in found.fields] == [
        {"parquet.field.id": 1, "comment": "key"},
        {"parquet.field.id": 2},
        {"parquet.field.id": 5},
    ]
    assert [field.metadata for field in spark_schema(schema).fields] == [{"comment": "key"}, {}, {}]


@pytest.mark.parametrize(
    "unreadable",
    [
        ice.UUIDType(),
        ice.TimeType(),
        ice.TimestampNanoType(),
        ice.TimestamptzNanoType(),
        ice.UnknownType(),
        ice.GeometryType(),
        ice.GeographyType(),
    ],
    ids=str,
)
def test_a_type_spark_cannot_read_is_refused_by_column(unreadable: ice.PrimitiveType) -> None:
    inner = ice.StructType(ice.NestedField(2, "u", unreadable))
    schema = Schema(ice.NestedField(1, "items", ice.ListType(3, inner, element_required=True)))

    with pytest.raises(UnsupportedTableError) as caught:
        spark_schema(schema)

    assert f"Column 'items.element.u' has type {unreadable}" in str(caught.value)


def test_fixed_is_binary() -> None:
    assert spark_type(ice.FixedType(16)) == sp.BinaryType()


@pytest.mark.slow
def test_storing_follows_sparks_insert_except_for_fractions(
    spark: SparkSession, tmp_path: Path
) -> None:
    different = []
    for index, target in enumerate(ATOMIC):
        name = f"icefloe_can_store_{index}"
        spark.sql(
            f"CREATE TABLE {name} (c {target.simpleString()}) USING parquet "
            f"LOCATION '{tmp_path / name}'"
        )
        try:
            for source in ATOMIC + NO_TARGETS:
                plan = spark.sql(
                    f"EXPLAIN INSERT INTO {name} SELECT CAST(NULL AS {source.simpleString()})"
                ).collect()[0][0]
                spark_stores = "Error occurred" not in plan
                if spark_stores is not can_store(source, target):
                    different.append((source, target))
        finally:
            spark.sql(f"DROP TABLE {name}")

    fractional = [sp.FloatType(), sp.DoubleType(), sp.DecimalType(12, 2)]
    integral = [target for target in ATOMIC if isinstance(target, INTEGRAL)]
    assert sorted(map(str, different)) == sorted(
        str((source, target)) for target in integral for source in fractional
    )


def struct(**fields: sp.DataType) -> sp.StructType:
    return sp.StructType([sp.StructField(name, kind) for name, kind in fields.items()])


@pytest.mark.parametrize(
    ("source", "target", "stores"),
    [
        (sp.ArrayType(sp.IntegerType()), sp.ArrayType(sp.LongType()), True),
        (sp.ArrayType(sp.DoubleType()), sp.ArrayType(sp.LongType()), False),
        (sp.ArrayType(sp.NullType()), sp.ArrayType(sp.LongType()), True),
        (sp.ArrayType(sp.LongType()), sp.StringType(), False),
        (
            sp.MapType(sp.StringType(), sp.IntegerType()),
            sp.MapType(sp.StringType(), sp.LongType()),
            True,
        ),
        (
            sp.MapType(sp.StringType(), sp.LongType()),
            sp.MapType(sp.LongType(), sp.LongType()),
            False,
        ),
        (
            struct(B=sp.StringType(), a=sp.LongType()),
            struct(a=sp.LongType(), b=sp.StringType()),
            True,
        ),
        (struct(a=sp.LongType()), struct(a=sp.LongType(), b=sp.StringType()), False),
        (struct(a=sp.StringType()), struct(a=sp.LongType()), False),
    ],
)
def test_nested_types_store_part_by_part(
    source: sp.DataType, target: sp.DataType, stores: bool
) -> None:
    assert can_store(source, target) is stores


@pytest.mark.parametrize(
    ("source", "target", "checks"),
    [
        (sp.LongType(), sp.IntegerType(), True),
        (sp.IntegerType(), sp.LongType(), False),
        (sp.LongType(), sp.FloatType(), False),
        (sp.DoubleType(), sp.FloatType(), False),
        (sp.DoubleType(), sp.DecimalType(38, 0), True),
        (sp.LongType(), sp.DecimalType(19, 0), False),
        (sp.LongType(), sp.DecimalType(20, 2), True),
        (sp.DecimalType(9, 0), sp.IntegerType(), False),
        (sp.DecimalType(10, 0), sp.IntegerType(), True),
        (sp.DecimalType(18, 0), sp.LongType(), False),
        (sp.DecimalType(5, 2), sp.DecimalType(6, 2), False),
        (sp.DecimalType(5, 2), sp.DecimalType(4, 1), True),  # 999.99 is 1000.0
        (sp.DecimalType(5, 2), sp.DecimalType(5, 1), False),
        (sp.DecimalType(5, 2), sp.DecimalType(5, 3), True),
        (sp.NullType(), sp.IntegerType(), False),
        (sp.DateType(), sp.TimestampType(), False),
        (sp.BinaryType(), sp.StringType(), False),
        (sp.ArrayType(sp.LongType()), sp.ArrayType(sp.IntegerType()), True),
        (
            struct(a=sp.LongType(), b=sp.LongType()),
            struct(B=sp.IntegerType(), A=sp.LongType()),
            True,
        ),
        (struct(a=sp.IntegerType()), struct(A=sp.LongType()), False),
        (
            sp.MapType(sp.StringType(), sp.LongType()),
            sp.MapType(sp.StringType(), sp.IntegerType()),
            True,
        ),
    ],
)
def test_only_casts_that_may_overflow_need_a_check(
    source: sp.DataType, target: sp.DataType, checks: bool
) -> None:
    assert needs_check(source, target) is checks
