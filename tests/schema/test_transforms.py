"""Spark's partition values against PyIceberg's own transforms, one Spark job per source type."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import types as ice
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from icefloe.errors import UnsupportedTableError
from icefloe.schema.partition_values import _ZERO_SEED, partition_columns, to_record
from icefloe.schema.to_spark import spark_schema
from icefloe.tasks import bucket_hash

RANDOM = Random(20240310)
DAY = 86_400_000_000
HOUR = 3_600_000_000
FIRST_DAY, LAST_DAY = -719_162, 2_932_896  # years 1 and 9999, as far as Python's dates go
NEW_YORK_SPRING = 1_710_054_000_000_000  # 2024-03-10 07:00 UTC: clocks go from 2:00 to 3:00
NUMBER_WIDTHS = (1, 2, 10, 16, 1000, 2**31 - 1)
TEXT = "aZ0 é€😀\u0000\u07ff\uffff"


def around(*borders: int) -> list[int]:
    return [border + step for border in borders for step in (-1, 0, 1)]


def integers(low: int, high: int) -> list[int]:
    wide = [RANDOM.randint(low, high) for _ in range(100)]
    return [low, high, *around(0, 10, -10, 34), *wide]


DAYS = [FIRST_DAY, LAST_DAY, *around(0, 365, -365, 31, -31), *integers(FIRST_DAY, LAST_DAY)]
MICROS = [
    FIRST_DAY * DAY,
    (LAST_DAY + 1) * DAY - 1,
    *around(0, DAY, -DAY, HOUR, -HOUR, 365 * DAY, -365 * DAY, -31 * DAY),
    *around(NEW_YORK_SPRING, NEW_YORK_SPRING - 5 * HOUR),
    NEW_YORK_SPRING - 4 * HOUR - HOUR // 2,  # as local time: inside the hour that is left out
    *integers(FIRST_DAY * DAY, (LAST_DAY + 1) * DAY - 1),
    *(day * DAY + step for day in (FIRST_DAY + 1, -1, 0, LAST_DAY) for step in (-1, 0, 1)),
]
STRINGS = [
    "",
    "a",
    "iceberg",
    "abcd",
    "😀😀😀😀😀",
    "x" * 10_000,
    *("".join(RANDOM.choices(TEXT, k=size)) for size in range(40)),
]
BINARIES = [b"", b"\x00", b"\xff" * 9, *(RANDOM.randbytes(size) for size in range(40))]


def decimals(precision: int, scale: int) -> list[Decimal]:
    unscaled = integers(-(10**precision) + 1, 10**precision - 1)
    unscaled += [n for n in around(127, 128, -128, 255, 256, 32767, -32768) if precision > 5]
    exact = Context(prec=39)
    return [Decimal(number).scaleb(-scale, context=exact) for number in unscaled]


@dataclass(frozen=True)
class Case:
    """Values of one source type, and the transforms that apply to it."""

    source: ice.PrimitiveType
    values: list[Any]
    transforms: list[Transform[Any, Any]]


BUCKETS: list[Transform[Any, Any]] = [BucketTransform(n) for n in (1, 7, 16, 2**31 - 1)]
TIMES: list[Transform[Any, Any]] = [YearTransform(), MonthTransform(), DayTransform()]
SAME: list[Transform[Any, Any]] = [IdentityTransform(), VoidTransform()]


def truncates(*widths: int) -> list[Transform[Any, Any]]:
    return [TruncateTransform(width) for width in widths]


# Below the smallest multiple of a width there is no truncated value: see the test of the failure.
INTS = [n for n in integers(-(2**31), 2**31 - 1) if n >= -(2**31) + 2**30]
LONGS = [n for n in integers(-(2**63), 2**63 - 1) if n >= -(2**63) + 2**31]

CASES = [
    Case(ice.BooleanType(), [True, False], SAME),
    Case(ice.IntegerType(), INTS, SAME + BUCKETS + truncates(1, 2, 10, 16, 1000, 2**30)),
    Case(ice.IntegerType(), integers(-(2**31), 2**31 - 1), SAME + BUCKETS),
    Case(ice.LongType(), LONGS, SAME + BUCKETS + truncates(*NUMBER_WIDTHS)),
    Case(ice.LongType(), integers(-(2**63), 2**63 - 1), SAME + BUCKETS),
    Case(ice.FloatType(), [0.5, -1.0, float("inf")], SAME),
    Case(ice.DoubleType(), [0.1, -1.0, float("-inf"), 1e308], SAME),
    Case(ice.DateType(), DAYS, SAME + BUCKETS + TIMES),
    Case(ice.TimestampType(), MICROS, [*SAME, *BUCKETS, *TIMES, HourTransform()]),
    Case(ice.TimestamptzType(), MICROS, [*SAME, *BUCKETS, *TIMES, HourTransform()]),
    Case(ice.StringType(), STRINGS, SAME + BUCKETS + truncates(1, 3, 100)),
    Case(ice.BinaryType(), BINARIES, SAME + BUCKETS + truncates(1, 3, 100)),
    Case(ice.FixedType(3), [b"abc", b"\x00\xff\x80"], SAME + BUCKETS),
    Case(ice.DecimalType(4, 2), decimals(4, 2)[2:], SAME + BUCKETS + truncates(1, 2)),
    Case(ice.DecimalType(18, 0), decimals(18, 0)[1:], SAME + BUCKETS + truncates(1, 10)),
    Case(ice.DecimalType(38, 10), decimals(38, 10)[1:], SAME + BUCKETS + truncates(1, 10, 1000)),
]


@pytest.fixture
def new_york(spark: SparkSession) -> Iterator[None]:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", zone or "UTC")


def spec_of(source_id: int, transforms: list[Transform[Any, Any]]) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(source_id, 1000 + index, transform, f"p{index}")
            for index, transform in enumerate(transforms)
        )
    )


def tuple_of(record: Record) -> tuple[Any, ...]:
    return tuple(record[index] for index in range(len(record)))


def partition_rows(
    spark: SparkSession, schema: Schema, spec: PartitionSpec, rows: pa.Table
) -> list[tuple[Any, ...]]:
    frame = spark.createDataFrame(rows, schema=spark_schema(schema))
    columns = [c.alias(f"p{i}") for i, c in enumerate(partition_columns(spec, schema))]
    return [tuple(row.values()) for row in frame.select(*columns).toArrow().to_pylist()]


@pytest.mark.usefixtures("new_york")
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.source))
def test_spark_gives_the_partition_values_of_pyiceberg(spark: SparkSession, case: Case) -> None:
    schema = Schema(ice.NestedField(1, "a `b`.c", case.source, required=False))
    spec = spec_of(1, case.transforms)
    values = [None, *case.values]
    rows = pa.table([pa.array(values, schema_to_pyarrow(case.source))], names=["a `b`.c"])

    found = partition_rows(spark, schema, spec, rows)

    functions = [transform.transform(case.source) for transform in case.transforms]
    expected = [tuple(function(value) for function in functions) for value in values]
    assert found == expected
    assert [tuple_of(to_record(row, spec, schema)) for row in found] == expected


def test_a_source_inside_a_struct_is_found_and_a_null_struct_gives_null(
    spark: SparkSession,
) -> None:
    inner = ice.StructType(ice.NestedField(2, "x.y", ice.LongType(), required=False))
    schema = Schema(ice.NestedField(1, "p", inner, required=False))
    rows = pa.Table.from_pylist(
        [{"p": {"x.y": 34}}, {"p": {"x.y": None}}, {"p": None}], schema=schema_to_pyarrow(schema)
    )

    found = partition_rows(spark, schema, spec_of(2, [BucketTransform(16)]), rows)

    assert found == [(3,), (None,), (None,)]


@pytest.mark.parametrize(
    ("source", "width", "value"),
    [
        (ice.IntegerType(), 10, -(2**31)),
        (ice.LongType(), 10, -(2**63)),
        (ice.DecimalType(4, 2), 1000, Decimal("-99.99")),
    ],
    ids=str,
)
def test_truncate_fails_when_the_type_has_no_such_multiple(
    spark: SparkSession, source: ice.PrimitiveType, width: int, value: object
) -> None:
    schema = Schema(ice.NestedField(1, "a", source, required=False))
    rows = pa.table([pa.array([value], schema_to_pyarrow(source))], names=["a"])

    with pytest.raises(Exception, match=rf"truncate\({width}\)"):
        partition_rows(spark, schema, spec_of(1, [TruncateTransform(width)]), rows)


def test_the_seed_argument_hashes_to_zero(spark: SparkSession) -> None:
    row = spark.range(1).select(F.hash(F.lit(_ZERO_SEED)).alias("seed")).first()

    assert row is not None
    assert row["seed"] == 0


def test_an_unknown_transform_or_a_missing_source_is_refused(spark: SparkSession) -> None:
    schema = Schema(ice.NestedField(1, "a", ice.LongType(), required=False))

    with pytest.raises(UnsupportedTableError, match="'p0' applies unknown to type long"):
        partition_columns(spec_of(1, [UnknownTransform("zorder")]), schema)
    with pytest.raises(UnsupportedTableError, match="no column has the id 9"):
        partition_columns(spec_of(9, [IdentityTransform()]), schema)


def test_sliced_arrow_arrays_hash_as_whole_ones() -> None:
    strings = pa.array(["no", "iceberg", None, "", "abcde"])
    numbers = pa.array([Decimal("1.1"), Decimal("14.20"), None, Decimal("-1.00")])

    whole = bucket_hash.bucket_bytes(100)(strings).to_pylist()
    assert bucket_hash.bucket_bytes(100)(strings[1:4]).to_pylist() == whole[1:4]
    assert bucket_hash.bucket_bytes(100)(strings[:0]).to_pylist() == []
    whole = bucket_hash.bucket_decimal(100)(numbers).to_pylist()
    assert bucket_hash.bucket_decimal(100)(numbers[1:]).to_pylist() == whole[1:]
    truncated = bucket_hash.truncate_decimal(100)(numbers[1:]).to_pylist()
    assert truncated == [Decimal("14.00"), None, Decimal("-1.00")]


def test_the_arrow_functions_run_where_icefloe_is_not_installed() -> None:
    pickled = cloudpickle.dumps(bucket_hash.bucket_bytes(16))  # type: ignore[no-untyped-call]
    script = (
        "import pickle, sys\n"
        "sys.modules.update(dict.fromkeys(['icefloe', 'pyiceberg']))  # None: cannot be imported\n"
        f"bucket = pickle.loads({pickled!r})\n"
        "import pyarrow as pa\n"
        "print(bucket(pa.array(['iceberg', None])).to_pylist())\n"
    )

    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (run.stdout.strip(), run.stderr) == ("[9, None]", "")
