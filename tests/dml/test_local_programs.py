"""Random programs of changes that the driver makes to files, without a Spark session.

Python judges each condition, on rows of its own. Columns are renamed, promoted and added, and the
partitioning changes, between files and their deletes.
"""

from __future__ import annotations

import random
import re
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
    TimeType,
)
from pyspark.sql.connect import functions as F

from icefloe.commit import manifest_layout
from icefloe.errors import UnsupportedTableError
from icefloe.scan import arrow_rows
from icefloe.schema.arrow_values import arrow_schema
from support.inline_lakes import SparkNeededError, open_place
from support.judged_conditions import Conditions, Literal
from support.random_programs import seeds
from support.tables import data_files

pytestmark = pytest.mark.changed_by("driver")

NAN, INF = float("nan"), float("inf")
FIELDS = {
    "id": LongType(),
    "i": IntegerType(),
    "f": FloatType(),
    "d": DoubleType(),
    "n": DecimalType(20, 2),
    "s": StringType(),
    "day": DateType(),
    "ts": TimestamptzType(),
    "b": BooleanType(),
}
SCHEMA = Schema(
    *(
        NestedField(n, name, kind, required=False)
        for n, (name, kind) in enumerate(FIELDS.items(), 1)
    )
)
VALUES: dict[str, list[Any]] = {
    "i": [None, -(2**31), -1, 0, 1, 7, 2**31 - 1],
    "f": [None, NAN, INF, -INF, 0.0, -0.0, 1.5, -1.5, 0.25],
    "d": [None, NAN, INF, -INF, 0.0, -0.0, 5e-324, 1.5, -2.25, 0.1],
    "n": [None, *(Decimal(x) for x in ("0.00", "-0.01", "1.50", "-123456789012345678.12"))],
    "s": [None, "", "a", "A", "ab", "aB", "b", "é", "😀", "\uffff", "a%"],
    "day": [None, date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29)],
    "ts": [
        None,
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2024, 1, 1, tzinfo=UTC),
        datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    ],
    "b": [None, True, False],
}
LITERALS: dict[str, list[Literal]] = {
    "id": [(str(n), n) for n in range(0, 200, 7)],
    "i": [(str(n), n) for n in (-1, 0, 1, 7, -(2**31), 2**31 - 1)],
    "f": [(text, float(text)) for text in ("0.0", "-0.0", "1.5", "0.25", "2")],
    "d": [(text, float(text)) for text in ("0.0", "-0.0", "1.5", "-2.25", "0.1", "1e20")],
    "n": [(text, Decimal(text)) for text in ("0", "-0.01", "1.50", "1.5", "-123456789012345678.12")],
    "s": [(f"'{text}'", text) for text in ("", "a", "ab", "b", "é", "😀")],
    "day": [(f"DATE '{d}'", d) for d in VALUES["day"][1:]],
    "ts": [(f"TIMESTAMP '{t:%Y-%m-%d %H:%M:%S.%f}Z'", t) for t in VALUES["ts"][1:]],
    "b": [("TRUE", True), ("FALSE", False)],
}  # fmt: skip
NEW: dict[str, list[Literal]] = {
    "i": [("7", 7), ("-5", -5), ("NULL", None)],
    "f": [("0.25", 0.25), ("NULL", None)],
    "d": [("1.5", 1.5), ("1e3", 1000.0)],
    "n": [("1.5", Decimal("1.50")), ("-3", Decimal("-3.00"))],
    "s": [("'neu'", "neu"), ("''", ""), ("NULL", None)],
    "day": [("DATE '2000-02-29'", date(2000, 2, 29)), ("NULL", None)],
    "b": [("TRUE", True), ("FALSE", False)],
}
MODES = {f"write.{kind}.mode": "merge-on-read" for kind in ("delete", "update")}
MERGES = {"commit.manifest.min-count-to-merge": "2"}
LAYOUTS = [
    (),
    ("b",),
    ("d",),
    ("f", "i"),
    ("n",),
    ("day",),
    ("ts",),
    ("truncate(1, s)",),
    ("bucket(3, s)", "b"),
    ("months(day)",),
    ("days(ts)", "truncate(4, i)"),
]


def random_rows(chosen: random.Random, first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"id": number} | {name: chosen.choice(values) for name, values in VALUES.items()}
        for number in range(first, first + count)
    ]


def stored(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


class Program:
    """A table, the rows that it should have, and what was done."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chosen = random.Random(seed)
        self.steps: list[str] = []
        self.rows = random_rows(self.chosen, 0, 40)
        lake = open_place(str(folder))
        lake.create_namespace("default")
        lake.catalog.create_table("default.t", SCHEMA, properties=MODES | MERGES)
        self.table = lake.table("t")
        self.literals = dict(LITERALS)
        self.layout()
        self.add(self.rows)

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Rows as new files, which the driver writes."""
        self.table.append(pa.Table.from_pylist(rows, arrow_schema(self.table._state().schema)))

    def layout(self) -> None:
        layout = self.chosen.choice(LAYOUTS)
        self.steps.append(f"partition by {layout}")
        text = self.name("s")
        self.table.evolve_partitions([re.sub(r"\bs\b", text, part) for part in layout])

    def name(self, name: str) -> str:
        return "text" if name == "s" and "text" in self.literals else name

    def append(self) -> None:
        more = random_rows(self.chosen, 100 * len(self.steps), 15)
        if self.name("s") == "text":
            more = [{**row, "text": row["s"]} for row in more]
        self.add(more)
        self.rows = self.rows + more
        self.steps.append("append")

    def evolve(self) -> None:
        if self.name("s") == "text" or not self.rows:
            return
        self.steps.append("evolve")
        with self.table.iceberg.update_schema() as update:
            update.update_column("i", field_type=LongType())
            update.update_column("f", field_type=DoubleType())
            update.update_column("n", field_type=DecimalType(25, 2))
            update.rename_column("s", "text")
        with self.table.iceberg.update_schema() as update:
            update.add_column("s", StringType())
        self.rows = [{**row, "text": row["s"], "s": None} for row in self.rows]
        self.literals["text"] = self.literals["s"]
        self.table = self.table._lake.table(self.table.name)

    def change(self) -> bool:
        judged = Conditions(self.chosen, self.literals).condition(self.chosen.choice([0, 1, 2]))
        hits = set(judged.rows(self.rows))
        new: dict[str, Literal] = {}
        if self.chosen.random() < 0.6:
            names = self.chosen.sample(sorted(NEW), self.chosen.choice([1, 1, 2]))
            new = {name: self.chosen.choice(NEW[name]) for name in names}
        self.steps.append(f"{'UPDATE ' + str(new) if new else 'DELETE'} WHERE {judged.sql}")
        try:
            counted = self.table.count(judged.sql)
            statement: Any = self.table.update() if new else self.table.delete()
            for name, (text, _) in new.items():
                statement = statement.set(name, text)
            result = statement.where(judged.sql).execute()
        except SparkNeededError:
            self.steps.append("needs Spark")
            return False
        values = {name: value for name, (_, value) in new.items()}
        if new:
            self.rows = [{**r, **values} if n in hits else r for n, r in enumerate(self.rows)]
        else:
            self.rows = [row for n, row in enumerate(self.rows) if n not in hits]
        assert (counted, result.total_affected) == (len(hits), len(hits)), self
        return True

    def check(self) -> None:
        expected = pa.Table.from_pylist(self.rows, arrow_schema(self.table._state().schema))
        found = self.table.to_arrow()
        rows = [sorted(map(stored, each.to_pylist())) for each in (found, expected)]
        assert rows[0] == rows[1], self

    def __repr__(self) -> str:
        return "\n".join(self.steps)


def test_partitions_have_all_digits_of_a_double(tmp_path):
    """PyIceberg's compiled decoder reads them as floats: a file would be skipped, or rewritten."""
    lake = open_place(str(tmp_path))
    lake.create_namespace("default")
    schema = Schema(NestedField(1, "d", DoubleType(), required=False))
    lake.catalog.create_table("default.t", schema, properties=MODES)
    table = lake.table("t")
    table.evolve_partitions(["d"])
    values = [0.1, 1 / 3, 1e300, 5e-324, -1e-310, 16777217.0]
    table.append(pa.table({"d": values}))
    table.delete().where("d = 16777217").execute()  # lays the manifest out again
    for value in values[:-1]:
        literal = F.lit(value)
        assert table.to_arrow(where=F.col("d") == literal).column("d").to_pylist() == [value]
        assert table.count(F.col("d") == literal) == 1
    assert table.count("d = 0.1 OR d > 1e20") == 2
    assert {live.file.partition[0] for live in data_files(table)} == set(values[:-1])


def test_partitions_of_times_are_left_to_spark(tmp_path):
    """Which refuses tables with such a column."""
    lake = open_place(str(tmp_path))
    lake.create_namespace("default")
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "at", TimeType(), required=False),
    )
    lake.catalog.create_table("default.t", schema, properties=MODES)
    table = lake.table("t")
    table.iceberg.append(pa.table({"id": [1, 2], "at": [time(1, 2, 3), None]}))
    assert table.update().set("id", "5").where("id = 1").execute().rows_updated == 1
    table.evolve_partitions(["at"])
    with pytest.raises(UnsupportedTableError, match="'at' has type time"):
        table.update().set("id", "6").where("id = 5").execute()
    assert table.iceberg.scan().to_arrow().sort_by("id").to_pylist() == [
        {"id": 2, "at": None},
        {"id": 5, "at": time(1, 2, 3)},
    ]


@pytest.mark.requirement("U01", "X03")
@pytest.mark.parametrize("seed", seeds(3, 300))
def test_a_random_program(tmp_path, monkeypatch, seed):
    """Manifests are merged, and split at a few entries."""
    monkeypatch.setattr(arrow_rows, "MOST_FILES", 10_000)
    monkeypatch.setattr(manifest_layout, "MOST_ENTRIES", 3)
    program, changes = Program(tmp_path, seed), 0
    for _ in range(10):
        if len(program.rows) < 12:
            program.append()
        roll = program.chosen.random()
        if roll < 0.1:
            program.evolve()
        elif roll < 0.25:
            program.append()
        elif roll < 0.35:
            program.layout()
        elif roll < 0.4:
            program.table.rewrite_manifests()
        else:
            changes += program.change()
            program.check()
    assert changes > 1
