"""One table that icefloe and Iceberg's own Spark runtime change in turn, and its expected rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from icefloe import Lake, Table
from icefloe.lake import EMBEDDED_CATALOG

Values = dict[str, Any]

# One column of every kind that both engines write.
SCHEMA = """
    id BIGINT NOT NULL, region STRING, name STRING, n INT, ok BOOLEAN,
    small DECIMAL(9, 2), middle DECIMAL(18, 4), big DECIMAL(38, 10),
    day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, real FLOAT, ratio DOUBLE, raw BINARY,
    tags ARRAY<STRING>, counts MAP<STRING, DOUBLE>,
    place STRUCT<city: STRING, spot: STRUCT<x: DOUBLE, codes: ARRAY<INT>>>,
    points ARRAY<STRUCT<x: DOUBLE, y: INT>>, paths MAP<INT, ARRAY<STRING>>
"""
REGIONS = ("eu", "us", None, "a/b c%=é")


def row(number: int) -> Values:
    """A row of the wide schema; every fifth is NULL wherever it can be."""
    if number % 5 == 4:
        return {**dict.fromkeys(StructType.fromDDL(SCHEMA).names), "id": number}
    moment = datetime(2024, 1, 1, 12, 30, 0, number) + timedelta(hours=13 * (number % 4))
    old = number % 5 == 3
    return {
        "id": number,
        "region": REGIONS[number % 4],
        "name": f"{'Zürich' * (number % 4)} number {number}",
        "n": number * 10 - 50,
        "ok": number % 2 == 0,
        "small": Decimal(number * 7 - 30).scaleb(-2),
        "middle": Decimal("12345678901234.5678") - number,
        "big": Decimal(f"{'-' if old else ''}1234567890123456789012345678.{number:010}"),
        "day": date(1960, 2, 29) if old else moment.date(),
        "at": datetime(1969, 12, 31, 23, 59, 59, 999999) if old else moment,
        "local": datetime(1900, 1, 1, 0, 0, 0, 1) if old else moment,
        "real": float("nan") if number % 3 == 0 else number / 4,
        "ratio": float("-inf") if old else number / 3,
        "raw": bytes([number % 256, 0, 255]) * number,
        "tags": [f"tag {number}", None] * (number % 3),
        "counts": {f"key {n}": None if n else number / 2 for n in range(number % 3)},
        "place": Row(f"city {number}", None if old else Row(float(number), [number, None])),
        "points": [Row(number / 8, None)] * (number % 4),
        "paths": {number: ["a", None], number + 1: None, number + 2: []},
    }


class Both:
    """A table seen by both engines.

    Steps change the table through one engine and `expected` by hand; `check()` then reads through
    both, and every value of every row must be as expected.
    """

    def __init__(self, lake: Lake, name: str, schema: str = SCHEMA) -> None:
        self.lake = lake
        self.name = name
        self.path = f"{EMBEDDED_CATALOG}.{name}"
        self.schema = schema
        self.expected: list[Values] = []

    @property
    def spark(self) -> SparkSession:
        return self.lake.spark

    @property
    def ours(self) -> Table:
        return self.lake.table(self.name)

    def made_by_reference(self, partition_by: Iterable[str] = (), **properties: str) -> Both:
        parts = ", ".join(partition_by)
        given = {**modes("merge-on-read"), **properties}
        self.sql(
            f"CREATE TABLE {{t}} ({self.schema}) USING iceberg "
            + (f"PARTITIONED BY ({parts}) " if parts else "")
            + f"TBLPROPERTIES ({_listed(given)})"
        )
        return self

    def made_by_us(self, partition_by: Iterable[str] = (), **properties: str) -> Both:
        given = {**modes("merge-on-read"), **properties}
        self.lake.create_table(
            self.name, self.schema, partition_by=tuple(partition_by), properties=given
        )
        return self

    def sql(self, text: str) -> DataFrame:
        """Run a statement with the reference; `{t}` is the table."""
        return self.spark.sql(text.replace("{t}", self.path))

    def call(self, procedure: str, arguments: str = "") -> Row:
        """Run one of the reference's maintenance procedures on the table."""
        given = f"table => '{self.name}'" + (f", {arguments}" if arguments else "")
        found = self.sql(f"CALL {EMBEDDED_CATALOG}.system.{procedure}({given})").collect()
        return found[0]

    def reference_mode(self, mode: str) -> None:
        """How the reference's next statements change rows."""
        self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({_listed(modes(mode))})")

    def frame(self, rows: Iterable[Values]) -> DataFrame:
        kinds = StructType.fromDDL(self.schema)
        values = [tuple(row[column] for column in kinds.names) for row in rows]
        return self.spark.createDataFrame(values, kinds).coalesce(1)

    def insert(self, rows: Iterable[Values]) -> None:
        """Rows from the reference."""
        rows = list(rows)
        self.frame(rows).writeTo(self.path).append()
        self.expected += rows

    def append(self, rows: Iterable[Values]) -> None:
        """Rows from icefloe."""
        rows = list(rows)
        self.ours.append(self.frame(rows))
        self.expected += rows

    def expect(self, change: Callable[[Values], Values | None]) -> None:
        """What a statement must have made of each row: a row, or None when it is gone."""
        changed = [change(dict(row)) for row in self.expected]
        self.expected = [row for row in changed if row is not None]

    def check(self) -> None:
        """Both engines have the same columns, and exactly the expected rows."""
        ours, theirs = self.ours.scan(), self.spark.table(self.path)
        assert ours.schema.simpleString() == theirs.schema.simpleString()
        expected = plain(tuple(row[c] for c in ours.columns) for row in self.expected)
        assert plain(theirs.collect()) == expected
        assert plain(ours.collect()) == expected

    def check_snapshot(self, snapshot_id: int) -> list[Any]:
        """Both engines read the same rows of a snapshot, whoever wrote it."""
        ours = self.ours.scan(snapshot_id=snapshot_id)
        theirs = self.sql(f"SELECT * FROM {{t}} VERSION AS OF {snapshot_id}")
        assert ours.schema.simpleString() == theirs.schema.simpleString()
        found = plain(ours.collect())
        assert found == plain(theirs.collect())
        return found


def modes(mode: str) -> dict[str, str]:
    return {f"write.{kind}.mode": mode for kind in ("delete", "update", "merge")}


def plain(rows: Iterable[Any]) -> list[str]:
    """Rows as values that can be compared and sorted: NaN equals NaN, maps have no order."""
    return sorted(repr(_plain(row)) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {"map": sorted((repr(_plain(k)), _plain(v)) for k, v in value.items())}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return bytes(value) if isinstance(value, bytearray) else value


def _listed(properties: dict[str, str]) -> str:
    return ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
