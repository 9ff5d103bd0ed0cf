"""Random programs of statements with certain conditions, over both tiers, against a model.

The driver alone runs those that concern a few files; Spark runs the others. Between the steps
another engine appends to the table.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from icefloe import Lake, Table
from support.tables import nulls_first

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "n", IntegerType(), required=False),
)
ARROW = pa.schema([("id", pa.int64()), ("region", pa.string()), ("n", pa.int32())])
Row = tuple[int | None, str | None, int | None]
Test = Callable[[Row], bool | None]


def either(one: bool | None, other: bool | None) -> bool | None:
    """SQL's OR."""
    if one or other:
        return True
    return None if one is None or other is None else False


def less(value: int | None, than: int) -> bool | None:
    return None if value is None else value < than


def conditions(k: int, j: int) -> list[tuple[str, Test]]:
    return [
        (f"id = {k}", lambda row: None if row[0] is None else row[0] == k),
        (f"id < {k}", lambda row: less(row[0], k)),
        (f"id IN ({k}, {j})", lambda row: None if row[0] is None else row[0] in (k, j)),
        ("region = 'eu'", lambda row: None if row[1] is None else row[1] == "eu"),
        ("region IS NULL", lambda row: row[1] is None),
        (f"n <=> {k}", lambda row: row[2] == k),
        (
            f"n < {k} OR region LIKE 'u%'",
            lambda row: either(less(row[2], k), None if row[1] is None else row[1][0] == "u"),
        ),
        (f"n IS NULL AND id >= {k}", lambda row: row[2] is None and less(row[0], k) is False),
    ]


class Program:
    """One table and its rows as a list."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.random = random.Random(seed)
        lake.create_namespace("x")
        spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
        self.table: Table = lake.create_table(
            "x.t",
            SCHEMA,
            partition_by=("region",) if seed % 2 else (),
            properties={
                "icefloe.inline.enabled": "true",
                "write.delete.mode": ["merge-on-read", "auto"][seed % 3 == 0],
            },
        )
        assert (self.table.iceberg.spec() == spec) == bool(seed % 2)
        self.rows: list[Row] = []
        self.steps: list[str] = []

    def new_rows(self, count: int) -> list[Row]:
        chosen = self.random.choice
        return [
            (
                chosen([*range(12), None]),
                chosen(["us", "eu", "up", None]),
                chosen([*range(8), None]),
            )
            for _ in range(count)
        ]

    def as_arrow(self, new: list[Row]) -> pa.Table:
        return pa.Table.from_pylist([dict(zip(ARROW.names, r, strict=True)) for r in new], ARROW)

    def insert(self) -> None:
        new = self.new_rows(self.random.randrange(1, 4))
        self.table.insert(self.as_arrow(new))
        self.rows += new

    def append(self) -> None:
        new = self.new_rows(4)
        self.table.append(self.as_arrow(new))
        self.rows += new

    def append_by_pyiceberg(self) -> None:
        new = self.new_rows(3)
        self.table.iceberg.append(self.as_arrow(new))
        self.rows += new

    def flush(self) -> None:
        self.table.flush()

    def condition(self) -> tuple[str, Test]:
        return self.random.choice(conditions(self.random.randrange(12), self.random.randrange(12)))

    def delete(self) -> None:
        text, test = self.condition()
        result = self.table.delete().where(text).execute()
        left = [row for row in self.rows if not test(row)]
        assert result.rows_deleted == len(self.rows) - len(left), text
        self.rows = left

    def update(self) -> None:
        (text, test), value = self.condition(), self.random.choice([None, 3, 77])
        shown = "NULL" if value is None else value
        update = self.table.update().set("n", shown).set("region", "'up'")
        result = update.where(text).execute()
        matches = [bool(test(row)) for row in self.rows]
        assert result.rows_updated == sum(matches), text
        self.rows = [
            (row[0], "up", value) if match else row
            for row, match in zip(self.rows, matches, strict=True)
        ]

    def compare(self) -> None:
        read = self.table.to_arrow().to_pylist()
        found = sorted((tuple(row.values()) for row in read), key=nulls_first)
        assert found == sorted(self.rows, key=nulls_first), self.steps
        assert self.table.count() == len(self.rows), self.steps
        text, test = self.condition()
        few = self.table.to_arrow(["id"], text)["id"].to_pylist()
        assert sorted(map(str, few)) == sorted(str(row[0]) for row in self.rows if test(row)), text

    def run(self, steps: int) -> None:
        kinds: list[Callable[[], Any]] = [
            *[self.insert, self.update, self.delete] * 3,
            *[self.append, self.append_by_pyiceberg, self.flush],
        ]
        for _ in range(steps):
            step = self.random.choice(kinds)
            self.steps.append(step.__name__)
            step()
            self.compare()


@pytest.mark.every_variant
@pytest.mark.requirement("X03", "L16", "L18")
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 460))]
)
def test_a_random_program_equals_a_model(lake: Lake, seed: int) -> None:
    Program(lake, seed).run(14)
