"""Tables that PyIceberg and DuckDB filled: icefloe reads and changes them like its own."""

from __future__ import annotations

import warnings
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from icefloe import Lake, Table
from support.foreign_files import adopted_file, publish
from support.foreign_readers import disagreements
from support.tables import data_files, rows

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType()),
    NestedField(3, "price", DoubleType()),
    NestedField(4, "cost", DecimalType(12, 2)),
    NestedField(5, "day", DateType()),
    NestedField(6, "at", TimestamptzType()),
    NestedField(7, "tags", ListType(8, StringType(), element_required=False)),
    NestedField(
        9,
        "place",
        StructType(NestedField(10, "city", StringType()), NestedField(11, "zip", IntegerType())),
    ),
    NestedField(12, "attrs", MapType(13, StringType(), 14, LongType(), value_required=False)),
)

# PyIceberg computes other transforms with Rust code that the tests do without: "NotInstalledError:
# pyiceberg_core needs to be installed".
PARTITIONINGS = {
    "unpartitioned": PartitionSpec(),
    "identity": PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region")),
}


def arrow(*ids: int) -> pa.Table:
    made = [
        {
            "id": i,
            "region": ["eu", "us", None][i % 3],
            "price": [1.5 * i, float("nan"), None][i % 3],
            "cost": Decimal(i) / 4,
            "day": date(2024, 1, 1 + i % 4),
            "at": None if i == 5 else datetime(2024, 1, 1 + i % 2, i, tzinfo=UTC),
            "tags": [["a", None], [], None][i % 3],
            "place": None if i % 4 == 3 else {"city": f"c{i}", "zip": i},
            "attrs": [("k", i)],
        }
        for i in ids
    ]
    # Without ids: PyIceberg numbers the columns of a new table in its own way.
    return pa.Table.from_pylist(made, schema=schema_to_pyarrow(SCHEMA, include_field_ids=False))


def values(table: Table, *columns: str) -> dict[Any, tuple[Any, ...]]:
    """Chosen columns by id."""
    return {row[0]: row[1:] for row in rows(table, "id", *columns)}


class TestPyIceberg:
    @pytest.fixture(params=PARTITIONINGS)
    def table(self, request: pytest.FixtureRequest, lake: Lake, mode: str) -> Table:
        lake.create_namespace("default")
        iceberg = lake.catalog.create_table(
            "default.made",
            SCHEMA,
            partition_spec=PARTITIONINGS[request.param],
        )
        iceberg.append(arrow(*range(8)))
        iceberg.append(arrow(*range(8, 12)))
        iceberg.delete("id == 1 or id == 9")
        return lake.table("default.made").set_properties(
            {f"write.{kind}.mode": mode for kind in ("update", "delete")}
        )

    def test_its_rows_are_read_updated_and_deleted(self, table: Table) -> None:
        assert set(values(table)) == {0, 2, 3, 4, 5, 6, 7, 8, 10, 11}
        updated = (
            table.update()
            .set("price", "coalesce(price, 0) + 1")
            .set("place.city", "upper(place.city)")
            .where("id >= 6")
        )
        assert updated.execute().rows_updated == 5
        assert values(table, "price", "place.city") == {
            0: (0.0, "c0"),
            2: (None, "c2"),
            3: (4.5, None),
            4: (pytest.approx(float("nan"), nan_ok=True), "c4"),
            5: (None, "c5"),
            6: (10.0, "C6"),
            7: (pytest.approx(float("nan"), nan_ok=True), None),
            8: (1.0, "C8"),
            10: (pytest.approx(float("nan"), nan_ok=True), "C10"),
            11: (1.0, None),
        }
        assert disagreements(table) == {}
        assert table.delete().where("region = 'eu' OR at IS NULL").execute().rows_deleted == 4
        assert set(values(table)) == {2, 4, 7, 8, 10, 11}
        assert disagreements(table) == {}

    def test_it_and_icefloe_write_in_turns(self, table: Table) -> None:
        table.delete().where("id IN (0, 2)").execute()
        table.iceberg.append(arrow(0, 20))
        table.update().set("cost", "cost + 1").where("id IN (0, 3, 20)").execute()
        table.iceberg.append(arrow(2))
        with warnings.catch_warnings():
            # "Merge on read is not yet supported, falling back to copy-on-write"
            warnings.filterwarnings("ignore", message="Merge on read")
            table.iceberg.delete("id == 4")
        table.update().set("region", "'ap'").where("region IS NULL").execute()
        assert set(values(table)) == {0, 2, 3, 5, 6, 7, 8, 10, 11, 20}
        assert values(table, "cost")[3] == (Decimal("1.75"),)
        assert values(table, "region")[2] == ("ap",)
        assert disagreements(table) == {}


class TestFilesWithoutFieldIds:
    """DuckDB's Parquet files have no field ids; the table's name mapping tells which is which."""

    @pytest.fixture
    def table(self, lake: Lake, tmp_path: Path, mode: str) -> Table:
        modes = {f"write.{kind}.mode": mode for kind in ("update", "delete")}
        table = lake.create_table(
            "adopted",
            "id BIGINT, region STRING, n INT, cost DECIMAL(12, 2), tags ARRAY<STRING>, "
            "place STRUCT<city: STRING, zip: INT>",
            properties=modes,
        )
        for low, high in ((0, 6), (6, 10)):
            path = tmp_path / f"from {low}.parquet"
            _copy(low, high, f"TO '{path}' (FORMAT parquet)")
            table.iceberg.add_files([f"file://{path}"])
        return table

    def test_update_and_delete(self, table: Table) -> None:
        assert values(table, "region", "n", "place")[5] == ("us", 50, ("c5", 5))
        assert values(table, "tags", "cost")[4] == (["t", None], Decimal("1.00"))
        assert (
            table.update().set("n", "n + 1").where("id BETWEEN 4 AND 7").execute().rows_updated == 4
        )
        assert table.delete().where("region = 'eu' AND id > 0").execute().rows_deleted == 4
        assert values(table, "n") == {0: (0,), 1: (10,), 3: (30,), 5: (51,), 7: (71,), 9: (90,)}
        assert values(table, "tags", "place")[7] == (["t", None], ("c7", 7))
        assert disagreements(table) == {}

    def test_after_columns_were_renamed_added_and_dropped(self, table: Table) -> None:
        table.rename_column("n", "number").add_column("note", "STRING").drop_column("cost")
        table.rename_column("place.city", "town")
        assert values(table, "number", "note", "place.town")[3] == (30, None, "c3")
        table.update().set("note", "place.town").set("number", "number + 1").where(
            "id = 3"
        ).execute()
        table.delete().where("number = 40 OR place.town = 'c8'").execute()
        assert values(table, "number", "note", "place.town") == {
            i: (31 if i == 3 else 10 * i, "c3" if i == 3 else None, f"c{i}")
            for i in (0, 1, 2, 3, 5, 6, 7, 9)
        }
        assert disagreements(table) == {}

    def test_after_the_partitions_evolved(self, table: Table) -> None:
        table.evolve_partitions(("region", "bucket(2, id)"))
        table.update().set("n", "-n").where("id % 4 = 1").execute()
        table.delete().where("n = -50").execute()
        assert values(table, "n") == {
            i: (-10 * i if i % 4 == 1 else 10 * i,) for i in range(10) if i != 5
        }
        assert disagreements(table) == {}


class TestHiveFiles:
    """Files of a Hive table: the partition column is in the folder's name and not in the file."""

    @pytest.fixture
    def table(self, lake: Lake, tmp_path: Path, mode: str) -> Table:
        modes = {f"write.{kind}.mode": mode for kind in ("update", "delete")}
        table = lake.create_table(
            "hive",
            "id BIGINT, region STRING, n INT, cost DECIMAL(12, 2), tags ARRAY<STRING>, "
            "place STRUCT<city: STRING, zip: INT>",
            partition_by="region",
            properties={**modes, "schema.name-mapping.default": _MAPPING},
        )
        _copy(0, 10, f"TO '{tmp_path / 'hive'}' (FORMAT parquet, PARTITION_BY (region))")
        files = [
            adopted_file(table, path, (path.parent.name.partition("=")[2],))
            for path in sorted((tmp_path / "hive").rglob("*.parquet"))
        ]
        assert {file.partition[0] for file in files} == {"eu", "us"}
        publish(lake, table, data=files)
        return table

    def test_the_partition_column_is_read(self, table: Table) -> None:
        assert values(table, "region", "n") == {i: (["eu", "us"][i % 2], 10 * i) for i in range(10)}
        assert rows(table, "id", where="region = 'us' AND n > 60") == [(7,), (9,)]

    def test_update_keeps_the_partition_column(self, table: Table) -> None:
        assert table.update().set("n", "n + 1").where("id IN (2, 3)").execute().rows_updated == 2
        assert values(table, "region", "n") == {
            i: (["eu", "us"][i % 2], 10 * i + (i in (2, 3))) for i in range(10)
        }

    def test_update_of_the_partition_column_moves_rows(self, table: Table) -> None:
        table.update().set("region", "concat(region, '!')").where("id IN (2, 3)").execute()
        assert values(table, "region") == {
            i: (["eu", "us"][i % 2] + "!" * (i in (2, 3)),) for i in range(10)
        }

    def test_delete_by_row_and_by_partition(self, table: Table) -> None:
        assert table.delete().where("id IN (2, 3)").execute().rows_deleted == 2
        assert values(table, "region")[5] == ("us",)
        assert table.delete().where("region = 'us'").execute().rows_deleted == 4
        assert values(table, "region") == dict.fromkeys((0, 4, 6, 8), ("eu",))
        assert all(file.file.partition[0] == "eu" for file in data_files(table))


_MAPPING = """[
    {"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["region"]},
    {"field-id": 3, "names": ["n"]}, {"field-id": 4, "names": ["cost"]},
    {"field-id": 5, "names": ["tags"], "fields": [{"field-id": 7, "names": ["element"]}]},
    {"field-id": 6, "names": ["place"], "fields": [
        {"field-id": 8, "names": ["city"]}, {"field-id": 9, "names": ["zip"]}]}
]"""


def _copy(low: int, high: int, target: str) -> None:
    """Rows of ids `low` to `high` as DuckDB writes Parquet."""
    duckdb.sql(
        f"""COPY (
            SELECT i::BIGINT AS id, CASE i % 2 WHEN 0 THEN 'eu' ELSE 'us' END AS region,
                (10 * i)::INT AS n, (i / 4.0)::DECIMAL(12, 2) AS cost, ['t', NULL] AS tags,
                {{'city': 'c' || i, 'zip': i::INT}} AS place
            FROM range({low}, {high}) AS numbers(i)
        ) {target}"""
    )
