"""-0.0 and 0.0 are equal, wherever a file's dictionary has only one of them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.types import DoubleType, FloatType

from icefloe.scan.columns import may_have_zeros
from support.tables import rows

CONDITIONS = [
    "x = 0.0",
    "x = CAST('-0.0' AS DOUBLE)",
    "x >= 0.0 AND x <= CAST('-0.0' AS DOUBLE)",
    "x IN (0.0, CAST('-0.0' AS DOUBLE), 7.0)",
    "x BETWEEN 0 AND 1",
    "s.y = CAST(0 AS FLOAT)",
]


@pytest.fixture(params=[0.0, -0.0], ids=["zero", "negative zero"])
def table(table_of, mode, partition_by, request):
    """A file of 20 zeros of one sign, with a dictionary of one value."""
    made = table_of(
        "id BIGINT, region STRING, x DOUBLE, s STRUCT<y: FLOAT>",
        mode=mode,
        partition_by=partition_by,
    )
    zero = request.param
    made.append(
        pa.table(
            {
                "id": pa.array(range(20), pa.int64()),
                "region": ["us"] * 20,
                "x": pa.array([zero] * 20),
                "s": pa.array([{"y": zero}] * 20, pa.struct([("y", pa.float32())])),
            }
        )
    )
    made.delete().where("id = 19").execute()
    return made


@pytest.mark.requirement("U07", "X03")
def test_conditions_find_zeros_of_either_sign(table):
    for condition in CONDITIONS:
        assert len(table.scan(where=condition).collect()) == 19, condition
        assert len(table.scan().filter(condition).collect()) == 19, condition
        assert table.count(condition) == 19, condition


@pytest.mark.requirement("U01", "X03")
@pytest.mark.changed_by("spark")
def test_statements_change_zeros_of_either_sign(table):
    assert table.update().set("id", "id + 100").where("x = 0.0").execute().rows_updated == 19
    keys = pa.table({"k": pa.array([0.0])})
    merge = table.merge(keys, "target.x = source.k").when_matched("id < 110")
    assert merge.delete().execute().rows_deleted == 10
    assert table.delete().where("s.y >= CAST(0 AS FLOAT)").execute().rows_deleted == 9
    assert rows(table) == []


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (-1.0, 1.0, True),
        (0.0, 2.0, True),
        (-2.0, -0.0, True),
        (1.0, 2.0, False),
        (-2.0, -1.0, False),
    ],
)
def test_bounds_say_whether_there_may_be_zeros(lake, lower, upper, expected):
    schema = lake.create_table("t", "n BIGINT, x DOUBLE").iceberg.schema()
    for kind in (DoubleType(), FloatType()):  # before and after the column became a double
        file = DataFile.from_args(
            lower_bounds={2: to_bytes(kind, lower)}, upper_bounds={2: to_bytes(kind, upper)}
        )
        assert may_have_zeros(schema, [file]) == expected
    assert may_have_zeros(schema, [DataFile.from_args()])
    assert not may_have_zeros(lake.create_table("u", "n BIGINT").iceberg.schema(), [DataFile()])
